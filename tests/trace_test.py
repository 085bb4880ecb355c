#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Flight recorders of real processes, and `switchml trace` on their files: a rank that is stopped for a while and then
killed is what all of them tell of."""
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import e2e
import real
import tap


@contextlib.contextmanager
def incident():
    """Files of a daemon and rank 0 after rank 1 was stopped, went on, and was killed; (folder, daemon's files, rank's)."""
    with tempfile.TemporaryDirectory(prefix="switchml-trace-") as folder, \
            e2e.Daemon("--trace-dir", folder, "--trace", "all", "--trace-events", "65536") as daemon:
        with real.job(daemon.address, 2, MEMBER_JOB="train", MEMBER_ELEMENTS=1000, MEMBER_PAUSE_US=2000, MEMBER_LEASE_MS=4000,
                      SWITCHML_TRACE_DIR=folder, SWITCHML_SHARED_MEMORY="0") as members:
            for member in members:
                member.wait_for("working")
            members[1].send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            daemon.process.send_signal(signal.SIGUSR1)
            e2e.wait_until(lambda: glob.glob(f"{folder}/switchmld-*-0.trace"), "the daemon wrote a trace")
            members[1].send_signal(signal.SIGCONT)
            time.sleep(0.2)
            members[1].send_signal(signal.SIGKILL)
            _, status, ranks, detail = members[0].error()
            assert (status, ranks) == (real.RANK_LOST, [1]), (status, ranks)
            named = re.search(r"\(trace: (.*)\)$", detail)
            assert named and os.path.exists(named.group(1)), detail
            e2e.wait_until(lambda: glob.glob(f"{folder}/switchmld-*-1.trace"), "the daemon wrote one of the abort")
        assert "trace_written" in daemon.text(), daemon.text()
        files = sorted(glob.glob(f"{folder}/switchmld-*.trace"))
        assert len(glob.glob(f"{folder}/*")) == 3, os.listdir(folder)
        yield folder, files, named.group(1)


def trace(*arguments, status=0):
    done = subprocess.run([e2e.SWITCHML, "trace", *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60 * e2e.PATIENCE, env=e2e.environment(), check=False)
    assert done.returncode == status, (arguments, done.returncode, done.stderr)
    return done.stdout if status == 0 else done.stderr


def events(*arguments):
    return [json.loads(line) for line in trace("--json", *arguments).splitlines()]


def check_filters(everything, files):
    of_1 = events("--rank", "1", "--event", "pending_sent,pending_received", *files)
    assert of_1 and all(e["missing"] == 1 or e.get("rank") == 1 for e in of_1)
    slot = of_1[0]["slot"]
    of_slot = events("--slot", str(slot), *files)
    assert 0 < len(of_slot) < len(everything) and all(e["slot"] == slot for e in of_slot)
    assert events("--job", "train", *files) and not events("--job", "other", *files)
    assert all("lane" in e for e in events("--lane", "0", *files))
    first, last = everything[0]["time_ns"], everything[-1]["time_ns"]
    late = events("--since", "-0.1", *files)
    early = events("--until", "0.1", *files)
    assert late and all(e["time_ns"] >= last - 10 ** 8 for e in late)
    assert early and all(e["time_ns"] <= first + 10 ** 8 for e in early)


def check_perfetto(*files):
    viewed = json.loads(trace("--perfetto", *files))["traceEvents"]
    begun = {(e["pid"], e["cat"], e["id"]) for e in viewed if e["ph"] == "b"}
    ended = [e for e in viewed if e["ph"] == "e"]
    assert ended and all((e["pid"], e["cat"], e["id"]) in begun for e in ended)
    assert {"M", "i", "b", "e"} <= {e["ph"] for e in viewed}
    assert any(e["ph"] == "i" and e["name"] == "pending_received" and e["args"]["missing"] == 1 for e in viewed)
    assert all(e["ts"] >= 0 for e in viewed if e["ph"] != "M")


def test_a_late_and_lost_rank_is_told_of():
    with incident() as (folder, daemons, ranks):
        everything = events(*daemons, ranks)
        times = [e["time_ns"] for e in everything]
        assert times == sorted(times), [two for two in zip(everything, everything[1:]) if two[0]["time_ns"] > two[1]["time_ns"]]
        assert abs(times[-1] / 1e9 - time.time()) < 60, (everything[-3:], time.time())
        names = {e["event"] for e in everything}
        assert {"operation_submitted", "operation_started", "operation_ended", "pending_received", "pending_sent",
                "update_received", "slot_completed", "rank_joined", "job_started", "rank_lost", "job_failed",
                "slot_recovered", "epoch_started", "hello_received"} <= names, names
        assert {e["job"] for e in everything if e["event"] == "pending_received"} == {"train"}
        failed = [e for e in everything if e["event"] == "job_failed"]
        assert len(failed) == 1 and failed[0]["status"] == real.RANK_LOST and failed[0]["own_rank"] == 0
        waits = re.findall(r"slot \d+ phase \d+ of job train: rank 1 missing for (\d+) ms", trace("--summary", ranks))
        assert waits and max(int(wait) for wait in waits) >= 300, waits
        text = trace("--summary", *daemons, ranks)
        assert "rank_lost" in text and "job_failed" in text and "missing" in text, text
        lines = trace(*daemons, ranks).splitlines()
        assert len(lines) == len(everything)
        assert any(re.search(r"Z rank 0 +lane 0 +pending_received +job=train slot=\d+ missing=1 ", line) for line in lines)
        check_filters(everything, [*daemons, ranks])
        check_perfetto(*daemons, ranks)
        check_broken(folder, ranks)


def check_broken(folder, whole):
    with open(whole, "rb") as file:
        data = file.read()
    def with_bytes(name, content):
        path = os.path.join(folder, name)
        with open(path, "wb") as out:
            out.write(content)
        return path
    assert "no trace of SwitchML" in trace(with_bytes("text", b"not a trace at all, but a text"), status=1)
    assert "no trace of SwitchML" in trace(with_bytes("nothing", b""), status=1)
    assert "no trace of SwitchML" in trace(folder, status=1)
    assert "version 2" in trace(with_bytes("newer", data[:9] + b"\2" + data[10:]), status=1)
    assert "within its header" in trace(with_bytes("short", data[:200]), status=1)
    cut = with_bytes("cut", data[:-100])
    assert len(events(cut)) == len(events(whole)) - 4
    assert "No such file" in trace(os.path.join(folder, "none"), status=1)
    # A number that no table has: shown, not believed.
    header_bytes = int.from_bytes(data[12:16], "big")
    odd = with_bytes("odd", data[:header_bytes + 8] + b"\xff\xff" + data[header_bytes + 10:])
    assert any(e.get("event_number") == 65535 for e in events(odd))
    trace("--summary", odd)
    trace("--perfetto", odd)


def test_a_number_used_again_keeps_its_events_apart():
    """Each of two jobs, one after the other, has the aggregator's first number."""
    with tempfile.TemporaryDirectory(prefix="switchml-trace-") as folder, \
            e2e.Daemon("--trace-dir", folder, "--trace", "all") as daemon:
        for name in ("idle-carol", "tr"):
            with real.job(daemon.address, 2, MEMBER_JOB=name, MEMBER_OPERATIONS=3, MEMBER_ELEMENTS=1000) as members:
                for member in members:
                    member.wait_for("done")
            e2e.wait_until(lambda job=name: re.search(rf"job_ended job={job} ", daemon.text()), "the job has ended")
        daemon.process.send_signal(signal.SIGUSR1)
        e2e.wait_until(lambda: glob.glob(f"{folder}/switchmld-*.trace"), "the daemon wrote a trace")
        every = events(*glob.glob(f"{folder}/switchmld-*.trace"))
        of = {name: events("--job", name, *glob.glob(f"{folder}/switchmld-*.trace")) for name in ("idle-carol", "tr")}
        for name, mine in of.items():
            kinds = [e["event"] for e in mine]
            assert {"job_opened", "rank_joined", "slot_completed", "job_ended"} <= set(kinds), (name, kinds)
            assert kinds.count("job_opened") == 1 and kinds.count("rank_joined") == 2, (name, kinds)
        assert of["idle-carol"][-1]["time_ns"] <= of["tr"][0]["time_ns"]
        assert len(of["idle-carol"]) + len(of["tr"]) == len([e for e in every if "job" in e]), len(every)


