#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A soak: jobs that nobody attacks, beside everything that users and strangers do to an aggregator.

Peaceful jobs stay, come and go, are paused, write to logs that nobody reads, meet without an aggregator, or outlive
theirs. Meanwhile ranks of other jobs are killed and stopped, data ports are flooded, the control port is abused,
strangers sit where ranks meet, and the reader of the daemons' logs stalls. No peaceful job ends, every sum is right, and
the peers of every victim hear who it was. `tools/trust.py soak --seconds N` runs it for as long as one likes."""
import contextlib
import fcntl
import os
import random
import re
import signal
import socket
import tempfile
import threading
import time

import e2e
import e2e_control
import e2e_flood
import ports
import real
import tap

SHORT_S = 8
KEYS = "tenant 0f0e0d0c0b0a09080706050403020100\n"
FLOOD_RATE = 5000  # a second: strangers, not a lack of processors, is what this is about
SHARED = {"SWITCHML_SHARED_MEMORY": 1}
PAUSE_S = 4.0  # late, not lost
NUM_WEIGHINGS, LEAK_KIB = 8, 1024
LONG_S = 300  # memory that is kept for reuse has been reached long before
PATIENCE_S = 300  # a machine that is starved ends nothing, and proves nothing: what takes longer than this hangs


def short_pipe():
    """(reading end, writing end) of one that is full after 4 KiB"""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    return ends


class Log:
    """The reading end of a pipe, whose reader stalls more often than not."""

    def __init__(self, draw):
        self.draw, self.num_bytes, self.next_read, self.first = draw, 0, 0.0, b""
        self.descriptor, self.writer = short_pipe()
        os.set_blocking(self.descriptor, False)

    def turn(self):
        if time.monotonic() < self.next_read:
            return
        self.next_read = time.monotonic() + self.draw.choice([0.1, 3, 10])
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.descriptor, 1 << 16):
                self.num_bytes += len(chunk)
                self.first = self.first or chunk

    def most_kib(self):
        """What the daemon says at its start that it takes at most."""
        return int(re.search(rb"most_mib=(\d+)", self.first).group(1)) << 10

    def close(self):
        os.close(self.descriptor)
        os.close(self.writer)


class Soak:
    """What goes on until `end`. Each actor is a thread that does one thing again and again; one that fails ends all."""

    def __init__(self, seconds, seed):
        self.seed, self.end = seed, time.monotonic() + seconds
        self.counts, self.broken, self.lock = {}, [], threading.Lock()
        self.stack = contextlib.ExitStack()
        self.peaceful = []  # members that must be there at the end
        self.memory = []  # of each daemon, KiB at each weighing

    def goes_on(self):
        return time.monotonic() < self.end and not self.broken

    def rest(self, seconds):
        until = min(self.end, time.monotonic() + seconds)
        while time.monotonic() < until and not self.broken:
            time.sleep(0.05)

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def act(self, number, actor, *arguments):
        draw = random.Random(self.seed * 1000 + number)
        try:
            while self.goes_on():
                actor(self, draw, *arguments)
        except Exception as error:  # whatever it is, it must not be lost in a thread
            self.broken.append(f"{actor.__name__}: {type(error).__name__}: {error}")

    def stay(self, address, world_size, **env):
        """A peaceful job that works until the end."""
        name = f"stays-{len(self.peaceful)}"
        members = self.stack.enter_context(real.job(address, world_size, MEMBER_JOB=name, MEMBER_JOIN_TIMEOUT_S=120, **env))
        self.peaceful += members
        return members

    def check_peaceful(self):
        for member in self.peaceful:
            if member.process.poll() is not None:
                self.broken.append(f"a rank that nobody attacked ended with {member.process.returncode}:\n{member.text()}")


# --- peaceful ---

def come_and_go(soak, draw, address, env):
    """A job that joins, sums and leaves. A join may be refused for want of room, then it is tried again."""
    real.join_seconds(address, draw.randint(2, 4), patience_s=PATIENCE_S, MEMBER_JOB="comes-and-goes", MEMBER_OPERATIONS=draw.choice([1, 50, 500]),
                      MEMBER_ELEMENTS=draw.choice([10, 1000, 200_000]), **draw.choice([SHARED, {}]), **env)
    soak.count("jobs came and went")


def pause(soak, draw, members, seconds):
    """One rank stands still for less than a silence that means loss."""
    member = draw.choice(members)
    member.send_signal(signal.SIGSTOP)
    try:
        time.sleep(seconds * draw.random())
    finally:
        member.send_signal(signal.SIGCONT)
    soak.count("pauses")
    soak.rest(3 * draw.random())


def meet(soak, draw):
    """Ranks that aggregate for each other, where strangers sit on the port that they meet at."""
    address = f"127.0.0.1:{ports.fixed_port()}"
    host, port = address.rsplit(":", 1)
    stop = threading.Event()

    def squat():
        strangers = []
        while not stop.wait(0.02):
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection((host, int(port)), 0.2))
                if draw.random() < 0.5:
                    strangers[-1].send(draw.randbytes(draw.choice([1, 40, 400])))
            while len(strangers) > 40:
                strangers.pop(0).close()
        for stranger in strangers:
            stranger.close()

    thread = threading.Thread(target=squat)
    thread.start()
    try:
        members = [real.Member("", rank, 3, SWITCHML_RENDEZVOUS=address, MEMBER_OPERATIONS=50, MEMBER_ELEMENTS=10_000,
                               MEMBER_JOIN_TIMEOUT_S=60) for rank in range(3)]
        try:
            for member in members:
                member.expect_done(PATIENCE_S)
        finally:
            for member in members:
                member.close()
    finally:
        stop.set()
        thread.join()
    soak.count("jobs met beside strangers")


def outlive(soak, draw, keys, arguments):
    """A job that tries again while its aggregator is killed and started anew."""
    address = f"127.0.0.1:{ports.fixed_port()}"
    env = {"SWITCHML_RETRY": 60, "MEMBER_PAUSE_US": 2000, "MEMBER_ELEMENTS": 30_000, **keys}
    aggregator = e2e.Daemon("--listen", address, *arguments)
    try:
        with real.job(address, 3, MEMBER_OPERATIONS=600, **env) as members:
            for _ in range(2):
                time.sleep(draw.random())
                aggregator.process.kill()
                aggregator.stop()
                time.sleep(draw.random())
                aggregator = e2e.Daemon("--listen", address, *arguments)
            for member in members:
                member.expect_done(PATIENCE_S)
    finally:
        aggregator.stop()
    soak.count("aggregators outlived", 2)


# --- victims ---

def lose_rank(soak, draw, address, env):
    """kill -9 or a long stop; the others hear who it was. A join that is refused for want of room is no failure."""
    world_size, is_killed = draw.randint(2, 4), draw.random() < 0.7
    with real.job(address, world_size, MEMBER_JOB="victims", MEMBER_LEASE_MS=2000, MEMBER_ELEMENTS=draw.choice([100, 100_000]),
                  MEMBER_JOIN_TIMEOUT_S=60, **env) as members:
        e2e.wait_until(lambda: all(member.has_said("joined") for member in members)
                       or any(member.process.poll() is not None for member in members), "victims join or are refused", 60)
        if not all(member.has_said("joined") for member in members):
            return soak.count("victims not let in")
        soak.rest(draw.random())
        victim = draw.choice(members)
        victim.send_signal(signal.SIGKILL if is_killed else signal.SIGSTOP)
        try:
            for member in members:
                if member is not victim:
                    _, status, ranks, detail = member.error(30)
                    assert status == real.RANK_LOST and ranks == [victim.rank], (victim.rank, status, ranks, detail)
        finally:
            victim.send_signal(signal.SIGCONT)
    soak.count("ranks killed" if is_killed else "ranks stopped")


# --- strangers ---

def abuse(soak, draw, daemon):
    """One kind of abuse of the control port for some seconds."""
    kind = draw.choice([each for each in e2e_control.ABUSES if not hasattr(each, "daemon_arguments")])
    with e2e_control.going_on(kind(daemon.port)):
        soak.rest(draw.choice([2, 10]))
    soak.count("abuses")
    soak.rest(2)


def flood(soak, draw, daemon):
    """Random bytes, and packets that are nearly right, at a data port."""
    live = {"job": draw.randrange(8), "epoch": draw.randrange(1 << 32), "rank": 0, "slot": draw.randrange(512),
            "phase": draw.randrange(2, 100), "mask": draw.randrange(1 << 32)}
    stream = e2e_flood.Flood(draw.choice(daemon.udp_ports()), FLOOD_RATE, draw.choice(["random", "fields"]), live)
    soak.rest(draw.choice([2, 8]))
    soak.count("datagrams of floods", int(stream.stop() * 2))
    soak.rest(2)


def weigh(soak, _draw, daemons, pause_s):
    """The daemons' memory from time to time: what is kept for reuse is reached soon, a leak goes on."""
    soak.rest(pause_s)
    for kib, daemon in zip(soak.memory, daemons):
        kib.append(e2e_control.resident_kib(daemon.process.pid))


