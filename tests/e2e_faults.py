#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""switchmld and its workers when something is wrong: each failure ends in bounded time, names its reason,
and touches no other job."""
import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import e2e
import ports
import real
import tap

LONG = ["--sizes", "1M", "--iters", "100000", "--json"]
SHORT = ["--sizes", "4,1000,1M", "--iters", "5", "--json"]


def expect_failure(worker, *words, seconds=15):
    """The worker ends with status 1 and a message that has all the words."""
    status, out, err = worker.finish(seconds)
    text = e2e.said(worker.rank, err)
    assert status == 1 and out == "", f"rank {worker.rank}: status {status}\n{out}{err}"
    for word in words:
        assert word in text, f"rank {worker.rank} does not say '{word}': {err}"
    return text


def expect_success(ranks):
    for worker in ranks:
        status, out, err = worker.finish()
        assert status == 0, f"rank {worker.rank}: status {status}\n{err}"
        assert (out != "") == (worker.rank == 0), out
        if worker.rank == 0:
            assert all(r["wrong"] == 0 for r in json.loads(out)["results"]), out


def run_good_job(daemon, name="good"):
    with e2e.workers(daemon.address, 2, *SHORT, "--job", name) as ranks:
        expect_success(ranks)


def test_workers_of_a_running_daemon():
    with e2e.Daemon() as daemon:
        for _ in range(2): # one after the other under one name
            with e2e.workers(daemon.address, 3, *SHORT) as ranks:
                expect_success(ranks)


def test_killed_worker_is_named():
    with e2e.Daemon() as daemon, e2e.workers(daemon.address, 4, *LONG) as ranks:
        daemon.wait_busy()
        ranks[2].process.kill()
        start = time.monotonic()
        for rank in [0, 1, 3]:
            expect_failure(ranks[rank], "rank 2")
        assert time.monotonic() - start < 10 * e2e.PATIENCE
        run_good_job(daemon)


def test_stopped_worker_is_named():
    with e2e.Daemon() as daemon, e2e.workers(daemon.address, 3, *LONG, "--lease", "2") as ranks:
        daemon.wait_busy()
        ranks[1].process.send_signal(signal.SIGSTOP)
        for rank in [0, 2]:
            expect_failure(ranks[rank], "rank 1")
        ranks[1].process.send_signal(signal.SIGCONT)
        expect_failure(ranks[1])
        run_good_job(daemon)


def test_a_stopped_rank_that_aggregates_hears_that_it_was_stopped():
    """The others have lost it, and are gone when it wakes: its own aggregator lost them."""
    env = {"SWITCHML_RENDEZVOUS": f"127.0.0.1:{ports.fixed_port()}", "SWITCHML_SHARED_MEMORY": 1} # one aggregator, in rank 0
    with real.job("", 3, MEMBER_LEASE_MS=2000, MEMBER_PAUSE_US=2000, **env) as ranks:
        for rank in ranks:
            rank.wait_for("working")
        ranks[0].send_signal(signal.SIGSTOP)
        for rank in ranks[1:]:
            assert rank.error()[1:3] == (real.RANK_LOST, [0]), rank.text()
        ranks[0].send_signal(signal.SIGCONT)
        assert re.search(r"rank [12] .* was lost: .*; this process itself was stopped for at least \d+\.\d s", ranks[0].error()[3]), \
            ranks[0].text()


def test_two_workers_with_one_rank():
    with e2e.Daemon() as daemon:
        first = e2e.Worker(daemon.address, 0, 2, *SHORT)
        time.sleep(0.5 * e2e.PATIENCE)
        second = e2e.Worker(daemon.address, 0, 2, *SHORT)
        try:
            expect_failure(second, "rank 0")
            peer = e2e.Worker(daemon.address, 1, 2, *SHORT)
            expect_success([first, peer]) # the first was not disturbed
        finally:
            first.kill()
            second.kill()


def test_another_world_size_is_refused():
    with e2e.Daemon() as daemon:
        first = e2e.Worker(daemon.address, 0, 2, *SHORT)
        time.sleep(0.5 * e2e.PATIENCE)
        odd = e2e.Worker(daemon.address, 1, 3, *SHORT)
        try:
            expect_failure(odd, "world size", "2", "3")
            peer = e2e.Worker(daemon.address, 1, 2, *SHORT)
            expect_success([first, peer])
        finally:
            first.kill()
            odd.kill()


def test_wrong_environment():
    for env, expected in [({"RANK": "2", "WORLD_SIZE": "2"}, 2), ({"RANK": "x", "WORLD_SIZE": "2"}, 2),
                          ({"RANK": "-1", "WORLD_SIZE": "2"}, 2), ({"RANK": "0"}, 2), ({"WORLD_SIZE": "2"}, 2),
                          ({"RANK": "0", "WORLD_SIZE": "0"}, 2), ({"RANK": "0", "WORLD_SIZE": "5000"}, 2),
                          ({"RANK": "0", "WORLD_SIZE": "2"}, 1),
                          ({"RANK": "0", "WORLD_SIZE": "2", "SWITCHML_AGGREGATOR": "nonsense:port"}, 1)]:
        status, out, err = e2e.run_bench("--sizes", "4", "--timeout", "5", env=e2e.environment(**env), timeout=15)
        assert status == expected and out == "" and "switchml bench:" in err, (env, status, out, err)
        if env == {"RANK": "0", "WORLD_SIZE": "2"}:
            assert "SWITCHML_AGGREGATOR" in err, err


def test_wrong_faults_are_refused():
    env = e2e.environment(SWITCHML_FAULTS="loss=2", RANK="0", WORLD_SIZE="2", SWITCHML_AGGREGATOR="127.0.0.1:1")
    status, _, err = e2e.run_bench("--sizes", "4", "--timeout", "5", env=env, timeout=15)
    assert status == 1 and "loss" in err, (status, err)


def test_unreachable_aggregator():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    expect_failure(e2e.Worker(address, 0, 2, "--sizes", "4", "--timeout", "3"), address)


def test_silent_aggregator():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        expect_failure(e2e.Worker(address, 0, 2, "--sizes", "4", "--timeout", "2"))


def test_a_rank_that_never_comes():
    with e2e.Daemon() as daemon:
        lonely = [e2e.Worker(daemon.address, rank, 3, "--sizes", "4", "--timeout", "2") for rank in [0, 2]]
        for worker in lonely:
            expect_failure(worker, "rank 1")
        run_good_job(daemon)


def test_different_arguments_are_told():
    with e2e.Daemon() as daemon:
        one = e2e.Worker(daemon.address, 0, 2, "--sizes", "1000", "--timeout", "10")
        two = e2e.Worker(daemon.address, 1, 2, "--sizes", "2000", "--timeout", "10")
        texts = expect_failure(one) + expect_failure(two)
        assert "different --sizes" in texts, texts
        run_good_job(daemon)


def test_port_in_use():
    with e2e.Daemon() as daemon:
        result = subprocess.run([e2e.SWITCHMLD, "--listen", daemon.address], env=e2e.environment(), text=True,
                                check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                timeout=10 * e2e.PATIENCE)
        assert result.returncode != 0 and "in use" in result.stdout, result
        run_good_job(daemon)


def make_garbage(draw):
    """Random bytes, some with the first bytes of a header of ours."""
    data = bytes(draw.getrandbits(8) for _ in range(draw.choice([0, 1, 4, 12, 31, 32, 33, 40, 500, 1400])))
    kind = draw.randrange(4)
    if kind == 0 and len(data) >= 12:
        return struct.pack(">IHHI", 0x534D4C31, draw.choice([1, 2]), draw.randrange(12),
                           draw.choice([0, 5, 8448, 8449, 0xFFFFFFFF])) + data[12:]
    if kind == 1 and len(data) >= 32:
        return bytes([0x10 | draw.randrange(16), draw.randrange(256)]) + bytes([0, draw.randrange(4)]) + data[4:]
    return data


def throw_garbage(daemon, stop, counts):
    draw = random.Random(11)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ports = daemon.udp_ports()
    while not stop.is_set():
        for _ in range(20):
            udp.sendto(make_garbage(draw), ("127.0.0.1", draw.choice(ports)))
            counts["udp"] += 1
        with contextlib.suppress(OSError):
            tcp = socket.create_connection(("127.0.0.1", daemon.port), timeout=1)
            with tcp:
                tcp.sendall(b"".join(make_garbage(draw) for _ in range(draw.randrange(4))))
                counts["tcp"] += 1
        time.sleep(0.002)
    udp.close()


def test_garbage_changes_nothing():
    with e2e.Daemon() as daemon:
        assert daemon.udp_ports(), "the daemon has no UDP socket"
        stop, counts = threading.Event(), {"udp": 0, "tcp": 0}
        thread = threading.Thread(target=throw_garbage, args=(daemon, stop, counts))
        thread.start()
        try:
            for name in ["one", "two"]:
                with e2e.workers(daemon.address, 3, "--sizes", "4,1000,1M", "--iters", "20", "--json", "--job",
                                 name) as ranks:
                    expect_success(ranks)
        finally:
            stop.set()
            thread.join()
        assert counts["udp"] > 50 and counts["tcp"] > 2, counts
        run_good_job(daemon)


def test_many_half_open_connections():
    with e2e.Daemon() as daemon:
        idle = []
        try:
            for _ in range(200):
                idle.append(socket.create_connection(("127.0.0.1", daemon.port), timeout=5))
                with contextlib.suppress(OSError):
                    idle[-1].sendall(b"SML1"[:len(idle) % 5])
            e2e.wait_until(lambda: try_good_job(daemon), "a job gets through", 30)
        finally:
            for connection in idle:
                connection.close()
        run_good_job(daemon)


def try_good_job(daemon):
    with e2e.workers(daemon.address, 2, "--sizes", "1000", "--iters", "2", "--timeout", "10") as ranks:
        return all(worker.finish()[0] == 0 for worker in ranks)


def test_jobs_are_isolated():
    with e2e.Daemon() as daemon, \
            e2e.workers(daemon.address, 2, *LONG, "--job", "doomed") as doomed, \
            e2e.workers(daemon.address, 3, "--sizes", "1M", "--iters", "200", "--json", "--job", "fine") as fine, \
            e2e.workers(daemon.address, 2, *SHORT, "--type", "int32", "--job", "brief") as brief:
        daemon.wait_busy()
        doomed[1].process.kill()
        expect_failure(doomed[0], "rank 1")
        expect_success(brief)
        expect_success(fine)
        with e2e.workers(daemon.address, 2, *SHORT, "--job", "doomed") as again: # its name is free again
            expect_success(again)


def test_daemon_ends_on_sigterm():
    daemon = e2e.Daemon()
    start = time.monotonic()
    status, text = daemon.stop()
    assert status == 0 and time.monotonic() - start < 3 * e2e.PATIENCE, (status, text)


def test_sigterm_of_the_daemon_tells_the_workers():
    with e2e.Daemon() as daemon, e2e.workers(daemon.address, 2, *LONG) as ranks:
        daemon.wait_busy()
        daemon.process.send_signal(signal.SIGTERM)
        for worker in ranks:
            expect_failure(worker, "aggregator")
        assert daemon.process.wait(10 * e2e.PATIENCE) == 0


def test_killed_daemon_ends_the_workers():
    daemon = e2e.Daemon()
    with e2e.workers(daemon.address, 3, *LONG) as ranks:
        daemon.wait_busy()
        daemon.process.kill()
        for worker in ranks:
            expect_failure(worker, "aggregator")
    daemon.stop()


def test_stopped_daemon_ends_the_workers():
    daemon = e2e.Daemon()
    with e2e.workers(daemon.address, 2, *LONG, "--lease", "2") as ranks:
        daemon.wait_busy()
        daemon.process.send_signal(signal.SIGSTOP)
        for worker in ranks:
            expect_failure(worker, "aggregator", seconds=20)
        daemon.process.send_signal(signal.SIGCONT)
    assert daemon.stop()[0] == 0


def test_nothing_is_left():
    assert not e2e.marked_processes(), [os.readlink(f"/proc/{pid}/exe") for pid in e2e.marked_processes()]


if __name__ == "__main__":
    tap.main(globals())
