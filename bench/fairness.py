# SPDX-License-Identifier: Apache-2.0
"""Ours beside others: a Cubic or BBR flow on one worker's link, several jobs at one aggregator."""
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
RIVALS = ("cubic", "bbr")
SETTLE_S = 2.0  # both flows run so long before it is counted
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def tcp_wire_bytes(payload, mtu=1500):
    return payload * (mtu + 14) / (mtu - 52)


def check_running(workers):
    if any(worker.poll() is not None for worker in workers):
        raise BenchError("a worker ended while the flows were compared")


class Ours:
    """A worker that sums without an end."""

    def __init__(self, session, place):
        self.session, self.workers = session, []
        self.job = SwitchML(session.processes, 2)
        self.job.start(place)
        self.workers = self.job.start_workers([64 * M], 100_000, "float32", **QUIET)

    def check(self):
        check_running(self.workers)

    def stop(self):
        self.session.processes.stop(self.workers)
        self.job.stop()


class Second(link.BulkFlow):
    """A flow of the rival's kind, in our place."""

    def check(self):
        if any(process.poll() is not None for process in self.processes):
            raise BenchError("a flow ended while it was measured")


def beside(session, case, seconds, is_ours):
    """What two flows on one link carried, in bytes with their headers: ours, or a second one like the rival, and the
    rival's."""
    with places.bed(2, rate=RATE, mtu=1500, limit_bytes=case["limit_bytes"]) as place:
        shared = link.Link(place.bed, 0, case["direction"])
        shared.mark(MARK_BYTES[case["limit_bytes"]] if case["is_marking"] else 0)
        mine = rival = None
        look = lambda: (shared.sent_bytes(), rival.received_bytes(), shared.counters(), shared.dropped_packets())
        try:
            mine = Ours(session, place) if is_ours else Second(place.bed, 0, case["direction"], case["rival"], 4897)
            time.sleep(SETTLE_S / 2)
            rival = link.BulkFlow(place.bed, 0, case["direction"], case["rival"])
            time.sleep(SETTLE_S)
            mine.check()
            before = look()
            time.sleep(seconds)
            mine.check()
            after = look()
        finally:
            for each in (rival, mine):
                if each:
                    each.stop()
    rival_bytes, all_bytes = tcp_wire_bytes(after[1] - before[1]), after[0] - before[0]
    if rival_bytes <= 0 or all_bytes <= rival_bytes:
        raise BenchError("one of the flows delivered nothing in that time")
    return {"our_bytes": all_bytes - rival_bytes, "rival_bytes": rival_bytes, "bytes_ratio": all_bytes / rival_bytes - 1,
            "link_share": all_bytes * 8 / seconds / netbed.parse_rate(RATE),
            "marked_packets": after[2]["marked_packets"] - before[2]["marked_packets"],
            "dropped_packets": after[3] - before[3], "deepest_bytes": after[2]["deepest_bytes"]}


def beside_rival(session, case, seconds):
    """Ours, over a second flow like the rival in our place, measured right after."""
    ours, second = beside(session, case, seconds, True), beside(session, case, seconds, False)
    return {**case, "seconds": seconds, **ours, "second_bytes": second["our_bytes"],
            "over_second": ours["our_bytes"] / second["our_bytes"]}


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


def cases(session):
    if session.options.quick:
        return [{"rival": "cubic", "direction": "down", "limit_bytes": LIMITS[0], "is_marking": True}]
    return [{"rival": rival, "direction": direction, "limit_bytes": limit_bytes, "is_marking": is_marking}
            for rival in session.options.rivals or RIVALS for direction in ("up", "down") for limit_bytes in LIMITS
            for is_marking in (False, True)]


def fairness(session):
    """Cubic or BBR and one worker's flow on one link, up, down, with and without ECN; four jobs at one aggregator"""
    reason = link.why_unavailable()
    if reason:
        session.note(f"beside TCP: not measured, no tc programs here: {reason}")
    for case in cases(session) if not reason else []:
        what = (f"beside {case['rival']}, {case['direction']}, queue {case['limit_bytes'] // 1000} kB, "
                f"{'ECN' if case['is_marking'] else 'no ECN'}")
        session.say(what)
        repeats = []
        for _ in range(session.options.rounds or 1):
            try:
                repeats.append(beside_rival(session, case, 4 if session.options.quick else 60))
            except session.expected as error:
                session.fail(what, error)
        if repeats:
            middle = sorted(repeats, key=lambda each: each["over_second"])[len(repeats) // 2]
            session.add([{"scenario": session.scenario, "contender": SwitchML.title, "family": "switchml", "ranks": 2,
                          "rate": RATE, "mtu": 1500, "rounds": len(repeats), **middle}])
    session.say("four jobs at one aggregator")
    try:
        session.add([{"scenario": session.scenario, "contender": SwitchML.title, "family": "switchml", "ranks": 2,
                      "rate": RATE, "mtu": 1500, "aggregator_rate": RATE,
                      **several_jobs(session, 4, 3 if session.options.quick else 10)}])
    except session.expected as error:
        session.fail("four jobs", error)
