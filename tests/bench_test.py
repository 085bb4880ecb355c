#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own parts: the links of the bed do what they say, a run keeps its contract, a failure of one
contender is not one of the others, and an interrupted run leaves nothing."""
import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import browser
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN = os.path.join(ROOT, "bench/run")
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench"))
import link  # pylint: disable=wrong-import-position  # bench/link.py
import machine  # pylint: disable=wrong-import-position  # bench/machine.py
import netbed  # pylint: disable=wrong-import-position  # bench/netbed.py
import report  # pylint: disable=wrong-import-position  # bench/report.py
import wanted  # pylint: disable=wrong-import-position  # bench/wanted.py
from places import Processes  # pylint: disable=wrong-import-position
from session import Session  # pylint: disable=wrong-import-position


def need_bed():
    reason = netbed.why_unavailable()
    if reason:
        raise tap.Skip(reason)


def make_link(bed, direction):
    try:
        return link.Link(bed, 0, direction)
    except netbed.NetbedError as error:
        raise tap.Skip(str(error)) from error


def test_rates_are_read():
    assert netbed.parse_rate("1gbit") == 1e9 and netbed.parse_rate("2.5mbit") == 2.5e6
    for wrong in ["", "1", "gbit", "1gbps", "-1gbit"]:
        try:
            netbed.parse_rate(wrong)
        except netbed.NetbedError:
            continue
        raise AssertionError(wrong)


def test_links_mark_and_lose():
    """A TCP flow fills the queue of one direction: that one marks, and loses when told to."""
    need_bed()
    with netbed.Netbed(1, limit_bytes=4_000_000) as bed:
        up, down = make_link(bed, "up"), make_link(bed, "down")
        down.mark(50_000)
        flow = link.BulkFlow(bed, 0, "down")
        try:
            deadline = time.monotonic() + 10
            while down.counters()["marked_packets"] == 0:
                assert time.monotonic() < deadline, down.counters()
                time.sleep(0.02)
            seen = down.counters()
            assert 50_000 < seen["deepest_bytes"] <= 4_000_000, seen
            assert seen["marked_packets"] == seen["markable_packets"] < seen["packets"], seen
            assert seen["lost_packets"] == 0 and down.dropped_packets() == 0, seen # TCP may repeat what was only late
            assert up.counters()["deepest_bytes"] <= 50_000, up.counters() # acknowledgements only
            assert flow.received_bytes() > 0 and down.sent_bytes() > 0
            down.lose(0.05)
            while down.counters()["lost_buffers"] == 0:
                assert time.monotonic() < deadline, down.counters()
                time.sleep(0.02)
        finally:
            flow.stop()


def seen_on(path, rate="none", num_probes=300):
    need_bed()
    return netbed.check(path, rate, num_probes)


def test_a_path_takes_its_time():
    """Never less than it says, and near to it half of the time, whatever else the machine does."""
    for rtt_us, rate in ((1000, "none"), (20_000, "100mbit")):
        seen = seen_on(netbed.Path(rtt_us=rtt_us), rate)
        assert seen["came"] == seen["probes"] and seen["overtaken"] == 0 and seen["overrun"] == 0, seen
        assert 0 <= seen["error_us"]["least"] and seen["error_us"]["median"] < 1000, seen


def test_a_path_loses_and_overtakes_as_told():
    seen = seen_on(netbed.Path(rtt_us=2000, loss=0.2, seed=7))
    assert 0.1 < seen["loss"] < 0.3 and seen["overtaken"] == 0, seen
    seen = seen_on(netbed.Path(rtt_us=2000, late_share=0.1, late_us=5000))
    assert seen["loss"] == 0 and 0.03 < seen["overtaken"] < 0.2, seen
    seen = seen_on(netbed.Path(rtt_us=2000, jitter_us=4000))
    assert seen["loss"] == 0 and seen["overtaken"] == 0 and seen["error_us"]["median"] > 1000, seen


def transfer(bed, seconds):
    """Bytes that a TCP connection from worker 0 brought to the aggregator."""
    flow = link.BulkFlow(bed, 0, "up")
    try:
        time.sleep(seconds)
        return flow.received_bytes()
    finally:
        flow.stop()


def test_a_path_has_a_rate_a_queue_and_marks():
    need_bed()
    with netbed.Netbed(1, rate="50mbit", limit_bytes=60_000, path=netbed.Path(rtt_us=4000, mark_bytes=20_000)) as bed:
        received = transfer(bed, 2)
        counters = bed.path_counters()
    assert 2_000_000 < received < 13_500_000, received  # 12.5 MB in 2 s, and a little for the start
    assert counters["marked"] > 0 and counters["lost"] == 0 and counters["overrun"] == 0, counters
    with netbed.Netbed(1, rate="50mbit", limit_bytes=20_000, path=netbed.Path(rtt_us=4000)) as bed:
        transfer(bed, 1)
        counters = bed.path_counters()
    assert counters["dropped"] > 0 and counters["marked"] == 0, counters


ENDS = {"take": "taken = socket.create_server((sys.argv[1], 4899)); print('ready', flush=True); end = taken.accept()[0]",
        "make": "end = socket.create_connection((sys.argv[1], 4899))"}
ASK = "import socket, sys; {}; print(end.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())"


def test_the_bed_names_the_congestion_control():
    """Of both ends, whatever the host's own is."""
    need_bed()
    with netbed.Netbed(2, rate="none", path=netbed.Path(rtt_us=1000)) as bed:
        for name in ("cubic", "reno"):
            bed.use_congestion_control(name)
            taker, maker = ([*bed.command(bed.worker(rank), [PYTHON, "-c", ASK.format(ENDS[end]), bed.worker_address(0)])]
                            for rank, end in enumerate(("take", "make")))
            with subprocess.Popen(taker, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout.readline() == "ready\n"
                made = subprocess.run(maker, capture_output=True, text=True, check=True, timeout=20).stdout
                assert (process.stdout.read(), made) == (f"{name}\n", f"{name}\n"), made


def test_ranks_without_an_aggregator_send_what_a_ring_does():
    """Three hosts, found by their interfaces' addresses: each link carries 2(n-1)/n tensors out, framing beside."""
    need_bed()
    n, size, iters = 3, 4 << 20, 3
    build = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
    command = [os.path.join(build, "src/cli/switchml"), "bench", "--sizes", str(size), "--iters", str(iters),
               "--warmup", "1", "--timeout", "30"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
    with netbed.Netbed(n, rate="none") as bed:
        before = [bed.sent_bytes(bed.worker(rank)) for rank in range(n)]
        ranks = [subprocess.Popen(bed.command(bed.worker(rank), command), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env={**environment, "RANK": str(rank), "WORLD_SIZE": str(n),
                                                  "SWITCHML_RENDEZVOUS": f"{bed.worker_address(0)}:4900"})
                 for rank in range(n)]
        for rank, process in enumerate(ranks):
            _, error = process.communicate(timeout=60)
            assert process.returncode == 0, (rank, error)
        ideal = 2 * (n - 1) / n * size * (iters + 1)
        for rank in range(n):
            sent = bed.sent_bytes(bed.worker(rank)) - before[rank]
            assert ideal < sent < 1.12 * ideal, (rank, sent / ideal)


def run(*arguments):
    return subprocess.run([PYTHON, RUN, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_a_run_keeps_its_contract():
    need_bed()
    with tempfile.TemporaryDirectory() as folder:
        result = run("--quick", "--scenario", "shaped", "--n", "2", "--sizes", "1M", "--rounds", "1", "--peers", "",
                     "--output", folder)
        assert result.returncode == 0, result
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)
        (row,) = results["results"]
        assert row["contender"] == "SwitchML" and row["bytes"] == 1 << 20 and row["ranks"] == 2, row
        assert row["time_s"] > 0.004 and (1 << 20) < row["wire_bytes"] < 1.2 * (1 << 20), row
        assert 1 < row["floor"] < 1.1 and row["cpu_s"] > 0 and row["foreign_cores"] >= 0, row
        assert results["machine"]["cores"] == os.cpu_count() and not results["failures"], results
        with open(os.path.join(folder, "results.csv"), encoding="utf-8", newline="") as file:
            assert [line["contender"] for line in csv.DictReader(file)] == ["SwitchML"]
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            text = file.read()
        assert "1 Gbit/s links" in text and "1 MiB" in text, text
        assert not re.search(r"(src|href)=", re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)), "assets outside"


def test_a_replayed_training_moves_its_gradients():
    """26.5 MB of them an iteration, by ours over an aggregator and by Open MPI over its ring, if that is installed."""
    need_bed()
    with tempfile.TemporaryDirectory() as folder:
        result = run("--quick", "--scenario", "training", "--models", "googlenet", "--n", "3", "--rounds", "1", "--gpu",
                     "a100", "--peers", "openmpi", "--output", folder)
        assert result.returncode == 0, result
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)
        ours, *others = results["results"]
        assert (ours["contender"], ours["model"], ours["bytes"]) == ("SwitchML", "googlenet", 26499616), ours
        # the aggregator's own way: each rank sends its gradient once, and nothing is faster than link and computing
        assert ours["operations"] >= 3 * 3 * 100 and 1.03 < ours["wire_bytes"] / ours["bytes"] < 1.2, ours
        assert ours["time_s"] > 0.95 * ours["bound_s"] > ours["compute_s"], ours
        for row in others:
            assert 1.33 < row["wire_bytes"] / row["bytes"] < 1.6 and row["time_s"] > 0.95 * row["bound_s"], row
        assert others or any("openmpi" in each["note"] for each in results["notes"]), results["notes"]
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            assert "Training, replayed" in file.read()


def test_a_replayed_sharded_step_moves_parts():
    """n = 3: two all-gathers and a reduce-scatter are 4/3 S up from each rank, 2 S without an aggregator, Gloo's 8/3 S."""
    need_bed()
    with tempfile.TemporaryDirectory() as folder:
        result = run("--quick", "--scenario", "fsdp", "--n", "3", "--rounds", "1", "--peers", "gloo", "--output", folder)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)
        assert result.returncode == 0 and not results["failures"], result.stderr
        shares = {"SwitchML": 4 / 3, "SwitchML, embedded": 2, "Gloo, as in PyTorch": 8 / 3}
        for row in results["results"]:
            share = shares.pop(row["contender"])
            most = (2 if "embedded" in row["contender"] else 1.25) * share  # its aggregators share processors
            assert share < row["wire_bytes"] / row["bytes"] < most and row["time_s"] > 0.95 * row["bound_s"], row
        assert "SwitchML" not in shares and "a step over its bound" in result.stderr, shares


