#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Abuse of the control port. While strangers connect, stall, chatter and talk nonsense, real workers join; the
daemon's memory stays flat, and what the strangers held is free again when they are gone. And a client that dies at
any step of its join leaves nothing behind."""
import contextlib
import os
import random
import re
import selectors
import socket
import struct
import threading
import time

import e2e
import peer
import real
import tap

POOL_SLOTS = 64
MAX_GROWTH_KIB = 8 << 10
JOIN_GRACE_S = 5.0  # the daemon's patience with a connection that does not join
IS_SANITIZED = e2e.PATIENCE > 1  # whose memory says nothing
STRANGER = "127.0.0.2"
STRANGERS = [f"127.0.0.{last}" for last in range(2, 250)]


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


def count_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Strangers:
    """Up to `number` connections of one kind at a time, each opened again when the daemon has closed it. `speak` is
    called with a connection every `interval` seconds."""

    def __init__(self, port, number, sources, speak=None, interval=0.01, hangs_up=False):
        self.port, self.number, self.sources = port, number, sources
        self.speak, self.interval, self.hangs_up = speak, interval, hangs_up
        self.selector, self.connections = selectors.DefaultSelector(), {}
        self.num_opened = self.num_closed = self.num_bytes = self.least_bytes = 0
        self.draw = random.Random(1)

    def open(self):
        connection = socket.socket()
        try:
            connection.bind((self.sources[self.num_opened % len(self.sources)], 0))
            connection.settimeout(0.2)
            connection.connect(("127.0.0.1", self.port))
        except OSError:
            connection.close()
            return
        finally:
            self.num_opened += 1
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ)
        self.connections[connection] = {"sent": 0, "next": time.monotonic()}

    def close(self, connection):
        self.selector.unregister(connection)
        del self.connections[connection]
        connection.close()
        self.num_closed += 1

    def turn(self):
        for _ in range(min(50, self.number - len(self.connections))):
            self.open()
        for key, _ in self.selector.select(0.001):
            try:
                if not key.fileobj.recv(65536):
                    self.close(key.fileobj)
            except BlockingIOError:
                pass
            except OSError:
                self.close(key.fileobj)
        now = time.monotonic()
        for connection, state in list(self.connections.items()):
            if not self.speak or state["next"] > now:
                continue
            state["next"] = now + self.interval
            try:
                self.speak(self, connection, state)
                if self.hangs_up:
                    self.close(connection)
            except BlockingIOError:
                pass
            except OSError:
                self.close(connection)

    def run(self, stop):
        while not stop.is_set():
            self.turn()
        for connection in list(self.connections):
            self.close(connection)


def join_frame(**values):
    return peer.frame("JOIN", peer.pack_body("JOIN", {**peer.Member.JOIN, "rank": 0, "world_size": 2,
                                                      "job_name": peer.unique_name("stranger"), **values}))


def slow_senders(port):
    """200 connections that say a JOIN a byte a second."""
    def speak(strangers, connection, state):
        frame = join_frame(job_name="slow")
        connection.send(frame[state["sent"] % len(frame):][:1])
        state["sent"] += 1
    return Strangers(port, 200, [STRANGER], speak, 1.0)


def half_open(port):
    """200 that connect and say nothing."""
    return Strangers(port, 200, [STRANGER])


def junk(port):
    """64 MiB and more of anything, some of it behind a header that promises a message."""
    def speak(strangers, connection, state):
        head = [b"", b"SML1", peer.frame("JOIN", b"", body_bytes=8448), peer.frame("ABORT", b"", body_bytes=8448)]
        data = strangers.draw.choice(head) + strangers.draw.randbytes(1 << 20)
        strangers.num_bytes += connection.send(data)
    strangers = Strangers(port, 8, [STRANGER], speak, 0.0)
    strangers.least_bytes = 64 << 20
    return strangers


def huge_lengths(port):
    """Headers that promise 4 GiB, or the largest body, of which most never comes."""
    def speak(strangers, connection, state):
        state["sent"] += 1
        if state["sent"] == 1:
            length = strangers.draw.choice([0xffffffff, 0x80000000, 8449, 8448])
            connection.send(peer.frame("JOIN", b"", body_bytes=length))
        elif state["sent"] < 100:
            connection.send(bytes(40))
    return Strangers(port, 60, [STRANGER], speak, 0.02)


def chatter(port):
    """Members of jobs that never start, a message a second for ever."""
    def speak(strangers, connection, state):
        state["sent"] += 1
        connection.send(join_frame() if state["sent"] == 1 else
                        peer.frame("HEARTBEAT", peer.pack_body("HEARTBEAT", {"submitted": 0, "completed": 0, "called": 0})))
    return Strangers(port, 60, [STRANGER], speak, 1.0)


def connection_flood(port):
    """One source that connects and hangs up as fast as it can."""
    return Strangers(port, 50, [STRANGER], lambda *_: None, 0.0, hangs_up=True)


def many_sources(port):
    """600 idle connections of 248 addresses."""
    return Strangers(port, 600, STRANGERS)


def too_many_sources(port):
    """1,500 idle connections of 248 addresses: more than there is room for."""
    return Strangers(port, 1500, STRANGERS)


def neighbours(port):
    """200 that connect and say nothing, from the address of the real workers."""
    return Strangers(port, 200, ["127.0.0.1"])


def join_flood(port):
    """Joins of jobs that nobody else knows, as fast as it can, many at a time, and hangs up."""
    def speak(strangers, connection, state):
        connection.send(join_frame())
    return Strangers(port, 100, [STRANGER], speak, 0.05, hangs_up=True)


def idle_members(port):
    """1,200 members of jobs that never start, joined for a week; an operator's limit keeps room for others."""
    def speak(strangers, connection, state):
        state["sent"] += 1
        if state["sent"] == 1:
            connection.send(join_frame(lease_ns=600 * 10**9, timeout_ns=7 * 24 * 3600 * 10**9))
    return Strangers(port, 1200, [STRANGER], speak, 0.1)


