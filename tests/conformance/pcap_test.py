#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Vectors as pcap files, played by a second implementation in Python: which passes them all, in both families and with
every number of lanes, and of which each wrong variant is found."""
import contextlib
import io
import os
import re
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pcap
import vectors
import aggregator
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer
import tap

RIGHT = aggregator.Aggregator

def play(family, lanes, kind=aggregator.Aggregator, change=None, damage=None):
    """Names of the vectors that failed, of those that were left out, and how many there are."""
    with tempfile.TemporaryDirectory(prefix="switchml-pcap-") as folder:
        pcap.make(folder, family, lanes)
        aggregator.Aggregator = kind
        try:
            pcap.stand_in(folder, change)
        finally:
            aggregator.Aggregator = RIGHT
        if damage:
            damage(folder)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            num_failed = pcap.compare(folder, True)
    failed = re.findall(r"^not ok \d+ - (\w+)$", out.getvalue(), re.MULTILINE)
    skipped = re.findall(r"^ok \d+ - (\w+) # SKIP", out.getvalue(), re.MULTILINE)
    assert len(failed) == num_failed, out.getvalue()
    return set(failed), set(skipped), out.getvalue().count("ok ")


def expect_found(wanted, spared, family="switch", lanes=32, **wrong):
    failed, _, _ = play(family, lanes, **wrong)
    assert set(wanted) <= failed, f"not found: {set(wanted) - failed}"
    assert not set(spared) & failed, f"found, too: {set(spared) & failed}"


def test_second_implementation_passes():
    for family, lanes, least in (("switch", 32, 60), ("switch", 64, 60), ("switch", 256, 60), ("ordinary", 64, 65), ("ordinary", 360, 65)):
        failed, skipped, number = play(family, lanes)
        assert not failed and number - len(skipped) >= least, (family, lanes, failed, skipped, number)
        wanted = {"hellos"} if family == "switch" else {"hellos", "departed_ranks", "keyed_sum", "macs", "sum_of_64", "pending_of_many_ranks"}
        assert skipped == wanted, skipped


def test_the_version_bit_alone_is_found():
    class OneBit(aggregator.Aggregator):
        def decide(self, index, fields, payload):
            cell = self.cells[index].get((fields["slot"] - self.jobs[index].slot_base, fields["phase"] & 1))
            if cell and fields["phase"] < cell.phase:
                fields = {**fields, "phase": cell.phase}
            return super().decide(index, fields, payload)
    expect_found(["late_copies", "late_copy_of_the_same_version", "stale_phases"], ["sum_of_2", "update_lost"], kind=OneBit)


def test_phases_that_are_believed_are_found():
    class Believer(aggregator.Aggregator):
        """Takes any later phase for the next one."""
        def decide(self, index, fields, payload):
            place = fields["slot"] - self.jobs[index].slot_base, fields["phase"] & 1
            cell = self.cells[index].setdefault(place, aggregator.Cell())
            if fields["type"] == aggregator.UPDATE and fields["phase"] > cell.phase:
                cell.phase = fields["phase"] - 2
            return super().decide(index, fields, payload)
    expect_found(["jump_by_three", "jump_over_half_of_all"], ["sum_of_2", "late_copies"], kind=Believer)


def test_duplicates_that_count_are_found():
    class Forgetful(aggregator.Aggregator):
        def contribute(self, index, slot, cell, rank, payload):
            answers = super().contribute(index, slot, cell, rank, payload)
            if len(cell.seen) < self.jobs[index].ranks:
                cell.seen.discard(1)
            return answers
    expect_found(["sum_of_4"], ["sums_wrap"], kind=Forgetful)


def test_sums_of_codes_are_found():
    class Adding(aggregator.Aggregator):
        @staticmethod
        def reduce(pair, values, more):
            return RIGHT.reduce((0, 0), values, more)
    expect_found(["exponents_are_maxima"], ["sum_of_2"], kind=Adding)


def test_narrow_updates_taken_wrongly_are_found():
    others = ["sum_of_2", "lossy_world_1", "lengths_differ", "flags"]
    def widened(change):
        class Wrong(aggregator.Aggregator):
            def widen(self, payload):
                return change(RIGHT.widen(self, payload))
        return Wrong
    def shift_rows(lanes):
        width = len(lanes) // 8
        return lanes[width:] + lanes[:width]
    unsigned = lambda lanes: [lane & 0xfffffff for lane in lanes]
    by_columns = lambda lanes: [lanes[row * (len(lanes) // 8) + column] for column in range(len(lanes) // 8) for row in range(8)]
    for change, spared in ((unsigned, []), (shift_rows, ["narrow_of_a_full_chunk"]), (by_columns, ["narrow_of_a_full_chunk", "narrow_lossy_world_5"])):
        expect_found(["narrow_sums", "narrow_lanes_in_place"], others + spared, "ordinary", 64, kind=widened(change))

    class Taker(aggregator.Aggregator):
        def __init__(self, jobs, is_switch=False):
            for job in jobs:
                job.is_narrow = True
            super().__init__(jobs, is_switch)
    expect_found(["narrow_where_none_is_agreed"], ["narrow_sums", *others[:3]], "ordinary", 64, kind=Taker)


def test_wrong_answers_are_found():
    def to_one(answers):
        return answers[:1]
    expect_found(["sum_of_2", "lossy_world_1"], ["nothing_came"], change=to_one)

    def swap_bitmap(answers):
        return [(to, data[:32] + data[:31:-1] if data[0] == 0x13 else data) for to, data in answers]
    expect_found(["update_lost", "pending_of_many_ranks"], ["sum_of_2"], change=swap_bitmap)

    def with_checksum(answers):
        return [(to, data[:28] + struct.pack(">I", peer.crc32c(data[:28] + bytes(4) + data[32:])) + data[32:]) for to, data in answers]
    expect_found(["sum_of_2"], [], change=with_checksum)

    def swap_lanes(answers):
        return [(to, data[:36] + data[40:44] + data[36:40] + data[44:] if data[0] == 0x12 else data) for to, data in answers]
    expect_found(["every_lane_is_its_own", "sum_of_2"], ["nothing_came"], change=swap_lanes)


def test_frames_are_looked_at():
    def lose_reports(folder):
        os.remove(pcap.port_file(folder, pcap.CPU, "out"))
    expect_found(["tags_differ", "probes_tag_differs"], ["sum_of_2"], damage=lose_reports)

    def mistake_ports(folder):
        os.rename(pcap.port_file(folder, 0, "out"), pcap.port_file(folder, 1, "out"))
    expect_found(["sum_of_2", "result_lost"], [], damage=mistake_ports)

    def mistake_address(folder):
        path = pcap.port_file(folder, 0, "out")
        pcap.write_pcap(path, [(at, b"\x02" + bytes(5) + frame[6:]) for at, frame in pcap.read_pcap(path)])
    expect_found(["sum_of_2"], [], damage=mistake_address)


def test_vectors_are_told_apart():
    for family in ("ordinary", "switch"):
        names = [vector["vector"] for vector in vectors.read(family)]
        assert len(names) == len(set(names)), names


if __name__ == "__main__":
    tap.main(globals())