def read_logs(soak, _draw, logs):
    for log in logs:
        log.turn()
    soak.check_peaceful()
    time.sleep(0.1)


def soaked(seconds, seed):
    """What was done, by kind. Raises AssertionError with all that broke."""
    soak = Soak(seconds, seed)
    draw = random.Random(seed)
    with soak.stack, tempfile.TemporaryDirectory(prefix="switchml-soak-") as folder:
        key_file = os.path.join(folder, "keys")
        with open(os.open(key_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(KEYS)
        keyed, open_to_all = ({"SWITCHML_KEY_FILE": key_file}, ["--key-file", key_file]), ({}, [])
        logs, worlds, silent = [], [], short_pipe()
        soak.stack.callback(lambda: [os.close(end) for end in silent])
        for env, arguments in keyed, open_to_all:
            logs.append(Log(draw))
            soak.stack.callback(logs[-1].close)
            daemon = e2e.Daemon("--slots", "2048", "--lanes", "2", *arguments, stderr=logs[-1].writer)
            soak.stack.callback(daemon.stop)
            worlds.append((daemon, env))
        actors = [(read_logs, logs), (meet,)]
        for (daemon, env), (_, arguments) in zip(worlds, (keyed, open_to_all)):
            at = daemon.address
            busy = soak.stay(at, 3, MEMBER_ELEMENTS=200_000, MEMBER_PAUSE_US=10_000, **env)
            idle = soak.stay(at, 4, MEMBER_PAUSE_US=1_000_000, **SHARED, **env)
            soak.stay(at, 2, MEMBER_PAUSE_US=20_000, SWITCHML_DEBUG="trace", stderr=silent[1], **env)
            actors += [(pause, busy, PAUSE_S), (pause, idle, PAUSE_S), (come_and_go, at, env), (lose_rank, at, env),
                       (abuse, daemon), (flood, daemon), (outlive, env, arguments)]
        for member in soak.peaceful:
            member.wait_for("working", 120)
        soak.end = time.monotonic() + seconds
        soak.memory = [[e2e_control.resident_kib(daemon.process.pid)] for daemon, _ in worlds]
        actors.append((weigh, [daemon for daemon, _ in worlds], seconds / NUM_WEIGHINGS))
        threads = [threading.Thread(target=soak.act, args=(number, *actor)) for number, actor in enumerate(actors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        soak.check_peaceful()
        assert not soak.broken, f"seed {seed}:\n" + "\n".join(soak.broken)
        soak.count("KiB of the log read", sum(log.num_bytes for log in logs) >> 10)
        for kib, log in zip(soak.memory, logs):
            assert e2e_control.IS_SANITIZED or kib[-1] <= log.most_kib(), f"{kib} KiB of memory, where {log.most_kib()} was said to be the most"
            grew = sum(later > earlier + LEAK_KIB for earlier, later in zip(kib, kib[1:]))
            assert seconds < LONG_S or grew < NUM_WEIGHINGS - 2, f"memory grows and grows: {kib} KiB"
        return {**soak.counts, "KiB that a daemon grew by": max(kib[-1] - kib[0] for kib in soak.memory)}


def test_nobody_ends_whom_nobody_attacked():
    done = soaked(SHORT_S, int(os.environ.get("SEED", time.time_ns() % 2**32)))
    print("# " + ", ".join(f"{what}: {number}" for what, number in sorted(done.items())), flush=True)
    assert not e2e.marked_processes(), e2e.marked_processes()


if __name__ == "__main__":
    tap.main(globals())
