# SPDX-License-Identifier: Apache-2.0
"""The data path (PROTOCOL.md rules R14 to R30, R195 to R198, and R218) a second time: for vectors to be played on, and as the stand-in for a
switch where none is. One job's cells, and what comes before them. Written from the text, not from the C."""
import operator
import struct

import peer

UPDATE, RESULT, PENDING, PROBE = (peer.PACKETS[name] for name in ("UPDATE", "RESULT", "PENDING", "PROBE"))
RETRANSMISSION, KEYED, CHECKED, BY_GRANT, NARROW = 1, 2, 4, 8, 128
TO_OWNER, COPY = (0, 2), (1, 3)
FENCE = 2**32 - 1
# By whether it is a switch.
PAIRS = {False: ((0, 0), (1, 1), (2, 1), (3, 1), (2, 4), (3, 4), (2, 5), TO_OWNER, COPY), True: ((0, 0), (2, 1))}
UP_FLAGS = {UPDATE: RETRANSMISSION | CHECKED | NARROW, PROBE: RETRANSMISSION | BY_GRANT | 64}
LANE_BYTES = 4, 1, 4, 8  # by wire
HEADER_BYTES = 32


def form_of(pair, num_bytes):
    return f">{num_bytes // LANE_BYTES[pair[0]]}{'IBIQ'[pair[0]]}"


class Cell:
    """A slot and version."""

    def __init__(self):
        self.phase, self.seen, self.grant, self.first_rank = 0, set(), None, None
        self.is_complete, self.owner = False, None
        self.tag = self.pair = self.values = self.payload_bytes = None


