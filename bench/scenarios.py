# SPDX-License-Identifier: Apache-2.0
"""What is measured. Each scenario is one function of a session; its first line of text is its help."""
import contextlib
import json
import os
import re
import subprocess

import netbed
import places
from contenders import BUILD, ROOT, ROUND_TIMEOUT_S, Gloo, MulticastSwitchML, OpenMPI, SwitchML, copy_rate
from collectives import collectives
from counts import gate
from fairness import fairness
from fsdp2 import fsdp2
from paths import exact, long_path, middle
from sharded import sharded
from training import fsdp, training

K, M = 1 << 10, 1 << 20
RATE = "1gbit"
TCP_OVERHEAD_BYTES = 52 + 14  # IPv4, TCP with time stamps, Ethernet
SHARED_MEMORY = {"SWITCHML_SHARED_MEMORY": "1"}


def tcp_floor(mtu):
    return (mtu + 14) / (mtu - 52)


def ring_share(n):
    """Bytes that a rank of a ring must send, over the bytes of its tensor."""
    return 2 * (n - 1) / n


def give_bounds(rows, rate_bps, mtu, aggregator_rate_bps=None):
    """What the links allow each contender: its own bound, its framing counted."""
    for row in rows:
        link_s = row["bytes"] * 8 / rate_bps
        n = row["ranks"]
        row["link_s"] = link_s
        if row["family"] == "switchml":
            share = max(1.0, n * rate_bps / aggregator_rate_bps if aggregator_rate_bps else 1.0)
            row["bound_s"], row["bound"] = link_s * share * row["floor"], "S/B" if share == 1 else f"{share:g} S/B"
        else:
            row["bound_s"], row["bound"] = link_s * ring_share(n) * tcp_floor(mtu), f"{ring_share(n):.3g} S/B"
        row["bound_ratio"], row["link_ratio"] = row["time_s"] / row["bound_s"], row["time_s"] / link_s


def best_gloo(session, place, n, runs, type_name="float32"):
    """Gloo's ring, and its best where that is another."""
    if not session.wants("gloo"):
        return []
    ring = Gloo(session.processes, n, session.tools)
    if session.options.quick:
        return [ring]
    best = session.best(place, [Gloo(session.processes, n, session.tools, name) for name in Gloo.algorithms
                                if name != "halving-doubling" or n & (n - 1) == 0], runs, type_name)
    return [ring] + ([best] if best and best.algorithm != "ring" else [])


def best_mpi(session, place, n, runs, type_name="float32", transport="tcp"):
    """Open MPI's own choice of algorithm, and the best one that can be forced."""
    if not session.wants("openmpi"):
        return []
    make = lambda algorithm: OpenMPI(session.processes, n, session.tools, algorithm, transport)
    if session.options.quick:
        return [make(0), make(4)]
    best = session.best(place, [make(each) for each in OpenMPI.algorithms if each], runs, type_name)
    return [make(0)] + ([best] if best else [])


def shaped(session):
    """1 Gbit/s links in namespaces, n = 2, 4, 8, MTU 1500 and 9000, 64 and 100 MiB; also 1 x B at the aggregator"""
    sizes = session.pick("sizes", [64 * M, 100 * M], [16 * M])
    for mtu in session.pick("mtu", [1500, 9000], [1500]):
        for n in session.pick("n", [2, 4, 8], [2, 8]):
            for aggregator_rate in ("none", RATE):
                with places.bed(n, rate=RATE, mtu=mtu, aggregator_rate=aggregator_rate) as place:
                    is_shared = aggregator_rate != "none"
                    if is_shared and (session.options.quick or mtu != 1500):
                        continue
                    ours = SwitchML(session.processes, n)
                    multicast = [] if is_shared or n == 2 else [MulticastSwitchML(session.processes, n)]
                    peers = [] if is_shared else (best_gloo(session, place, n, [(sizes[0], 1)]) +
                                                  best_mpi(session, place, n, [(sizes[0], 1)]))
                    for size in sizes[:1] if is_shared else sizes:
                        case = {"mtu": mtu, "rate": RATE, "aggregator_rate": aggregator_rate}
                        rows = session.measure(place, [ours, *multicast, *peers], [(size, 1)], case)
                        give_bounds(rows, netbed.parse_rate(RATE), mtu,
                                    netbed.parse_rate(RATE) if is_shared else None)
                        session.save()


