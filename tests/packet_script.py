#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Packet scripts: what the live daemon answers to each packet and each control message, one case a file in
tests/packet_scripts/. `packet_script.py [NAME...]` runs all or some, each against a switchmld of its own.

A script is read line by line; `#` begins a comment. WHO is a member's name, or `all` for those of `world`.

  daemon ARGUMENTS...             arguments of switchmld; before any member
  keys NAME=HEX...                the daemon's key file; members take part by key=NAME, or lie by key=NAME:HEX
  world N [FIELD=VALUE...]        members named 0 .. N-1, ranks of one job; fields of their JOIN (lease=200ms ...)
  member NAME rank=R world=N ...  one more, who may lie
  WHO join                        connect, JOIN, WELCOME, HELLO, PROBED; for `all` up to START
  WHO connect                     only that
  WHO > TYPE [FIELD=VALUE...]     sends a datagram. Fields of the header, as they should be unless said. A value that
                                  begins with + is added to the right one; slot counts from the job's window; to_owners+N,
                                  copies+N: from the one-way window of these.
                                  Payload: lanes=1,2 (int32; flags=NARROW: 28 bits each), codes=1,2 (bytes), zeros=N.
                                  Spoilt: crc=wrong, mask=wrong, cut=N,
                                  extra=N (bytes), mac=wrong, key=none. via=NAME: from that member's socket
  WHO < TYPE [FIELD=VALUE...]     the next datagram that comes is this; fields not named are free, flags are not.
                                  missing=0,1: the ranks of a PENDING
  WHO < nothing                   all that was sent has been taken, and no answer came
  WHO >> KIND [FIELD=VALUE...]    a control message; version=N, length=N spoil its frame. `>> untagged KIND`: where a
                                  tag is due. `>> again`: the last frame, byte for byte. `>> close`, `>> bytes HEX`
  WHO << KIND [FIELD=VALUE...] [detail~TEXT]   the next control message, heartbeats aside; `<< closed`, `<< nothing`
  drops [NAME=N...]               what the daemon has dropped, by reason, when it ends; without the line: nothing