def test_what_two_dumps_have_is_shown_once():
    """The second has what the first had, but for what was overwritten since: then the first has more."""
    for num_events, is_overwritten in (("65536", False), ("64", True)):
        with tempfile.TemporaryDirectory(prefix="switchml-trace-") as folder, \
                e2e.Daemon("--trace-dir", folder, "--trace", "all", "--trace-events", num_events) as daemon:
            with real.job(daemon.address, 2, MEMBER_JOB="tr", MEMBER_OPERATIONS=3, MEMBER_ELEMENTS=1000) as members:
                for member in members:
                    member.wait_for("done")
            for number in range(2):
                daemon.process.send_signal(signal.SIGUSR1)
                e2e.wait_until(lambda of=number: glob.glob(f"{folder}/switchmld-*-{of}.trace"), "the daemon wrote a trace")
                with real.job(daemon.address, 2, MEMBER_JOB=f"tr{number}", MEMBER_OPERATIONS=300, MEMBER_ELEMENTS=1000) as members:
                    for member in members:
                        member.wait_for("done")
            first, second = sorted(glob.glob(f"{folder}/switchmld-*.trace"))
            alone = [events(first), events(second)]
            for files in ((first, second), (second, first), (first, second, second)):
                both = [(e["event"], e.get("job"), e.get("slot"), e.get("rank"), e.get("phase")) for e in events(*files)]
                assert len(alone[1]) <= len(both) < len(alone[0]) + len(alone[1]), (files, len(both), [len(a) for a in alone])
                assert (len(both) > len(alone[1])) == is_overwritten, (files, len(both), [len(a) for a in alone])
                assert len([e for e in both if e[:2] == ("job_started", "tr")]) == 1, both