def give_copy_bound(session, rows, copies, what):
    """How long the memory copies alone take that cannot be avoided: `copies`(n) times the tensor."""
    rates = {}
    for row in rows:
        n = row["ranks"]
        if n not in rates:
            rates[n] = copy_rate(session.tools, n, 16 * M)
        row["copy_GBps"] = rates[n] / 1e9
        row["bound_s"], row["bound"] = copies(n) * row["bytes"] / rates[n], what
        row["bound_ratio"] = row["time_s"] / row["bound_s"]


def loopback(session):
    """Loopback, unshaped: 16 MiB at n = 2, 4, 8, ours over UDP"""
    size = session.pick("sizes", [16 * M], [16 * M])[0]
    iters = 3 if session.options.quick else 10
    for n in session.pick("n", [2, 4, 8], [2, 8]):
        with places.loopback() as place:
            multicast = [] if n == 2 else [MulticastSwitchML(session.processes, n)]
            contenders = [SwitchML(session.processes, n), *multicast, *best_gloo(session, place, n, [(size, 3)]),
                          *best_mpi(session, place, n, [(size, 3)])]
            rows = session.measure(place, contenders, [(size, iters)], {"mtu": 65536, "rate": "none"})
            give_copy_bound(session, rows, lambda n: 4 * n, "4 n S through the kernel, at the rate of memcpy")
            session.save()


