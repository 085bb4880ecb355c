# SPDX-License-Identifier: Apache-2.0
"""The plots of a report, as SVG. Each takes the rows of results.json and gives a figure, or None without data."""
import io

COLOURS = {"switchml": ["#c1272d", "#e8821e", "#7b3294"], "gloo": ["#2b6cb0", "#63b3ed"],
           "openmpi": ["#2f855a", "#68d391", "#a3b18a"]}
MARKERS = {"switchml": "o", "gloo": "s", "openmpi": "^"}
BOUND = {"color": "#555555", "linewidth": 1.2}


def pyplot():
    """matplotlib.pyplot in the style of all plots; raises ImportError without matplotlib."""
    import matplotlib  # pylint: disable=import-outside-toplevel  # Debian: python3-matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt  # pylint: disable=import-outside-toplevel
    plt.rcParams.update({"font.size": 9, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True,
                         "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
                         "svg.fonttype": "none", "svg.hashsalt": "switchml", "figure.constrained_layout.use": True})
    return plt


def size_text(num_bytes):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >= 1 << shift and num_bytes % (1 << shift) == 0:
            return f"{num_bytes >> shift} {unit}"
    return f"{num_bytes} B"


def kind_of(row):
    """One name for a forced algorithm, whichever was the best at this n."""
    title = row["contender"]
    if row["scenario"] == "training":
        return title
    if row["scenario"] == "middle":
        return title
    if title.startswith("Open MPI"):
        head, _, algorithm = title.partition(", ")
        return f"{head}, {'default' if algorithm == 'default' else 'best forced'}"
    if title.startswith("Gloo") and title != "Gloo, ring":
        return "Gloo, best other"
    return title


def styles(rows):
    """{kind: line and marker}, the same in all plots of a report as far as the kinds are the same."""
    used, chosen = {}, {}
    for row in sorted(rows, key=lambda row: ("switchml gloo openmpi".find(row["family"]), len(kind_of(row)))):
        kind, family = kind_of(row), row["family"]
        if kind not in chosen:
            colours = COLOURS[family]
            chosen[kind] = {"color": colours[used.get(family, 0) % len(colours)], "marker": MARKERS[family]}
            used[family] = used.get(family, 0) + 1
    return chosen


def lines_of(rows, x):
    """{kind: sorted rows, one for each x}"""
    lines = {}
    for row in rows:
        lines.setdefault(kind_of(row), {}).setdefault(row[x], row)
    return {kind: [row for _, row in sorted(points.items())] for kind, points in lines.items()}


def _draw(axes, rows, x, y, spread=None):
    chosen = styles(rows)
    for kind, points in lines_of(rows, x).items():
        xs, ys = [row[x] for row in points], [y(row) for row in points]
        axes.plot(xs, ys, label=kind, markersize=4.5, linewidth=1.6, **chosen[kind])
        if spread:
            axes.fill_between(xs, [spread(row)[0] for row in points], [spread(row)[1] for row in points],
                              color=chosen[kind]["color"], alpha=0.15, linewidth=0)


