#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Workers and the aggregator killed and stopped at random moments of running jobs. Every other rank gets an error
that names who it was, within the lease and a second; the daemon's slots are back a second later. Each episode
returns what it measured: tools/trust.py runs many of them."""
import os
import random
import signal
import tempfile
import time

import e2e
import ports
import real
import tap

POOL_SLOTS = 64  # of the daemon; each job asks for all of them
GRACE_S = 1.0
LEAST_SILENCE_S = 2.0  # workers believe in a silent aggregator for that long, however short the lease


def daemon(*arguments):
    return e2e.Daemon("--slots", str(POOL_SLOTS), "--lanes", "2", *arguments)


def shape(draw, lease_s):
    """A job unlike the last one: how many ranks, how much they sum, with what pauses, over how many lanes. lease_s 0: as
    the library has it."""
    return draw.randint(2, 4), {"MEMBER_SLOTS": POOL_SLOTS, "MEMBER_LEASE_MS": int(lease_s * 1000),
                                "MEMBER_ELEMENTS": draw.choice([100, 30_000, 1_000_000]),
                                "MEMBER_PAUSE_US": draw.choice([0, 0, 3000, 30_000]),
                                "SWITCHML_THREADS": draw.choice([1, 2])}


def operations_of(env, num_small):
    """So many of little, fewer of much: what matters is that a stop or a kill falls among them."""
    return num_small if env["MEMBER_ELEMENTS"] < 1_000_000 else num_small // 4


def check_in_time(seconds, bound, what):
    assert all(each <= bound * e2e.PATIENCE for each in seconds), f"{what}: {seconds}, the bound is {bound}"


def wait_at_random(draw, members, seconds):
    """Some time after all have joined; often before anything was summed, and often long after."""
    for member in members:
        member.wait_for("joined")
    time.sleep(seconds * draw.random() ** 2)


def survivors_errors(members, victim, since, lease_s):
    """Seconds until each of the others had its error, which must name the victim and nobody else."""
    took = []
    for member in members:
        if member.rank == victim:
            continue
        at, status, ranks, detail = member.error(lease_s + GRACE_S + 10)
        assert status == real.RANK_LOST and ranks == [victim], (status, ranks, detail)
        took.append(at - since)
    check_in_time(took, lease_s + GRACE_S, "survivors' errors")
    return took


def slots_back(address, since, slots=POOL_SLOTS):
    """Seconds until a job that needs all slots had joined."""
    while True:
        with real.job(address, 2, MEMBER_SLOTS=slots, MEMBER_OPERATIONS=1, MEMBER_ELEMENTS=1000) as members:
            if all([member.finish() == 0 for member in members]):
                took = max(member.when("joined") for member in members) - since
                break
            assert f"no {slots} slots" in members[0].text() or "already running" in members[0].text(), members[0].text()
        assert time.monotonic() - since < 10 * e2e.PATIENCE, "the slots do not come back"
    check_in_time([took], GRACE_S, "slots back")
    return took


def killed_worker(draw, lease_s=2.0, **more):
    """(seconds until each survivor's error, seconds from the last one until the slots were back)"""
    world_size, env = shape(draw, lease_s)
    env.update(more)
    victim = draw.randrange(world_size)
    with daemon() as aggregator, real.job(aggregator.address, world_size, **env) as members:
        wait_at_random(draw, members, 0.6)
        start = time.monotonic()
        members[victim].send_signal(signal.SIGKILL)
        errors = survivors_errors(members, victim, start, lease_s)
        return errors, slots_back(aggregator.address, start + max(errors))


def stopped_worker(draw, stop_s=0.0, lease_s=2.0):
    """Silent for longer than its lease: as killed_worker; the resumed one gets an error as well. Stopped until the
    others had theirs, at least stop_s."""
    world_size, env = shape(draw, lease_s)
    victim = draw.randrange(world_size)
    with daemon() as aggregator, real.job(aggregator.address, world_size, **env) as members:
        wait_at_random(draw, members, 0.3)
        start = time.monotonic()
        members[victim].send_signal(signal.SIGSTOP)
        try:
            errors = survivors_errors(members, victim, start, lease_s)
            back = slots_back(aggregator.address, start + max(errors))
            time.sleep(max(0, start + stop_s - time.monotonic()))
        finally:
            members[victim].send_signal(signal.SIGCONT)
        resumed = time.monotonic()
        at, status, ranks, detail = members[victim].error()
        assert status in (real.RANK_LOST, real.AGGREGATOR_LOST), (status, ranks, detail)
        check_in_time([at - resumed], lease_s + GRACE_S, "the resumed worker's error")
        return errors, back


def paused(draw, pid_of, stop_s=1.0, lease_s=2.0):
    """A process of a running job stops for less than the lease: all operations end well."""
    world_size, env = shape(draw, lease_s)
    env["MEMBER_PAUSE_US"] = 5000
    with daemon() as aggregator, real.job(aggregator.address, world_size, MEMBER_OPERATIONS=operations_of(env, 150), **env) as members:
        members[0].wait_for("working")
        pid = pid_of(aggregator, members)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(stop_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        for member in members:
            member.expect_done()

def aggregator_errors(members, since, lease_s):
    took = []
    for member in members:
        at, status, _, detail = member.error(lease_s + GRACE_S + 10)
        assert status == real.AGGREGATOR_LOST, (status, detail)
        took.append(at - since)
    check_in_time(took, max(lease_s, LEAST_SILENCE_S) + GRACE_S, "errors after the aggregator was lost")
    return took


def stopped_aggregator(draw, stop_s=0.0, lease_s=2.0):
    """Silent for longer than the lease, then back: it must be of use to the next job."""
    world_size, env = shape(draw, lease_s)
    with daemon() as aggregator:
        with real.job(aggregator.address, world_size, **env) as members:
            wait_at_random(draw, members, 0.3)
            start = time.monotonic()
            aggregator.process.send_signal(signal.SIGSTOP)
            try:
                errors = aggregator_errors(members, start, lease_s)
                time.sleep(max(0, start + stop_s - time.monotonic()))
            finally:
                aggregator.process.send_signal(signal.SIGCONT)
            slots_back(aggregator.address, time.monotonic())
    return errors


def killed_aggregator(draw, lease_s=2.0):
    world_size, env = shape(draw, lease_s)
    aggregator = daemon()
    try:
        with real.job(aggregator.address, world_size, **env) as members:
            wait_at_random(draw, members, 0.6)
            start = time.monotonic()
            aggregator.process.kill()
            return aggregator_errors(members, start, lease_s)
    finally:
        aggregator.stop()


def restarted_aggregator(draw, **more):
    """Killed and started again on its port, once or more often, while workers try again: every operation of every rank
    ends with the right sum. Seconds that the workers were at it."""
    world_size, env = shape(draw, 2.0)
    env.update(SWITCHML_RETRY=30, SWITCHML_CHECK=draw.choice([0, 1]), MEMBER_PAUSE_US=2000, **more)
    with tempfile.NamedTemporaryFile("w", prefix="switchml-keys-") as keys:
        keys.write("tenant 0f0e0d0c0b0a09080706050403020100\n")
        keys.flush()
        arguments = draw.choice([[], ["--key-file", keys.name]])
        if arguments:
            env["SWITCHML_KEY_FILE"] = keys.name
        address = f"127.0.0.1:{ports.fixed_port()}"
        aggregator = daemon("--listen", address, *arguments)
        try:
            with real.job(address, world_size, MEMBER_OPERATIONS=operations_of(env, 300), **env) as members:
                start = time.monotonic()
                for _ in range(draw.choice([1, 1, 2, 3])):
                    wait_at_random(draw, members, 0.5)
                    aggregator.process.kill()
                    aggregator.stop()
                    time.sleep(draw.choice([0, 0.3, 2.5]) * draw.random())
                    aggregator = daemon("--listen", address, *arguments)
                for member in members:
                    member.expect_done()
                return time.monotonic() - start
        finally:
            aggregator.stop()


def lost_aggregator(draw, retry_s=1.0, lease_s=2.0):
    """Killed for good: workers that try again give up when their time is over. Seconds until then."""
    world_size, env = shape(draw, lease_s)
    aggregator = daemon()
    try:
        with real.job(aggregator.address, world_size, SWITCHML_RETRY=retry_s, **env) as members:
            wait_at_random(draw, members, 0.3)
            start, took = time.monotonic(), []
            aggregator.process.kill()
            for member in members:
                at, status, _, detail = member.error()
                assert status == real.AGGREGATOR_LOST, (status, detail)
                took.append(at - start)
            check_in_time(took, retry_s + lease_s + GRACE_S, "errors after the retry time")
            return took
    finally:
        aggregator.stop()


DRAW = random.Random(int(os.environ.get("SWITCHML_TEST_SEED", "1")))


def test_killed_worker():
    """Several at random moments."""
    for _ in range(4):
        killed_worker(DRAW)


def test_worker_stopped_for_less_than_its_lease():
    paused(DRAW, lambda _, members: members[-1].process.pid)


def test_worker_stopped_for_5_s_by_default():
    paused(DRAW, lambda _, members: members[-1].process.pid, stop_s=5, lease_s=0)


def test_aggregator_stopped_for_5_s_by_default():
    paused(DRAW, lambda aggregator, _: aggregator.process.pid, stop_s=5, lease_s=0)


def test_killed_worker_and_aggregator_by_default():
    """However long the lease, a process that dies is noticed at once."""
    killed_worker(DRAW, lease_s=0)
    killed_aggregator(DRAW, lease_s=0)


def test_worker_stopped_for_longer():
    stopped_worker(DRAW, lease_s=0.4)


def test_aggregator_stopped_for_less_than_the_lease():
    paused(DRAW, lambda aggregator, _: aggregator.process.pid)


def test_aggregator_stopped_for_longer():
    stopped_aggregator(DRAW, lease_s=0.4)


def test_killed_aggregator():
    killed_aggregator(DRAW)


def test_restarted_aggregator():
    for _ in range(2):
        restarted_aggregator(DRAW)


def test_aggregator_that_does_not_come_back():
    lost_aggregator(DRAW)


def test_killed_worker_is_no_reason_to_try_again():
    killed_worker(DRAW, SWITCHML_RETRY=30)


def test_nothing_is_left():
    assert not e2e.marked_processes(), e2e.marked_processes()


if __name__ == "__main__":
    tap.main(globals())
