#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own parts: the links of the bed do what they say."""
import os
import sys
import time

import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench"))
import link  # pylint: disable=wrong-import-position  # bench/link.py
import netbed  # pylint: disable=wrong-import-position  # bench/netbed.py


def need_bed():
    reason = netbed.why_unavailable()
    if reason:
        raise tap.Skip(reason)


def make_link(bed, direction):
    try:
        return link.Link(bed, 0, direction)
    except netbed.NetbedError as error:
        raise tap.Skip(str(error)) from error


def test_rates_are_read():
    assert netbed.parse_rate("1gbit") == 1e9 and netbed.parse_rate("2.5mbit") == 2.5e6
    for wrong in ["", "1", "gbit", "1gbps", "-1gbit"]:
        try:
            netbed.parse_rate(wrong)
        except netbed.NetbedError:
            continue
        raise AssertionError(wrong)


def test_links_mark_and_lose():
    """A TCP flow fills the queue of one direction: that one marks, and loses when told to."""
    need_bed()
    with netbed.Netbed(1, limit_bytes=4_000_000) as bed:
        up, down = make_link(bed, "up"), make_link(bed, "down")
        down.mark(50_000)
        flow = link.CubicFlow(bed, 0, "down")
        try:
            deadline = time.monotonic() + 10
            while down.counters()["marked_packets"] == 0:
                assert time.monotonic() < deadline, down.counters()
                time.sleep(0.02)
            seen = down.counters()
            assert 50_000 < seen["deepest_bytes"] <= 4_000_000, seen
            assert seen["marked_packets"] == seen["markable_packets"] < seen["packets"], seen
            assert seen["lost_packets"] == 0 and bed.tcp_retransmissions(bed.aggregator) == 0, seen
            assert up.counters()["deepest_bytes"] <= 50_000, up.counters() # acknowledgements only
            assert flow.received_bytes() > 0 and down.sent_bytes() > 0
            down.lose(0.05)
            while down.counters()["lost_buffers"] == 0:
                assert time.monotonic() < deadline, down.counters()
                time.sleep(0.02)
        finally:
            flow.stop()


if __name__ == "__main__":
    tap.main(globals())
