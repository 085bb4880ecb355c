#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Links that go down and come back, between hosts in network namespaces, with the default lease: the job goes on with
right sums, and who was silent for 2 s is named. And a path that a third host calls narrow. Needs root."""
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time

import e2e
import real
import tap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench"))
import netbed  # pylint: disable=wrong-import-position

NUM_HOSTS, PORT = 3, 48879
NUM_OPERATIONS, PAUSE_US = 500, 5000  # 2.5 s without the flap: not over before the link is down


# "Fragmentation needed", as if `destination` or the way to it had said so of an echo that `victim` sent it.
FORGE = """
import socket, struct, sys
victim, destination = sys.argv[1:]
def checksum(data):
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    return 0xffff - (total % 0xffff or 0xffff)
inner = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28, 1, 0x4000, 64, 1, 0, socket.inet_aton(victim), socket.inet_aton(destination))
inner = inner[:10] + struct.pack(">H", checksum(inner)) + inner[12:] + bytes(8)
message = struct.pack(">BBHHH", 3, 4, 0, 0, 600) + inner
message = message[:2] + struct.pack(">H", checksum(message)) + message[4:]
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
for _ in range(20):
    raw.sendto(message, (victim, 0))
"""


class Member(real.Member):
    """A rank on a host of the bed."""

    def __init__(self, bed, rank, **env):  # pylint: disable=super-init-not-called
        self.rank = rank
        self.output = tempfile.TemporaryFile("w+", prefix="switchml-member-")
        variables = {"RANK": rank, "WORLD_SIZE": NUM_HOSTS, "SWITCHML_AGGREGATOR": f"{bed.aggregator_address}:{PORT}",
                     "MEMBER_OPERATIONS": NUM_OPERATIONS, "MEMBER_PAUSE_US": PAUSE_US, "MEMBER_ELEMENTS": 20_000, **env}
        self.process = subprocess.Popen(bed.command(bed.worker(rank), [real.MEMBER]), env=e2e.environment(**variables),
                                        stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output)


@contextlib.contextmanager
def running_job(**env):
    """(bed, what switchmld says so far, the ranks at work)"""
    with netbed.Netbed(NUM_HOSTS, rate="none") as bed, tempfile.TemporaryFile("w+", prefix="switchml-log-") as log, \
            contextlib.ExitStack() as stack:
        command = [e2e.SWITCHMLD, "--listen", f"{bed.aggregator_address}:{PORT}"]
        daemon = subprocess.Popen(bed.command(bed.aggregator, command), env=e2e.environment(), stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log)
        stack.callback(daemon.wait)
        stack.callback(daemon.kill)
        members = [Member(bed, rank, **env) for rank in range(NUM_HOSTS)]
        for member in members:
            stack.callback(member.close)
        for member in members:
            member.wait_for("working")
        yield bed, lambda: os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace"), members


def set_link(bed, port, state):
    subprocess.run(["ip", "-n", bed.bridge, "link", "set", port, state], check=True)


def flap(port, seconds, **env):
    """What switchmld and the ranks have said; the job has ended well."""
    with running_job(**env) as (bed, said, members):
        set_link(bed, port, "down")
        try:
            assert not any(member.has_said("done") for member in members), "the link went down too late"
            time.sleep(seconds)
            assert not any(member.has_said("done") for member in members), "the link was not down"
        finally:
            set_link(bed, port, "up")
        for member in members:
            member.expect_done()
        return said(), [member.text() for member in members]


def test_a_link_down_for_1500_ms():
    """For less than makes late. How long TCP's own pause lasts after that is its business."""
    for port in ("w1", "agg"):
        said, _ = flap(port, 1.5)
        assert "was lost" not in said, said


def test_a_ranks_link_down_for_5_s():
    said, texts = flap("w1", 5)
    address = re.escape(netbed.Netbed.worker_address(1))
    assert re.search(rf"rank_late .*rank 1 \({address}\) has been silent for \d+\.\d s: it is stopped or cut off, and is lost "
                     r"after 60 s", said), said
    assert re.search(rf"rank_called .*rank 1 \({address}\) is heard again after \d+\.\d s", said), said
    assert re.search(r"WARN .*the aggregator at .* is late: silent for \d+\.\d s, .* lost after 60 s \(the lease\); operation \d+",
                     texts[1]), texts[1]
    assert re.search(r"WARN .*the aggregator at .* is heard again after \d+\.\d s", texts[1]), texts[1]
    assert "is late" not in texts[0] + texts[2], texts  # these heard it all the while


def test_the_aggregators_link_down_for_5_s():
    said, texts = flap("agg", 5)
    assert re.search(r"rank 0 \(.*\) \(and 2 more\) has been silent", said), said
    assert all("is heard again after" in text for text in texts), texts


def test_the_same_with_retry():
    """The connection is there still, so nobody joins again."""
    for port in ("w1", "agg"):
        _, texts = flap(port, 5, SWITCHML_RETRY=30)
        assert not any("join it again" in text for text in texts), texts


def test_a_short_lease_is_kept():
    """Who asks for it is told as early as before."""
    with running_job(MEMBER_LEASE_MS=2000) as (bed, _, members):
        start = time.monotonic()
        set_link(bed, "w1", "down")
        for rank in (0, 2):
            at, status, ranks, detail = members[rank].error()
            assert status == real.RANK_LOST and ranks == [1], (status, ranks, detail)
            assert at - start < 4 * e2e.PATIENCE, at - start


def forge_narrow_path(bed, namespace, victim, destination):
    """Rank 2's host says to another that its path is narrow; that one believes it."""
    subprocess.run(bed.command(bed.worker(2), [sys.executable, "-c", FORGE, victim, destination]), check=True)
    route = subprocess.run(["ip", "-n", namespace, "route", "get", destination], check=True, text=True, capture_output=True)
    if " mtu " not in route.stdout:
        raise tap.Skip(f"this kernel does not believe it: {route.stdout.strip()}")


def test_a_forged_word_of_a_narrow_path_stalls_nothing():
    """Neither at a rank nor at the aggregator: sizes are those that the join has tried."""
    with running_job() as (bed, said, members):
        address = bed.worker_address(1)
        forge_narrow_path(bed, bed.worker(1), address, bed.aggregator_address)
        forge_narrow_path(bed, bed.aggregator, bed.aggregator_address, address)
        assert not any(member.has_said("done") for member in members), "the words came too late"
        for member in members:
            member.expect_done()
            assert "too long" not in member.text(), member.text()
        assert "rank_late" not in said(), said()


if __name__ == "__main__":
    UNAVAILABLE = netbed.why_unavailable()
    if UNAVAILABLE:
        print(f"1..0 # SKIP {UNAVAILABLE}")
        sys.exit(0)
    tap.main(globals())
