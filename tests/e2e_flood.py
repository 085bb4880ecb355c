#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Floods of the data ports, at the aggregator and at a worker: random bytes, and packets of the live job with one
field wrong in each. `switchml bench` checks every bit meanwhile; memory stays flat. The same flood of a port that
nobody cares about shows what of the lost speed is the flood's own use of the processors: compared() is what
tools/trust.py reports."""
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

import e2e
import peer
import relay
import tap

FLOOD = os.environ.get("SWITCHML_FLOOD", "flood")
MAX_GROWTH_KIB = 8 << 10
SIZE_BYTES = 4 << 20
LEAST_GOODPUT = 0.7
KEY_NAME, KEY = "tenant", bytes(range(1, 17))
IS_SANITIZED = e2e.PATIENCE > 1  # whose memory and speed say nothing


class Bystander:
    """A port that nobody cares about: bound, never read."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]


class Memory:
    """Watches the resident memory of processes while they run."""

    def __init__(self, processes):
        self.processes = processes
        self.samples = {process.pid: [] for process in processes}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.stop.wait(0.05):
            for process in self.processes:
                try:
                    with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                        match = re.search(r"VmRSS:\s+(\d+)", status.read())
                except OSError:
                    continue
                if match:
                    self.samples[process.pid].append(int(match.group(1)))

    def growth_kib(self):
        """The most that the later two thirds of a run needed more than the first, over the processes."""
        self.stop.set()
        self.thread.join()
        growth = 0
        for samples in self.samples.values():
            third = len(samples) // 3
            if third:
                growth = max(growth, max(samples[third:]) - max(samples[:third]))
        return growth


