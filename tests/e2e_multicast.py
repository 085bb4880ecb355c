#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Results by multicast over a bridge, in network namespaces: used where all ranks hear it, given up with the name of the
rank that does not, at the start or later. Needs root."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import tap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../bench"))
import netbed # pylint: disable=wrong-import-position

SWITCHML, SWITCHMLD = os.environ.get("SWITCHML", "switchml"), os.environ.get("SWITCHMLD", "switchmld")
PATIENCE = float(os.environ.get("SWITCHML_TEST_PATIENCE", "1"))
NUM_RANKS = 3


def wait_until(claim, what, seconds=20):
    deadline = time.monotonic() + seconds * PATIENCE
    while not claim():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class World:
    """A bed with a daemon that offers groups, and one job of `switchml bench`."""

    def __init__(self, bed):
        self.bed, self.log, self.processes = bed, tempfile.TemporaryFile("w+"), []
        self.address = f"{bed.aggregator_address}:48879"
        self.daemon = self.start(bed.aggregator, [SWITCHMLD, "--listen", self.address, "--multicast", "239.192.77.0/4"],
                                 self.log)
        wait_until(lambda: "listening on" in self.text(), "switchmld did not start")

    def text(self):
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def start(self, namespace, command, stdout=subprocess.PIPE, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
        process = subprocess.Popen(self.bed.command(namespace, command), env={**environment, **variables}, stdout=stdout,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, process_group=0)
        self.processes.append(process)
        return process

    def start_job(self, *arguments):
        return [self.start(self.bed.worker(rank), [SWITCHML, "bench", "--json", *arguments], RANK=str(rank),
                           WORLD_SIZE=str(NUM_RANKS), SWITCHML_AGGREGATOR=self.address, SWITCHML_SHARED_MEMORY="0")
                for rank in range(NUM_RANKS)]

    def finish(self, ranks):
        outputs = [rank.communicate(timeout=60 * PATIENCE)[0] for rank in ranks]
        assert all(rank.returncode == 0 for rank in ranks), f"{outputs}\n{self.text()}"
        assert all(result["wrong"] == 0 for result in json.loads(outputs[0])["results"]), outputs[0]

    def set_flooding(self, rank, value):
        """Whether the bridge passes multicast on to a rank."""
        subprocess.run(["ip", "-n", self.bed.bridge, "link", "set", "dev", f"w{rank}", "type", "bridge_slave",
                        "mcast_flood", value], check=True, capture_output=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.log.close()


def test_all_hear():
    with netbed.Netbed(NUM_RANKS, rate="none") as bed, World(bed) as world:
        sent = bed.sent_bytes(bed.aggregator)
        world.finish(world.start_job("--sizes", "4,3M", "--iters", "5"))
        sent = bed.sent_bytes(bed.aggregator) - sent
        assert "multicast=1" in world.text() and "no_multicast" not in world.text(), world.text()
        # warm-ups included: each of the 8 results of 3 MiB left once, not three times
        assert sent < 8 * (3 << 20) * 1.5, sent


def test_one_never_hears():
    with netbed.Netbed(NUM_RANKS, rate="none") as bed, World(bed) as world:
        world.set_flooding(1, "off")
        world.finish(world.start_job("--sizes", "1M", "--iters", "5"))
        assert re.search(r"no_multicast .*rank 1 did not get its probes", world.text()), world.text()
        assert "multicast=1" not in world.text()


def test_one_stops_hearing():
    with netbed.Netbed(NUM_RANKS, rate="none") as bed, World(bed) as world:
        ranks = world.start_job("--sizes", "1M", "--iters", "200")
        wait_until(lambda: "multicast=1" in world.text(), "the job did not start with multicast")
        time.sleep(0.1)
        world.set_flooding(2, "off")
        wait_until(lambda: re.search(r"no_multicast .*rank 2 does not get the results", world.text()), world.text())
        world.finish(ranks)
        assert world.text().count("no_multicast") == 1, world.text()


if __name__ == "__main__":
    WHY = netbed.why_unavailable()
    if WHY:
        print(f"1..0 # SKIP {WHY}")
        sys.exit(0)
    tap.main(globals())
