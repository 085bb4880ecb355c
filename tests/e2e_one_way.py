#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Operations that go one way (docs/PROTOCOL.md), in which not every rank sends to, or hears, every chunk: a rank or the
aggregator is killed or stopped in the middle of each of them, and of a mixture with all-reduces. Every other rank ends in
time, with an error that names who it was."""
import contextlib
import random
import re
import signal
import time

import e2e
import e2e_kill
import real
import tap

COLLECTIVES = ["reduce_scatter", "all_gather", "broadcast", "reduce", "all"]
TIMEOUT = -10
BOUND_S = 3.0
ALL_SLOTS = 512  # of the daemon: room for a job's window and for its one-way windows
DRAW = random.Random(1)


@contextlib.contextmanager
def running(collective, world_size=4, **env):
    """(aggregator, members) of a job whose operations are under way, two at a time."""
    aggregator = e2e.Daemon("--slots", str(ALL_SLOTS), "--lanes", "2")
    env = {"SWITCHML_ONE_WAY": 1, "SWITCHML_THREADS": DRAW.choice([1, 2]), "MEMBER_SLOTS": 64,
           "MEMBER_ELEMENTS": 2_000_000, "MEMBER_COLLECTIVE": collective, **env}
    try:
        with real.job(aggregator.address, world_size, **env) as members:
            for member in members:
                member.wait_for("working")
            e2e.wait_until(lambda: re.search(r"\bone_way=1\b", aggregator.text()), "the aggregator says that it has one-way windows")
            time.sleep(0.3 * DRAW.random())
            yield aggregator, members
    finally:
        aggregator.stop()


def check_survivors(members, victim, since, statuses):
    for member in members:
        if member.rank == victim:
            continue
        at, status, ranks, detail = member.error(BOUND_S + 10)
        assert status in statuses and ranks == [victim], (member.rank, status, ranks, detail)
        e2e_kill.check_in_time([at - since], BOUND_S, f"rank {member.rank}'s error: {detail}")


def killed_rank(collective, victim):
    """With the default lease: a process that dies is noticed at once. The slots of all windows come back."""
    with running(collective) as (aggregator, members):
        start = time.monotonic()
        members[victim].send_signal(signal.SIGKILL)
        check_survivors(members, victim, start, [real.RANK_LOST])
        e2e_kill.slots_back(aggregator.address, time.monotonic(), ALL_SLOTS)


def stopped_rank(collective, victim, statuses, **env):
    with running(collective, **env) as (_, members):
        start = time.monotonic()
        members[victim].send_signal(signal.SIGSTOP)
        check_survivors(members, victim, start, statuses)


def check_all(members, since, statuses):
    for member in members:
        at, status, ranks, detail = member.error(BOUND_S + 10)
        assert status in statuses and ranks == [], (member.rank, status, ranks, detail)
        assert "aggregator" in detail, (member.rank, detail)
        e2e_kill.check_in_time([at - since], BOUND_S, f"rank {member.rank}'s error: {detail}")


def test_killed_rank():
    """The root of a broadcast or a reduce is each rank in turn."""
    for collective in COLLECTIVES:
        killed_rank(collective, DRAW.randrange(4))


def test_killed_roots_and_others():
    for collective in ["broadcast", "reduce"]:
        for victim in range(4):
            killed_rank(collective, victim)


def test_rank_stopped_beyond_its_lease():
    for collective in COLLECTIVES:
        stopped_rank(collective, DRAW.randrange(4), [real.RANK_LOST], MEMBER_LEASE_MS=1500)


def test_rank_stopped_until_a_deadline():
    """The lease is a minute: the operations' deadline ends it, and names whom it waits for."""
    for collective in COLLECTIVES:
        stopped_rank(collective, DRAW.randrange(4), [TIMEOUT, real.RANK_LOST], MEMBER_TIMEOUT_MS=1500)


def test_killed_aggregator():
    for collective in COLLECTIVES:
        with running(collective) as (aggregator, members):
            start = time.monotonic()
            aggregator.process.kill()
            check_all(members, start, [real.AGGREGATOR_LOST])


def test_stopped_aggregator():
    for collective in COLLECTIVES:
        with running(collective, MEMBER_LEASE_MS=1500) as (aggregator, members):
            start = time.monotonic()
            aggregator.process.send_signal(signal.SIGSTOP)
            try:
                check_all(members, start, [real.AGGREGATOR_LOST])
            finally:
                aggregator.process.send_signal(signal.SIGCONT)


def test_a_rank_stopped_for_less_goes_on():
    with running("all", MEMBER_OPERATIONS=60, MEMBER_ELEMENTS=300_000) as (_, members):
        members[1].send_signal(signal.SIGSTOP)
        time.sleep(1)
        members[1].send_signal(signal.SIGCONT)
        for member in members:
            member.expect_done()


def test_nothing_is_left():
    assert not e2e.marked_processes(), e2e.marked_processes()


if __name__ == "__main__":
    tap.main(globals())
