#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`switchml bench training`: replays over real processes move what the table says and no byte less, predictions are
those of the table, and the tables are what their generator makes of its sources."""
import csv
import io
import json
import os
import subprocess
import sys
import tempfile

import e2e
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = ("parameters 130601\nbatch 8\nspeed abacus 400 measured\nlayer embed 0 weight=100000\n"
         "layer hidden 20000 weight=30000 bias=100\nlayer last 1000 weight=500 bias=1\n")


def replay(*arguments, env=None):
    """The one result of a run that must succeed, by a table of this test."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as table:
        table.write(TABLE)
        table.flush()
        status, out, err = e2e.run_bench("training", "--model-file", table.name, "--gpu", "abacus", "--json", *arguments,
                                         env=env)
    assert status == 0, (arguments, status, err)
    (result,) = json.loads(out)["results"]
    assert result["wrong"] == 0, result
    return result


def test_replays_go_through_the_aggregator():
    for ranks, num_sends, more in [(3, 5, []), (2, 1, ["--bucket", "25"]), (3, 12, ["--priority", "--piece", "0.0625"])]:
        result = replay("--local", str(ranks), "--iters", "4", "--time-scale", "0.5", *more)
        assert result["sends"] == num_sends and result["ranks"] == ranks and result["path"] == "network", result
        # each rank's library says so of itself: all of the 5 iterations, and the barrier between the counters
        assert result["operations"] == ranks * 5 * num_sends, result
        num_bytes = 4 * 130601
        assert num_bytes < result["wire_bytes_per_rank"] < 1.15 * num_bytes, result
        assert result["wire_rx_bytes_per_rank"] > num_bytes, result
        assert abs(result["compute_ms"] - 20) < 1e-3, result
        # Computing is waited for, whatever else: 20 ms at half the time, twice the speed taken out again.
        assert result["fastest_ms"] >= 19.9 and result["time_ms"] <= result["slowest_ms"], result


def test_sharded_steps_gather_and_scatter():
    """Two all-gathers and a reduce-scatter of each unit, and their barrier; every part is checked. One way they send
    (1 + 1 + n - 1) / n of the parameters up, except for small ones, else three times all. What is small depends on the
    slots, and these else on the round trips that were seen."""
    for ranks, units, one_way, more in [(3, 3, "1", []), (3, 3, "0", []), (4, 1, "1", ["--bucket", "25"]), (1, 3, "1", [])]:
        env = e2e.environment(SWITCHML_ONE_WAY=one_way, SWITCHML_SLOTS=64)
        result = replay("--local", str(ranks), "--iters", "4", "--fsdp", *more, env=env)
        assert result["sends"] == 3 * units and result["operations"] == ranks * 5 * 3 * units, result
        if ranks > 1:
            least, most = ((ranks + 1) / ranks, 2) if one_way == "1" else (3, 3.5)
            assert least < result["wire_bytes_per_rank"] / (4 * 130601) < most, result
            assert result["gloo_ms"] > result["ring_ms"] > 0, result


def test_lost_packets_change_nothing():
    result = replay("--local", "2", "--iters", "3", "--time-scale", "0.1",
                    env=e2e.environment(SWITCHML_FAULTS="loss=0.05,seed=3"))
    assert result["retransmits"] > 0, result


