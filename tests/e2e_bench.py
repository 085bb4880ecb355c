#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`switchml bench --local`: real processes, right sums, the contract of its report, nothing left behind."""
import json
import os
import random
import signal
import subprocess
import tempfile
import time

import e2e
import tap

KEYS = ["bytes", "count", "type", "ranks", "time_us_median", "time_us_p99", "algbw_GBps", "busbw_GBps", "wrong",
        "max_error", "wire_bytes_per_rank", "retransmits"]


def test_report_keeps_its_contract():
    report = e2e.bench_json("--local", "4", "--sizes", "4,1000,1M", "--type", "float32")
    assert [r["bytes"] for r in report["results"]] == [4, 1000, 1 << 20]
    for r in report["results"]:
        assert not [key for key in KEYS if key not in r], r
        assert r["count"] == r["bytes"] // 4 and r["ranks"] == 4 and r["type"] == "float32", r
        assert 0 < r["time_us_median"] <= r["time_us_p99"], r
        assert abs(r["algbw_GBps"] * r["time_us_median"] * 1e3 / r["bytes"] - 1) < 1e-6, r
        assert abs(r["busbw_GBps"] / r["algbw_GBps"] - 1.5) < 1e-6, r
        assert r["iters"] >= 20, r
    large = report["results"][-1]
    assert (1 << 20) < large["wire_bytes_per_rank"] < 1.5 * (1 << 20), large
    assert large["max_error_bound"] > 0, large


def test_sizes_are_rounded_to_elements():
    report = e2e.bench_json("--local", "2", "--sizes", "1,3,7,1K,1001", "--iters", "3")
    assert [r["bytes"] for r in report["results"]] == [4, 4, 4, 1024, 1000]


def test_calls_at_once_and_batches():
    sizes = ["--sizes", "4,512,40000", "--iters", "3", "--calls", "40"]
    single, batch = e2e.bench_json("--local", "2", *sizes), e2e.bench_json("--local", "2", *sizes, "--batch")
    assert (single["calls"], single["batch"], batch["calls"], batch["batch"]) == (40, False, 40, True)
    # 44 bytes each and the headers; without a batch a header each
    assert single["results"][0]["wire_bytes_per_rank"] >= 40 * 76 > 1.5 * batch["results"][0]["wire_bytes_per_rank"]
    e2e.bench_json("--local", "3", *sizes, "--batch", "--in-place", "--type", "int32")


def test_types_reductions_and_ranks():
    for ranks, more in [(2, ["--type", "int32"]), (3, ["--op", "avg"]), (4, ["--type", "int32", "--in-place"]),
                        (5, ["--in-place"])]:
        report = e2e.bench_json("--local", str(ranks), "--sizes", "4,1000,1M,300001", "--iters", "5", *more)
        assert all(r["ranks"] == ranks for r in report["results"])


COLLECTIVES = ["reduce_scatter", "all_gather", "broadcast", "reduce", "barrier"]


def test_collectives():
    for what in COLLECTIVES:
        for more in [["--shared-memory", "no", "--loss", "0.01", "--calls", "3"], ["--in-place", "--type", "bfloat16"],
                     ["--shared-memory", "no", "--type", "int32", "--retry", "5", "--batch", "--calls", "4"]]:
            report = e2e.bench_json("--local", "3", "--sizes", "4,1000,300001", "--iters", "3", "--collective", what, *more)
            assert all(r["collective"] == what for r in report["results"]), report


def test_all_collectives_one_after_the_other():
    for one_way in "01":
        report = e2e.bench_json("--local", "3", "--sizes", "1000,2M", "--iters", "2", "--collective", "all",
                                env=e2e.environment(SWITCHML_ONE_WAY=one_way))
        rows = [(row["collective"], row["bytes"]) for row in report["results"]]
        kinds = ["all_reduce", "reduce_scatter", "all_gather", "reduce_scatter+all_gather", "broadcast", "reduce"]
        assert rows == [(kind, size) for kind in kinds for size in (1000, 2 << 20)] + [("barrier", 1000)], rows
        # With their own windows those two send (n-1)/n S and S/n.
        sent = {row["collective"]: row["wire_bytes_per_rank"] for row in report["results"] if row["bytes"] == 2 << 20}
        assert (sent["reduce_scatter+all_gather"] < 1.1 * sent["all_reduce"]) == (one_way == "1"), sent


def test_every_reduction_over_the_network():
    """Against a reference of the bench's own, element by element. A sanitized build has each type and each reduction."""
    both, integers = ["min", "max"], ["product", "band", "bor", "land", "lor"]
    types = ["int8", "uint8", "int32", "uint32", "int64", "uint64"] + ["float32", "float16", "bfloat16", "float64"]
    for number, kind in enumerate(types):
        ops = both if "float" in kind else integers + both
        for op in ops if e2e.PATIENCE == 1 else [ops[number % len(ops)]]:
            report = e2e.bench_json("--local", "3", "--sizes", "8,300000", "--iters", "1", "--warmup", "1", "--shared-memory", "no",
                                    "--type", kind, "--op", op)
            assert all(row["op"] == op and row["max_error"] == 0 for row in report["results"]), report


