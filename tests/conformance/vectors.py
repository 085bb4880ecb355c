# SPDX-License-Identifier: Apache-2.0
"""Vectors read, bound to an aggregator's numbers, and compared (README.md): the second implementation, for Python."""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer

VECTORS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors")
FLAGS = {name: 1 << bit for bit, name in enumerate(["RETRANSMISSION", "KEYED", "CHECKED", "BY_GRANT", "UNASKED", "MARKED", "DEAF", "NARROW"])}
UNKNOWN_JOB = 0xffff
SUMMED_BY_SOFTWARE = (peer.PACKETS["HELLO"], peer.PACKETS["ERROR"])


def read(family):
    """The vectors of a file: dictionaries, with their `steps`."""
    found = []
    with open(os.path.join(VECTORS, family + ".jsonl"), encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if "vector" in line:
                found.append({**line, "steps": []})
            else:
                found[-1]["steps"].append(line)
    return found


class Job:
    """The numbers of one job, as an aggregator has chosen them. full_bytes: the largest payload, check word included."""

    def __init__(self, shape, number, epoch, slot_base, num_slots, full_bytes, first_phase=2, first_chunk=0, is_switch=False):
        self.ranks, self.is_checked = shape["ranks"], shape.get("checked", False)
        self.is_narrow, self.has_one_way = shape.get("narrow", False), shape.get("one_way", False)
        self.number, self.epoch, self.slot_base, self.num_slots = number, epoch, slot_base, num_slots
        self.full_bytes, self.first_phase, self.first_chunk, self.is_switch = full_bytes, first_phase, first_chunk, is_switch

    def number_of(self, value):
        """(number, whether it is counted from something) of a value."""
        if isinstance(value, int):
            return value, True
        if value.startswith("0x"):
            return int(value, 16), True
        symbols = {"slots": self.num_slots, "ranks": self.ranks, "full": self.full_bytes, "max": 2**32 - 1, "unknown": UNKNOWN_JOB,
                   "narrow": self.full_bytes // 32 * 28, "owner": 0, "to_owners": 2 * self.num_slots, "copies": self.num_slots}
        name = next(name for name in symbols if value.startswith(name))
        return symbols[name] + int(value[len(name):] or "0"), name not in ("max", "unknown", "owner")

    def header_field(self, name, value):
        if name == "type":
            return peer.PACKETS.get(value, value)
        if name == "flags":
            return sum(FLAGS.get(flag, flag) for flag in value)
        number, is_relative = self.number_of(value)
        if is_relative:
            number += {"slot": self.slot_base, "phase": self.first_phase, "chunk": self.first_chunk, "epoch": self.epoch}.get(name, 0)
        return number % {"slot": 2**16, "rank": 2**16, "job": 2**16, "payload_bytes": 2**16}.get(name, 2**32)

    def header(self, packet):
        return {name: self.header_field(name, packet[name]) for name in peer.FIELDS if name in packet}

    def payload(self, packet, fields):
        size = 1 if fields.get("wire") == 1 else 4
        values = packet.get("values", [])
        if "bytes" in packet:
            num_bytes = self.number_of(packet["bytes"])[0]
        else:
            num_bytes = size * len(values)
        if not values:
            return bytes(num_bytes)
        once = b"".join((value % 256**size).to_bytes(size, "big") for value in values)
        return (once * (num_bytes // len(once) + 1))[:num_bytes]

    def pack(self, packet, rank):
        """The datagram of a packet that rank sends; vectors of keyed jobs and HELLOs are not for this."""
        fields = {"job": self.number, "epoch": self.epoch, "rank": rank, **self.header(packet)}
        payload = self.payload(packet, fields)
        lengths = {"payload_bytes": len(payload), **fields}
        crc = 0 if self.is_switch and fields["type"] not in SUMMED_BY_SOFTWARE else None
        datagram = peer.pack_datagram(lengths, payload, crc)
        if packet.get("key") == "other":
            datagram = peer.pack_datagram(lengths, payload, crc, key=(1, 2))
        if packet.get("crc") == "wrong":
            datagram = datagram[:28] + bytes([datagram[28] ^ 1]) + datagram[29:]
        datagram += bytes(packet.get("extra", 0))
        return datagram[:len(datagram) - packet.get("cut", 0)]

    def compare(self, expected, datagram):
        """None, or what differs."""
        if len(datagram) < 32:
            return f"has {len(datagram)} bytes"
        is_zero = self.is_switch and datagram[0] & 15 not in SUMMED_BY_SOFTWARE
        if is_zero and datagram[28:32] != bytes(4):
            return "has a checksum"
        if is_zero:
            datagram = datagram[:28] + struct.pack(">I", peer.crc32c(datagram[:28] + bytes(4) + datagram[32:])) + datagram[32:]
        try:
            seen, payload = peer.unpack_datagram(datagram)
        except AssertionError as error:
            return f"is malformed: {error}"
        fields = {"job": self.number, "epoch": self.epoch, **self.header(expected)}
        for name, value in fields.items():
            if seen[name] != value:
                return f"{name} is {seen[name]:#x}, not {value:#x}"
        if "missing" in expected:
            wanted = sum(1 << rank for rank in expected["missing"]).to_bytes(4 if self.is_switch else (self.ranks + 7) // 8, "little")
        else:
            wanted = self.payload(expected, seen)
        if payload != wanted:
            at = next((i for i, (a, b) in enumerate(zip(payload, wanted)) if a != b), min(len(payload), len(wanted)))
            return f"payload differs from byte {at} on: {payload[at:at + 8].hex()}, not {wanted[at:at + 8].hex()}; {len(payload)} bytes of {len(wanted)}"
        return None


def describe(datagram):
    if len(datagram) < 32:
        return f"{len(datagram)} bytes"
    first, second, *rest = struct.unpack(">BBHIHHHHIII", datagram[:28])
    names = {number: name for name, number in peer.PACKETS.items()}
    fields = dict(zip(peer.FIELDS, [first >> 4, names.get(first & 15, first & 15), second >> 4, second & 15] + rest))
    return " ".join(f"{name}={value}" for name, value in fields.items()) + " payload=" + datagram[32:44].hex()


def is_hint(datagram):
    """A PENDING that nobody asked for."""
    return len(datagram) >= 32 and datagram[0] & 15 == peer.PACKETS["PENDING"] and bool(datagram[15] & 0x30)
