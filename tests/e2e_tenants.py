#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What one tenant, or one source, may have of a real daemon: memory, places, time."""
import re
import time

import e2e
import peer
import tap

IS_SANITIZED = e2e.PATIENCE > 1  # whose memory says nothing


def memory_kib(pid, what):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(rf"{what}:\s+(\d+)", status.read()).group(1))


def squat(port, number, source="127.0.0.1", world_size=1024, **join):
    """Ranks of as many jobs, which wait for all others, and what they were told."""
    members, answers = [], []
    for i in range(number):
        member = peer.Member(port, i % world_size, world_size, job_name=f"squat{i}", lanes=16, **join)
        member.data.close()
        member.connect(source)
        member.say_join()
        answers.append(member.control.hear(20) or ("nothing", {}))
        members.append(member)
    return members, answers


def test_joins_that_name_many_ranks_cost_little():
    if IS_SANITIZED:
        raise tap.Skip("a sanitized daemon's memory says nothing")
    with e2e.Daemon("--lanes", "16", "--log-level", "error") as daemon:
        before_kib = memory_kib(daemon.process.pid, "VmRSS")
        members, answers = squat(daemon.port, 1000)
        grown_kib = memory_kib(daemon.process.pid, "VmHWM") - before_kib
        print(f"# {len(members)} joins, {before_kib} KiB and {grown_kib} more")
        assert [kind for kind, _ in answers] == ["WELCOME"] * 1000, answers[-1]
        assert grown_kib < 128 << 10, grown_kib
        for member in members:
            member.control.close()


def test_half_of_a_job_goes_at_once():
    """Each of the others hears of all of them, in as many messages as there were pauses of 10 ms."""
    size = 200
    with e2e.Daemon("--log-level", "error") as daemon:
        members = [peer.Member(daemon.port, rank, size) for rank in range(size)]
        for member in members:
            member.connect()
            member.say_join()
            member.hear_welcome()
        for member in members:
            member.say_probed()
        for member in members:
            member.hear_start()
        begin = time.monotonic()
        for member in members[:size // 2]:
            member.close()
        for member in members[size // 2:]:
            num_messages, named = 0, set()
            while len(named) < size // 2:
                kind, values = member.control.hear(20) or ("nothing", None)
                assert kind == "RANK_GONE", (kind, values, len(named))
                num_messages += 1
                named.update(values["ranks"] if "ranks" in values else [values["rank"]])
            elapsed_ms = (time.monotonic() - begin) * 1000
            assert named == set(range(size // 2)), named
            assert num_messages <= 2 + elapsed_ms / 10, (num_messages, elapsed_ms)
        for member in members:
            member.close()


tap.main(globals())
