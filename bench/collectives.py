# SPDX-License-Identifier: Apache-2.0
"""The collectives of sharded training beside Gloo's and Open MPI's: reduce-scatter, all-gather, both at once, broadcast and
barrier, over links of 1 Gbit/s, and small over the loopback."""
import netbed
import places
from contenders import Gloo, MulticastSwitchML, OpenMPI, SwitchML

K, M = 1 << 10, 1 << 20
RATE = "1gbit"
LOSS = 0.01
# A kind has its name in `switchml bench`, the bytes that a link carries over S, ours and a ring's, what Gloo calls (as
# PyTorch does: a reduce-scatter is an all-reduce of which most is dropped) with its share, and algorithms of Open MPI's
# that may be better than what it chooses: rings and a pipeline.
KINDS = {
    "reduce_scatter": ("reduce_scatter", lambda n: (n - 1) / n, lambda n: (n - 1) / n, "ring", lambda n: 2 * (n - 1) / n, 3),
    "all_gather": ("all_gather", lambda n: (n - 1) / n, lambda n: (n - 1) / n, "all_gather", None, 4),
    "both": ("reduce_scatter+all_gather", lambda n: 1, lambda n: 2 * (n - 1) / n, "both", lambda n: 3 * (n - 1) / n, None),
    "broadcast": ("broadcast", lambda n: 1, lambda n: 1, "broadcast", None, 3)}
BY_MULTICAST = ("all_gather", "both", "broadcast")


def ours(session, n, kind, maker=SwitchML, **keywords):
    name = KINDS[kind][0] if kind in KINDS else kind
    return maker(session.processes, n, arguments=["--collective", name], **keywords)


def peers(session, n, kind):
    found = []
    if session.wants("gloo"):
        found.append(Gloo(session.processes, n, session.tools, KINDS[kind][3] if kind in KINDS else kind))
        found[0].title = "Gloo, all-reduce and slice" if kind == "reduce_scatter" else "Gloo"
    if session.wants("openmpi"):
        forced = KINDS[kind][5] if kind in KINDS else None
        for algorithm in [0] + ([forced] if forced and not session.options.quick else []):
            found.append(OpenMPI(session.processes, n, session.tools, algorithm, call=kind))
            found[-1].title = "Open MPI TCP, forced" if algorithm else "Open MPI TCP"
    return found


def contenders(session, n, kind, is_shaped):
    found = [ours(session, n, kind)]
    if is_shaped and kind in BY_MULTICAST and n > 2:
        found.append(ours(session, n, kind, MulticastSwitchML))
    if is_shaped:
        found.append(ours(session, n, kind, title=f"SwitchML, {100 * LOSS:g} % lost", faults=f"loss={LOSS}", port=4802))
    return found + peers(session, n, kind)


def give_bounds(rows, kind, rate_bps, mtu):
    """What the links allow each, its framing counted. By multicast a rank gets its own part back, beside its sums."""
    _, our_share, ring_share, _, gloo_share, _ = KINDS[kind]
    for row in rows:
        link_s, floor = row["bytes"] * 8 / rate_bps, (mtu + 14) / (mtu - 52)
        share = (gloo_share if row["family"] == "gloo" and gloo_share else ring_share)(row["ranks"])
        if row["family"] == "switchml":
            share, floor = our_share(row["ranks"]), row["floor"]
            if "multicast" in row["contender"]:
                share = 1 + 1 / row["ranks"] if kind == "both" else 1
        row["link_s"], row["bound_s"], row["bound"] = link_s, link_s * share * floor, f"{share:.3g} S/B"
        row["bound_ratio"], row["link_ratio"] = row["time_s"] / row["bound_s"], row["time_s"] / link_s


def give_loss(rows):
    clean = next((row for row in rows if row["contender"] == SwitchML.title), None)
    for row in rows:
        row["loss"] = LOSS if "lost" in row["contender"] else 0.0
        if row["loss"] and clean:
            row["times_loss_free"] = row["time_s"] / clean["time_s"]


def barrier(session, place, n, case):
    """Beside an all-reduce of 4 bytes, which takes as many rounds."""
    iters = 50 if session.options.quick else 500
    least = ours(session, n, "all_reduce", title="SwitchML, all-reduce", port=4803)
    rows = session.measure(place, [ours(session, n, "barrier"), least, *peers(session, n, "barrier")], [(4, iters)],
                           {**case, "collective": "barrier"})
    base = next((row["time_s"] for row in rows if row["contender"] == least.title), None)
    for row in rows:
        row["over_all_reduce"] = row["time_s"] / base if base else None


def shaped(session):
    for n in session.pick("n", [8], [4]):
        with places.bed(n, rate=RATE, mtu=1500) as place:
            case = {"part": "shaped", "mtu": 1500, "rate": RATE, "aggregator_rate": "none"}
            for size in session.pick("sizes", [64 * M], [16 * M]):
                for kind in KINDS:
                    rows = session.measure(place, contenders(session, n, kind, True), [(size, 1)], {**case, "collective": kind})
                    give_bounds(rows, kind, netbed.parse_rate(RATE), 1500)
                    give_loss(rows)
            barrier(session, place, n, case)
            session.save()


def small(session):
    sizes = session.pick("sizes", [K, 64 * K, M], [K, M])
    for n in session.pick("n", [4], [3]):
        with places.loopback() as place:
            case = {"part": "loopback", "mtu": 65536, "rate": "none"}
            for kind in KINDS:
                runs = [(size // (4 * n) * 4 * n or 4 * n, max(5, min(200, 16 * M // size))) for size in sizes]
                session.measure(place, contenders(session, n, kind, False), runs, {**case, "collective": kind})
            barrier(session, place, n, case)
            session.save()


def collectives(session):
    """Reduce-scatter, all-gather, both at once, broadcast, barrier: 1 Gbit/s, n = 8, 64 MiB; small ones over loopback"""
    chosen = session.options.parts or ["shaped", "loopback"]
    why = netbed.why_unavailable()
    if "shaped" in chosen and why:
        session.note(f"links were not measured: {why}")
    elif "shaped" in chosen:
        shaped(session)
    if "loopback" in chosen:
        small(session)
