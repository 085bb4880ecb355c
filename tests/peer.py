# SPDX-License-Identifier: Apache-2.0
"""A second, small implementation of what a worker says (docs/PROTOCOL.md), for tests that must say it wrongly:
datagrams and control messages as bytes, and sockets without a library behind them."""
import itertools
import os
import select
import socket
import struct
import time

import peer_keys

PATIENCE = float(os.environ.get("SWITCHML_TEST_PATIENCE", "1"))
HEADER_BYTES, KEYED_BYTES = 32, 4
CTL_VERSION = 10
PACKETS = {"UPDATE": 1, "RESULT": 2, "PENDING": 3, "ERROR": 4, "HELLO": 5, "ABORT": 6, "PROBE": 7}
FLAGS = {"RETRANSMISSION": 1, "KEYED": 2, "CHECKED": 4, "NARROW": 128}
MESSAGES = {"JOIN": 1, "WELCOME": 2, "PROBED": 3, "START": 4, "HEARTBEAT": 5, "EPOCH": 6, "ABORT": 7, "RANK_GONE": 8,
            "GOODBYE": 9, "REFUSE": 10, "CHALLENGE": 11, "AUTH": 12, "STATUS": 13, "STATUS_PART": 14, "ASK": 15, "REPORT": 16,
            "EVICT": 17, "EVICTED": 18}
STATUSES = {"REFUSED": -7, "VERSION": -8, "MTU": -9, "TIMEOUT": -10, "RANK_LOST": -11, "AGGREGATOR_LOST": -12,
            "MISMATCH": -13, "ABORTED": -14, "PROTOCOL": -17, "INTEGRITY": -18, "KEY": -19}
# H, I, Q: unsigned of 16, 32, 64 bits; i: signed; s: string; H* and H+: as many as the field before says
BODIES = {
    "JOIN": "job_name:s rank:I world_size:I lanes:I slots:I datagram_bytes:I lease_ns:Q timeout_ns:Q features:I key_name:s "
            "nonce0:Q nonce1:Q resume:Q oldest:Q resume_chunk_bytes:I host0:Q host1:Q is_combining:I shard:I num_shards:I "
            "aggregators:s",
    "WELCOME": "job:H epoch:I nonce:Q lanes:I ports:H* salt0:Q salt1:Q group0:Q group1:Q group_port:H secret0:Q secret1:Q",
    "PROBED": "datagram_bytes:I rtt_ns:Q hearing:I",
    "START": "epoch:I lanes:I chunk_bytes:I slots:I slot_base:H+lanes first_phase:I first_chunk:I features:I "
             "rtt_ns:Q slots_why:I first_operation:Q is_multicast:I is_one_host:I secret0:Q secret1:Q num_ranks:I contributors:H*",
    "HEARTBEAT": "submitted:Q completed:Q called:Q",
    "EPOCH": "epoch:I",
    "ABORT": "status:i num_ranks:I ranks:H* detail:s",
    "RANK_GONE": "status:i num_ranks:I ranks:H* detail:s",
    "GOODBYE": "",
    "REFUSE": "status:i detail:s",
    "CHALLENGE": "nonce0:Q nonce1:Q",
    "AUTH": "",
    "STATUS": "key_name:s nonce0:Q nonce1:Q offset_bytes:I",
    "STATUS_PART": "total_bytes:I offset_bytes:I text:s",
    "ASK": "",
    "REPORT": "num_ranks:I ranks:H* detail:s",
    "EVICT": "job_name:s detail:s",
    "EVICTED": "num_jobs:I num_ranks:I",
}


def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = crc32c_table()


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xff]
    return crc ^ 0xffffffff


assert crc32c(b"123456789") == 0xe3069283


# ---- datagrams -----------------------------------------------------------------------------------------

FIELDS = ("version", "type", "wire", "reducer", "job", "epoch", "rank", "payload_bytes", "slot", "flags", "phase", "tag",
          "chunk")