class Aggregator:
    """jobs: of vectors.Job; addresses: (job index, rank) of who is registered. take() says what is sent, to whom:
    [(address, datagram)], and a report: (what, ranks) or None."""

    def __init__(self, jobs, is_switch=False):
        self.jobs, self.is_switch = jobs, is_switch
        self.cells = [{} for _ in jobs]
        self.cursors = [job.first_chunk + job.num_slots for job in jobs]
        self.passed = {}  # by job and window: where the last complete fence is

    def take(self, address, datagram):
        fields, payload = self.open(datagram)
        if fields is None:
            return [], None
        found = [i for i, job in enumerate(self.jobs) if (job.number, job.epoch) == (fields["job"], fields["epoch"])]
        if not found or fields["flags"] & KEYED or fields["type"] not in UP_FLAGS:
            return [], None  # an ERROR is allowed, not due
        index, rank = found[0], fields["rank"]
        if rank >= self.jobs[index].ranks or address != (index, rank):
            return [], None
        return self.decide(index, fields, payload)

    def open(self, datagram):
        """(fields, payload) of a well-formed datagram, or (None, None)."""
        if len(datagram) < HEADER_BYTES:
            return None, None
        first, second, *rest = struct.unpack(">BBHIHHHHIII", datagram[:28])
        fields = dict(zip(peer.FIELDS, [first >> 4, first & 15, second >> 4, second & 15] + rest))
        head_bytes = HEADER_BYTES + (4 if fields["flags"] & KEYED else 0)
        if fields["version"] != 1 or len(datagram) != head_bytes + fields["payload_bytes"]:
            return None, None
        crc = peer.crc32c(datagram[:28] + bytes(4) + datagram[32:])
        if not self.is_switch and struct.unpack(">I", datagram[28:32])[0] != crc:
            return None, None
        pair = fields["wire"], fields["reducer"]
        known = UP_FLAGS.get(fields["type"], 0) | KEYED
        if pair not in PAIRS[self.is_switch] or fields["flags"] & ~known or (fields["flags"] & CHECKED and pair != (0, 0)):
            return None, None
        if fields["flags"] & NARROW and (self.is_switch or pair != (0, 0) or fields["flags"] & CHECKED):
            return None, None
        return fields, datagram[head_bytes:]

    def has_right_length(self, job, fields):
        num_bytes, is_lanes = fields["payload_bytes"], fields["wire"] == 0
        if fields["type"] == PROBE:
            return num_bytes == 0
        if self.is_switch:
            return num_bytes == job.full_bytes
        if fields["flags"] & NARROW:
            return job.is_narrow and not job.is_checked and 0 < num_bytes <= job.full_bytes // 32 * 28 and num_bytes % 28 == 0
        is_due = job.is_checked and is_lanes
        check_bytes = 4 if is_due else 0
        most = job.full_bytes - (4 if job.is_checked and not is_lanes else 0)
        return bool(fields["flags"] & CHECKED) == is_due and check_bytes < num_bytes <= most and num_bytes % LANE_BYTES[fields["wire"]] == 0

    @staticmethod
    def contributors(job, pair, owner):
        everybody = set(range(job.ranks))
        return everybody - {owner} if pair == TO_OWNER else {owner} if pair == COPY else everybody

    def fits_window(self, job, slot, fields):
        """R197. Exponents and fences stand in all windows."""
        pair = fields["wire"], fields["reducer"]
        if slot < job.num_slots:
            return pair not in (TO_OWNER, COPY)
        if pair not in (TO_OWNER, COPY):
            return pair == (1, 1) and not fields["flags"] & BY_GRANT and fields["chunk"] in (0, FENCE)
        if pair != (COPY if slot < 2 * job.num_slots else TO_OWNER):
            return False
        is_contributor = fields["rank"] in self.contributors(job, pair, fields["chunk"])
        return fields["chunk"] < job.ranks and (fields["type"] == PROBE or is_contributor)

    def widen(self, payload):
        return peer.widen(payload)

    def decide(self, index, fields, payload):
        job = self.jobs[index]
        slot, phase = fields["slot"] - job.slot_base, fields["phase"]
        all_slots = job.num_slots * (4 if job.has_one_way else 1)
        if not 0 <= slot < all_slots or not self.fits_window(job, slot, fields) or not self.has_right_length(job, fields):
            return [], None
        if fields["flags"] & NARROW:
            lanes = self.widen(payload)
            payload = struct.pack(f">{len(lanes)}I", *(lane & 0xffffffff for lane in lanes))
            fields = {**fields, "payload_bytes": len(payload)}
        if fields["flags"] & BY_GRANT:
            return self.answer_by_grant(index, fields), None
        cells = self.cells[index]
        cell = cells.setdefault((slot, phase & 1), Cell())
        if phase < job.first_phase or phase < cell.phase:
            return [], None
        if phase > cell.phase and self.is_switch and phase != (cell.phase + 2 if cell.phase else job.first_phase + phase % 2):
            return [], None  # a switch takes the next one only, and looks at no other cell
        if phase > cell.phase and slot >= job.num_slots and self.is_passed(index, slot, fields):
            return [], None
        if phase > cell.phase:
            if not self.is_switch and not self.is_next(job, cells, slot, phase):
                return [], ("JUMP", {fields["rank"]})
            if fields["type"] == PROBE:
                return self.pending(index, cell, fields), None
            cell.__init__()
            cell.phase, cell.tag, cell.first_rank = phase, fields["tag"], fields["rank"]
            cell.pair, cell.payload_bytes = (fields["wire"], fields["reducer"]), fields["payload_bytes"]
            cell.owner = fields["chunk"] if slot >= job.num_slots else None
            return self.contribute(index, slot, cell, fields["rank"], payload), None
        return self.decide_same(index, slot, cell, fields, payload)

    def decide_same(self, index, slot, cell, fields, payload):
        is_probe, rank = fields["type"] == PROBE, fields["rank"]
        chunk = (fields["wire"], fields["reducer"]), fields["payload_bytes"]
        if cell.tag != fields["tag"] or (not is_probe and chunk != (cell.pair, cell.payload_bytes)):
            return [], ("MISMATCH", {rank, cell.first_rank})
        if cell.owner not in (None, fields["chunk"]):
            return [], ("MISMATCH", {rank, cell.first_rank})
        if cell.is_complete and cell.pair in (TO_OWNER, COPY) and not is_probe:
            return [], None  # it hears nothing of what it contributes to
        if cell.is_complete:
            pair = chunk[0] if self.is_switch else cell.pair
            return [((index, rank), self.result(index, slot, cell, RETRANSMISSION, pair))], None
        if is_probe:
            return self.pending(index, cell, fields), None
        if rank not in cell.seen:
            return self.contribute(index, slot, cell, rank, payload), None
        if fields["flags"] & RETRANSMISSION:
            return self.pending(index, cell, fields), None
        return [], None

    def is_next(self, job, cells, slot, phase):
        """Can an honest member be there? Only with the result of the phase before."""
        def is_complete(at):
            cell = cells.get((slot, at & 1))
            return cell is not None and cell.phase == at and cell.is_complete
        cell = cells.get((slot, phase & 1))
        if slot >= job.num_slots:  # R218
            return cell.phase == 0 or cell.is_complete
        if phase == job.first_phase:
            return cell.phase == 0
        if not is_complete(phase - 1):
            return False
        return phase == job.first_phase + 1 if cell.phase == 0 else is_complete(phase - 2)

    @staticmethod
    def place(job, slot, phase):
        """Which window, and where in its stream, as far as order goes."""
        return slot >= 2 * job.num_slots, (phase - job.first_phase, slot)

    def pass_fences(self, index, slot, phase):
        """R218: a fence is complete, so all earlier ones are."""
        job = self.jobs[index]
        window, position = self.place(job, slot, phase)
        self.passed[index, window] = max(self.passed.get((index, window), position), position)
        for (at, _), cell in self.cells[index].items():
            if at >= job.num_slots and cell.seen and cell.pair == (1, 1) and cell.owner == FENCE:
                other, earlier = self.place(job, at, cell.phase)
                cell.is_complete = cell.is_complete or (other == window and earlier <= position)

    def is_passed(self, index, slot, fields):
        window, position = self.place(self.jobs[index], slot, fields["phase"])
        is_fence = (fields["wire"], fields["reducer"], fields["chunk"]) == (1, 1, FENCE)
        return is_fence and (index, window) in self.passed and position < self.passed[index, window]

    @staticmethod
    def reduce(pair, values, more):
        how = {0: operator.add, 1: max, 2: operator.add, 4: operator.mul, 5: operator.or_}[pair[1]]
        return tuple(how(a, b) & (2**64 - 1 if pair[0] == 3 else 2**32 - 1) for a, b in zip(values, more))

    def contribute(self, index, slot, cell, rank, payload):
        values = struct.unpack(form_of(cell.pair, len(payload)), payload)
        cell.seen.add(rank)
        cell.values = values if cell.values is None else self.reduce(cell.pair, cell.values, values)
        job = self.jobs[index]
        contributors = self.contributors(job, cell.pair, cell.owner)
        if cell.seen != contributors:
            return []
        cell.is_complete = True
        if slot < job.num_slots:
            cell.grant = self.cursors[index] % 2**32
            self.cursors[index] += 1
        if cell.pair == (1, 1) and cell.owner == FENCE:
            self.pass_fences(index, slot, cell.phase)
        receivers = sorted(set(range(job.ranks)) - contributors) if cell.pair in (TO_OWNER, COPY) else range(job.ranks)
        return [((index, to), self.result(index, slot, cell, 0)) for to in receivers]

    def answer_by_grant(self, index, fields):
        for (slot, _), cell in self.cells[index].items():
            if not self.is_switch and cell.grant == fields["chunk"]:
                return [((index, fields["rank"]), self.result(index, slot, cell, RETRANSMISSION))]
        return []

    def result(self, index, slot, cell, flags, pair=None):
        """pair: that of the packet which is answered; else the cell's."""
        job, pair = self.jobs[index], pair or cell.pair
        form = form_of(cell.pair, cell.payload_bytes)
        if job.is_checked and pair[0] == 0:
            flags |= CHECKED
        return self.seal({"type": RESULT, "wire": pair[0], "reducer": pair[1], "job": job.number, "epoch": job.epoch,
                          "slot": job.slot_base + slot, "flags": flags, "phase": cell.phase, "tag": cell.tag,
                          "chunk": cell.grant if cell.grant is not None else cell.owner or 0},
                         struct.pack(form, *cell.values))

    def pending(self, index, cell, fields):
        job = self.jobs[index]
        seen = cell.seen if cell.phase == fields["phase"] else set()
        bits = sum(1 << rank for rank in self.contributors(job, (fields["wire"], fields["reducer"]), fields["chunk"]) - seen)
        bitmap = bits.to_bytes(4 if self.is_switch else (job.ranks + 7) // 8, "little")
        answer = {name: value for name, value in fields.items() if name != "payload_bytes"}
        return [((index, fields["rank"]), self.seal({**answer, "type": PENDING, "flags": 0}, bitmap))]

    def seal(self, fields, payload):
        return peer.pack_datagram(fields, payload, 0 if self.is_switch else None)
