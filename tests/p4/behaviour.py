# SPDX-License-Identifier: Apache-2.0
"""What the switch does with packets, one rule a step: a packet goes in, and these come out, by port.

The rules of the cells have vectors of their own (tests/conformance); here is what only a switch does, and each rule
of the cells once."""
import struct

import frames
from dpdk import GROUP
from frames import (BY_GRANT, CHECKED, DEAF, HEARD, HELLO, KEYED, MAX, PENDING, PROBE, REPORT, RESULT, RETRANSMISSION, UPDATE,
                    Head, Host)

NUM_RANKS, CPU, NUM_PORTS = 3, 3, 5
AGGREGATOR = Host(0x020000000064, frames.ip("10.0.0.100"), 5000)
MEMBERS = [Host(0x020000000001 + rank, frames.ip(f"10.0.0.{1 + rank}"), 6000 + rank) for rank in range(NUM_RANKS)]
STRANGER = Host(0x020000000099, frames.ip("10.0.0.99"), 9999)
BASE, SLOTS, EPOCH, FIRST_CHUNK = 64, 16, 0xdeadbeef, 100
VOUCHER = 0x5a5b5c5d # in what the switch tells its control plane
BROADCAST = 0xffffffffffff

# Indices of the counter `verdicts` (src/core/drop.h, p4/common/headers.p4).
TRUNCATED, OVERLONG, BAD_VERSION, BAD_TYPE, BAD_KEY, WRONG_SOURCE, BAD_SLOT, BAD_LENGTH, STALE_PHASE = 0, 1, 2, 3, 7, 9, 12, 13, 14
DUPLICATE, NEEDLESS, FIRST, ADDED, COMPLETED, REPEATED, ASKED, REPORTED, GREETED, PUNTED, FORWARDED = (
    17, 18, 32, 33, 34, 35, 36, 37, 38, 39, 40)


def plan():
    jobs = [{"number": number, "epoch": EPOCH, "slot_base": base, "num_slots": SLOTS, "first_phase": 2, "first_chunk": FIRST_CHUNK,
             "is_checked": is_checked,
             "members": [{"rank": rank, "port": rank, "mac": host.mac, "ip": host.ip, "udp_port": host.udp}
                         for rank, host in enumerate(MEMBERS)]}
            for number, base, is_checked in ((3, BASE, False), (4, 2 * BASE, True))]
    return {"aggregator": {"mac": AGGREGATOR.mac, "ip": AGGREGATOR.ip, "udp_port": AGGREGATOR.udp}, "cpu_port": CPU, "voucher": VOUCHER,
            "num_ports": NUM_PORTS, "jobs": jobs}


class Steps:
    """Packets in and out, in order, and how often each verdict is due.

    is_pna: results go to a group, and what has not the length of an update or a probe is not looked at. is_tna: any
    wrong length is counted as BAD_LENGTH, and members disagree by their tags alone."""

    def __init__(self, num_lanes, is_pna=False, is_tna=False):
        self.num_lanes, self.is_pna, self.is_tna = num_lanes, is_pna, is_tna
        self.sent = []                              # (port, frame)
        self.due = [[] for _ in range(NUM_PORTS)]   # frames, or (source, target, head, payload)
        self.verdicts = {}

    def send(self, port, frame, verdict, *due):
        """due: (port, what)."""
        self.sent.append((port, frame))
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        for out, what in due:
            self.due[out].append(what)

    def ask(self, rank, head, verdict, *due, payload=None, source=None):
        """An UPDATE with lanes that its rank and slot make, a PROBE, or what the payload makes of it."""
        if payload is None:
            payload = frames.lanes(self.values(rank, head)) if head.type == UPDATE else b""
        source = source or MEMBERS[rank]
        self.send(rank, frames.udp_frame(source, AGGREGATOR, frames.datagram(head, payload)), verdict, *due)

    def values(self, rank, head):
        return [(0x70000000 * rank + 0x10001 * i + head.slot + 7 * head.phase) & 0xffffffff
                for i in range(self.num_lanes)]

    def answer(self, rank, head, payload):
        return (rank, (AGGREGATOR, MEMBERS[rank], head, payload))

    def result(self, head, ranks, grant, flags=0):
        rows = [self.values(rank, head) for rank in range(NUM_RANKS)]
        values = [max(column) if head.wire == MAX else sum(column) for column in zip(*rows)]
        result = head._replace(type=RESULT, rank=0, flags=flags, chunk=grant, payload_bytes=4 * self.num_lanes)
        if self.is_pna and not flags & RETRANSMISSION:
            return [(rank, (AGGREGATOR, GROUP, result, frames.lanes(values))) for rank in ranks]
        return [self.answer(rank, result, frames.lanes(values)) for rank in ranks]

    def pending(self, rank, head, missing):
        bits = struct.pack("<I", sum(1 << r for r in missing))
        return self.answer(rank, head._replace(type=PENDING, rank=rank, flags=0, payload_bytes=4), bits)


