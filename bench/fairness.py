# SPDX-License-Identifier: Apache-2.0
"""Ours beside others: a Cubic flow on one worker's link, several jobs at one aggregator."""
import statistics
import subprocess
import time

import link
import netbed
import places
from contenders import SwitchML
from places import BenchError

RATE = "1gbit"
M = 1 << 20
LIMITS = (250_000, 16_000_000)
MARK_BYTES = {250_000: 60_000, 16_000_000: 400_000}
SETTLE_S = 2.0  # both flows run so long before it is counted
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def tcp_wire_bytes(payload, mtu=1500):
    return payload * (mtu + 14) / (mtu - 52)


def check_running(workers):
    if any(worker.poll() is not None for worker in workers):
        raise BenchError("a worker ended while the flows were compared")


def beside_cubic(session, direction, limit_bytes, is_marking, seconds):
    """Bytes of our worker over bytes of Cubic, both as the link carries them."""
    with places.bed(2, rate=RATE, mtu=1500, limit_bytes=limit_bytes) as place:
        shared = link.Link(place.bed, 0, direction)
        shared.mark(MARK_BYTES[limit_bytes] if is_marking else 0)
        ours = SwitchML(session.processes, 2)
        ours.start(place)
        flow, workers = None, []
        try:
            workers = ours.start_workers([64 * M], 100_000, "float32", **QUIET)
            time.sleep(SETTLE_S / 2)
            flow = link.BulkFlow(place.bed, 0, direction)
            time.sleep(SETTLE_S)
            check_running(workers)
            before = shared.sent_bytes(), flow.received_bytes(), shared.counters(), shared.dropped_packets()
            time.sleep(seconds)
            check_running(workers)
            after = shared.sent_bytes(), flow.received_bytes(), shared.counters(), shared.dropped_packets()
        finally:
            if flow:
                flow.stop()
            session.processes.stop(workers)
            ours.stop()
    cubic = tcp_wire_bytes(after[1] - before[1])
    mine = after[0] - before[0] - cubic
    if cubic <= 0:
        raise BenchError("Cubic delivered nothing in that time")
    return {"direction": direction, "limit_bytes": limit_bytes, "is_marking": is_marking, "seconds": seconds,
            "our_bytes": mine, "cubic_bytes": cubic, "bytes_ratio": mine / cubic,
            "link_share": (after[0] - before[0]) * 8 / seconds / netbed.parse_rate(RATE),
            "marked_packets": after[2]["marked_packets"] - before[2]["marked_packets"],
            "dropped_packets": after[3] - before[3], "deepest_bytes": after[2]["deepest_bytes"]}


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def several_jobs(session, num_jobs, seconds):
    """Jobs of two workers each at one aggregator, whose port is as fast as one worker's link."""
    with places.bed(2 * num_jobs, rate=RATE, mtu=1500, aggregator_rate=RATE) as place:
        first = SwitchML(session.processes, 2, job="job0")
        first.start(place)
        workers = []
        try:
            for index in range(num_jobs):
                job = SwitchML(session.processes, 2, job=f"job{index}", daemon=first.daemon)
                job.start(ShiftedPlace(place, 2 * index))
                workers += job.start_workers([16 * M], 100_000, "float32", **QUIET)
            time.sleep(SETTLE_S + 1)
            check_running(workers)
            before = [sent(place, 2 * index) for index in range(num_jobs)]
            time.sleep(seconds)
            check_running(workers)
            gained = [sent(place, 2 * index) - start for index, start in enumerate(before)]
        finally:
            session.processes.stop(workers)
            first.stop()
    return {"jobs": num_jobs, "seconds": seconds, "job_bytes": gained, "jain_index": jain(gained),
            "link_share": 2 * sum(gained) * 8 / seconds / netbed.parse_rate(RATE)}


class ShiftedPlace:
    """The workers of a bed from one number on."""

    def __init__(self, place, first):
        self.place, self.first = place, first
        self.aggregator_address, self.name, self.interface = place.aggregator_address, place.name, place.interface

    def at_rank(self, rank, command):
        return self.place.at_rank(self.first + rank, command)


def sent(place, rank):
    return netbed.Netbed.sent_bytes(place.bed.worker(rank))


def fairness(session):
    """A Cubic flow and one worker's on one link, up and down, with and without ECN; four jobs at one aggregator"""
    reason = link.why_unavailable()
    if reason:
        session.note(f"beside Cubic: not measured, no tc programs here: {reason}")
    seconds = 4 if session.options.quick else 30
    combinations = [(direction, limit, is_marking) for direction in ("up", "down") for limit in LIMITS
                    for is_marking in (False, True)]
    if session.options.quick:
        combinations = [("up", LIMITS[0], True), ("down", LIMITS[0], True)]
    for direction, limit_bytes, is_marking in combinations if not reason else []:
        what = f"beside Cubic, {direction}, queue {limit_bytes // 1000} kB, {'ECN' if is_marking else 'no ECN'}"
        session.say(what)
        repeats = []
        for _ in range(session.options.rounds or 1):
            try:
                repeats.append(beside_cubic(session, direction, limit_bytes, is_marking, seconds))
            except session.expected as error:
                session.fail(what, error)
        if repeats:
            middle = sorted(repeats, key=lambda each: each["bytes_ratio"])[len(repeats) // 2]
            session.add([{"scenario": session.scenario, "contender": SwitchML.title, "family": "switchml", "ranks": 2,
                          "rate": RATE, "mtu": 1500, **middle,
                          "bytes_ratio": statistics.median(each["bytes_ratio"] for each in repeats)}])
    session.say("four jobs at one aggregator")
    try:
        session.add([{"scenario": session.scenario, "contender": SwitchML.title, "family": "switchml", "ranks": 2,
                      "rate": RATE, "mtu": 1500, "aggregator_rate": RATE,
                      **several_jobs(session, 4, 3 if session.options.quick else 10)}])
    except session.expected as error:
        session.fail("four jobs", error)