def test_collectives_go_one_way():
    """n = 3: a reduce-scatter sends 2/3 S up, an all-gather S/3; the peers' sums are checked by themselves."""
    need_bed()
    with tempfile.TemporaryDirectory() as folder:
        result = run("--quick", "--scenario", "collectives", "--n", "3", "--sizes", "3M", "--rounds", "1", "--output", folder)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)
        assert result.returncode == 0 and not results["failures"], result.stderr
        ways = {row["collective"]: (row["wire_bytes"] / row["bytes"], row["received_bytes"] / row["bytes"])
                for row in results["results"] if row["part"] == "shaped" and row["contender"] == "SwitchML"}
        for kind, up, down in (("reduce_scatter", 2 / 3, 1 / 3), ("all_gather", 1 / 3, 2 / 3), ("both", 1, 1)):
            assert up < ways[kind][0] < 1.2 * up + 0.02 and down < ways[kind][1] < 1.2 * down + 0.02, ways
        bounds = {(row["collective"], row["contender"]): row["bound"] for row in results["results"] if "bound" in row}
        assert bounds["all_gather", "SwitchML, multicast"] == "1 S/B" and bounds["all_gather", "SwitchML"] == "0.667 S/B", bounds
        assert {row["part"] for row in results["results"]} == {"shaped", "loopback"}
        assert "torch's Gloo over ours" in result.stderr or any("gloo" in each["note"] for each in results["notes"]), result.stderr
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            assert "barrier over an all-reduce" in file.read()