def add_cells(s):
    """A cell's life, at both versions and for both reductions."""
    everyone = range(NUM_RANKS)
    rounds = [(2, 0, (0, 1, 2)), (3, MAX, (2, 0, 1)), (4, 0, (1, 2, 0)), (5, 0, (0, 2, 1)), (6, MAX, (2, 1, 0))]
    for turn, (phase, wire, order) in enumerate(rounds):
        head = Head(UPDATE, wire=wire, slot=BASE + 5, phase=phase, tag=0x100 + phase, chunk=FIRST_CHUNK + turn)
        probe = head._replace(type=PROBE)
        a, b, c = order
        s.ask(a, probe._replace(rank=a, flags=DEAF), ASKED, s.pending(a, head, everyone))
        s.ask(a, head._replace(rank=a), FIRST)
        s.ask(a, head._replace(rank=a), DUPLICATE)
        s.ask(a, head._replace(rank=a, flags=RETRANSMISSION), NEEDLESS, s.pending(a, head, [b, c]))
        s.ask(b, head._replace(rank=b), ADDED)
        s.ask(a, probe._replace(rank=a), ASKED, s.pending(a, head, [c]))
        grant = FIRST_CHUNK + SLOTS + turn
        s.ask(c, head._replace(rank=c, flags=RETRANSMISSION), COMPLETED, *s.result(head, everyone, grant))
        s.ask(b, probe._replace(rank=b), REPEATED, *s.result(head, [b], grant, RETRANSMISSION))
        s.ask(a, head._replace(rank=a), REPEATED, *s.result(head, [a], grant, RETRANSMISSION))
        s.ask(a, probe._replace(rank=a, flags=BY_GRANT), STALE_PHASE)
        if turn >= 2:
            s.ask(b, head._replace(rank=b, phase=phase - 2), STALE_PHASE)
    head = Head(UPDATE, slot=BASE + 6, phase=2, tag=9)
    s.ask(0, head._replace(rank=0), FIRST)
    s.ask(1, head._replace(rank=1), ADDED)
    for far in (head._replace(phase=phase) for phase in (0, 1, 5, 6, 8, 400, 0x10002, 0x10004, 0xffffffff)): # no cell's next one
        s.ask(1, far._replace(rank=1), STALE_PHASE)
        s.ask(0, far._replace(rank=0, type=PROBE), STALE_PHASE)
    s.ask(0, head._replace(rank=0, type=PROBE), ASKED, s.pending(0, head, [2]))


def add_checked(s):
    """The job whose packets carry a check word."""
    head = Head(UPDATE, job=4, slot=2 * BASE, phase=2, flags=CHECKED)
    s.ask(0, head._replace(rank=0, flags=0), BAD_TYPE)
    s.ask(0, head._replace(rank=0, wire=MAX), BAD_TYPE)
    s.ask(0, Head(UPDATE, slot=BASE, flags=CHECKED), BAD_TYPE)
    for rank, verdict in enumerate((FIRST, ADDED)):
        s.ask(rank, head._replace(rank=rank), verdict)
    s.ask(2, head._replace(rank=2), COMPLETED, *s.result(head, range(NUM_RANKS), FIRST_CHUNK + SLOTS, CHECKED))
    s.ask(1, head._replace(rank=1, type=PROBE, flags=0), REPEATED,
          *s.result(head, [1], FIRST_CHUNK + SLOTS, CHECKED | RETRANSMISSION))