def pack_datagram(fields, payload=b"", crc=None, key=None, spoil_mac=0, mask=0):
    """fields: a dictionary of header fields; what is left out is 0, but for version, type and the length. With a key
    the packet has a MAC; spoil_mac is added to it. Without one its checksum has the mask."""
    f = {name: 0 for name in FIELDS}
    f.update({"version": 1, "type": PACKETS["UPDATE"], "payload_bytes": len(payload)})
    f.update(fields)
    f["flags"] |= FLAGS["KEYED"] if key else 0
    head = struct.pack(">BBHIHHHHIII", (f["version"] & 15) << 4 | f["type"] & 15,
                       (f["wire"] & 15) << 4 | f["reducer"] & 15,
                       f["job"] & 0xffff, f["epoch"] & 0xffffffff, f["rank"] & 0xffff, f["payload_bytes"] & 0xffff,
                       f["slot"] & 0xffff, f["flags"] & 0xffff, f["phase"] & 0xffffffff, f["tag"] & 0xffffffff,
                       f["chunk"] & 0xffffffff)
    if key:
        return head + struct.pack(">Q", peer_keys.mac(key, head, payload) + spoil_mac & 2**64 - 1) + payload
    if crc is None:
        crc = crc32c(head + bytes(4) + payload) ^ mask
    return head + struct.pack(">I", crc) + payload


def mask_of(data):
    """What the checksum of a datagram was masked with, if all else is right."""
    return struct.unpack(">I", data[28:32])[0] ^ crc32c(data[:28] + bytes(4) + data[32:])


def unpack_datagram(data, key=None, mask=0):
    """(fields, payload) of a datagram that must be well-formed and authentic: the daemon sends no other. The KEYED flag
    is taken out."""
    assert len(data) >= HEADER_BYTES, data
    first, second, *rest = struct.unpack(">BBHIHHHHIII", data[:28])
    f = dict(zip(FIELDS, [first >> 4, first & 15, second >> 4, second & 15] + rest))
    assert bool(f["flags"] & FLAGS["KEYED"]) == bool(key), f"keyed or not: {f}"
    payload = data[HEADER_BYTES + (KEYED_BYTES if key else 0):]
    if key:
        assert struct.unpack(">Q", data[28:36])[0] == peer_keys.mac(key, data[:28], payload), f"MAC of {f}"
        f["flags"] &= ~FLAGS["KEYED"]
    else:
        assert mask_of(data) == mask, f"checksum of {f}"
    assert f["version"] == 1 and f["payload_bytes"] == len(payload), f
    return f, payload


def narrow(lanes):
    """The payload of a narrow update: of eight rows of lanes the last one's 28 bits go into the upper bits of the others."""
    width = len(lanes) // 8
    assert len(lanes) == 8 * width, len(lanes)
    rows = [lanes[row * width:(row + 1) * width] for row in range(8)]
    return b"".join(struct.pack(">I", lane & 0xfffffff | (last >> 4 * row & 15) << 28)
                    for row in range(7) for lane, last in zip(rows[row], rows[7]))


def widen(payload):
    """The lanes of a narrow update, with their signs."""
    width = len(payload) // 28
    words = struct.unpack(f">{7 * width}I", payload)
    last = [sum((words[row * width + column] >> 28) << 4 * row for row in range(7)) for column in range(width)]
    return [((each & 0xfffffff) ^ 0x8000000) - 0x8000000 for each in [*words, *last]]


# ---- control messages ----------------------------------------------------------------------------------

def body_fields(kind):
    previous = None
    for field in BODIES[kind].split():
        name, form = field.split(":")
        yield name, form[0], form[2:] or previous if len(form) > 1 else None
        previous = name