def middle_row(contender, time_s, **more):
    return {"scenario": "middle", "part": "loopback", "contender": contender, "family": "openmpi" if contender.startswith("Open") else contender.split()[0].strip(",").lower(),
            "ranks": 2, "bytes": 1 << 20, "time_s": time_s, "p99_s": time_s, **more}


def test_wanted_and_reached_are_compared():
    """The worst case of each line counts, against the best peer; a starved row says so."""
    rows = [middle_row("SwitchML", 2.0), middle_row("Gloo, ring", 1.0), middle_row("Open MPI TCP, default", 4.0),
            middle_row("SwitchML", 2.3, bytes=1 << 22), middle_row("Gloo, ring", 1.0, bytes=1 << 22)]
    line = wanted.lines(rows)[0]
    assert (line["wanted"], line["reached"], line["is_reached"], line["where"], line["cases"]) == (
        "at most 2.20", "2.30", False, "n = 2, 4 MiB", 2), line
    assert wanted.lines(rows[:3])[0]["is_reached"] and not line["is_starved"]
    rows[3]["is_starved"] = True
    assert wanted.lines(rows)[0]["is_starved"] and "starved" in wanted.text(rows)
    path = {"scenario": "long-path", "part": "bed", "rtt_us": 100_000, "wanted_s": 1.0}
    rows = [middle_row("SwitchML", 1.0, **path, loss=0.0), middle_row("SwitchML", 1.2, **path, loss=0.001),
            middle_row("Gloo, ring, Cubic", 7.0, **path, loss=0.001)]
    reached = {line["what"]: (line["reached"], line["is_reached"]) for line in wanted.lines(rows)}
    assert reached["over the bed, 0.1 % lost over loss-free"] == ("1.20", False), reached
    assert reached["over the bed, Gloo over Cubic over ours, 100 ms, 0.1 %"] == ("5.83", True), reached
    fair = {"scenario": "fairness", "contender": "SwitchML", "ranks": 2, "rival": "bbr", "direction": "up",
            "limit_bytes": 250_000, "is_marking": False}
    for ratio, reached in ((0.4, [False, True]), (1.0, [True, True]), (2.1, [True, False])):
        assert [line["is_reached"] for line in wanted.lines([{**fair, "over_second": ratio}])] == reached, ratio
    sharded = {"scenario": "collectives", "part": "shaped", "collective": "reduce_scatter"}
    rows = [middle_row("SwitchML", 1.0, **sharded, bound_ratio=1.03), middle_row("Gloo, all-reduce and slice", 1.8, **sharded),
            middle_row("SwitchML, 1 % lost", 1.04, **sharded, times_loss_free=1.04)]
    reached = [(line["reached"], line["is_reached"]) for line in wanted.lines(rows)]
    assert reached == [("1.030", False), ("1.040", True), ("1.80", True)], reached
    assert wanted.lines([]) == [] and wanted.text([]) == ""