def add_refusals(s):
    head = Head(UPDATE, slot=BASE + 1)
    whole = frames.lanes(s.values(0, head))
    for wrong, verdict in [(head._replace(version=2), BAD_VERSION), (head._replace(type=RESULT), BAD_TYPE),
                           (head._replace(type=REPORT), BAD_TYPE), (head._replace(type=14), BAD_TYPE),
                           (head._replace(wire=0x11), BAD_TYPE), (head._replace(flags=DEAF), BAD_TYPE),
                           (head._replace(flags=32), BAD_TYPE), (head._replace(flags=KEYED), BAD_KEY),
                           (head._replace(payload_bytes=len(whole) + 4), BAD_LENGTH if s.is_tna else TRUNCATED),
                           (head._replace(payload_bytes=len(whole) - 4), BAD_LENGTH if s.is_tna else OVERLONG),
                           (head._replace(slot=BASE - 1), BAD_SLOT), (head._replace(slot=BASE + SLOTS), BAD_SLOT),
                           (head._replace(slot=2 * BASE), BAD_SLOT), (head._replace(slot=0xffff), BAD_SLOT)]:
        s.ask(0, wrong, verdict, payload=whole)
    s.ask(0, head, BAD_LENGTH, payload=b"")
    for wrong, payload in ((head, whole[:-4]), (head, whole + b"\0\0\0\0"), (head._replace(type=PROBE), b"\0\0\0\0")):
        frame = frames.udp_frame(MEMBERS[0], AGGREGATOR, frames.datagram(wrong, payload))
        s.send(0, frame, *((FORWARDED, (CPU, frame)) if s.is_pna else (BAD_LENGTH,)))
    for other in [(0, head._replace(job=9), None), (0, head._replace(epoch=1), None), (0, head._replace(rank=1), None),
                  (0, head._replace(rank=30), None), (0, head, STRANGER),
                  (0, head, MEMBERS[0]._replace(udp=6001))]:
        rank, wrong, source = other
        frame = frames.udp_frame(source or MEMBERS[rank], AGGREGATOR, frames.datagram(wrong, whole))
        s.send(rank, frame, PUNTED, (CPU, frame))


def add_mismatches(s):
    """Another tag; another reduction."""
    for slot, change in ((7, {"tag": 0x4321}), (8, {"wire": MAX}))[:1 if s.is_tna else 2]:
        head = Head(UPDATE, slot=BASE + slot)
        s.ask(2, head._replace(rank=2), FIRST)
        wrong = head._replace(rank=1, **change)
        report = wrong._replace(type=REPORT, payload_bytes=0, chunk=2, crc32c=VOUCHER)
        s.ask(1, wrong, REPORTED, (CPU, (MEMBERS[1], AGGREGATOR, report, b"")))


def add_switching(s):
    """HELLO, and what is nothing of ours."""
    hello = Head(HELLO, rank=1, slot=0, phase=0, tag=0, crc32c=0x55667788)
    for num_bytes in (17, 4 * s.num_lanes, 1000):
        payload = bytes(i & 0xff for i in range(num_bytes))
        frame = frames.udp_frame(MEMBERS[1], AGGREGATOR, frames.datagram(hello, payload), 0x1234)
        told = hello._replace(slot=1, phase=MEMBERS[1].mac >> 16, tag=MEMBERS[1].mac & 0xffff,
                              crc32c=VOUCHER)
        s.send(1, frame, GREETED, (CPU, frames.udp_frame(MEMBERS[1], AGGREGATOR, frames.datagram(told, payload))))
    short = frames.udp_frame(MEMBERS[0], AGGREGATOR, b"1234567")
    s.send(0, short, FORWARDED, (CPU, short))
    back = frames.udp_frame(AGGREGATOR, MEMBERS[0], b"x" * 600)
    s.send(CPU, back, FORWARDED, (0, back)) # who was heard is known
    unheard = frames.udp_frame(AGGREGATOR, STRANGER, b"x" * 600)
    s.send(CPU, unheard, FORWARDED, *[(port, unheard) for port in range(NUM_PORTS) if port != CPU])
    arp = BROADCAST.to_bytes(6, "big") + MEMBERS[2].mac.to_bytes(6, "big") + b"\x08\x06" + bytes(range(46))
    s.send(2, arp, FORWARDED, *[(port, arp) for port in range(NUM_PORTS) if port != 2])
    head = Head(UPDATE, slot=BASE + 9)
    whole = frames.datagram(head, frames.lanes(s.values(0, head)))
    other_port = frames.udp_frame(MEMBERS[0], AGGREGATOR._replace(udp=5001), whole)
    s.send(0, other_port, FORWARDED, (CPU, other_port))
    fragment = bytearray(frames.udp_frame(MEMBERS[0], AGGREGATOR, whole))
    fragment[20] = 0x20
    fragment[24:26] = frames.checksum(bytes(fragment[14:24]) + b"\0\0" + bytes(fragment[26:34])).to_bytes(2, "big")
    s.send(0, bytes(fragment), FORWARDED, (CPU, bytes(fragment)))