def pack_body(kind, values):
    out = b""
    for name, form, count in body_fields(kind):
        value = values[name]
        if form == "s":
            data = value if isinstance(value, bytes) else value.encode()
            out += struct.pack(">H", len(data)) + data
        elif count:
            out += b"".join(struct.pack(">" + form, each) for each in value)
        else:
            out += struct.pack(">" + form, value)
    return out


def unpack_body(kind, body):
    values, at = {}, 0
    for name, form, count in body_fields(kind):
        if form == "s":
            num_bytes, = struct.unpack_from(">H", body, at)
            values[name] = body[at + 2:at + 2 + num_bytes].decode()
            at += 2 + num_bytes
            continue
        read = struct.Struct(">" + form)
        found = [read.unpack_from(body, at + i * read.size)[0] for i in range(values[count] if count else 1)]
        at += len(found) * read.size
        values[name] = found if count else found[0]
    assert at == len(body), (kind, body)
    return values


def frame(kind, body, version=CTL_VERSION, magic=b"SML1", body_bytes=None):
    number = MESSAGES.get(kind, kind)
    return magic + struct.pack(">HHI", version, number, len(body) if body_bytes is None else body_bytes) + body


class Closed(Exception):
    """The other end closed the control connection."""


class Control:
    """One control connection. source: the local address to come from."""

    def __init__(self, port, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10 * PATIENCE, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data, self.plain, self.last = b"", b"", b""
        self.channel = None

    def set_key(self, key, worker_nonce, daemon_nonce):
        """From here on every frame has a MAC."""
        self.channel = peer_keys.Channel(key, worker_nonce, daemon_nonce, self.plain)

    def say(self, kind, **values):
        self.say_frame(frame(kind, pack_body(kind, values)))

    def say_frame(self, data):
        if self.channel:
            data = self.channel.seal(data)
        else:
            self.plain += data
        self.last = data
        self.socket.sendall(data)

    def hear(self, seconds=1.0, heartbeats=False):
        """(kind, values) of the next message; None if there is none in time; Closed at the end."""
        deadline = time.monotonic() + seconds * PATIENCE
        while True:
            message = self._take()
            if message and (heartbeats or message[0] != "HEARTBEAT"):
                return message
            if message:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(65536)
            except socket.timeout:
                return None
            except ConnectionError:
                more = b""
            if not more:
                raise Closed
            self.data += more

    def _take(self):
        """The next whole message; its tag, if it has one, must be right. Only a REFUSE may come without."""
        if len(self.data) < 12:
            return None
        version, number, body_bytes = struct.unpack(">HHI", self.data[4:12])
        has_mac = bool(number & peer_keys.HAS_MAC)
        kind = next(name for name, value in MESSAGES.items() if value == number & ~peer_keys.HAS_MAC)
        assert self.data[:4] == b"SML1" and (version == CTL_VERSION or kind == "REFUSE"), self.data[:12]
        assert has_mac == bool(self.channel) or kind == "REFUSE", self.data[:12]
        end = 12 + body_bytes + 8 * has_mac
        if len(self.data) < end:
            return None
        whole, self.data = self.data[:end], self.data[end:]
        if has_mac:
            self.channel.check(whole[:-8], whole[-8:])
        else:
            self.plain += whole
        return kind, unpack_body(kind, whole[12:12 + body_bytes])

    def close(self):
        self.socket.close()


class Member:
    """A rank whose every step is the test's. key: 16 bytes, with key_name in what it joins with."""
    JOIN = {"job_name": "scripted", "lanes": 1, "slots": 32, "datagram_bytes": 1472, "lease_ns": 10**9 * 30,
            "timeout_ns": 30 * 10**9, "features": 0, "key_name": "", "nonce0": 0, "nonce1": 0, "resume": 0, "oldest": 0,
            "resume_chunk_bytes": 0, "host0": 0, "host1": 0,
            "is_combining": 0, "shard": 0, "num_shards": 0, "aggregators": ""}

    def __init__(self, daemon_port, rank, world_size, key=None, **join):
        self.daemon_port, self.rank, self.key = daemon_port, rank, key
        self.join = {**self.JOIN, "rank": rank, "world_size": world_size, **join}
        self.control = self.welcome = self.start = None
        self.data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.data.bind(("127.0.0.1", 0))

    def connect(self, source="127.0.0.1"):
        self.control = Control(self.daemon_port, source)

    def say_join(self):
        self.control.say("JOIN", **self.join)

    def take_challenge(self, values):
        key = self.key or bytes(16)
        self.control.set_key(key, (self.join["nonce0"], self.join["nonce1"]), (values["nonce0"], values["nonce1"]))

    def hear_welcome(self):
        kind, values = self.control.hear() or ("nothing", None)
        if kind == "CHALLENGE":
            self.take_challenge(values)
            self.control.say("AUTH")
            kind, values = self.control.hear() or ("nothing", None)
        assert kind == "WELCOME", (kind, values)
        self.welcome = values

    def data_key(self):
        """Of the epoch that it is in; None without a key."""
        if not self.key:
            return None
        w = self.welcome
        return peer_keys.data_key(struct.unpack("<QQ", self.key), self.join["job_name"], w["job"], w["epoch"],
                                  (w["salt0"], w["salt1"]))

    def mask(self):
        """Of the checksums of the epoch that it is in, without a key."""
        return self.welcome["secret0"] >> 32

    def hello(self, num_bytes=1472):
        """Registers the data address; the echo must come back in its size."""
        head_bytes = HEADER_BYTES + (KEYED_BYTES if self.key else 0)
        payload = struct.pack(">Q", self.welcome["nonce"]).ljust(num_bytes - head_bytes, b"\0")
        self.send({"type": PACKETS["HELLO"]}, payload)
        fields, echo = self.receive()
        assert fields["type"] == PACKETS["HELLO"] and echo == payload, (fields, echo)

    def say_probed(self, num_bytes=1472, hearing=0):
        self.control.say("PROBED", datagram_bytes=num_bytes, rtt_ns=0, hearing=hearing)

    def hear_start(self):
        kind, values = self.control.hear() or ("nothing", None)
        assert kind == "START", (kind, values)
        self.take_start(values)

    def take_start(self, values):
        self.start = values
        self.welcome.update({name: self.start[name] for name in ("epoch", "secret0", "secret1")})

    def address(self, lane=0):
        return "127.0.0.1", self.welcome["ports"][lane]

    def send(self, fields, payload=b"", crc=None, via=None, extra=b"", cut=0, **spoilt):
        """A datagram of this rank, with what it knows filled in; extra and cut spoil its length."""
        known = {"job": self.welcome["job"], "epoch": self.welcome["epoch"], "rank": self.rank}
        spoilt.setdefault("key", self.data_key())
        spoilt.setdefault("mask", self.mask())
        datagram = pack_datagram({**known, **fields}, payload, crc, **spoilt) + extra
        (via or self.data).sendto(datagram[:len(datagram) - cut], self.address())

    def receive(self, seconds=1.0):
        """(fields, payload), or None."""
        if not select.select([self.data], [], [], seconds * PATIENCE)[0]:
            return None
        data = self.data.recv(65536)
        is_keyed = len(data) >= HEADER_BYTES and data[15] & FLAGS["KEYED"]
        return unpack_datagram(data, self.data_key() if is_keyed else None, self.mask())

    def close(self):
        if self.control:
            self.control.close()
        self.data.close()


def join_all(members):
    """All steps of a join, for all ranks of a job."""
    for member in members:
        member.connect()
        member.say_join()
        member.hear_welcome()
        member.hello()
        member.say_probed()
    for member in members:
        member.hear_start()


UNIQUE = itertools.count()


def unique_name(prefix):
    return f"{prefix}.{os.getpid()}.{next(UNIQUE)}"