def test_files_of_an_earlier_run_stay():
    """In a container both may have had the number 1."""
    with tempfile.TemporaryDirectory(prefix="switchml-trace-") as folder, e2e.Daemon("--trace-dir", folder) as daemon:
        for number in (0, 2):
            with open(f"{folder}/switchmld-{daemon.process.pid}-{number}.trace", "w", encoding="utf-8") as file:
                file.write("of an earlier run")
        for number in (1, 3):
            daemon.process.send_signal(signal.SIGUSR1)
            e2e.wait_until(lambda of=number: glob.glob(f"{folder}/switchmld-*-{of}.trace"), "the daemon wrote a trace")
            assert trace(f"{folder}/switchmld-{daemon.process.pid}-{number}.trace") == "" # of a daemon without jobs
        with open(f"{folder}/switchmld-{daemon.process.pid}-0.trace", encoding="utf-8") as file:
            assert file.read() == "of an earlier run"


def test_a_busy_job_leaves_the_events_of_others():
    """Many times what the recorders hold is written for one job, between two looks at another."""
    with tempfile.TemporaryDirectory(prefix="switchml-trace-") as folder, \
            e2e.Daemon("--trace-dir", folder, "--trace", "all", "--trace-events", "1024") as daemon, \
            real.job(daemon.address, 2, MEMBER_JOB="quiet", MEMBER_OPERATIONS=10, MEMBER_PAUSE_US=3000000,
                     MEMBER_ELEMENTS=100) as quiet:
        for member in quiet:
            member.wait_for("working")
        with real.job(daemon.address, 2, MEMBER_JOB="busy", MEMBER_OPERATIONS=2000, MEMBER_ELEMENTS=1000) as busy:
            for member in busy:
                member.expect_done()
        daemon.process.send_signal(signal.SIGUSR1)
        e2e.wait_until(lambda: glob.glob(f"{folder}/switchmld-*.trace"), "the daemon wrote a trace")
        files = glob.glob(f"{folder}/switchmld-*.trace")
        assert len(events("--job", "busy", "--event", "update_received", *files)) >= 100
        kept = [e["event"] for e in events("--job", "quiet", *files)]
        assert "epoch_started" in kept and kept.count("update_received") >= 2, kept


def test_wrong_usage():
    assert "no file" in trace(status=2)
    assert "no event" in trace("--event", "slot_compleated", "x", status=2)
    assert "number" in trace("--rank", "-1", "x", status=2)
    assert "seconds" in trace("--since", "soon", "x", status=2)


def test_without_a_folder_sigusr1_says_so():
    with e2e.Daemon() as daemon:
        daemon.process.send_signal(signal.SIGUSR1)
        e2e.wait_until(lambda: "--trace-dir" in daemon.text(), "the daemon says what is missing")
        assert daemon.is_alive()


if __name__ == "__main__":
    tap.main(globals())