def add_strangers(s):
    """A Tofino's frames of hosts, or at ports, that it does not know: the daemon hears of these instead."""
    result = frames.datagram(Head(RESULT, slot=BASE), bytes(4 * s.num_lanes))
    arp = BROADCAST.to_bytes(6, "big") + STRANGER.mac.to_bytes(6, "big") + b"\x08\x06" + bytes(range(46))
    for host, port, frame in ((STRANGER, 4, arp), (STRANGER, 4, frames.udp_frame(STRANGER, MEMBERS[1], result)),
                              (MEMBERS[0], 1, frames.udp_frame(MEMBERS[0], MEMBERS[1], b"x" * 600))):
        told = Head(HEARD, slot=port, phase=host.mac >> 16, tag=host.mac & 0xffff, crc32c=VOUCHER)
        told = told._replace(job=0, epoch=0, tag=host.mac & 0xffff, payload_bytes=0)
        source = Host(host.mac, AGGREGATOR.ip ^ 1, AGGREGATOR.udp)
        s.send(port, frame, GREETED, (CPU, (source, AGGREGATOR, told, b"")))


def add_forgeries(s):
    """What comes in the aggregator's name by another port, whatever is in it, and whatever has a tag of a VLAN."""
    result = frames.udp_frame(AGGREGATOR, MEMBERS[0], frames.datagram(Head(RESULT, slot=BASE), bytes(4 * s.num_lanes)))
    fragment = bytearray(result)
    fragment[20] = 0x20
    fragment[24:26] = frames.checksum(bytes(fragment[14:24]) + b"\0\0" + bytes(fragment[26:34])).to_bytes(2, "big")
    control = result[:23] + b"\6" + result[24:]
    control = control[:24] + frames.checksum(control[14:24] + b"\0\0" + control[26:34]).to_bytes(2, "big") + control[26:]
    loop = frames.udp_frame(AGGREGATOR, AGGREGATOR, frames.datagram(Head(REPORT)))
    for port, frame in enumerate((result, bytes(fragment), control, loop)):
        s.send(port % CPU, frame, WRONG_SOURCE)
    for kind in (b"\x81\0", b"\x88\xa8"):
        s.send(1, result[:12] + kind + b"\0\0" + result[12:], BAD_TYPE)
    s.send(CPU, result[:12] + b"\x81\0\0\1" + result[12:], BAD_TYPE)


def steps(num_lanes, is_pna=False, is_tna=False):
    s = Steps(num_lanes, is_pna, is_tna)
    if not is_pna:
        add_switching(s)
    for add in (*(add_strangers,) * s.is_tna, add_refusals, add_forgeries, add_cells, add_checked, add_mismatches):
        add(s)
    return s


def differences(due, got):
    """What came out of a port other than was due, as sentences."""
    for number, (want, frame) in enumerate(zip(due, got)):
        if isinstance(want, bytes):
            if want != frame:
                yield f"packet {number}: {frame.hex()} instead of {want.hex()}"
            continue
        if want[2].type == HEARD:
            frame = frame[:74] # a host's frame follows behind the end
        source, target, head, payload, is_sound = frames.parse(frame)
        if (source, target, head, payload) != want or not is_sound:
            yield f"packet {number}: {source} {target} {head} {payload.hex()}, IPv4 checksum {is_sound}; due: {want}"
    if len(due) != len(got):
        yield f"{len(got)} packets instead of {len(due)}"
