#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Operations that go one way (docs/PROTOCOL.md), in which not every rank sends to, or hears, every chunk: a rank or the
aggregator is killed or stopped in the middle of each of them, of a reduce-scatter and an all-gather at once, and of a
mixture with all-reduces and barriers; with a switchmld, and among ranks that aggregate for each other, whose windows
adapt. Every other rank ends in time, with an error that names who it was, and no result is wrong."""
import contextlib
import random
import signal
import time

import e2e
import e2e_kill
import ports
import real
import tap

COLLECTIVES = ["reduce_scatter", "all_gather", "broadcast", "reduce", "sharded", "all"]
WITHOUT_DAEMON = [*COLLECTIVES, "barrier"]  # each rank has an aggregator
TIMEOUT = -10
BOUND_S = 3.0
ALL_SLOTS = 1024  # of the daemon: room for a job's window and for its one-way windows
DRAW = random.Random(1)


@contextlib.contextmanager
def running(collective, world_size=4, has_daemon=True, **env):
    """(aggregator, members) of a job whose operations are under way, two at a time."""
    aggregator = e2e.Daemon("--slots", str(ALL_SLOTS), "--lanes", "2") if has_daemon else None
    env = {"SWITCHML_THREADS": DRAW.choice([1, 2]), "MEMBER_SLOTS": 64, "SWITCHML_DEBUG": "INFO",
           "MEMBER_ELEMENTS": 2_000_000, "MEMBER_COLLECTIVE": collective, **env}
    if not has_daemon:
        env["SWITCHML_RENDEZVOUS"] = f"127.0.0.1:{ports.fixed_port()}"
    try:
        with real.job(aggregator.address if aggregator else "", world_size, **env) as members:
            for member in members:
                member.wait_for("working")
                e2e.wait_until(lambda text=member.text: "reduces go one way" in text(), "the library says which way they go")
            time.sleep(0.3 * DRAW.random())
            yield aggregator, members
    finally:
        if aggregator:
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
        stopped_rank(collective, DRAW.randrange(4), [TIMEOUT, real.RANK_LOST], MEMBER_TIMEOUT_MS=1500,
                     MEMBER_ELEMENTS=300_000)


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


def test_killed_rank_among_those_that_aggregate():
    for collective in WITHOUT_DAEMON:
        with running(collective, DRAW.randint(3, 5), has_daemon=False, MEMBER_ELEMENTS=300_000) as (_, members):
            victim, start = DRAW.randrange(len(members)), time.monotonic()
            members[victim].send_signal(signal.SIGKILL)
            check_survivors(members, victim, start, [real.RANK_LOST])


def test_stopped_ranks_among_those_that_aggregate():
    """Beyond their leases, or until a deadline: what one said as an aggregator, before it stopped, names others, and they
    wait for each other, but it is named. Who was stopped gets an error, too, once it goes on. All jobs wait at once."""
    episodes = []
    with contextlib.ExitStack() as stack:
        for i, collective in enumerate(WITHOUT_DAEMON):
            limit = "MEMBER_TIMEOUT_MS" if i % 2 == 0 else "MEMBER_LEASE_MS"
            job = running(collective, has_daemon=False, MEMBER_ELEMENTS=300_000, **{limit: 1500})
            _, members = stack.enter_context(job)
            victim, start = DRAW.randrange(4), time.monotonic()
            members[victim].send_signal(signal.SIGSTOP)
            episodes.append((members, victim, start))
        for members, victim, start in episodes:
            check_survivors(members, victim, start, [TIMEOUT, real.RANK_LOST])
            members[victim].send_signal(signal.SIGCONT)
            _, status, _, detail = members[victim].error(BOUND_S + 10)
            assert status in (TIMEOUT, real.RANK_LOST, real.AGGREGATOR_LOST), (status, detail)


def test_a_rank_stopped_for_less_goes_on():
    for has_daemon in True, False:
        with running("all", has_daemon=has_daemon, MEMBER_OPERATIONS=60, MEMBER_ELEMENTS=300_000) as (_, members):
            members[1].send_signal(signal.SIGSTOP)
            time.sleep(1)
            members[1].send_signal(signal.SIGCONT)
            for member in members:
                member.expect_done()


def test_restarted_aggregator():
    """With retry all travels as all-reduces, and ends with the same bits."""
    e2e_kill.restarted_aggregator(DRAW, MEMBER_COLLECTIVE="all")


def test_nothing_is_left():
    assert not e2e.marked_processes(), e2e.marked_processes()


if __name__ == "__main__":
    tap.main(globals())