def _legend(figure, axes, columns=3):
    found = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels()):
            found.setdefault(label, handle)
    num_lines = -(-len(found) // columns)
    below = (0.05 + 0.22 * num_lines) / figure.get_size_inches()[1]
    figure.legend(found.values(), found.keys(), loc="lower center", ncol=columns, bbox_to_anchor=(0.5, -below))


def _grid(plt, number, height=3.2, columns=2):
    rows = -(-number // columns)
    figure, axes = plt.subplots(rows, min(columns, number), figsize=(6.6 if number == 1 else 4.6 * columns, height * rows),
                                squeeze=False)
    flat = [each for line in axes for each in line]
    for each in flat[number:]:
        each.set_visible(False)
    return figure, flat[:number]


def _ticks_of_n(axes, rows):
    ranks = sorted({row["ranks"] for row in rows})
    axes.set_xticks(ranks, [str(each) for each in ranks])
    axes.set_xlabel("ranks n")
    axes.set_ylim(bottom=0)


def time_over_n(results):
    """Time of one all-reduce over the number of ranks, 1 Gbit/s links"""
    rows = [row for row in results if row["scenario"] == "shaped" and row["aggregator_rate"] == "none"]
    panels = sorted({(row["mtu"], row["bytes"]) for row in rows})
    if not rows:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels))
    for (mtu, size), each in zip(panels, axes):
        shown = [row for row in rows if (row["mtu"], row["bytes"]) == (mtu, size)]
        _draw(each, shown, "ranks", lambda row: row["time_s"] * 1e3,
              lambda row: (row["fastest_s"] * 1e3, row["slowest_s"] * 1e3))
        for family, style, label in (("switchml", "-", "bound of an aggregator"), ("gloo", "--", "bound of a ring")):
            points = sorted({(row["ranks"], row["bound_s"] * 1e3) for row in shown if row["family"] == family
                             and row.get("bound_s")})
            if points:
                each.plot(*zip(*points), linestyle=style, label=label, **BOUND)
        _ticks_of_n(each, shown)
        each.set_ylabel("time (ms)")
        each.set_title(f"{size_text(size)}, MTU {mtu}")
    _legend(figure, axes)
    return figure


def time_over_n_one_host(results):
    """Time of one all-reduce on one host: loopback, and shared memory"""
    rows = [row for row in results if row["scenario"] in ("loopback", "shared-memory")]
    panels = [name for name in ("loopback", "shared-memory") if any(row["scenario"] == name for row in rows)]
    if not rows:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels))
    for name, each in zip(panels, axes):
        shown = [row for row in rows if row["scenario"] == name]
        _draw(each, shown, "ranks", lambda row: row["time_s"] * 1e3,
              lambda row: (row["fastest_s"] * 1e3, row["slowest_s"] * 1e3))
        points = sorted({(row["ranks"], row["bound_s"] * 1e3) for row in shown
                         if row.get("bound_s") and row["family"] == "switchml"})
        if points:
            each.plot(*zip(*points), linestyle="-", marker="_", label="bound by memory copies", **BOUND)
        _ticks_of_n(each, shown)
        each.set_ylabel("time (ms)")
        each.set_title(f"{name.replace('-', ' ')}, {size_text(shown[0]['bytes'])}")
    _legend(figure, axes)
    return figure


def _size_axis(axes, rows):
    found = sorted({row["bytes"] for row in rows})
    axes.set_xscale("log", base=2)
    shown = found if len(found) <= 6 else found[::2]
    axes.set_xticks(shown, [size_text(size) for size in shown], rotation=30, ha="right")
    axes.minorticks_off()
    axes.set_xlabel("bytes of a rank's tensor")


def algbw_over_size(results):
    """algbw over size, loopback"""
    rows = [row for row in results if row["scenario"] == "sizes"]
    panels = sorted({row["ranks"] for row in rows})
    if not rows:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels), height=3.8)
    for n, each in zip(panels, axes):
        shown = [row for row in rows if row["ranks"] == n]
        _draw(each, shown, "bytes", lambda row: row["algbw_GBps"])
        _size_axis(each, shown)
        each.set_yscale("log")
        each.set_ylabel("algbw (GB/s)")
        each.set_title(f"n = {n}, float32")
    _legend(figure, axes)
    return figure


def time_over_size(results):
    """Time over size, one host: ours over UDP by a daemon, embedded, in shared memory; the peers over TCP and in shared memory"""
    rows = [row for row in results if row["scenario"] == "middle" and row["part"] == "loopback"]
    panels = sorted({row["ranks"] for row in rows})
    if not rows:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels), height=4.2, columns=3)
    for n, each in zip(panels, axes):
        shown = {}
        for row in rows:
            if row["ranks"] != n:
                continue
            title = row["contender"]
            if row["family"] != "switchml":  # the best of each kind at each size
                title = {"gloo": "Gloo, best"}.get(row["family"], f"{title.split(',')[0]}, best")
            best = shown.setdefault((title, row["bytes"]), row)
            shown[title, row["bytes"]] = {**min(best, row, key=lambda each: each["time_s"]), "contender": title}
        _draw(each, list(shown.values()), "bytes", lambda row: row["time_s"] * 1e6)
        _size_axis(each, list(shown.values()))
        each.set_yscale("log")
        each.set_ylabel("time (us)")
        each.set_title(f"n = {n}, float32")
    _legend(figure, axes)
    return figure