def test_long_paths_and_the_middle_are_measured():
    """Quick, and only the parts that this machine has peers for."""
    need_bed()
    with tempfile.TemporaryDirectory() as folder:
        result = run("--quick", "--scenario", "long-path", "--scenario", "middle", "--parts", "bed,loopback", "--rounds", "1",
                     "--sizes", "64K", "--peers", "gloo", "--output", folder)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)
        assert result.returncode == 0 and not results["failures"], result.stderr
        rows = results["results"]
        assert {row["loss"] for row in rows if row["scenario"] == "long-path"} == {0.0, 0.01}, rows
        ours = [row for row in rows if row["scenario"] == "long-path" and row["contender"] == "SwitchML"]
        assert all(row["time_s"] > 0.02 and row["bed_overrun"] == 0 for row in ours), ours
        assert {row["contender"] for row in rows if row["scenario"] == "middle"} >= {
            "SwitchML", "SwitchML, embedded", "SwitchML, shared memory"}, rows
        assert "what | wanted | reached" in result.stderr, result.stderr
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            assert "over the bed, loss-free" in file.read()


def test_wrong_arguments_are_usage_errors():
    for wrong in [["--scenario", "fly"], ["--n", "0"], ["--n", "x"], ["--sizes", "1T"], ["--sizes", "0"], ["--rounds", "0"],
                  ["--peers", "nccl"], ["--mtu", "-1"], ["--rates", "1"], ["stray"]]:
        result = run(*wrong)
        assert result.returncode == 2 and result.stderr, (wrong, result)


class Contender:
    """One that takes as long as it says, or fails."""
    family, num_ranks, command = "gloo", 2, "none"

    def __init__(self, title, times_s=(), fails_at=None):
        self.title, self.times_s, self.fails_at, self.num_rounds = title, list(times_s), fails_at, 0

    def start(self, _place):
        if self.fails_at == "start":
            raise OSError("no such program")

    def round(self, runs, _type_name):
        self.num_rounds += 1
        if self.fails_at == self.num_rounds:
            raise OSError("it ended")
        time_s = self.times_s.pop(0)
        return [{"bytes": size, "median_s": time_s, "p99_s": time_s, "cpu_s": 1.0} for size, _ in runs]

    def stop(self):
        pass


class Options:
    quick, rounds, peers = True, 3, []

    def __init__(self, output):
        self.output = output