`within 200ms` behind an expectation says how long it may take; else 1 s.
"""
import os
import random
import re
import select
import socket
import struct
import sys
import tempfile
import time

import e2e
import peer
import tap

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "packet_scripts")
NO_JOB = 1023  # a number that no job of these daemons has
ONE_WAY_WINDOWS = {"to_owners": 3, "copies": 1}  # where they begin, times the job's slots
UNITS = {"ms": 10**6, "s": 10**9}
NAMES_OF_JOIN = {"lease": "lease_ns", "timeout": "timeout_ns", "name": "job_name", "world": "world_size"}


def number(text):
    match = re.fullmatch(r"([\d.]+)(ms|s)", text)
    if match:
        return int(float(match.group(1)) * UNITS[match.group(2)])
    return int(text, 0)


def numbers(text):
    return [number(each) for each in text.split(",")] if text else []


class Script:
    """One run of one file."""

    def __init__(self, lines):
        self.lines = lines
        self.daemon_arguments, self.daemon = [], None
        self.members, self.ranks, self.drops = {}, [], {}
        self.keys, self.key_file = {}, None
        self.num_syncs = 0
        self.sync_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.data_port = None

    # -- life

    def run(self):
        try:
            for line_number, line in self.lines:
                try:
                    self.step(line)
                except (AssertionError, peer.Closed, OSError, KeyError, ValueError) as error:
                    log = self.daemon.text() if self.daemon else ""
                    raise AssertionError(f"line {line_number}: {line}\n{type(error).__name__}: {error}\n{log}") from error
            for name, member in self.members.items():
                if member.welcome:
                    self.expect_silence(name, member)
            self.finish()
        finally:
            for member in self.members.values():
                member.close()
            self.sync_socket.close()
            if self.key_file:
                self.key_file.close()
            if self.daemon and self.daemon.is_alive():
                self.daemon.stop()

    def finish(self):
        if self.data_port:
            self.sync()
        for member in self.members.values():
            member.close()  # or the daemon waits for them to hear its goodbye
        status, text = self.daemon.stop()
        assert status == 0, f"switchmld ended with {status}\n{text}"
        said = re.search(r'dropped_packets="([^"]*)"', text).group(1)
        drops = {name: int(count) for name, count in (each.split("=") for each in said.split())}
        drops["UNKNOWN_JOB"] = drops.get("UNKNOWN_JOB", 0) - 2 * self.num_syncs
        drops = {name: count for name, count in drops.items() if count}
        assert drops == self.drops, f"dropped {drops}, not {self.drops}\n{text}"

    def sync(self):
        """The daemon has taken every datagram sent so far, and its answers are here: it takes them in their order,
        so it has when it has answered a later one; and twice, because a pass sends its results at its end."""
        self.num_syncs += 1
        probe = peer.pack_datagram({"type": peer.PACKETS["PROBE"], "job": NO_JOB})
        for _ in range(2):
            self.sync_socket.sendto(probe, ("127.0.0.1", self.data_port))
            assert select.select([self.sync_socket], [], [], 5 * peer.PATIENCE)[0], "the daemon does not answer"
            fields, _ = peer.unpack_datagram(self.sync_socket.recv(65536))
            assert fields["type"] == peer.PACKETS["ERROR"] and fields["job"] == NO_JOB, fields

    # -- lines

    def step(self, line):
        words = line.split()
        if words[0] == "daemon":
            self.daemon_arguments = words[1:]
        elif words[0] == "keys":
            self.take_keys(words[1:])
        elif words[0] == "world":
            for rank in range(int(words[1])):
                self.add(str(rank), rank, int(words[1]), words[2:])
                self.ranks.append(str(rank))
        elif words[0] == "member":
            values = dict(word.split("=", 1) for word in words[2:])
            self.add(words[1], number(values["rank"]), number(values["world"]), words[2:])
        elif words[0] == "drops":
            self.drops = {name: int(count) for name, count in (word.split("=") for word in words[1:])}
        elif words[0] == "sleep":
            time.sleep(number(words[1]) / 1e9)
        else:
            names = self.ranks if words[0] == "all" else [words[0]]
            self.act([(name, self.members[name]) for name in names], words[1], words[2:], line)

    def add(self, name, rank, world_size, words):
        if not self.daemon:
            self.daemon = e2e.Daemon(*self.daemon_arguments)
        values = dict(word.split("=", 1) for word in words)
        key_name, _, key = values.pop("key", "").partition(":")
        join = {NAMES_OF_JOIN.get(key, key): value if key == "name" else number(value) for key, value in values.items()
                if key not in ("rank", "world")}
        if key_name:
            draw = random.Random(name)
            join.update(key_name=key_name, nonce0=draw.getrandbits(64), nonce1=draw.getrandbits(64))
        key = bytes.fromhex(key) if key else self.keys.get(key_name)
        self.members[name] = peer.Member(self.daemon.port, rank, world_size, key, **join)

    def take_keys(self, words):
        self.keys = {name: bytes.fromhex(key) for name, key in (word.split("=") for word in words)}
        self.key_file = tempfile.NamedTemporaryFile("w", prefix="switchml-keys-")
        self.key_file.write("".join(f"{name} {key.hex()}\n" for name, key in self.keys.items()))
        self.key_file.flush()
        self.daemon_arguments += ["--key-file", self.key_file.name]

    def act(self, who, verb, words, line):
        simple = {"connect": lambda member: member.connect(), "join": self.join}
        if verb in simple:
            for _, member in who:
                simple[verb](member)
            if verb == "join" and len(who) > 1:
                for _, member in who:
                    member.hear_start()
            return
        act = {">": self.send, "<": self.expect, ">>": self.say, "<<": self.hear}[verb]
        for name, member in who:
            act(name, member, words, line)

    def join(self, member):
        member.connect()
        member.say_join()
        member.hear_welcome()
        self.data_port = member.address()[1]
        member.hello()
        member.say_probed()

    # -- datagrams

    def right_value(self, member, name):
        if name in ("job", "epoch"):
            return member.welcome[name]
        return {"rank": member.rank, "version": 1}.get(name, 0)

    def fields_of(self, member, words):
        """Header fields and everything else of the words of a datagram."""
        fields, rest = {}, {}
        for word in words:
            name, value = word.split("=", 1)
            if name == "flags":
                fields[name] = peer.FLAGS.get(value) if value in peer.FLAGS else number(value)
            elif name == "slot":
                window, _, place = value.rpartition("+")
                base = member.start["slot_base"][0] if member.start else 0
                fields[name] = base + number(place) + (ONE_WAY_WINDOWS[window] * member.start["slots"] if window else 0)
            elif name in peer.FIELDS:
                right = self.right_value(member, name) if value[0] == "+" else 0
                fields[name] = right + number(value.lstrip("+"))
            else:
                rest[name] = value
        return fields, rest

    @staticmethod
    def payload_of(rest, member, flags=0):
        if "lanes" in rest and flags & peer.FLAGS["NARROW"]:
            return peer.narrow(numbers_signed(rest["lanes"]))
        if "lanes" in rest:
            return b"".join(struct.pack(">i", lane) for lane in numbers_signed(rest["lanes"]))
        if "codes" in rest:
            return bytes(numbers(rest["codes"]))
        if "nonce" in rest:  # of a HELLO: the right one plus this
            return struct.pack(">Q", (member.welcome["nonce"] + number(rest["nonce"])) % 2**64)
        return bytes(number(rest.get("zeros", "0")))

    def send(self, _name, member, words, _line):
        fields, rest = self.fields_of(member, words[1:])
        fields.setdefault("type", peer.PACKETS[words[0]] if words[0] in peer.PACKETS else number(words[0]))
        if "codes" in rest:
            fields = {"wire": 1, "reducer": 1, **fields}
        via = self.members[rest["via"]].data if "via" in rest else None
        spoilt = {"key": None} if rest.get("key") == "none" else {}
        if "mask" in rest:
            spoilt.update(mask=member.mask() ^ 1)
        if "mac" in rest:
            spoilt.update(spoil_mac=int(rest.get("mac") == "wrong"))
        member.send(fields, self.payload_of(rest, member, fields.get("flags", 0)), 0xbad if rest.get("crc") == "wrong" else None, via,
                    bytes(number(rest.get("extra", "0"))), number(rest.get("cut", "0")), **spoilt)

    def expect(self, name, member, words, _line):
        if words[0] == "nothing":
            self.expect_silence(name, member)
            return
        words, seconds = split_within(words)
        got = member.receive(seconds)
        assert got, f"member {name} got nothing within {seconds} s"
        fields, rest = self.fields_of(member, words[1:])
        expected = {"type": peer.PACKETS[words[0]], "flags": 0, "job": member.welcome["job"],
                    "epoch": member.welcome["epoch"], **fields}
        for field, value in expected.items():
            assert got[0][field] == value, f"{field} is {got[0][field]}, not {value}: {got}"
        if "missing" in rest:
            bits = int.from_bytes(got[1], "little")
            ranks = [rank for rank in range(8 * len(got[1])) if bits >> rank & 1]
            num_bytes = (member.join["world_size"] + 7) // 8
            assert ranks == numbers(rest["missing"]) and len(got[1]) == num_bytes, got
        elif "lanes" in rest or "codes" in rest or "zeros" in rest:
            assert got[1] == self.payload_of(rest, member), got

    def expect_silence(self, name, member):
        self.sync()
        got = member.receive(0)
        assert got is None, f"member {name} got {got}"

    # -- control

    def say(self, _name, member, words, _line):
        if words[0] == "close":
            member.control.close()
            return
        if words[0] == "bytes":
            member.control.socket.sendall(bytes.fromhex(words[1]))
            return
        if words[0] == "again":
            member.control.socket.sendall(member.control.last)
            return
        send_frame = member.control.say_frame
        if words[0] == "untagged":
            send_frame, words = member.control.socket.sendall, words[1:]
        values = dict(word.split("=", 1) for word in words[1:])
        spoilt = {key: number(values.pop(name)) for name, key in (("version", "version"), ("length", "body_bytes"))
                  if name in values}
        defaults = {"JOIN": member.join, "PROBED": {"datagram_bytes": 1472, "rtt_ns": 0, "hearing": 0}, "HEARTBEAT": {"submitted": 0, "completed": 0, "called": 0},
                    "EPOCH": {"epoch": member.welcome["epoch"] if member.welcome else 0},
                    "ABORT": {"status": peer.STATUSES["ABORTED"], "num_ranks": 0, "ranks": [], "detail": ""}}
        body = {**defaults.get(words[0], {}), **{NAMES_OF_JOIN.get(key, key): parse_value(key, value, member)
                                                 for key, value in values.items()}}
        if words[0] not in peer.BODIES:
            send_frame(peer.frame(int(words[0]), b""))
            return
        send_frame(peer.frame(words[0], peer.pack_body(words[0], body), **spoilt))

    @staticmethod
    def is_wanted(message, wanted, member):
        """Of the heartbeats, the next that says so: those before it may have been under way."""
        return all(message[1][key] == parse_value(key, value, member)
                   for key, value in (word.split("=", 1) for word in wanted[1:]))

    def hear(self, name, member, words, line):
        before, _, detail = line.partition("detail~")
        wanted, seconds = split_within(before.split()[2:])
        try:
            wants_heartbeat = words[0] == "HEARTBEAT"
            message = member.control.hear(0.05 if words[0] == "nothing" else seconds, wants_heartbeat)
            while wants_heartbeat and message and message[0] == "HEARTBEAT" and not self.is_wanted(message, wanted, member):
                message = member.control.hear(seconds, True)
        except peer.Closed:
            assert words[0] == "closed", f"the daemon closed the connection of member {name}"
            return
        if words[0] == "nothing":
            assert message is None, message
            return
        assert words[0] != "closed" and message, f"member {name} heard {message}"
        kind, values = message
        assert kind == wanted[0], message
        for key, value in (word.split("=", 1) for word in wanted[1:]):
            assert values[key] == parse_value(key, value, member), f"{key} is {values[key]}: {message}"
        assert detail in values.get("detail", ""), message
        if kind == "CHALLENGE":
            member.take_challenge(values)
        if kind == "WELCOME":
            member.welcome = values
            self.data_port = values["ports"][0]
        if kind == "START":
            member.take_start(values)


def numbers_signed(text):
    return [int(each, 0) for each in text.split(",")]


def parse_value(key, value, member):
    if key == "status":
        return peer.STATUSES[value]
    if key in ("ranks", "ports", "contributors"):
        return numbers(value)
    if key == "epoch" and value[0] == "+":
        return member.welcome["epoch"] + number(value[1:])
    return value if key in ("name", "detail") else number(value)


def split_within(words):
    if "within" in words:
        at = words.index("within")
        return words[:at], number(words[at + 1]) / 1e9
    return words, 1.0


def read_script(path):
    with open(path, encoding="utf-8") as file:
        stripped = [(i, line.split("#", 1)[0].strip()) for i, line in enumerate(file, 1)]
    return [(i, line) for i, line in stripped if line]


def as_test(path):
    def test():
        Script(read_script(path)).run()
    test.__name__ = "test_" + os.path.splitext(os.path.basename(path))[0]
    return test


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one processor: loopback keeps the order of what we send
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".pkt"))
    tests = [as_test(os.path.join(FOLDER, name)) for name in names]
    sys.exit(tap.run(tests, ["test_" + name.removesuffix(".pkt") for name in sys.argv[1:]]))


if __name__ == "__main__":
    main()