class Flood:
    """The generator, until it is stopped."""

    def __init__(self, port, rate, kind, live, from_port=None):
        fields = [] if kind == "random" else [str(live[name]) for name in ("job", "epoch", "rank", "slot", "phase", "mask")]
        if from_port:
            fields += ["1", str(from_port)]
        self.process = subprocess.Popen([FLOOD, str(port), str(rate), "600", kind, *fields], env=e2e.environment(),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "begun\n", self.process.wait()

    def stop(self):
        """Datagrams per second that it sent; 0 if it was stopped within a millisecond."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=10 * e2e.PATIENCE)
        number, seconds = out.split()
        return int(number) / float(seconds) if float(seconds) > 0 else 0.0


def scout(daemon):
    """(a member that keeps job 0, so that the next one is job 1, what is to be known of that from outside): job numbers
    are given in order, the first window begins at slot 0, and the epoch is guessed from one's own."""
    member = peer.Member(daemon.port, 0, 2, job_name="scout", timeout_ns=600 * 10**9, lease_ns=600 * 10**9)
    member.connect()
    member.say_join()
    member.hear_welcome()
    return member, {"job": member.welcome["job"] + 1, "epoch": (member.welcome["epoch"] + 1) % 2**32, "rank": 0, "slot": 0,
                    "phase": 2, "mask": 0}


def run_flooded(daemon, end, kind, rate, num_iters, port, is_forged=False, is_outside=False, **env):
    """(what each rank of the bench ended with, datagrams/s of the flood, KiB that a process grew by)"""
    member, guess = scout(daemon) if is_outside else (None, None)
    reader = relay.Relay(daemon.port)
    with e2e.workers(reader.address, 2, "--sizes", str(SIZE_BYTES), "--iters", str(num_iters), "--json", **env) as ranks:
        memory = Memory([daemon.process] + [worker.process for worker in ranks])
        ends = [daemon] + ranks  # udp_ports wants the process of either
        e2e.wait_until(lambda: all(e2e.Daemon.udp_ports(each) for each in ends), "all have their ports")
        welcome, start = reader.await_start()
        live = {"job": welcome["job"], "epoch": start["epoch"], "rank": 0, "slot": start["slot_base"][0],
                "phase": start["first_phase"], "mask": start["secret0"] >> 32}
        assert not is_outside or (guess["job"], guess["slot"]) == (live["job"], live["slot"]), (guess, live)
        live = guess or live
        ports = [e2e.Daemon.udp_ports(each)[0] for each in ends]
        target, forged_source = (0, 1) if end == "aggregator" else (1, 0)
        flood = Flood(port or ports[target], rate, kind, live, ports[forged_source] if is_forged else None)
        outcomes = [worker.finish(20 + num_iters) for worker in ranks]
        sent, growth = flood.stop(), memory.growth_kib()
    reader.close()
    if member:
        member.close()
    return outcomes, sent, growth


def flooded(end, kind, rate, num_iters, port=None, arguments=(), **more):
    """One run of the bench: (GB/s, datagrams/s of the flood, KiB of memory it grew by, drops). port: where the flood
    goes, if not to the data port of `end`; arguments: of the daemon."""
    daemon = e2e.Daemon(*arguments)
    try:
        outcomes, sent, growth = run_flooded(daemon, end, kind, rate, num_iters, port, **more)
    finally:
        ended, text = daemon.stop()
    assert ended == 0, text
    for status, _, err in outcomes:
        assert status == 0, f"{end}, {kind}: {err}"
    result = json.loads(outcomes[0][1])["results"][0]
    assert result["wrong"] == 0 and result["max_error"] <= result["max_error_bound"], result
    assert IS_SANITIZED or growth <= MAX_GROWTH_KIB, f"{end}, {kind}: {growth} KiB more of memory"
    return result["algbw_GBps"], sent, growth, re.search(r'dropped_packets="([^"]*)"', text).group(1)


def compared(end, kind, rate, seconds, rounds):
    """Goodput under the flood over that beside it, medians of interleaved runs."""
    bystander = Bystander()
    begin = time.monotonic()
    flooded(end, kind, rate, 200)
    num_iters = max(100, int(200 * seconds / (time.monotonic() - begin)))
    at, beside, sent, growth, drops = [], [], [], 0, ""
    for _ in range(rounds):
        speed, rate_beside, _, _ = flooded(end, kind, rate, num_iters, bystander.port)
        beside.append(speed)
        speed, rate_at, more, drops = flooded(end, kind, rate, num_iters)
        at.append(speed)
        sent.append((rate_at, rate_beside))
        growth = max(growth, more)
    goodput = statistics.median(at) / statistics.median(beside)
    print(f"# {end}, {kind}: {statistics.median(at):.3f} of {statistics.median(beside):.3f} GB/s = {goodput:.0%}, "
          f"{num_iters} x {SIZE_BYTES} bytes, at {min(a for a, _ in sent):.0f} .. {max(a for a, _ in sent):.0f}/s "
          f"(beside: {min(b for _, b in sent):.0f}/s), {growth} KiB more; dropped {drops}", flush=True)
    assert goodput >= LEAST_GOODPUT, f"{end}, {kind}: goodput {goodput:.0%}: {at} of {beside}"


def check(end, kind, *reasons, **more):
    """Short: nothing is wrong, and the flood got as far as it should."""
    rate = 5000 if IS_SANITIZED else 50_000
    _, sent, _, drops = flooded(end, kind, rate, 20 if IS_SANITIZED else 60, **more)
    assert sent > 100, sent
    counted = {name: int(count) for name, count in (each.split("=") for each in drops.split())}
    for reason in reasons:
        assert counted.get(reason, 0) > 0, f"no {reason} in {drops}"


def check_forged(end, *reasons):
    """From the address of the right sender, which unkeyed jobs have to believe; a key finds them out."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP).close()
    except PermissionError:
        raise tap.Skip("forged source addresses need root") from None
    with tempfile.NamedTemporaryFile("w", prefix="switchml-keys-") as file:
        file.write(f"{KEY_NAME} {KEY.hex()}\n")
        file.flush()
        check(end, "fields", *reasons, is_forged=True, arguments=["--key-file", file.name],
              SWITCHML_KEY_FILE=file.name, SWITCHML_CHECK=1)


def check_outside(end, *reasons):
    """From the address of the right sender, with all that can be known or guessed of a job without a key from outside:
    nothing gets in."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP).close()
    except PermissionError:
        raise tap.Skip("forged source addresses need root") from None
    check(end, "fields", *reasons, is_forged=True, is_outside=True)


def outside_forger(end, num_datagrams):
    """The long form: at least so many, in runs of the bench that must all be right."""
    num_sent = 0
    while num_sent < num_datagrams:
        begin = time.monotonic()
        _, rate, growth, drops = flooded(end, "fields", 200_000, 3000, is_forged=True, is_outside=True)
        num_sent += int(rate * (time.monotonic() - begin))
        print(f"# {end}: {num_sent} datagrams, {growth} KiB more; dropped {drops}", flush=True)


def test_an_outside_forger_at_the_aggregator():
    check_outside("aggregator", "BAD_CRC", "BAD_KEY")


def test_an_outside_forger_at_a_worker():
    check_outside("worker")


def test_random_bytes_at_the_aggregator():
    check("aggregator", "random", "TRUNCATED", "BAD_VERSION")


def test_near_valid_packets_at_the_aggregator():
    """Each field, wrong, was found out; those that are right in all but their address too."""
    check("aggregator", "fields", "BAD_VERSION", "BAD_TYPE", "UNKNOWN_JOB", "BAD_RANK", "TRUNCATED", "BAD_CRC", "BAD_KEY",
          "WRONG_SOURCE", "BAD_NONCE")


def test_random_bytes_at_a_worker():
    check("worker", "random")


def test_near_valid_packets_at_a_worker():
    check("worker", "fields")


def test_forged_packets_at_the_aggregator_of_a_keyed_job():
    check_forged("aggregator", "BAD_VERSION", "BAD_TYPE", "UNKNOWN_JOB", "WRONG_EPOCH", "TRUNCATED", "BAD_KEY")


def test_forged_packets_at_a_worker_of_a_keyed_job():
    check_forged("worker")


if __name__ == "__main__":
    tap.main(globals())