def test_more_gradients_than_may_be_under_way():
    """1,100 tensors that are ready at once: those that went first are waited for in between."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as table:
        table.write("speed abacus 1000\nbatch 1\n" + "layer x 1 weight=300 bias=20\n" * 550)
        table.flush()
        status, out, err = e2e.run_bench("training", "--model-file", table.name, "--gpu", "abacus", "--local", "2",
                                         "--iters", "2", "--json", "--time-scale", "0.0001")
    assert status == 0, err
    (result,) = json.loads(out)["results"]
    assert result["wrong"] == 0 and result["operations"] == 2 * 3 * 1100, result


def test_ranks_with_different_arguments_are_told():
    with tempfile.TemporaryDirectory() as folder:
        port_file = os.path.join(folder, "port")
        daemon = subprocess.Popen([e2e.SWITCHMLD, "--listen", "127.0.0.1:0", "--port-file", port_file],
                                  env=e2e.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            e2e.wait_until(lambda: os.path.exists(port_file) and open(port_file, encoding="utf-8").read().endswith("\n"),
                           "the aggregator's port")
            with open(port_file, encoding="utf-8") as file:
                address = file.read().strip()
            ranks = [subprocess.Popen([e2e.SWITCHML, "bench", "training", "--time-scale", "0.01", "--batch", batch],
                                      env=e2e.environment(SWITCHML_AGGREGATOR=address, RANK=rank, WORLD_SIZE=2),
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                     for rank, batch in enumerate(["1", "2"])]
            outputs = [rank.communicate(timeout=60 * e2e.PATIENCE) for rank in ranks]
            assert [rank.returncode for rank in ranks] == [1, 1], outputs
            assert any("different" in error for _, error in outputs), outputs
        finally:
            daemon.kill()
            daemon.wait()


def test_a_sum_is_the_same_in_each_way():
    """`switchml bench numerics` without its peers, which torch_train_test has: one sum in each mode, of all ways."""
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "numerics.svg")
        status, out, err = e2e.run_bench("numerics", "--ranks", "2,3", "--tensors", "50", "--buckets", "1,3", "--no-peers",
                                         "--seed", "5", "--picture", picture, "--json", timeout=200)
        assert status == 0, err
        with open(picture, encoding="utf-8") as drawn:
            assert drawn.read().count("1 sum in 10 ways") == 4
    found = json.loads(out)
    assert [(count["sums"], count["ways"]) for count in found["counts"]] == 4 * [(1, 10)], found["counts"]
    assert len(found["ways"]) == 2 * (1 + 5 + 5) and found["missing"] == {}, found
    assert len({way["1_MiB"] for way in found["ways"]}) == 4, found  # each number of ranks, and each mode


def test_numerics_refuses_what_makes_no_sense():
    for arguments, words in ((["--ranks", "1"], "from 2 to 32"), (["--ranks", "2,,3"], "from 2 to 32"),
                             (["--buckets", "0"], "from 1 to 1024"), (["--model", "nothing"], "no table 'nothing'"),
                             (["--model", "llama_8b"], "too many elements")):
        status, _, err = e2e.run_bench("numerics", *arguments)
        assert status != 0 and words in err, (arguments, status, err)


def predict(*arguments):
    status, out, err = e2e.run_bench("training", "--predict", *arguments)
    assert status == 0, (arguments, err)
    return out


def test_predictions_name_the_regime():
    rows = json.loads(predict("--model", "all", "--rate", "1gbit,10gbit,100gbit", "--ranks", "8", "--json"))["results"]
    assert len(rows) == 45, len(rows)
    by_case = {(row["model"], row["rate"]): row for row in rows}
    slow, fast = by_case["vgg16", "1gbit"], by_case["vgg16", "100gbit"]
    assert slow["regime"] == "network-bound" and fast["regime"] == "compute-bound", (slow, fast)
    # A ring's bound, as far as its packets are alike: 2(n-1)/n times the bytes.
    assert 1.6 < slow["speedup"] < 1.75 and 1 <= fast["speedup"] < 1.02, (slow, fast)
    for row in rows:
        assert row["predicted_ms"] >= max(row["compute_ms"], row["link_ms"]) - 1e-6, row
    (sharded,) = json.loads(predict("--model", "vit_b_16", "--gpu", "h100", "--rate", "1gbit", "--fsdp",
                                   "--bucket", "25", "--json"))["results"]
    assert 1.75 < sharded["gloo_ms"] / sharded["predicted_ms"] < 3.5 / 1.875 and 1.3 < sharded["speedup"] < 1.4, sharded
    (embedded,) = json.loads(predict("--model", "vgg16", "--rate", "1gbit", "--aggregator", "embedded", "--json"))["results"]
    assert 0.95 < embedded["speedup"] < 1.05, embedded  # the same bytes as a ring's
    (narrow,) = json.loads(predict("--model", "vgg16", "--rate", "1gbit", "--aggregator", "1gbit", "--json"))["results"]
    assert narrow["speedup"] < 0.3, narrow  # eight tensors over one link: no help, and it says so


def test_predictions_as_text_and_values():
    rows = list(csv.DictReader(io.StringIO(predict("--model", "resnet50", "--rate", "1gbit,10gbit", "--csv"))))
    assert [row["rate"] for row in rows] == ["1gbit", "10gbit"] and float(rows[0]["MB"]) > 102, rows
    lines = predict("--model", "resnet50").splitlines()
    assert lines[-1].split()[0] == "resnet50" and "speedup" in lines[-2], lines
    assert "gloo" not in "".join(lines).lower() # it is a column of sharded training alone


def test_a_plan_covers_the_gradient():
    status, out, err = e2e.run_bench("training", "--plan", "--model", "vgg16", "--priority")
    assert status == 0, err
    lines = [line.split() for line in out.splitlines()]
    _, num_sections, num_sends, num_elems, _ = lines[0]
    sends = sorted((int(line[2]), int(line[3])) for line in lines if line[0] == "send")
    assert len(sends) == int(num_sends) and sum(line[0] == "forward" for line in lines) == int(num_sections), lines[0]
    at = 0
    for first, elems in sends:
        assert first == at
        at += elems
    assert at == int(num_elems) == 138357544


def test_bad_arguments_are_usage_errors():
    for wrong in [["--model", "no-such"], ["--gpu", "abacus"], ["--rate", "10"], ["--rate", "1gbit,2gbit"], ["--batch", "0"],
                  ["--priority", "--bucket", "25"], ["--priority", "--fsdp"], ["--time-scale", "0"], ["--model", "all"], ["--aggregator", "far"],
                  ["--json", "--csv"], ["--mtu", "20"], ["--iters", "0"], ["stray"], ["--model-file", "/nowhere"],
                  ["--predict", "--gpu", "abacus"], ["--predict", "--model", "no-such"]]:
        status, out, err = e2e.run_bench("training", *wrong, timeout=10, env=e2e.environment(RANK=0, WORLD_SIZE=1))
        assert status == 2 and out == "" and err != "", (wrong, status, out, err)


def test_what_there_is_is_listed():
    status, out, _ = e2e.run_bench("training", "--list")
    assert status == 0 and "bert_base" in out and "published: " in out and "derived" in out, out
    status, out, _ = e2e.run_bench("training", "--help")
    assert status == 0 and "--predict" in out, out


def test_tables_are_what_their_sources_make():
    """Those of the publications always; torchvision's where it is installed."""
    result = subprocess.run([sys.executable, os.path.join(ROOT, "bench/models/generate.py"), "--check"], check=False,
                            capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert result.returncode == 0, result.stderr


if __name__ == "__main__":
    tap.main(globals())
