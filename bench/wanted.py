#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What is wanted of ours, and what a run reached: a line for each, from the rows of results.json.

    bench/wanted.py build/bench-report/results.json
"""
import json
import sys

import plots

K, M = 1 << 10, 1 << 20


def _where(row):
    words = [f"n = {row['ranks']}", plots.size_text(row["bytes"])]
    if row.get("rtt_us"):
        words.append(f"{row['rtt_us'] / 1000:g} ms")
    if row.get("loss"):
        words.append(f"{100 * row['loss']:g} %")
    return ", ".join(words)


def _line(what, found, wanted, is_least=False, digits=2):
    """found: [(value, row)] of which the worst counts; wanted: a limit, or one for each row by a function."""
    if not found:
        return None
    limit_of = wanted if callable(wanted) else lambda _row: wanted
    worst = (min if is_least else max)(found, key=lambda each: each[0] / limit_of(each[1]))
    value, row = worst
    limit = limit_of(row)
    return {"what": what, "wanted": f"{'at least' if is_least else 'at most'} {limit:.{digits}f}",
            "reached": f"{value:.{digits}f}", "where": _where(row), "cases": len(found),
            "is_reached": value >= limit if is_least else value <= limit,
            "is_starved": any(each.get("is_starved") for _, each in found)}


def _cases(rows, *keys):
    """{case: its rows}"""
    found = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return found


def _over_best(rows, title, is_peer, key="time_s", case=("ranks", "bytes", "rtt_us")):
    """[(time of `title` over that of the best peer, row)]"""
    found = []
    for same in _cases(rows, *case).values():
        ours = next((row for row in same if row["contender"] == title), None)
        peers = [row[key] for row in same if is_peer(row)]
        if ours and peers:
            found.append((ours[key] / min(peers), ours))
    return found


def _within(found, low, high):
    return [each for each in found if low <= each[1]["bytes"] <= high]


def is_shared(row):
    return "shared memory" in row["contender"]


def _by_udp(row):
    return row["family"] != "switchml" and not is_shared(row)


def _middle_loopback(rows):
    daemon, embedded = (_over_best(rows, title, _by_udp) for title in ("SwitchML", "SwitchML, embedded"))
    shared = _over_best(rows, "SwitchML, shared memory", lambda row: row["family"] == "openmpi" and is_shared(row))
    tcp = lambda row: row["family"] == "openmpi" and not is_shared(row)
    gloo = [(1 / ratio, row) for ratio, row in _over_best(rows, "SwitchML", lambda row: row["contender"] == "Gloo, ring")]
    small = {title: [each for each in _within(_over_best(rows, title, tcp), 4, K) if each[1]["ranks"] == 2]
             for title in ("SwitchML", "SwitchML, embedded")}
    tails = _within(_over_best(rows, "SwitchML, embedded", tcp, "p99_s"), 4, K)
    for n in sorted({row["ranks"] for row in rows}):
        of_n = lambda found, n=n: _within([each for each in found if each[1]["ranks"] == n], 16 * K, 16 * M)
        yield _line(f"loopback, a daemon over the best peer, n = {n}, 16 KiB to 16 MiB", of_n(daemon), 1.1 * n / (n - 1))
        yield _line(f"loopback, embedded over the best peer, n = {n}, 16 KiB to 16 MiB", of_n(embedded), 1.1)
    yield _line("loopback, Gloo's ring over ours, n = 4, 8, 16 KiB to 16 MiB",
                [each for each in _within(gloo, 16 * K, 16 * M) if each[1]["ranks"] > 2], 1.3, is_least=True)
    yield _line("loopback, embedded over Open MPI's TCP, n = 2, 4 B to 1 KiB", small["SwitchML, embedded"], 1.5)
    yield _line("loopback, a daemon over Open MPI's TCP, n = 2, 4 B to 1 KiB", small["SwitchML"], 2.5)
    yield _line("loopback, 99th percentile, embedded over Open MPI's TCP, n = 2, 4 B to 1 KiB",
                [each for each in tails if each[1]["ranks"] == 2], 1.5)
    yield _line("shared memory over Open MPI's, below 1 KiB", _within(shared, 4, K - 1), 1.5)
    yield _line("shared memory over Open MPI's, 1 KiB to 64 MiB", _within(shared, K, 64 * M), 1.0)
    yield _line("shared memory, Open MPI's over ours, 4 to 64 MiB",
                [(1 / ratio, row) for ratio, row in _within(shared, 4 * M, 64 * M)], 2.0, is_least=True)


def _middle_hosts(rows):
    best = {}
    for title in ("SwitchML", "SwitchML, embedded"):
        for ratio, row in _over_best(rows, title, _by_udp):
            best.setdefault(row["rtt_us"], {}).setdefault(title, []).append((ratio, row))
    for rtt_us, by_title in sorted(best.items()):
        for title, found in by_title.items():
            yield _line(f"hosts at {rtt_us:g} us, {title} over the best peer", found, 1.1)


def _middle_shaped(rows):
    ours = [row for row in rows if row.get("wanted_s")]
    yield _line("1 Gbit/s links, ours over 1.15 S/B and two idle round trips", [(row["time_s"] / row["wanted_s"], row) for row in ours], 1.0)
    gloo = _over_best([row for row in rows if row["bytes"] >= 64 * K], "SwitchML", lambda row: row["family"] == "gloo")
    yield _line("1 Gbit/s links, Gloo's best over ours, 64 KiB to 4 MiB", [(1 / ratio, row) for ratio, row in gloo], 1.5, is_least=True)


def _long_path(rows, part):
    name = {"bed": "over the bed", "simulated": "in virtual time"}[part]
    ours = [row for row in rows if row["contender"] == "SwitchML"]
    free = {(row["ranks"], row["rtt_us"]): row["time_s"] for row in ours if row["loss"] == 0}
    yield _line(f"{name}, loss-free over 1.05 S/B and four round trips",
                [(row["time_s"] / row["wanted_s"], row) for row in ours if row["loss"] == 0 and "wanted_s" in row], 1.0, digits=3)
    for loss, limit in ((0.001, 1.10), (0.01, 1.20)):
        yield _line(f"{name}, {100 * loss:g} % lost over loss-free",
                    [(row["time_s"] / free[row["ranks"], row["rtt_us"]], row) for row in ours
                     if row["loss"] == loss and (row["ranks"], row["rtt_us"]) in free], limit)
    yield _line(f"{name}, questions and repeats for each lost packet",
                [(row["questions"], row) for row in ours if row.get("questions")], 4.0)
    for control, limit in (("Cubic", 5.0), ("BBR", 1.5)):
        found = _over_best([row for row in rows if row["loss"] == 0.001 and row["rtt_us"] == 100_000], "SwitchML",
                           lambda row, control=control: row["contender"].endswith(control), case=("ranks", "rtt_us"))
        yield _line(f"{name}, Gloo over {control} over ours, 100 ms, 0.1 %", [(1 / ratio, row) for ratio, row in found], limit,
                    is_least=True)


def _collectives(rows):
    def values(key, kind, title="SwitchML"):
        return [(row[key], row) for row in rows if (row["contender"], row["collective"]) == (title, kind) and row.get(key)]
    for kind, limit in (("reduce_scatter", 1.02), ("all_gather", 1.02), ("both", 1.05), ("broadcast", 1.02)):
        what = "both at once" if kind == "both" else kind
        yield _line(f"{what} over its bound", values("bound_ratio", kind), limit, digits=3)
        yield _line(f"{what} by multicast, over its bound", values("bound_ratio", kind, "SwitchML, multicast"), limit, digits=3)
        yield _line(f"{what}, 1 % lost over loss-free", values("times_loss_free", kind, "SwitchML, 1 % lost"), 1.05, digits=3)
    gloo = _over_best([row for row in rows if row["collective"] == "reduce_scatter"], "SwitchML", lambda row: row["family"] == "gloo")
    yield _line("reduce_scatter, torch's Gloo over ours", [(1 / ratio, row) for ratio, row in gloo], 1.7, is_least=True)
    yield _line("barrier over an all-reduce of 4 bytes", values("over_all_reduce", "barrier"), 1.0)


def _fsdp(rows):
    def values(key, title):
        return [(row[key], row) for row in rows if row["contender"] == title and row.get(key)]
    yield _line("a step over its bound", values("bound_ratio", "SwitchML"), 1.10, digits=3)
    yield _line("a step without an aggregator over its bound", values("bound_ratio", "SwitchML, embedded"), 1.10, digits=3)
    yield _line("a step, torch's Gloo over ours", values("speedup", "SwitchML"), 1.7, is_least=True)
    yield _line("a step, torch's Gloo over ours without an aggregator", values("speedup", "SwitchML, embedded"), 1.25, is_least=True)


def _fairness(rows):
    for row in rows:
        what = (f"beside {row['rival']}, {row['direction']}, {row['limit_bytes'] / 1e6:g} MB, "
                f"{'marks' if row['is_marking'] else 'no marks'}: over a second flow of that kind")
        row = {"bytes": row["limit_bytes"], **row}
        yield _line(f"{what}, least", [(row["over_second"], row)], 0.5, is_least=True)
        yield _line(f"{what}, most", [(row["over_second"], row)], 2.0)


def lines(rows):
    """[{what, wanted, reached, where, cases, is_reached, is_starved}]"""
    found = []
    for scenario, part, make in (("middle", "loopback", _middle_loopback), ("middle", "hosts", _middle_hosts),
                                 ("middle", "shaped", _middle_shaped),
                                 ("long-path", "bed", lambda rows: _long_path(rows, "bed")),
                                 ("long-path", "simulated", lambda rows: _long_path(rows, "simulated")),
                                 ("collectives", "shaped", _collectives), ("fsdp", None, _fsdp), ("fsdp2", None, _fsdp), ("fairness", None, _fairness)):
        chosen = [row for row in rows if row["scenario"] == scenario and row.get("part") == part and
                  (scenario != "fairness" or "over_second" in row)]
        found += [{"scenario": scenario, **line} for line in make(chosen) if line] if chosen else []
    return found


def text(rows):
    """A table for people; "" where nothing of this was measured."""
    found = lines(rows)
    if not found:
        return ""
    table = ["what | wanted | reached | worst at | cases | "]
    for line in found:
        table.append(f"{line['what']} | {line['wanted']} | {line['reached']} | {line['where']} | {line['cases']} | "
                     f"{'yes' if line['is_reached'] else 'NO'}{', starved: proves nothing' if line['is_starved'] else ''}")
    return "\n".join(table)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(text(json.load(file)["results"]))