def test_a_killed_rank_is_named_in_each_collective():
    with e2e.Daemon() as daemon:
        for what in ["all_reduce", *COLLECTIVES]:
            with e2e.workers(daemon.address, 3, "--sizes", "1M", "--iters", "100000", "--collective", what,
                             "--job", what) as ranks:
                e2e.wait_completes(daemon.address, what)
                ranks[1].process.kill()
                killed_s = time.monotonic()
                for worker in (ranks[0], ranks[2]):
                    status, _, err = worker.finish()
                    assert status == 1 and "rank 1 " in err, (what, status, err)
                assert time.monotonic() - killed_s < 15 * e2e.PATIENCE, what  # long before a deadline


def test_every_type_over_the_network():
    for kind, bits, more in [("float16", 2, []), ("bfloat16", 2, ["--op", "avg"]), ("float16", 4, ["--float-bits", "32"]),
                             ("float32", 2, ["--float-bits", "16"]), ("int64", 12, []), ("float64", 12, ["--op", "avg"]),
                             ("float64", 8, ["--float64-bits", "64"])]:
        size = {"float16": 2, "bfloat16": 2, "float32": 4}.get(kind, 8)
        report = e2e.bench_json("--local", "3", "--sizes", "4,1000,300001", "--iters", "3", "--shared-memory", "no",
                                "--loss", "0.01", "--type", kind, *more)
        for r in report["results"]:
            assert r["type"] == kind and r["count"] == max(4, r["bytes"]) // size >= 1, r
        # Its elements and headers; twice where one was lost, seldom.
        assert bits <= r["wire_bytes_per_rank"] / r["count"] <= 1.25 * bits, (kind, more, r)


def test_three_lanes():
    for more in [[], ["--type", "int32"], ["--no-offload"]]:
        report = e2e.bench_json("--local", "3", "--sizes", "4,1000,1M,300001", "--lanes", "3", "--iters", "5",
                                *more)
        assert report["lanes"] == 3, report


def test_offload_forced_off():
    report = e2e.bench_json("--local", "4", "--sizes", "4,1000,1M", "--no-offload", "--iters", "5")
    assert report["offload"] is False, report


def test_small_windows_and_datagrams():
    for more in [["--slots", "1"], ["--slots", "4", "--lanes", "2"], ["--max-datagram", "600"]]:
        e2e.bench_json("--local", "3", "--sizes", "4,100000", "--iters", "3", *more)


def test_one_rank_copies_bits():
    report = e2e.bench_json("--local", "1", "--sizes", "4,1000,1M")
    assert all(r["max_error"] == 0 and r["busbw_GBps"] == 0 for r in report["results"])
    e2e.bench_json("--local", "1", "--sizes", "1000", "--type", "int32", "--in-place")


def test_lost_packets_change_no_bit():
    for more in [[], ["--lanes", "3"], ["--no-offload", "--op", "avg"]]:
        report = e2e.bench_json("--local", "4", "--sizes", "4,1000,1M", "--loss", "0.01", "--seed", "7",
                                "--iters", "10", *more)
        assert report["results"][-1]["retransmits"] > 0, report
        assert report["loss"] == 0.01 and report["seed"] == 7, report


def test_heavy_loss():
    report = e2e.bench_json("--local", "3", "--sizes", "1000,100000", "--loss", "0.2", "--iters", "3")
    assert report["results"][-1]["retransmits"] > 0, report


def test_no_loss_needs_no_retransmission_to_be_right():
    e2e.bench_json("--local", "2", "--sizes", "1M", "--loss", "0", "--iters", "3")


def test_everything_lost_ends_in_an_error():
    start = time.monotonic()
    status, out, err = e2e.run_bench("--local", "2", "--sizes", "4", "--loss", "1.0", "--json", timeout=60)
    assert status == 1 and out == "", (status, out, err)
    assert "rank 0" in err and time.monotonic() - start < 60 * e2e.PATIENCE, err


def test_table_is_for_people():
    status, out, err = e2e.run_bench("--local", "2", "--sizes", "1000,64K", "--iters", "3")
    assert status == 0, err
    heading = [line for line in out.splitlines() if line.startswith("#")]
    rows = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert "ranks 2" in heading[0] and "float32" in heading[0] and "path: network" in heading[1] and "lanes" in heading[2], out
    assert "algbw" in "".join(heading[2:]), out
    assert rows[0][:2] == ["bytes", "count"] and rows[1][:2] == ["1000", "250"], out
    assert rows[2][:2] == ["64K", "16384"] and len({len(row) for row in rows}) == 1, out