def test_one_failure_costs_one_contender():
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Options(folder), None, Processes(), {})
        session.scenario = "loopback"
        rows = session.measure(None, [Contender("a", [3, 1, 2]), Contender("b", [5], fails_at=2),
                                      Contender("c", fails_at="start")], [(1000, 1)], {"mtu": 1500})
        assert [(row["contender"], row["time_s"], row["rounds"]) for row in rows] == [("a", 2, 3), ("b", 5, 1)], rows
        assert rows[0]["fastest_s"] == 1 and rows[0]["slowest_s"] == 3 and rows[0]["algbw_GBps"] == 500e-9, rows
        assert sorted(each["what"] for each in session.failures) == ["b, n 2", "c"], session.failures
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            saved = json.load(file)
        assert len(saved["results"]) == 2 and len(saved["failures"]) == 2, saved
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file: # though the run has not ended
            text = file.read()
            assert "no such program" in text and "The run goes on, or was killed" in text and "<td>a</td>" in text, text


def test_the_report_fits_a_phone():
    """Wide tables and plots scroll by themselves, not the page; of a run that was killed there is what it had measured."""
    row = {"scenario": "shaped", "family": "switchml", "contender": "SwitchML", "ranks": 2, "bytes": 1 << 20, "type": "float32",
           "rate": "1gbit", "aggregator_rate": "none", "mtu": 1500, "time_s": 0.009, "fastest_s": 0.0085, "slowest_s": 0.01,
           "p99_s": 0.01, "algbw_GBps": 0.11, "bound_s": 0.0088, "floor": 1.02, "bound_ratio": 1.02, "wire_bytes": 1 << 20, "cpu_s": 0.01,
           "cpu_s_per_GB": 0.2, "aggregator_cores": 0.3, "interrupt_cores": 0.1, "foreign_cores": 0.02, "command": "x" * 300}
    rows = [{**row, "ranks": ranks, "contender": name, "family": family, "times_ours": 1.5} for ranks in (2, 4, 8)
            for name, family in (("SwitchML", "switchml"), ("Gloo, ring", "gloo"), ("Open MPI TCP, default", "openmpi"))]
    rows.append({**row, "scenario": "training", "model": "resnet50", "gpu": "p100", "time_scale": 1, "compute_s": 0.3, "speedup": 1.4,
                 "bound_speedup": 1.44, "predicted_ratio": 1.01, "regime": "network-bound"})
    results = {"machine": machine.facts(ROOT), "is_over": True, "results": rows, "pilots": [], "notes": [],
               "failures": [{"scenario": "loss", "what": "a", "error": "/a/path/without/a/place/to/break" * 9}]}
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(browser.Browser()) as page:
        for is_over in (True, False):
            report.write(folder, {**results, "is_over": is_over})
            for width, height in {390: 844, 1280: 800}.items():
                page.set_screen(width, height, "light")
                page.open(f"file://{folder}/report.html")
                assert page.run("document.documentElement.scrollWidth") <= width, width
                assert page.run("document.querySelectorAll('table tr').length") == 2 + len(rows) # in two tables
                assert page.run("document.querySelectorAll('figure').length") == (3 if is_over else 0)
                assert page.run("document.body.textContent.includes('The run goes on, or was killed')") != is_over
                inside = page.run("document.querySelector('.scroll').scrollWidth > document.querySelector('.scroll').clientWidth")
                assert inside or width > 390, "the table is cut off"
        assert not page.complaints(), page.complaints()


def figures(*arguments):
    return subprocess.run([PYTHON, os.path.join(ROOT, "bench/figures.py"), *arguments], capture_output=True, text=True,
                          check=False)


def test_the_pages_have_the_recorded_figures():
    result = figures("--check")
    assert result.returncode == 0, result.stderr


def shaped_row(contender, time_s, **more):
    return {"scenario": "shaped", "contender": contender, "family": "switchml", "ranks": 8, "bytes": 1 << 26,
            "type": "float32", "mtu": 1500, "aggregator_rate": "none", "rounds": 5, "time_s": time_s, "bound_ratio": 1.01,
            "aggregator_cores": 0.5, "foreign_cores": 0.01, "is_starved": False, **more}


