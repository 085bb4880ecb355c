#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of README.md and docs/performance.md, made of measured results.

    bench/figures.py --record RESULTS.json...   takes the scenarios of these runs into docs/figures.json, writes the pages
    bench/figures.py                            writes the pages again
    bench/figures.py --check                    fails if a page says something else than docs/figures.json

A page has a table wherever it says <!-- figures: NAME -->; it ends at <!-- end of figures -->. A run with a starved row,
a failed contender, or of --quick is refused: such figures say nothing of the code.
"""
import argparse
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ("README.md", "docs/performance.md")
HOME = "docs/figures.json"
MARK = re.compile(r"(<!-- figures: ([a-z0-9-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
KEYS = ("contender", "family", "ranks", "bytes", "type", "mtu", "rate", "aggregator_rate", "rounds", "time_s", "p99_s", "bound_ratio",
        "aggregator_cores", "cpu_s", "foreign_cores", "wire_bytes", "num_daemons", "loss", "loss_burst", "loss_kind", "scheme",
        "times_loss_free", "spurious_share", "direction", "limit_bytes", "is_marking", "seconds", "bytes_ratio",
        "rival", "over_second", "collective", "part", "bound", "speedup",
        "dropped_packets", "link_share", "jobs", "jain_index")
FACTS = ("processor", "cores", "vector", "kernel", "commit", "openmpi", "gloo", "compiler", "arguments")
OURS, MULTICAST = "SwitchML", "SwitchML, multicast"


class Refused(Exception):
    """Why results cannot be taken."""


def take(results):
    """{scenario: {"machine", "rows"}} of one results.json."""
    if results["quick"]:
        raise Refused("a run with --quick")
    if results["failures"]:
        raise Refused(f"a contender failed: {results['failures'][0]['what']}: {results['failures'][0]['error']}")
    starved = [row for row in results["results"] if row.get("is_starved")]
    if starved:
        raise Refused(f"{len(starved)} rows are starved, the first is {starved[0]['scenario']}, {starved[0]['contender']}: "
                      f"others had {starved[0]['foreign_cores']:.2f} cores; measure again on a quiet machine")
    taken = {}
    for row in results["results"]:
        scenario = taken.setdefault(row["scenario"], {
            "machine": {name: results["machine"].get(name) for name in FACTS}, "rows": []})
        scenario["rows"].append({key: shorten(row[key]) for key in KEYS if row.get(key) is not None})
    return taken


def shorten(value):
    return float(f"{value:.5g}") if isinstance(value, float) else value


# -- the tables ---------------------------------------------------------------------------------------------------------


def find(rows, **wanted):
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def fastest(rows):
    return min(rows, key=lambda row: row["time_s"], default=None)


def peers(rows, start):
    return [row for row in rows if row["contender"].startswith(start)]


def values(rows, *keys):
    return sorted({tuple(row[key] for key in keys) for row in rows if all(key in row for key in keys)})


def ms(row):
    if row is None:
        return "-"
    value = row["time_s"] * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio(row, over, digits=2):
    return f"{row['time_s'] / over['time_s']:.{digits}f}" if row and over else "-"


def size_text(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def markdown(heads, lines):
    if not lines:
        raise Refused("no rows for a table")
    cells = [heads, ["---"] * len(heads), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)


def without_empty_columns(heads, lines):
    kept = [index for index in range(len(heads)) if any(line[index] != "-" for line in lines)]
    return [heads[index] for index in kept], [[line[index] for index in kept] for line in lines]


def shaped(rows):
    lines = []
    chosen = [row for row in rows if row.get("aggregator_rate") == "none"]
    for size, mtu, n in values(chosen, "bytes", "mtu", "ranks"):
        case = find(chosen, bytes=size, mtu=mtu, ranks=n)
        ours = fastest(find(case, contender=OURS))
        gloo, mpi = fastest(peers(case, "Gloo")), peers(case, "Open MPI")
        own = fastest([row for row in mpi if row["contender"].endswith("default")])
        forced = fastest([row for row in mpi if row is not own])
        best = fastest([row for row in (gloo, own, forced) if row])
        lines.append([size_text(size), str(n), str(mtu), ms(ours), f"{ours['bound_ratio']:.3f}",
                      f"{ours['aggregator_cores']:.2f}", ms(gloo), ms(own), ms(forced), f"**{ratio(best, ours)}**"])
    return markdown(["S", "n", "MTU", "SwitchML, ms", "over the floor", "aggregator, cores", "Gloo, ms", "Open MPI, ms",
                     "its best forced, ms", "best peer over ours"], lines)


def unshaped(rows):
    lines = []
    for size, n in values(rows, "bytes", "ranks"):
        case = find(rows, bytes=size, ranks=n)
        ours, multicast = fastest(find(case, contender=OURS)), fastest(find(case, contender=MULTICAST))
        gloo, mpi = fastest(peers(case, "Gloo")), fastest(peers(case, "Open MPI"))
        best = fastest([row for row in (gloo, mpi) if row])
        lines.append([size_text(size), str(n), ms(ours), ms(multicast), ms(gloo), ms(mpi), f"**{ratio(best, ours)}**"])
    heads = ["S", "n", "SwitchML, ms", "with multicast, ms", "Gloo's best, ms", "Open MPI's best, ms", "best peer over ours"]
    return markdown(*without_empty_columns(heads, lines))


def microseconds(row):
    return "-" if row is None else f"{row['time_s'] * 1e6:,.0f} ({row['p99_s'] * 1e6:,.0f})"


def small(rows):
    lines = []
    for n, type_name, size in values(rows, "ranks", "type", "bytes"):
        case = find(rows, ranks=n, type=type_name, bytes=size)
        lines.append([str(n), type_name, size_text(size)] +
                     [microseconds(fastest(each)) for each in (find(case, contender=OURS), peers(case, "Gloo"),
                                                               peers(case, "Open MPI"))])
    return markdown(["n", "type", "S", "SwitchML, us (p99)", "Gloo's best", "Open MPI's best"], lines)


def loss(rows):
    lines = []
    for row in rows:
        share = f"{100 * row['loss']:g} %" + (f" in bursts of {row['loss_burst']}" if row.get("loss_burst") else "")
        lines.append([row["scheme"], share, f"{row['times_loss_free']:.3f}" if "times_loss_free" in row else "-",
                      f"{row['aggregator_cores']:.2f}" if "aggregator_cores" in row else "-",
                      f"{100 * row['spurious_share']:.2f} %" if "spurious_share" in row else "-"])
    heads = ["scheme", "loss", "time over loss-free", "aggregator, cores", "needless repeats"]
    return markdown(*without_empty_columns(heads, lines))


def sharded(rows):
    lines = []
    for row in rows:
        if "bound_ratio" in row:
            lines.append([row["contender"], str(row["ranks"]), size_text(row["bytes"]), ms(row), f"{row['bound_ratio']:.3f}",
                          f"{row['cpu_s']:.2f}"])
    return markdown(["contender", "n", "S", "ms", "over its own bound", "processor time, s"], lines)


def sharded_small(rows):
    lines = []
    chosen = [row for row in rows if "bound_ratio" not in row]
    for n, size in values(chosen, "ranks", "bytes"):
        case = find(chosen, ranks=n, bytes=size)
        lines.append([str(n), size_text(size)] + [microseconds(fastest(peers(case, each))) for each in ("SwitchML", "Gloo")])
    return markdown(["n", "S", "SwitchML without an aggregator, us (p99)", "Gloo"], lines)


def fairness(rows):
    lines = []
    for rival, limit, is_marking in values([row for row in rows if "rival" in row], "rival", "limit_bytes", "is_marking"):
        cells = [find(rows, rival=rival, direction=each, limit_bytes=limit, is_marking=is_marking) for each in ("up", "down")]
        lines.append([f"{rival}, {limit / 1e6:g} MB, " + ("marks" if is_marking else "no marks")] +
                     [f"{cell[0]['over_second']:.2f}" if cell else "-" for cell in cells])
    jobs = "".join(f"\n{row['jobs']} jobs behind one aggregator's link: Jain's index {row['jain_index']:.3f}.\n"
                   for row in rows if "jain_index" in row)
    return markdown(["beside", "up: our bytes over a second such flow's", "down"], lines) + jobs


def timed(row):
    if row is None or row["time_s"] >= 1e-3:
        return ms(row) + (" ms" if row else "")
    return f"{row['time_s'] * 1e6:,.0f} us"


def over_bound(row):
    return f"{row['bound_ratio']:.3f}" if row and row.get("bound_ratio") else "-"


def collectives(rows):
    chosen, lines = find(rows, part="shaped"), []
    for kind in dict.fromkeys(row["collective"] for row in chosen):
        case = find(chosen, collective=kind)
        ours, multicast = fastest(find(case, contender=OURS)), fastest(find(case, contender=MULTICAST))
        gloo, mpi = fastest(peers(case, "Gloo")), fastest(peers(case, "Open MPI"))
        lossy = next((row for row in case if "times_loss_free" in row), None)
        best = fastest([row for row in (gloo, mpi) if row])
        lines.append([kind.replace("_", "-").replace("both", "the first two at once"), timed(ours), over_bound(ours),
                      over_bound(multicast), f"{lossy['times_loss_free']:.3f}" if lossy else "-", timed(gloo), timed(mpi),
                      f"**{ratio(best, ours)}**"])
    return markdown(["call", "SwitchML", "over its bound", "by multicast", "1 % lost over none", "Gloo", "Open MPI's best",
                     "best peer over ours"], lines)


def fsdp2(rows):
    lines = []
    for row in rows:
        best = fastest(peers(find(rows, rate=row["rate"]), "Gloo"))
        lines.append([row["contender"], row["rate"], timed(row), row["bound"],
                      f"{row['bound_ratio']:.3f}", f"{row['cpu_s']:.1f}", f"**{ratio(best, row)}**"])
    return markdown(["contender", "links", "a step", "bound", "over it", "processor time, s", "Gloo over it"], lines)


def over(row, rows):
    best = fastest(rows)
    return f"{row['time_s'] / best['time_s']:.2f}" if row and best else "-"


def middle(rows):
    """Each cell has the ratios of all n."""
    rows, lines = find(rows, part="loopback"), []
    ranks = [n for n, in values(rows, "ranks")]
    for size, in values(rows, "bytes"):
        cells = []
        for n in ranks:
            case = find(rows, bytes=size, ranks=n)
            shared = [row for row in peers(case, "Open MPI") if "shared memory" in row["contender"]]
            networked = [row for row in case if row["family"] != "switchml" and row not in shared]
            daemon, embedded, memory = (fastest(find(case, contender=OURS + each)) for each in ("", ", embedded", ", shared memory"))
            cells.append([over(daemon, networked), over(embedded, networked), ratio(fastest(find(case, contender="Gloo, ring")), daemon),
                          over(memory, shared)])
        lines.append([size_text(size)] + [", ".join(of_all) for of_all in zip(*cells)])
    of_n = f"n = {', '.join(map(str, ranks))}: "
    return markdown(["S", of_n + "a daemon over the best peer", "none over it", "Gloo's ring over a daemon",
                     "shared memory over Open MPI's"], lines)


TABLES = {"shaped": ("shaped", shaped), "loopback": ("loopback", unshaped),
          "shared-memory": ("shared-memory", unshaped), "small": ("small", small), "loss": ("loss", loss), "simulated-loss": ("simulated-loss", loss),
          "sharded": ("sharded", sharded), "sharded-small": ("sharded", sharded_small), "fairness": ("fairness", fairness),
          "collectives": ("collectives", collectives), "middle": ("middle", middle), "fsdp2": ("fsdp2", fsdp2)}


def source(scenario):
    """How the figures came about, in a line."""
    machine, rows = scenario["machine"], scenario["rows"]
    rounds = max((row["rounds"] for row in rows if "rounds" in row), default=0)
    others = max((row["foreign_cores"] for row in rows if "foreign_cores" in row), default=None)
    arguments = re.sub(r" ?--output \S+", "", machine["arguments"] or "")
    parts = [f"`{' '.join(['bench/run', arguments]).strip()}`", f"commit {machine['commit']}"]
    parts += [f"medians of {rounds} rounds"] if rounds > 1 else []
    parts += [f"others had at most {others:.2f} cores"] if others is not None else []
    return "\n" + ", ".join(parts) + ".\n"


def fill(text, figures, page):
    """The page with each table made anew."""
    def replaced(match):
        name = match.group(2)
        if name not in TABLES:
            raise Refused(f"{page}: there are no figures '{name}'; there are {', '.join(TABLES)}")
        scenario, draw = TABLES[name]
        if scenario not in figures:
            raise Refused(f"{page}: '{name}' was never recorded: bench/run --scenario {scenario}, then --record")
        return match.group(1) + "\n" + draw(figures[scenario]["rows"]) + source(figures[scenario]) + match.group(3)
    return MARK.sub(replaced, text)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def run(options):
    home = os.path.join(options.root, HOME)
    figures = json.loads(read(home)) if os.path.exists(home) else {}
    for path in options.record:
        try:
            figures.update(take(json.loads(read(path))))
        except Refused as error:
            raise Refused(f"{path}: {error}") from error
    pages = {page: read(os.path.join(options.root, page)) for page in PAGES}
    filled = {page: fill(text, figures, page) for page, text in pages.items()}
    differing = [page for page in PAGES if filled[page] != pages[page]]
    if options.check:
        if differing:
            raise Refused(f"{', '.join(differing)}: the tables are not those of {HOME}; run bench/figures.py")
        return
    if options.record:
        text = json.dumps(figures, indent=1, sort_keys=True) + "\n"
        write(home, re.sub(r"^   \{.*?^   \}", lambda row: re.sub(r"\n *", " ", row.group()), text, flags=re.DOTALL | re.MULTILINE)) # a line each
    for page in differing:
        write(os.path.join(options.root, page), filled[page])


def main():
    parser = argparse.ArgumentParser(prog="bench/figures.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="+", default=[], metavar="RESULTS.json", help="take these runs' scenarios")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs")
    parser.add_argument("--root", default=ROOT, help=argparse.SUPPRESS)
    try:
        run(parser.parse_args())
    except (Refused, OSError, ValueError) as error:
        sys.exit(f"bench/figures.py: {error}")


if __name__ == "__main__":
    main()