def iterations_of(size, is_quick):
    budget = (8 if is_quick else 40) * M
    return max(3 if is_quick else 5, min(100 if is_quick else 400, budget // size))


def sizes(session):
    """Loopback, 4 B to 100 MiB, n = 4: algbw over size"""
    chosen = session.pick("sizes", [4, 64, K, 4 * K, 16 * K, 64 * K, 256 * K, M, 4 * M, 16 * M, 64 * M, 100 * M],
                          [4, 4 * K, 64 * K, M, 16 * M])
    for n in session.pick("n", [4], [4]):
        with places.loopback() as place:
            contenders = [SwitchML(session.processes, n)]
            if session.wants("gloo"):
                contenders.append(Gloo(session.processes, n, session.tools))
            if session.wants("openmpi"):
                contenders.append(OpenMPI(session.processes, n, session.tools))
            contenders.append(SwitchML(session.processes, n, "SwitchML, shared memory", SHARED_MEMORY, port=4801))
            runs = [(size, iterations_of(size, session.options.quick)) for size in chosen]
            session.measure(place, contenders, runs, {"mtu": 65536, "rate": "none"})


def shared_memory(session):
    """One host's shared memory, 16 MiB, n = 4, 8, beside Open MPI's"""
    size, iters = 16 * M, 5 if session.options.quick else 20
    for n in session.pick("n", [4, 8], [4]):
        with places.loopback() as place:
            contenders = [SwitchML(session.processes, n, environment=SHARED_MEMORY)]
            if session.wants("openmpi"):
                contenders += best_mpi(session, place, n, [(size, 3)], transport="vader")
            rows = session.measure(place, contenders, [(size, iters)], {"mtu": None, "rate": "none"})
            if any(row["family"] == "switchml" and row["payload_bytes"] > size / 10 for row in rows):
                session.note("the ranks used the network: what is said of ours is not shared memory")
            give_copy_bound(session, rows, lambda n: n, "n S: each rank's output written once, an input read once")
            session.save()


def small(session):
    """Latency: loopback, 4 B to 16 KiB, n = 2, 4, int32 and float32; median and 99th percentile"""
    chosen = session.pick("sizes", [4, 64, K, 4 * K, 16 * K], [4, K, 16 * K])
    iters = 300 if session.options.quick else 2000
    for n in session.pick("n", [2, 4], [2]):
        for type_name in ("int32", "float32"):
            with places.loopback() as place:
                probes = [(4, 200), (16 * K, 200)]
                contenders = [SwitchML(session.processes, n)]
                if session.wants("gloo"):
                    contenders += best_gloo(session, place, n, probes, type_name)
                if session.wants("openmpi"):
                    contenders += best_mpi(session, place, n, probes, type_name)
                session.measure(place, contenders, [(size, iters) for size in chosen], {"mtu": 65536, "rate": "none"},
                                type_name)


LOSSES = [(0.0, 0), (0.001, 0), (0.01, 0), (0.05, 0), (0.01, 64)]
# NSDI'21 repeats after a fixed time and keeps a chunk's slot: as many slots as are through well within that time, or it
# repeats all the time without any loss.
SCHEMES = {None: "SwitchML", 1: "as the paper, 1 ms", 10: "as the paper, 10 ms"}
SLOTS_OF_SCHEME = {None: [], 1: ["--slots", "64"], 10: []}  # in virtual time, where 512 is the default
SLOTS_TRIED = {1: (16, 32, 64), 10: (128, 256, 512)}  # over sockets: processes wait for a processor, too
PAPER_LOSSES = [(0.0, 0), (0.001, 0), (0.01, 0)]


class LossySwitchML(SwitchML):
    """With the aggregator's own word, at its end, on how many updates it had already: those repeats were needless."""

    num_needless = None

    def __init__(self, processes, n, build, port, scheme, loss, burst, num_slots=None):
        faults = "" if loss == 0 else f"loss={loss}" + (f",burst={burst}" if burst else "")
        title = SCHEMES[scheme] + (f", {100 * loss:g} % lost" if loss else "") + (f", bursts of {burst}" if burst else "")
        environment = {"SWITCHML_PAPER_TIMEOUT_US": str(1000 * scheme)} if scheme else {}
        arguments = ["--slots", str(num_slots)] if num_slots else []
        super().__init__(processes, n, title, environment, faults=faults, arguments=arguments, port=port,
                         build=build if scheme else BUILD)
        self.scheme, self.loss, self.burst, self.num_slots = scheme, loss, burst, num_slots

    def stop(self):
        text = ""
        if self.daemon and self.log:
            self.daemon.terminate()
            with contextlib.suppress(Exception):
                self.daemon.wait(timeout=5)
            text = self.log_text()
        super().stop()
        if "dropped_packets=" in text:
            self.num_needless = sum(map(int, re.findall(r"\b(?:NEEDLESS|DUPLICATE|STALE_PHASE)=(\d+)", text)))


def lossy_contenders(session, place, n, size):
    """Ours at each loss, then the paper's scheme with the slots that are best for it without loss."""
    is_quick = session.options.quick
    build = build_variant(session, "paper")
    make = lambda *case: LossySwitchML(session.processes, n, build, *case)
    cases = [(None, *each, None) for each in (LOSSES[:1] + LOSSES[2:3] + LOSSES[4:] if is_quick else LOSSES)]
    for scheme in (1, 10) if build else ():
        best = session.best(place, [make(4700 + slots, scheme, 0.0, 0, slots) for slots in SLOTS_TRIED[scheme]],
                            [(min(size, 16 * M), 1)])
        cases += [(scheme, *each, best.num_slots) for each in (PAPER_LOSSES[::2] if is_quick else PAPER_LOSSES) if best]
    return [make(5300 + 10 * i, *case) for i, case in enumerate(cases)]


def loss(session):
    """Loss per receiver at 1 Gbit/s, 100 MiB, n = 8: 0, 0.1, 1, 5 %, and 1 % in bursts of 64; beside the paper's scheme"""
    size = session.pick("sizes", [100 * M], [16 * M])[0]
    for n in session.pick("n", [8], [4]):
        for mtu in session.pick("mtu", [1500], [1500]):
            with places.bed(n, rate=RATE, mtu=mtu) as place:
                chosen = lossy_contenders(session, place, n, size)
                rows = session.measure(place, chosen, [(size, 1)],
                                       {"mtu": mtu, "rate": RATE, "aggregator_rate": "none"})
                give_bounds(rows, netbed.parse_rate(RATE), mtu)
                by_title = {each.title: each for each in chosen}
                for row in rows:
                    give_loss(row, by_title[row["contender"]], rows)
                session.save()


def give_loss(row, contender, rows):
    """What was lost and repeated in vain, and the time over that of the same scheme without loss."""
    row["loss"], row["loss_burst"], row["scheme"] = contender.loss, contender.burst, SCHEMES[contender.scheme]
    num_packets = 2 * row["ranks"] * row["bytes"] / row["chunk_bytes"]
    if contender.num_needless is not None: # of the updates that are not timed, too
        num_updates = contender.num_needless / row["rounds"] / 2
        row["spurious_share"] = (num_updates + row["needless_results"]) / num_packets
    clean = next((other for other in rows if other["contender"] == row["scheme"]), None)
    row["times_loss_free"] = row["time_s"] / clean["time_s"] if clean else None


def build_variant(session, variant):
    """A build of its own with one of bench/variants; None if it cannot be made."""
    build = f"{BUILD.rstrip('/')}-{variant}"
    session.say(f"building {build}")
    commands = [] if os.path.exists(os.path.join(build, "build.ninja")) else [
        ["meson", "setup", build, ROOT, f"-Dvariant={variant}"]]
    commands.append(["ninja", "-C", build, "src/switchd/switchmld", "src/cli/switchml", "bench/counts/counts"])
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            session.note(f"{variant} was not measured: {' '.join(command)}: {result.stdout[-300:]}")
            return None
    return build


def count_checks(session, build, what):
    """What CRC or timers cost in instructions, which do not depend on the machine's other load."""
    try:
        costs = [gate.count_instructions(os.path.join(each, "bench/counts/counts"), 2, "float32")
                 for each in (BUILD, build)]
    except (gate.NotHere, RuntimeError) as why:
        session.note(f"instructions were not counted: {why}")
        return
    for role in gate.ROLES:
        session.note(f"in-process back end, n = 2, float32: {costs[0][role]:.0f} instructions a chunk in the {role}'s "
                     f"engine, without {what} {costs[1][role]:.0f}: {costs[0][role] / costs[1][role]:.3f} times")


SIMULATED_LOSSES = {"uniform": [0.001, 0.01, 0.05], "segmented": [0.01]}


def simulate_loss(session, n, size, scheme, kind):
    """Rows of build/sim/loss: the shipped engines in virtual time, no processor in the way."""
    command = [os.path.join(BUILD, "sim/loss"), "--workers", str(n), "--size", str(size), "--kind", kind, "--json",
               "--loss", ",".join(map(str, SIMULATED_LOSSES[kind])), *(["--paper", str(scheme)] if scheme else []), *SLOTS_OF_SCHEME[scheme]]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ROUND_TIMEOUT_S).stdout
    rows = []
    for each in map(json.loads, output.splitlines()):
        if not each["right"]:
            raise places.BenchError(f"{' '.join(command)}: a wrong sum")
        packets = max(each["packets"], 1)
        rows.append({"scenario": session.scenario, "contender": SCHEMES[scheme], "family": "switchml", "ranks": n,
                     "bytes": size, "type": "float32", "rate": RATE, "mtu": 1500, "scheme": SCHEMES[scheme],
                     "command": " ".join(["build/sim/loss", *command[1:]]), "loss": each["loss"], "loss_kind": kind,
                     "loss_burst": 0 if kind == "uniform" else 64, "time_s": each["time_ms"] / 1e3,
                     "bound_ratio": each["over_floor"], "times_loss_free": each["over_loss_free"],
                     "retransmissions": each["retransmissions"],
                     "spurious_share": (each["spurious_updates"] + each["spurious_results"]) / packets,
                     "slot_spread": each["slot_max"] / each["slot_mean"] if each["slot_mean"] else None})
    return rows


def simulated_loss(session):
    """Loss in virtual time, n = 8, 100 MiB: ours, and the paper's static slots with timeouts of 1 and 10 ms"""
    if not os.path.exists(os.path.join(BUILD, "sim/loss")):
        session.note("not available: this build has no sim/loss")
        return
    size = session.pick("sizes", [100 * M], [8 * M])[0]
    for n in session.pick("n", [8], [8]):
        for scheme in SCHEMES:
            for kind in SIMULATED_LOSSES:
                session.say(f"n {n}  {SCHEMES[scheme]}  {kind}")
                try:
                    session.add(simulate_loss(session, n, size, scheme, kind))
                except session.expected as error:
                    session.fail(f"{SCHEMES[scheme]}, {kind}", error)


def checks(session):
    """What check words, CRC and timers cost: loopback, unshaped, n = 2, 4, and instructions in process"""
    size, iters = 16 * M, 3 if session.options.quick else 10
    builds = {what: build_variant(session, f"without-{what}") for what in ("crc", "timers")}
    for n in session.pick("n", [2, 4], [2]):
        with places.loopback() as place:
            contenders = [SwitchML(session.processes, n), SwitchML(session.processes, n, "SwitchML, check words",
                                                                   {"SWITCHML_CHECK": "1"}, port=4801)]
            contenders += [SwitchML(session.processes, n, f"SwitchML, without {what}", port=4802 + i, build=build)
                           for i, (what, build) in enumerate(builds.items()) if build]
            session.measure(place, contenders, [(size, iters)], {"mtu": 65536, "rate": "none"})
    for what, build in builds.items():
        if build:
            count_checks(session, build, what)


SCENARIOS = {"shaped": shaped, "loopback": loopback, "sizes": sizes, "shared-memory": shared_memory, "small": small,
             "loss": loss, "simulated-loss": simulated_loss, "fairness": fairness, "checks": checks,
             "sharded": sharded, "collectives": collectives, "training": training, "fsdp": fsdp, "fsdp2": fsdp2,
             "middle": middle, "long-path": long_path, "exact": exact}
NEEDS_BED = {"middle", "long-path", "shaped", "loss", "fairness", "sharded", "training", "fsdp", "fsdp2"}