def test_bad_arguments_are_usage_errors():
    for wrong in [["--loss", "1.5"], ["--loss", "-0.1"], ["--loss", "nan"], ["--loss", "x"], ["--sizes", "junk"],
                  ["--sizes", ""], ["--sizes", "4,,8"], ["--sizes", "-4"], ["--sizes", "1T"],
                  ["--type", "float80"], ["--type", ""], ["--float-bits", "24"], ["--float64-bits", "0"], ["--op", "xor"], ["--op", "product"], ["--op", "land", "--type", "bfloat16"], ["--collective", "gather"], ["--type", "int32", "--op", "avg"], ["--type", "int64", "--op", "avg"],
                  ["--local", "0"], ["--local", "-1"], ["--local", "9999"], ["--iters", "0"], ["--seed", "-1"],
                  ["--lanes", "17"], ["--slots", "3"], ["--calls", "0"], ["--timeout", "0"], ["--job", ""], ["--job", "j" * 64],
                  ["--no-such-option"], ["stray"]]:
        status, out, err = e2e.run_bench("--local", "2", *wrong, timeout=10)
        assert status == 2 and out == "" and err != "", (wrong, status, out, err)


def test_command_line_of_the_command():
    for arguments, expected, words in [(["--version"], 0, "switchml 0."), (["--help"], 0, "bench"),
                                       (["bench", "--help"], 0, "--sizes"), ([], 2, "no command"),
                                       (["fly"], 2, "fly"), (["--fly"], 2, "fly")]:
        result = subprocess.run([e2e.SWITCHML, *arguments], env=e2e.environment(), text=True, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10 * e2e.PATIENCE)
        assert result.returncode == expected and words in result.stdout, (arguments, result)


def test_more_than_the_memory_is_refused():
    status, _, err = e2e.run_bench("--local", "4", "--sizes", "1000G", timeout=10)
    assert status == 1 and "MiB are free" in err, (status, err)


def test_a_report_that_cannot_be_written_is_an_error():
    if not os.path.exists("/dev/full"):
        raise tap.Skip("no /dev/full")
    for more in [[], ["--json"]]:
        with open("/dev/full", "w", encoding="utf-8") as full:
            status, _, err = e2e.run_bench("--local", "2", "--sizes", "4", "--iters", "2", *more, stdout=full)
        assert status == 1 and "standard output" in err, (status, err)


def interrupt_at(seconds, number, folder):
    env = e2e.environment(TMPDIR=folder)
    process = subprocess.Popen([e2e.SWITCHML, "bench", "--local", "3", "--sizes", "1M", "--iters", "100000"],
                               env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.send_signal(number)
    out, err = process.communicate(timeout=20 * e2e.PATIENCE)
    assert process.returncode == -number, (seconds, number, process.returncode, err)
    assert out == "", out
    if number != signal.SIGKILL:
        assert not os.listdir(folder), os.listdir(folder)
    e2e.wait_until(lambda: not e2e.marked_processes(), f"all processes ended after {seconds} s")


def test_interrupts_leave_nothing():
    draw = random.Random(1)
    moments = [0.0, 0.01, 0.03] + [draw.uniform(0, 0.8) for _ in range(7)]
    for seconds, number in zip(moments, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT] * 3):
        with tempfile.TemporaryDirectory() as folder:
            if seconds < 0.02:
                time.sleep(0) # before or after its handlers stand, both must do
            interrupt_at(seconds, number, folder)


def test_killed_launcher_takes_all_with_it():
    for seconds in [0.05, 0.7]:
        with tempfile.TemporaryDirectory() as folder:
            interrupt_at(seconds, signal.SIGKILL, folder)


def test_killed_worker_ends_the_run():
    process = subprocess.Popen([e2e.SWITCHML, "bench", "--local", "3", "--sizes", "1M", "--iters", "100000",
                                "--json"], env=e2e.environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)

    def children():
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as file:
            return [int(pid) for pid in file.read().split()]
    e2e.wait_until(lambda: len(children()) == 4 and all(e2e.cpu_ticks(p) > 5 for p in children()), "they work")
    os.kill(children()[2], signal.SIGKILL) # the aggregator is first
    out, err = process.communicate(timeout=25 * e2e.PATIENCE)
    assert process.returncode == 1 and out == "", (process.returncode, out, err)
    assert "rank 1 was killed by signal 9" in err, err
    assert not e2e.marked_processes()


def test_seed_decides_the_inputs():
    errors = []
    for seed in ["1", "1", "2"]:
        report = e2e.bench_json("--local", "2", "--sizes", "100000", "--iters", "2", "--seed", seed)
        errors.append(json.dumps([r["max_error"] for r in report["results"]]))
    assert errors[0] == errors[1] and errors[0] != errors[2], errors


if __name__ == "__main__":
    tap.main(globals())
