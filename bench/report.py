# SPDX-License-Identifier: Apache-2.0
"""results.json to one page without outside assets, report.html, and the plots as files beside it."""
import html
import json
import os
import sys

import plots
import wanted

STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em;color:#222}
h1{font-size:1.6em}h2{margin-top:2em;border-bottom:1px solid #ccc}table{border-collapse:collapse;font-size:13px;margin:1em 0}
th,td{padding:2px 9px;text-align:right;border-bottom:1px solid #e5e5e5;white-space:nowrap}th{background:#f4f4f4}
td:first-child,th:first-child{text-align:left}tr.ours{font-weight:600}tr.first td{border-top:2px solid #999}
.scroll,figure{overflow-x:auto}figure{margin:1.5em 0}figcaption{color:#555}svg{max-width:100%;min-width:600px;height:auto}
code{background:#f4f4f4;padding:0 3px}.bad{color:#b00}dl{display:grid;grid-template-columns:max-content minmax(0,auto);gap:2px 1em}
dt{color:#555}dd{margin:0}p,dd{overflow-wrap:anywhere}@media(max-width:600px){body{margin:1em auto}dl{display:block}}"""

TITLES = {"shaped": "1 Gbit/s links", "loopback": "Loopback, unshaped", "sizes": "All sizes, loopback",
          "shared-memory": "One host, shared memory", "small": "Small tensors, loopback", "loss": "Loss", "simulated-loss": "Loss in virtual time, beside the paper's scheme",
          "fairness": "Beside other traffic", "sharded": "Several aggregators, and none", "collectives": "The collectives of sharded training", "checks": "What the checks cost",
          "training": "Training, replayed", "fsdp": "Sharded training, replayed", "fsdp2": "A step of PyTorch's FSDP2", "middle": "The middle of the curve", "long-path": "Long paths"}
PLOTS_OF = {"shaped": ["time-over-n", "cpu-per-gb"], "loopback": ["one-host"], "sizes": ["algbw-over-size"],
            "small": ["latency"], "loss": ["time-over-loss"], "simulated-loss": ["simulated-loss"], "fairness": ["fairness"],
            "training": ["training"], "middle": ["time-over-size"]}


def number(value, digits=3):
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def milliseconds(row, key):
    value = row.get(key)
    if value is None:
        return "-"
    return f"{value * 1e6:.1f} us" if row["scenario"] == "small" or value < 1e-3 else f"{value * 1e3:.1f} ms"


def _spread(row):
    if not row.get("fastest_s"):
        return "-"
    return f"{100 * (row['fastest_s'] / row['time_s'] - 1):+.0f} {100 * (row['slowest_s'] / row['time_s'] - 1):+.0f} %"


def _ratio(key, digits=3):
    return lambda row: f"{row[key]:.{digits}f}" if row.get(key) else "-"


COLUMNS = [
    ("contender", lambda row: row["contender"]),
    ("n", lambda row: str(row["ranks"])),
    ("S", lambda row: plots.size_text(row["bytes"])),
    ("type", lambda row: row["type"]),
    ("link", lambda row: row.get("rate", "-") + ("" if row.get("aggregator_rate", "none") == "none" else
                                                 f", aggregator {row['aggregator_rate']}")),
    ("MTU", lambda row: str(row.get("mtu") or "-")),
    ("time", lambda row: milliseconds(row, "time_s")),
    ("spread", _spread),
    ("p99", lambda row: milliseconds(row, "p99_s")),
    ("algbw GB/s", lambda row: number(row.get("algbw_GBps"))),
    ("own bound", lambda row: milliseconds(row, "bound_s")),
    ("time / bound", _ratio("bound_ratio")),
    ("time / ours", _ratio("times_ours", 2)),
    ("wire bytes / S", lambda row: f"{row['wire_bytes'] / row['bytes']:.3f}" if row.get("wire_bytes") else "-"),
    ("retrans.", lambda row: number(row.get("retransmissions"))),
    ("CPU s", lambda row: number(row.get("cpu_s"))),
    ("CPU s/GB", lambda row: number(row.get("cpu_s_per_GB"))),
    ("aggregator cores", lambda row: number(row.get("aggregator_cores"), 2)),
    ("interrupts' cores", lambda row: number(row.get("interrupt_cores"), 2)),
    ("others' cores", lambda row: number(row.get("foreign_cores"), 2) + ("!" if row.get("is_starved") else "")),
]
LOSS_COLUMNS = COLUMNS + [("loss", lambda row: f"{100 * row.get('loss', 0):g} %" +
                           (" in bursts" if row.get("loss_burst") else "")),
                          ("chunks of a slot, max/mean", lambda row: number(row.get("slot_spread"))),
                          ("time / loss-free", _ratio("times_loss_free")),
                          ("spurious", lambda row: "-" if row.get("spurious_share") is None
                           else f"{100 * row['spurious_share']:.3f} %")]
PATH_COLUMNS = [("part", lambda row: row["part"])] + COLUMNS[:5] + [
    ("round trip", lambda row: f"{row['rtt_us'] / 1000:g} ms" if row.get("rtt_us") else "-"),
    ("loss", lambda row: f"{100 * row['loss']:g} %" if "loss" in row else "-")] + COLUMNS[5:] + [
    ("ask / lost", lambda row: number(row.get("questions"))),
    ("bed's error, us", lambda row: "{median:g}, {p99:g}".format(**row["bed_error_us"]) if row.get("bed_error_us") else "-"),
    ("bed's overrun", lambda row: number(row.get("bed_overrun")))]
COLLECTIVE_COLUMNS = [("part", lambda row: row["part"]), ("collective", lambda row: row["collective"])] + COLUMNS + [
    ("received bytes / S", lambda row: f"{row['received_bytes'] / row['bytes']:.3f}" if row.get("received_bytes") else "-"),
    ("time / loss-free", _ratio("times_loss_free")), ("time / all-reduce", _ratio("over_all_reduce"))]
WANTED_COLUMNS = [(key.replace("_", " "), lambda line, key=key: str(line[key])) for key in
                  ("what", "wanted", "reached", "where", "cases")] + [
                      ("", lambda line: ("yes" if line["is_reached"] else "NO") + (", starved" if line["is_starved"] else ""))]
TRAINING_COLUMNS = [
    ("contender", lambda row: row["contender"]), ("network", lambda row: row["model"]),
    ("n", lambda row: str(row["ranks"])), ("S", lambda row: f"{row['bytes'] / 1e6:.0f} MB"),
    ("GPU", lambda row: row["gpu"]), ("link stands for", lambda row: row["rate"]),
    ("time scale", lambda row: f"{row['time_scale']:g}"), ("iteration", lambda row: milliseconds(row, "time_s")),
    ("spread", _spread), ("computing", lambda row: milliseconds(row, "compute_s")),
    ("own bound", lambda row: milliseconds(row, "bound_s")), ("time / bound", _ratio("bound_ratio")),
    ("time / predicted", _ratio("predicted_ratio")), ("speed-up over Gloo", _ratio("speedup", 2)),
    ("bound of ours over a ring's", _ratio("bound_speedup", 2)), ("ours is", lambda row: row.get("regime", "-")),
    *(column for column in COLUMNS if column[0] in ("wire bytes / S", "retrans.", "CPU s", "interrupts' cores",
                                                    "others' cores"))]
FAIR_COLUMNS = [
    ("beside", lambda row: f"{row['rival']}, {row['direction']}"), ("queue", lambda row: f"{row['limit_bytes'] / 1e6:g} MB"),
    ("ECN", lambda row: "yes" if row["is_marking"] else "no"), ("ours GB", lambda row: number(row["our_bytes"] / 1e9)),
    ("its GB", lambda row: number(row["rival_bytes"] / 1e9)), ("ratio", _ratio("bytes_ratio", 2)),
    ("a second one's GB", lambda row: number(row["second_bytes"] / 1e9)), ("ours over that", _ratio("over_second", 2)),
    ("link used", lambda row: f"{100 * row['link_share']:.1f} %"),
    ("marked", lambda row: number(row["marked_packets"])), ("dropped", lambda row: number(row["dropped_packets"])),
    ("deepest queue", lambda row: f"{row['deepest_bytes'] / 1e3:,.0f} kB"), ("s", lambda row: number(row["seconds"]))]
JOB_COLUMNS = [("several jobs", lambda row: f"{row['jobs']} jobs of 2"), ("Jain index", _ratio("jain_index")),
               ("link used", lambda row: f"{100 * row['link_share']:.1f} %"),
               ("GB of each", lambda row: ", ".join(number(each / 1e9) for each in row["job_bytes"]))]


def table(rows, columns):
    """Columns that no row fills are left out."""
    cells = [[format_cell(row) for _, format_cell in columns] for row in rows]
    used = [index for index in range(len(columns)) if any(line[index] != "-" for line in cells)]
    lines = ["<tr>" + "".join(f"<th>{html.escape(columns[index][0])}</th>" for index in used) + "</tr>"]
    before = None
    for row, line in zip(rows, cells):
        case = tuple(row.get(key) for key in ("collective", "model", "rate", "ranks", "bytes", "type", "mtu", "aggregator_rate"))
        names = ["ours"] if row["family"] == "switchml" else []
        names += ["first"] if case != before else []
        before = case
        lines.append(f"<tr class='{' '.join(names)}'>" +
                     "".join(f"<td>{html.escape(line[index])}</td>" for index in used) + "</tr>")
    return "<div class=scroll><table>" + "\n".join(lines) + "</table></div>"


def tables(name, rows):
    if name == "fairness":
        parts = [([row for row in rows if "bytes_ratio" in row], FAIR_COLUMNS),
                 ([row for row in rows if "jain_index" in row], JOB_COLUMNS)]
    elif name in ("middle", "long-path"):
        parts = [(rows, PATH_COLUMNS)]
    elif name == "collectives":
        parts = [(rows, COLLECTIVE_COLUMNS)]
    else:
        parts = [(rows, TRAINING_COLUMNS if name in ("training", "fsdp") else LOSS_COLUMNS if name in ("loss", "simulated-loss") else COLUMNS)]
    reached = [{**line, "family": ""} for line in wanted.lines(rows)]
    return (table(reached, WANTED_COLUMNS) if reached else "") + "".join(table(part, columns) for part, columns in parts if part)


def growth(rows):
    """How much longer the largest n takes than the smallest, for ours."""
    lines = []
    ours = [row for row in rows if row["contender"] == "SwitchML" and row.get("aggregator_rate") == "none"]
    for mtu, size in sorted({(row["mtu"], row["bytes"]) for row in ours}):
        same = sorted((row["ranks"], row["time_s"]) for row in ours if (row["mtu"], row["bytes"]) == (mtu, size))
        if len(same) > 1:
            lines.append(f"t({same[-1][0]}) / t({same[0][0]}) = {same[-1][1] / same[0][1]:.3f} at "
                         f"{plots.size_text(size)}, MTU {mtu}")
    return f"<p>Ours: {'; '.join(lines)}.</p>" if lines else ""


def commands(rows):
    found = {row["contender"]: row["command"] for row in rows if row.get("command")}
    items = "".join(f"<dt>{html.escape(name)}</dt><dd><code>{html.escape(text)}</code></dd>"
                    for name, text in found.items())
    return f"<details><summary>Command lines</summary><dl>{items}</dl></details>" if items else ""


def page(results, drawn):
    machine = results["machine"]
    facts = "".join(f"<dt>{html.escape(key.replace('_', ' '))}</dt><dd>{html.escape(str(value))}</dd>"
                    for key, value in machine.items())
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
             f"<title>SwitchML benchmarks</title><style>{STYLE}</style>", "<h1>SwitchML beside its peers</h1>",
             "" if results.get("is_over", True) else "<p class=bad>The run goes on, or was killed: this is what it had measured by then.</p>",
             "<p>Medians of interleaved rounds; a round's time is the median of the slowest rank's times. Every result was "
             "checked in the same run. <b>time / bound</b> is against each contender's <em>own</em> bound: S/B with the "
             "framing of its packets for an aggregator, 2(n-1)/n of it for any algorithm between ranks. "
             "<b>algbw</b> is S over time. <b>CPU s</b> are those of all processes for one all-reduce. <b>others' cores</b> "
             "says how busy the machine was with something else; ! marks a row that was starved and proves nothing. "
             "<code>docs/benchmarks.md</code> has the method.</p>", f"<dl>{facts}</dl>"]
    rows = results["results"]
    names = list(dict.fromkeys([row["scenario"] for row in rows] +
                               [each["scenario"] for each in results["failures"] + results["notes"]]))
    for name in names:
        chosen = [row for row in rows if row["scenario"] == name]
        parts.append(f"<h2>{html.escape(TITLES.get(name, name))}</h2>")
        for each in results["failures"]:
            if each["scenario"] == name:
                parts.append(f"<p class=bad>Failed: {html.escape(each['what'])}: {html.escape(each['error'])}</p>")
        for each in results["notes"]:
            if each["scenario"] == name:
                parts.append(f"<p>{html.escape(each['note'])}</p>")
        for plot in PLOTS_OF.get(name, []):
            if plot in drawn:
                title, svg = drawn[plot]
                parts.append(f"<figure>{svg[svg.index('<svg'):]}<figcaption>{html.escape(title)}</figcaption></figure>")
        if chosen:
            parts.append((growth(chosen) if name == "shaped" else "") + tables(name, chosen) + commands(chosen))
    return "\n".join(parts)


def write(folder, results):
    """report.html, and the plots when the run is over (they take seconds); without matplotlib the tables alone. Whoever reads
    meanwhile finds each file whole."""
    try:
        drawn = plots.draw(results["results"]) if results.get("is_over", True) else {}
    except ImportError:
        note = {"scenario": "plots", "note": "not drawn: matplotlib is missing (Debian: python3-matplotlib)"}
        drawn, results = {}, {**results, "notes": results["notes"] + [note]}
    files = {f"{name}.svg": svg for name, (_, svg) in drawn.items()}
    for name, text in {**files, "report.html": page(results, drawn)}.items():
        path = os.path.join(folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)


if __name__ == "__main__":
    with open(os.path.join(sys.argv[1], "results.json"), encoding="utf-8") as saved:
        write(sys.argv[1], json.load(saved))