idle_members.daemon_arguments = ["--max-connections-per-host", "100"]


def version_skew(port):
    """JOINs of other versions of the control protocol."""
    def speak(strangers, connection, state):
        version = strangers.draw.choice([0, peer.CTL_VERSION + 1, 0xffff])
        connection.send(peer.frame("JOIN", bytes(60), version=version))
    return Strangers(port, 50, [STRANGER], speak, 0.05)


ABUSES = [slow_senders, half_open, junk, huge_lengths, chatter, connection_flood, many_sources,
          too_many_sources, neighbours, join_flood, idle_members, version_skew]


@contextlib.contextmanager
def going_on(strangers):
    stop = threading.Event()
    thread = threading.Thread(target=strangers.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def is_let_in(daemon):
    """Whether the first try of a rank gets its WELCOME."""
    member = peer.Member(daemon.port, 0, 2, job_name=peer.unique_name("first"))
    try:
        member.connect()
        member.say_join()
        return (member.control.hear(5) or [""])[0] == "WELCOME"
    except (peer.Closed, ConnectionError):
        return False
    finally:
        member.close()


def abused(abuse, num_joins=1, pause_s=0.3):
    """Seconds that each of num_joins real joins took meanwhile."""
    arguments = getattr(abuse, "daemon_arguments", [])
    with e2e.Daemon("--slots", str(POOL_SLOTS), "--log-level", "error", *arguments) as daemon:
        real.join_seconds(daemon.address, MEMBER_SLOTS=POOL_SLOTS)
        pid = daemon.process.pid
        memory, descriptors = resident_kib(pid), count_descriptors(pid)
        strangers = abuse(daemon.port)
        took, growth = [], 0
        with going_on(strangers):
            e2e.wait_until(lambda: strangers.num_opened >= strangers.number
                           and strangers.num_bytes >= strangers.least_bytes, "the strangers are there", 30)
            for _ in range(num_joins):
                time.sleep(pause_s)
                assert "127.0.0.1" in strangers.sources or is_let_in(daemon), "a rank is not let in at its first try"
                took.append(real.join_seconds(daemon.address, MEMBER_SLOTS=POOL_SLOTS))
                growth = max(growth, resident_kib(pid) - memory)
        e2e.wait_until(lambda: count_descriptors(pid) <= descriptors, "its descriptors are back", JOIN_GRACE_S + 2)
        real.join_seconds(daemon.address, MEMBER_SLOTS=POOL_SLOTS)
        assert IS_SANITIZED or growth <= MAX_GROWTH_KIB, f"{growth} KiB more of memory"
        print(f"# {abuse.__name__}: {strangers.num_opened} connections, {strangers.num_closed} closed, {growth} KiB more, "
              f"joins {real.summary(took)}", flush=True)
        return took


# ---- death at every step -------------------------------------------------------------------------------

def say_half(member):
    member.control.say_frame(join_frame(**member.join)[:30])


def first_update(member):
    member.send({"slot": member.start["slot_base"][0], "phase": member.start["first_phase"], "tag": 1}, bytes(64))


STEPS = [("connect", lambda m: m.connect()), ("half a JOIN", say_half),
         ("JOIN", lambda m: m.control.say_frame(join_frame(**m.join)[30:])),
         ("WELCOME", lambda m: m.hear_welcome()), ("HELLO", lambda m: m.hello()), ("PROBED", lambda m: m.say_probed()),
         ("START", lambda m: m.hear_start()), ("first update", first_update),
         ("EPOCH", lambda m: m.control.say("EPOCH", epoch=m.start["epoch"])),
         ("GOODBYE", lambda m: m.control.say("GOODBYE"))]


def die(member, with_reset):
    if member.control and with_reset:
        member.control.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    member.close()


def die_after(daemon, num_steps, with_reset, has_peer):
    """A scripted rank 0 that is gone after so many steps; rank 1, if there is one, follows it and then leaves."""
    name = peer.unique_name("dying")
    victim = peer.Member(daemon.port, 0, 2, job_name=name, slots=POOL_SLOTS)
    other = peer.Member(daemon.port, 1, 2, job_name=name, slots=POOL_SLOTS)
    try:
        if has_peer:
            other.connect()
            other.say_join()
            other.hear_welcome()
            other.hello()
            other.say_probed()
        for _, step in STEPS[:num_steps]:
            step(victim)
        die(victim, with_reset)
    finally:
        other.close()
        victim.close()


def join_with_all_slots(daemon):
    members = [peer.Member(daemon.port, rank, 2, job_name="next", slots=POOL_SLOTS) for rank in range(2)]
    try:
        peer.join_all(members)
        for member in members:
            first_update(member)
        for member in members:
            assert member.receive()[0]["type"] == peer.PACKETS["RESULT"]
            member.control.say("GOODBYE")
    finally:
        for member in members:
            member.close()


def test_death_at_every_step():
    """The next job gets all slots at once, whatever the dead one held."""
    with e2e.Daemon("--slots", str(POOL_SLOTS), "--log-level", "error") as daemon:
        join_with_all_slots(daemon)
        descriptors = count_descriptors(daemon.process.pid)
        for num_steps in range(len(STEPS) + 1):
            for with_reset in (False, True):
                for has_peer in (False, True):
                    if num_steps >= 7 and not has_peer:
                        continue  # without a peer there is no START
                    die_after(daemon, num_steps, with_reset, has_peer)
                    e2e.wait_until(lambda: count_descriptors(daemon.process.pid) <= descriptors, "the connections end")
                    join_with_all_slots(daemon)
        real.join_seconds(daemon.address, MEMBER_SLOTS=POOL_SLOTS)


def as_test(abuse):
    def test():
        abused(abuse)
    test.__name__ = "test_" + abuse.__name__
    return test


def main():
    import sys
    sys.exit(tap.run([as_test(abuse) for abuse in ABUSES] + tap.tests_of(globals()), sys.argv[1:]))


if __name__ == "__main__":
    main()