def test_figures_are_recorded_and_refused():
    """Pages follow what is recorded; an old page, a starved row, a failure and a name that is not there are found."""
    rows = [shaped_row("SwitchML", 0.5), shaped_row("Gloo, ring", 1.0), shaped_row("Open MPI TCP, default", 2.0),
            shaped_row("Open MPI TCP, ring", 1.5)]
    results = {"quick": False, "failures": [], "machine": {"commit": "abc", "arguments": "--scenario shaped"}}
    with tempfile.TemporaryDirectory() as root:
        def write(name, text):
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
            return os.path.join(root, name)

        def record(**changed):
            return figures("--root", root, "--record", write("results.json", json.dumps({**results, **changed})))

        page = write("docs/performance.md", "before\n<!-- figures: shaped -->\nold\n<!-- end of figures -->\nafter\n")
        write("README.md", "nothing\n")
        for changed, reason in (({"results": [*rows, shaped_row("x", 1, is_starved=True, foreign_cores=0.7)]}, "0.70 cores"),
                                ({"results": rows, "failures": [{"what": "Gloo", "error": "died"}]}, "Gloo: died"),
                                ({"results": rows, "quick": True}, "--quick")):
            result = record(**changed)
            assert result.returncode == 1 and reason in result.stderr, result
        assert "--record" in figures("--root", root, "--check").stderr # nothing was taken of these
        result = record(results=rows)
        assert result.returncode == 0 and figures("--root", root, "--check").returncode == 0, result
        with open(page, encoding="utf-8") as file:
            text = file.read()
        assert "| 64 MiB | 8 | 1500 | 500 | 1.010 | 0.50 | 1,000 | 2,000 | 1,500 | **2.00** |" in text, text
        assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text, text
        write("docs/performance.md", text.replace("2,000", "1,000"))
        assert "docs/performance.md" in figures("--root", root, "--check").stderr
        write("README.md", "<!-- figures: sheep -->\n<!-- end of figures -->\n")
        assert "there are no figures 'sheep'" in figures("--root", root).stderr


def test_the_gate_on_counts_can_fail():
    """One of two limits is a little too low: that count fails, and says how to record a new one."""
    program = os.path.join(os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build")), "bench/counts/counts")
    gate = [PYTHON, os.path.join(ROOT, "bench/counts/gate.py"), program, "--only", "wire"]
    with tempfile.TemporaryDirectory() as folder:
        limits = os.path.join(folder, "limits.json")
        with open(limits, "w", encoding="utf-8") as file:
            file.write("{}")
        for arguments, expected in (([], 0), (["--record"], 0), ([], 0)):
            result = subprocess.run([*gate, "--limits", limits, *arguments], capture_output=True, text=True, check=False)
            assert result.returncode == expected and "not ok" not in result.stdout, result
        with open(limits, encoding="utf-8") as file:
            recorded = json.load(file)
        assert len(recorded) == 2 and all(1 < limit < 1.1 for limit in recorded.values()), recorded
        doctored = {name: limit * (0.99 if "int32" in name else 1) for name, limit in recorded.items()}
        with open(limits, "w", encoding="utf-8") as file:
            json.dump(doctored, file)
        result = subprocess.run([*gate, "--limits", limits], capture_output=True, text=True, check=False)
        assert result.returncode == 1 and result.stdout.count("not ok") == 1 and "--record" in result.stdout, result


def traces(pid):
    namespaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    return [each for each in namespaces if f"-p{pid}-" in each]


def test_an_interrupted_run_leaves_nothing_but_its_results():
    need_bed()
    for scenario, number in (("shaped", signal.SIGINT), ("fairness", signal.SIGTERM)):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen([PYTHON, RUN, "--quick", "--scenario", scenario, "--peers", "", "--output", folder],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env={**os.environ, "SML_BENCH_MARK": str(os.getpid())})
            deadline = time.monotonic() + 30
            while not traces(process.pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.6)
            process.send_signal(number)
            assert process.wait(timeout=60) in (130, 128 + number), process.returncode
            assert not traces(process.pid) and not marked_processes(process.pid), (scenario, traces(process.pid))
            assert {"results.json", "report.html"} <= set(os.listdir(folder)), os.listdir(folder)


def marked_processes(own):
    """Processes that inherited the mark of the run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as words:
                if f"SML_BENCH_MARK={os.getpid()}".encode() in environ.read() and int(pid) != own:
                    found.append(words.read())
        except OSError:
            pass
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="switchml-bench-test-") as tools:
        os.environ["SML_BENCH_TEST_TOOLS"] = tools  # the peers' programs take seconds to compile: once for all runs
        tap.main(globals())
