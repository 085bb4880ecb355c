#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""bystander.py INTERFACE FILE RATE SECONDS: a host at a port of a switch, in no job. It records what it hears, first
alone. Once FILE is there, which has frames that others sent (hexadecimal, one a line), it sends RATE hostile frames a
second that it makes of them, for SECONDS. On standard output: "listening", "attacks" and, at the end, JSON: how many
frames of each kind it sent, and what it heard that was neither broadcast, nor multicast, nor ARP, nor an answer to it.

bystander.py INTERFACE FILE: writes FILE at a rank's own link: what the rank and the aggregator say to each other, to the
rank's tenth update at most."""
import json
import os
import random
import select
import socket
import struct
import sys
import time

import frames
from frames import HELLO, PROBE, REPORT, RESULT, UPDATE

OUTGOING = 4 # PACKET_OUTGOING
ARP = b"\x08\x06" # the switches send it to all, whomever it is for
GATEWAY, NOBODY = 0x0200000000fe, 0x0200000000fd # nobody sends as the latter, so no switch learns where it is


def is_ours(frame):
    """A datagram of ours, whole."""
    return len(frame) >= 74 and frame[12:15] == b"\x08\0\x45" and frame[23] == 17 and frame[42] >> 4 == 1


class Hostile:
    """What an eavesdropper could send who has read an update and a result: job, epoch, addresses, slots, phases, tags."""

    def __init__(self, heard, seed):
        self.rng = random.Random(seed)
        update = next(frame for frame in heard if is_ours(frame) and frame[42] & 15 == UPDATE)
        self.rank, self.aggregator, self.head, self.payload, _ = frames.parse(update)
        self.peers = [frame for frame in heard if len(frame) >= 54 and frame[12:15] == b"\x08\0\x45" and frame[23] == 6]
        self.kinds = [getattr(self, name) for name in dir(type(self)) if name.startswith("make_")]

    def next(self):
        make = self.rng.choice(self.kinds)
        return make.__name__.removeprefix("make_"), make()[:1514]

    def member_says(self, kind, payload=None, **changes):
        """As rank 0 would say it next, in its addresses, or nearly."""
        head = self.head._replace(type=kind, payload_bytes=None, phase=self.head.phase + self.rng.randrange(-2, 6),
                                  flags=self.rng.choice((0, 1, self.head.flags)) if kind != HELLO else 0,
                                  slot=self.head.slot ^ self.rng.randrange(4), rank=self.rng.choice((0, 0, 0, 1, 7)))
        if payload is None:
            payload = self.rng.randbytes(len(self.payload)) if kind in (UPDATE, RESULT) else b""
        return frames.datagram(head._replace(**changes), payload)

    def from_rank(self, datagram, **changes):
        return frames.udp_frame(self.rank._replace(**changes), self.aggregator, datagram)

    def from_aggregator(self, datagram):
        return frames.udp_frame(self.aggregator, self.rank, datagram)

    def epoch(self):
        return self.rng.getrandbits(32)

    def make_update(self):
        return self.from_rank(self.member_says(UPDATE))

    def make_update_of_another_mac(self):
        return self.from_rank(self.member_says(UPDATE), mac=self.rng.choice((GATEWAY, self.aggregator.mac)))

    def make_update_of_another_epoch(self):
        return self.from_rank(self.member_says(UPDATE, epoch=self.epoch()))

    def make_probe(self):
        return self.from_rank(self.member_says(PROBE))

    def make_hello(self):
        nonce = self.rng.randbytes(8) + bytes(len(self.payload))
        return self.from_rank(self.member_says(HELLO, nonce, slot=3, phase=0, tag=0))

    def make_report(self):
        return self.from_rank(self.member_says(REPORT, chunk=1, flags=0))

    def make_result_to_aggregator(self):
        return self.from_rank(self.member_says(RESULT))

    def make_result(self):
        return self.from_aggregator(self.member_says(RESULT))

    def make_result_of_another_epoch(self):
        return self.from_aggregator(self.member_says(RESULT, epoch=self.epoch()))

    def make_tagged_result(self):
        return self.tagged(self.make_result())

    def make_result_in_fragments(self):
        frame = self.make_result()
        return self.head_of_ipv4(frame, len(frame) - 14, self.rng.choice((0x2000, 0x0004)))

    def make_report_to_rank(self):
        return self.from_aggregator(self.member_says(REPORT, chunk=1))

    def make_loop(self):
        """Both addresses are the aggregator's."""
        return frames.udp_frame(self.aggregator, self.aggregator, self.member_says(UPDATE))

    def make_any_type(self):
        return self.from_rank(self.member_says(self.rng.randrange(16), version=self.rng.randrange(16)))

    def make_any_flags(self):
        return self.from_rank(self.member_says(UPDATE, flags=self.rng.getrandbits(16), wire=self.rng.getrandbits(8)))

    def make_wrong_length(self):
        return self.from_rank(self.member_says(UPDATE, payload_bytes=self.rng.getrandbits(16)))

    def make_cut(self):
        frame = self.make_update()
        return frame[:self.rng.randrange(14, len(frame))]

    def make_bit_errors(self):
        frame = bytearray(self.make_update())
        for _ in range(self.rng.randrange(1, 4)):
            frame[self.rng.randrange(14, 42)] ^= 1 << self.rng.randrange(8)
        return bytes(frame)

    def head_of_ipv4(self, frame, total_bytes, flags_offset=0, options=b""):
        """The frame with another head of IPv4."""
        head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, 0, total_bytes, self.rng.getrandbits(16), flags_offset,
                           64, 17, 0) + frame[26:34] + options
        head = head[:10] + struct.pack(">H", frames.checksum(head)) + head[12:]
        return frame[:14] + head + frame[34:]

    def make_fragments(self):
        """The first one, the last one, or one in the middle."""
        frame = self.from_rank(self.member_says(self.rng.choice((UPDATE, PROBE, RESULT)), epoch=self.head.epoch))
        flags_offset = self.rng.choice((0x2000, 0x2001, 0x0004, 0x1fff))
        return self.head_of_ipv4(frame, len(frame) - 14, flags_offset)

    def make_report_in_fragments(self):
        frame = self.from_rank(self.member_says(REPORT, chunk=1, flags=0))
        return self.head_of_ipv4(frame, len(frame) - 14, self.rng.choice((0x2000, 0x0004)))

    def make_options(self):
        frame = self.from_rank(self.member_says(self.rng.choice((UPDATE, PROBE))))
        options = self.rng.choice((b"\1\1\1\0", b"\x94\4\0\0", b"\7\7\4\0\0\0\0\0", self.rng.randbytes(40)))
        return self.head_of_ipv4(frame, len(frame) - 14 + len(options), options=options)

    def make_report_with_options(self):
        frame = self.from_rank(self.member_says(REPORT, chunk=1, flags=0))
        return self.head_of_ipv4(frame, len(frame) - 10, options=b"\1\1\1\0")

    def make_report_with_a_tail(self):
        """As long to IPv4 as an update, to UDP a report."""
        frame = self.from_rank(self.member_says(REPORT, chunk=1, flags=0))
        tail = self.rng.randbytes(self.rng.choice((4, 32, len(self.payload))))
        return self.head_of_ipv4(frame, len(frame) - 14 + len(tail)) + tail

    def make_tagged_report(self):
        return self.tagged(self.from_rank(self.member_says(REPORT, chunk=1, flags=0)))

    def make_total_length(self):
        """Larger than the frame or than UDP's length, or less."""
        frame = self.from_rank(self.member_says(self.rng.choice((UPDATE, PROBE))))
        tail = self.rng.randbytes(self.rng.choice((0, 4, 60)))
        total = len(frame) - 14 + self.rng.choice((len(tail), 1, -1, -20, 1000, 60000))
        return self.head_of_ipv4(frame, total) + tail

    def make_udp_length(self):
        frame = bytearray(self.make_update())
        frame[38:40] = self.rng.getrandbits(16).to_bytes(2, "big")
        return bytes(frame)

    def tagged(self, frame):
        """VLAN 0 is a priority alone: hosts take such tags off, several if there are several."""
        for _ in range(self.rng.randrange(1, 3)):
            kind = self.rng.choice((b"\x81\0", b"\x88\xa8"))
            frame = frame[:12] + kind + self.rng.choice((b"\0\0", b"\xe0\0", b"\0\1")) + frame[12:]
        return frame

    def make_tagged(self):
        return self.tagged(self.make_update())

    def make_station_move(self):
        """A frame of no protocol in the name of a rank's, the aggregator's or another MAC."""
        source = self.rng.choice((self.rank.mac, self.aggregator.mac, GATEWAY, self.rng.getrandbits(48) & ~(1 << 40)))
        target = self.rng.choice((self.rank.mac, self.aggregator.mac, NOBODY, (1 << 48) - 1))
        return target.to_bytes(6, "big") + source.to_bytes(6, "big") + b"\x88\xb5" + self.rng.randbytes(46)

    def make_control(self):
        """A segment of the control connection, either way, with sequence numbers of its own."""
        there, back = (self.rank, self.aggregator)[::self.rng.choice((1, -1))]
        ports = (self.rank.udp, 48879)[::1 if there is self.rank else -1]
        if self.peers:
            ports = struct.unpack(">HH", self.rng.choice(self.peers)[34:38])
        body = self.rng.randbytes(self.rng.choice((0, 8, 200)))
        tcp = struct.pack(">HHIIBBHHH", *ports, self.rng.getrandbits(32), self.rng.getrandbits(32), 0x50,
                          self.rng.choice((2, 4, 0x11, 0x18)), 1000, 0, 0) + body
        pseudo = struct.pack(">IIBBH", there.ip, back.ip, 0, 6, len(tcp))
        check = frames.checksum(pseudo + tcp)
        tcp = tcp[:16] + struct.pack(">H", check) + tcp[18:]
        head = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, there.ip, back.ip)
        head = head[:10] + struct.pack(">H", frames.checksum(head)) + head[12:]
        return back.mac.to_bytes(6, "big") + there.mac.to_bytes(6, "big") + b"\x08\0" + head + tcp

    def make_jumbo(self):
        """As large as the link takes."""
        return self.from_rank(self.member_says(UPDATE, self.rng.randbytes(1440)))

    def make_runt(self):
        return self.make_update()[:self.rng.randrange(14, 34)]

    def make_garbage(self):
        to = self.rng.choice((self.aggregator.mac, self.rank.mac, (1 << 48) - 1)).to_bytes(6, "big")
        kind = self.rng.choice((b"\x08\0", b"\x86\xdd", b"\x88\xcc", self.rng.randbytes(2)))
        return to + GATEWAY.to_bytes(6, "big") + kind + self.rng.randbytes(self.rng.randrange(1, 1400))


