#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Three hosts, in network namespaces, that aggregate for each other: what their links carry, also where queues are
short, and who and what is named when one of them is lost with all it had, or cannot send. Needs root."""
import json
import os
import re
import subprocess
import sys
import time

import tap
from e2e import PATIENCE, SWITCHML, environment

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench"))
import netbed  # pylint: disable=wrong-import-position

NUM_HOSTS, SIZE = 3, 8 << 20


def start_job(bed, *arguments):
    """One rank a host; they are told where to meet, and nothing else."""
    meeting = f"{bed.worker_address(0)}:4711"
    return [subprocess.Popen(bed.command(bed.worker(rank), [SWITCHML, "bench", "--json", *arguments]), text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment(RANK=rank, WORLD_SIZE=NUM_HOSTS, SWITCHML_RENDEZVOUS=meeting))
            for rank in range(NUM_HOSTS)]


def shares_carried(bed):
    """What each link carried of three all-reduces, over its share of them: 2(n - 1)/n of the tensor each."""
    before = [bed.sent_bytes(bed.worker(rank)) for rank in range(NUM_HOSTS)]
    ranks = start_job(bed, "--sizes", str(SIZE), "--iters", "2", "--warmup", "1")
    outputs = [rank.communicate(timeout=60 * PATIENCE) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), outputs
    report = json.loads(outputs[0][0])
    assert report["lanes"] == NUM_HOSTS and report["results"][0]["wrong"] == 0, report
    share = 3 * SIZE * 2 * (NUM_HOSTS - 1) / NUM_HOSTS
    return [(bed.sent_bytes(bed.worker(rank)) - before[rank]) / share for rank in range(NUM_HOSTS)]


def test_each_link_carries_its_share():
    """A busy machine, and a sanitizer makes one, asks again for what is only late: the best of some runs counts."""
    tries = []
    with netbed.Netbed(NUM_HOSTS, rate="none") as bed:
        while not tries or (max(tries[-1]) >= 1.12 and len(tries) < 5):
            tries.append(shares_carried(bed))
    assert min(map(min, tries)) > 1, tries
    assert max(tries[-1]) < (1.12 if PATIENCE == 1 else 2), tries



def test_a_queue_shorter_than_a_segmented_send():
    """It drops bursts of 9,000 to 20,000 bytes whole, however often they are repeated as one."""
    with netbed.Netbed(NUM_HOSTS, rate="none") as bed:
        for rank in range(NUM_HOSTS):
            subprocess.run(["tc", "-n", bed.worker(rank), "qdisc", "replace", "dev", "eth0", "root", "tbf",
                            "rate", "100mbit", "burst", "20000", "limit", "9000"], check=True)
        ranks = start_job(bed, "--sizes", str(36 << 10), "--iters", "3", "--type", "int32")
        outputs = [rank.communicate(timeout=90 * PATIENCE) for rank in ranks]
        assert all(rank.returncode == 0 for rank in ranks), outputs
        assert json.loads(outputs[0][0])["results"][0]["wrong"] == 0, outputs


def await_sums(bed, ranks, rank):
    deadline, before = time.monotonic() + tap.patience_s(20 * PATIENCE), bed.sent_bytes(bed.worker(rank))
    while bed.sent_bytes(bed.worker(rank)) < before + SIZE:
        ended = [process for process in ranks if process.poll() is not None]
        assert not ended, ended[0].communicate()
        assert time.monotonic() < deadline, "nothing is summed"
        time.sleep(0.02)


def lose_host(bed, ranks, lost, is_cut_off):
    """A host that ends in the middle of the work; cut off: nothing of it is heard any more, not even its end."""
    await_sums(bed, ranks, lost)
    if is_cut_off:
        subprocess.run(["ip", "-n", bed.bridge, "link", "set", f"w{lost}", "down"], check=True)
    ranks[lost].kill()
    for rank, process in enumerate(ranks):
        _, error = process.communicate(timeout=20 * PATIENCE)
        if rank != lost:
            assert process.returncode == 1 and "rank lost" in error, error
            assert f"rank {lost} is gone, and with it its share of the sums" in error or \
                   f"rank {lost} ({bed.worker_address(lost)}) was lost" in error, error


def test_a_lost_host_is_named():
    for lost, is_cut_off in ((2, False), (1, True)):
        with netbed.Netbed(NUM_HOSTS, rate="none") as bed:
            lose_host(bed, start_job(bed, "--sizes", str(SIZE), "--iters", "10000", "--lease", "2"), lost, is_cut_off)


def test_a_lowered_mtu_is_named():
    """The kernel refuses what was probed when the job was joined; hosts are named as the others know them."""
    with netbed.Netbed(NUM_HOSTS, rate="none") as bed:
        ranks = start_job(bed, "--sizes", str(SIZE), "--iters", "10000", "--timeout", str(tap.patience_s(4)))
        await_sums(bed, ranks, 1)
        subprocess.run(["ip", "-n", bed.worker(1), "link", "set", "eth0", "mtu", "1000"], check=True)
        errors = [process.communicate(timeout=tap.patience_s(40 * PATIENCE))[1] for process in ranks]
        assert all(process.returncode == 1 for process in ranks), errors
        own = "rank 1's host did not send " in errors[1] and "Message too long (the MTU is smaller" in errors[1]
        # If rank 1 had got all its sums, only the aggregator in it had something to send.
        assert own or re.search(r"in rank 1\): it did not send .*: Message too long", "".join(errors)), errors
        assert not any("127.0.0.1" in error for error in errors), errors


if __name__ == "__main__":
    UNAVAILABLE = netbed.why_unavailable()
    if UNAVAILABLE:
        print(f"1..0 # SKIP {UNAVAILABLE}")
        sys.exit(0)
    tap.main(globals())