def latency_over_size(results):
    """Latency of small all-reduces, loopback: median (line) and 99th percentile (dotted)"""
    rows = [row for row in results if row["scenario"] == "small"]
    panels = sorted({(row["ranks"], row["type"]) for row in rows})
    if not rows:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels))
    for (n, type_name), each in zip(panels, axes):
        shown = [row for row in rows if (row["ranks"], row["type"]) == (n, type_name)]
        _draw(each, shown, "bytes", lambda row: row["time_s"] * 1e6)
        chosen = styles(shown)
        for kind, points in lines_of(shown, "bytes").items():
            each.plot([row["bytes"] for row in points], [row["p99_s"] * 1e6 for row in points], linestyle=":",
                      linewidth=1.3, color=chosen[kind]["color"])
        _size_axis(each, shown)
        each.set_yscale("log")
        each.set_ylabel("time (us)")
        each.set_title(f"n = {n}, {type_name}")
    _legend(figure, axes)
    return figure


def time_over_loss(results):
    """Time over the share of packets that each receiver loses, as a multiple of the loss-free time"""
    return _time_over_loss(results, "loss")


def simulated_time_over_loss(results):
    """The same in virtual time, by the shipped engines, beside the paper's scheme with fixed timeouts"""
    return _time_over_loss(results, "simulated-loss")


def _time_over_loss(results, scenario):
    rows = [row for row in results if row["scenario"] == scenario and row.get("times_loss_free")]
    if not rows:
        return None
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.6, 3.8))
    lines = {}
    for row in rows:
        scheme = row.get("scheme", "SwitchML") + (f", bursts of {row['loss_burst']}" if row["loss_burst"] else "")
        lines.setdefault(scheme, []).append((100 * row["loss"], row["times_loss_free"]))
    colours = ["#c1272d", "#2b6cb0", "#63b3ed", "#2f855a", "#7b3294", "#e8821e"]
    for index, (scheme, points) in enumerate(lines.items()):
        points.sort()
        axes.plot(*zip(*points), marker="o" if len(points) > 1 else "D", markersize=5, label=scheme,
                  linestyle="-" if len(points) > 1 else "none", color=colours[index % len(colours)])
    axes.axhline(1, **BOUND, linestyle="--", label="loss-free")
    axes.set_xscale("symlog", linthresh=0.1, linscale=0.5)
    ticks = sorted({100 * row["loss"] for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    highest = max(row["times_loss_free"] for row in rows)
    if highest > 5:
        axes.set_yscale("log")
    axes.set_xlabel("lost packets (%)")
    axes.set_ylabel("time / loss-free time")
    _legend(figure, [axes])
    return figure


def cpu_per_gb(results):
    """CPU seconds of all processes for 1 GB of tensor"""
    rows = [row for row in results if row["scenario"] in ("shaped", "loopback", "shared-memory")
            and row.get("cpu_s_per_GB") and row.get("aggregator_rate", "none") == "none"]
    panels = []
    for name in ("shaped", "loopback", "shared-memory"):
        chosen = [row for row in rows if row["scenario"] == name]
        if chosen:
            key = max((row["ranks"], -(row["mtu"] or 0), row["bytes"]) for row in chosen)
            panels.append((name, [row for row in chosen if (row["ranks"], -(row["mtu"] or 0), row["bytes"]) == key]))
    if not panels:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels), height=2.6)
    for (name, shown), each in zip(panels, axes):
        chosen = styles(shown)
        shown = shown[::-1]
        each.barh([row["contender"] for row in shown], [row["cpu_s_per_GB"] for row in shown],
                  color=[chosen[kind_of(row)]["color"] for row in shown], height=0.6)
        each.grid(axis="y", visible=False)
        each.set_xlabel("CPU s / GB")
        mtu = f", MTU {shown[0]['mtu']}" if shown[0]["mtu"] else ""
        each.set_title(f"{name.replace('-', ' ')}, n = {shown[0]['ranks']}{mtu}", loc="left")
    return figure