class Ears:
    def __init__(self, link):
        self.link, self.num_heard, self.foreign = link, 0, []

    def is_about_own(self, frame):
        """An ICMP error to this host about a datagram in this host's name: bit errors make one in ten million."""
        return (frame[:6] == self.link.getsockname()[4] and frame[12:15] == b"\x08\0\x45" and frame[23] == 1 and
                frame[34] == 3 and frame[30:34] == frame[54:58])

    def hear(self):
        while True:
            try:
                frame, address = self.link.recvfrom(65536)
            except BlockingIOError:
                return
            if address[2] == OUTGOING:
                continue
            self.num_heard += 1
            if not frame[0] & 1 and frame[12:14] != ARP and not self.is_about_own(frame):
                self.foreign.append(frame[:90].hex())


def overhear(link, path):
    heard, num_updates = [], 0
    print("listening", flush=True)
    while num_updates < 10:
        frame = link.recv(65536)
        heard.append(frame.hex())
        num_updates += is_ours(frame) and frame[42] & 15 == UPDATE
    with open(path + ".part", "w", encoding="ascii") as file:
        file.write("\n".join(heard))
    os.rename(path + ".part", path)


def main():
    interface, path = sys.argv[1:3]
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) # ETH_P_ALL
    link.bind((interface, 0))
    if len(sys.argv) == 3:
        overhear(link, path)
        return
    rate, seconds = float(sys.argv[3]), float(sys.argv[4])
    seed = int(os.environ.get("SML_SEED", time.time_ns() % 1000000))
    link.setblocking(False)
    ears, sent, failed = Ears(link), {}, 0
    print("listening", flush=True)
    while not os.path.exists(path):
        select.select([link], [], [], 0.1)
        ears.hear()
    with open(path, encoding="ascii") as file:
        hostile = Hostile([bytes.fromhex(line) for line in file], seed)
    print("attacks", flush=True)
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        while sum(sent.values()) < now * rate:
            kind, frame = hostile.next()
            try:
                link.send(frame)
            except OSError: # the link's queue is full
                failed += 1
                break
            sent[kind] = sent.get(kind, 0) + 1
        select.select([link], [], [], 0.001)
        ears.hear()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        select.select([link], [], [], 0.1)
        ears.hear()
    print(json.dumps({"seed": seed, "sent": sent, "failed": failed, "heard": ears.num_heard, "foreign": ears.foreign}))


if __name__ == "__main__":
    main()