def fairness(results):
    """Bytes of one worker over those of a second flow like its rival in its place"""
    rows = [row for row in results if row["scenario"] == "fairness" and row.get("over_second")]
    if not rows:
        return None
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(6.6, 0.38 * len(rows) + 1.3))
    names = [f"{row['rival']}, {row['direction']}, queue {row['limit_bytes'] / 1e6:g} MB, {'ECN' if row['is_marking'] else 'no ECN'}"
             for row in rows]
    axes.axvspan(0.5, 2, color="#cfe8cf", label="wanted: 0.5 to 2")
    axes.axvline(1, **BOUND)
    axes.plot([row["over_second"] for row in rows], names, linestyle="none", marker="o", color=COLOURS["switchml"][0],
              label="SwitchML / a second flow like the rival")
    axes.invert_yaxis()
    axes.set_xscale("log")
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    low, high = min(row["over_second"] for row in rows), max(row["over_second"] for row in rows)
    axes.set_xlim(min(0.45, low / 1.5), max(2.2, high * 1.5))
    shown = [tick for tick in ticks if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel("bytes ratio")
    _legend(figure, [axes])
    return figure


def _draw_speedups(axes, shown, chosen):
    models, kinds = list(dict.fromkeys(row["model"] for row in shown)), list(chosen)
    width = 0.8 / len(kinds)
    for i, kind in enumerate(kinds):
        points = [(models.index(row["model"]) + (i - (len(kinds) - 1) / 2) * width, row["speedup"]) for row in shown
                  if kind_of(row) == kind]
        if points:
            axes.bar(*zip(*points), width=0.92 * width, color=chosen[kind]["color"], label=kind)
    for at, model in enumerate(models):
        bound = next(row["bound_speedup"] for row in shown if row["model"] == model)
        axes.plot([at - 0.45, at + 0.45], [bound, bound], linestyle="--", label="bound of SwitchML / bound of a ring", **BOUND)
    axes.set_xticks(range(len(models)), models, rotation=30, ha="right")
    axes.set_ylabel("iterations a second / Gloo's")


def training_speedup(results):
    """Replayed training: iterations a second over those of Gloo's ring in 25 MiB buckets; dashes: what the links allow"""
    rows = [row for row in results if row["scenario"] == "training" and row.get("speedup")]
    panels = sorted({(row["time_scale"], row["rate"], row["ranks"]) for row in rows})
    if not rows:
        return None
    plt = pyplot()
    figure, axes = _grid(plt, len(panels), height=3.6)
    chosen = styles(rows)
    for (_, rate, n), each in zip(panels, axes):
        shown = [row for row in rows if (row["rate"], row["ranks"]) == (rate, n)]
        _draw_speedups(each, shown, chosen)
        each.set_title(f"{rate} links, n = {n}, {shown[0]['gpu'].upper()}")
    _legend(figure, axes)
    return figure


PLOTS = {"time-over-n": time_over_n, "one-host": time_over_n_one_host, "algbw-over-size": algbw_over_size,
         "latency": latency_over_size, "time-over-loss": time_over_loss, "simulated-loss": simulated_time_over_loss, "cpu-per-gb": cpu_per_gb,
         "fairness": fairness,
         "training": training_speedup, "time-over-size": time_over_size}


def draw(results):
    """{name: (title, SVG text)}; raises ImportError without matplotlib."""
    plt = pyplot()
    drawn = {}
    for name, function in PLOTS.items():
        figure = function(results)
        if figure is None:
            continue
        data = io.StringIO()
        figure.savefig(data, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        drawn[name] = (function.__doc__, data.getvalue())
    return drawn
