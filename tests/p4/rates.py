#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""rates.py [--ranks N ...] [--rounds N]: results a second, of each rank, by who sums: BMv2, DPDK's pipeline, and switchmld,
between hosts in namespaces; one after the other, in rounds. Needs root; a switch whose tools are missing (docs/p4.md)
is left out, with a line that says so. Prints a table of medians, and beside each rate how many results a switch sent
again for 1,000 that it summed. All share the machine's processors."""
import argparse
import json
import statistics
import sys
import tempfile

import bed as beds
from bed import CONTROL_PORT, LANES, LANES_OF_DATA, SWITCHES, Bed
from e2e_switches import bench, report_of
from e2e import SWITCHML, SWITCHMLD, wait_until

KIB = {"bmv2": 20, "dpdk-p4": 1024} # about a second each; else as dpdk-p4


class Software:
    """switchmld behind a kernel's bridge, with the segmentation and checksums of links off as with a switch."""
    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments


class BridgeBed(Bed):
    def __enter__(self):
        self.bed.__enter__()
        try:
            for namespace in [self.bed.aggregator] + [self.bed.worker(r) for r in range(self.bed.num_workers)]:
                self.inside(namespace, "ethtool", "-K", "eth0", "tx", "off", "gso", "off", "tso", "off")
            self.daemon = self.start(self.bed.aggregator,
                                     [SWITCHMLD, "--listen", f"{self.bed.aggregator_address}:{CONTROL_PORT}",
                                      *self.kind.arguments], "daemon")
            wait_until(lambda: "listening on" in self.log("daemon") or self.daemon.poll() is not None, "it is up")
            assert self.daemon.poll() is None, self.log("daemon")
        except BaseException:
            self.__exit__()
            raise
        return self


def counted_by_switch(bed):
    """What the switch says when it is asked at last; None: there is none."""
    asked = bed.start(bed.bed.aggregator, [SWITCHML, "status", f"{bed.bed.aggregator_address}:{CONTROL_PORT}", "--json",
                                           "--interval", "1.1"])
    return json.loads(asked.communicate()[0])["switch"]


def measure(kind, num_ranks, of):
    """(results/s, elements/s, repeats for 1,000 sums; None: no switch sums)"""
    with (BridgeBed if isinstance(kind, Software) else Bed)(kind, num_ranks) as bed:
        size = f"{KIB.get(kind.name, 1024)}K"
        report = report_of(bed, bed.start_ranks(bench(of, size, "--iters", "5"), range(num_ranks)))
        counted = counted_by_switch(bed)
    result = report["results"][-1]
    elements_per_s = result["bytes"] / 4 / result["time_us_median"] * 1e6
    results_per_s = elements_per_s / (report["chunk_bytes"] / 4 if "chunk_bytes" in report else LANES_OF_DATA)
    return results_per_s, elements_per_s, counted and 1000 * counted["repeats"] / max(counted["sums"], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--type", default="int32")
    options = parser.parse_args()
    why = beds.why_unavailable()
    if why:
        print(why)
        return 1
    with tempfile.TemporaryDirectory(prefix="switchml-p4-") as folder:
        kinds = [Software("switchmld, switch format", "--switch-format", str(LANES)), Software("switchmld")]
        for kind in SWITCHES:
            if kind.why_unavailable():
                print(f"{kind.name}: {kind.why_unavailable()}")
            else:
                kinds.insert(0, kind(folder))
        found = {}
        for _ in range(options.rounds):
            for num_ranks in options.ranks:
                for kind in kinds:
                    found.setdefault((num_ranks, kind.name), []).append(measure(kind, num_ranks, options.type))
                    print("#", num_ranks, kind.name, found[num_ranks, kind.name][-1], flush=True)
    print("| ranks | who sums | results/s | repeats for 1,000 sums | elements/s | least and most results/s |\n"
          "|---|---|---|---|---|---|")
    for (num_ranks, name), each in found.items():
        rates, elements, repeats = zip(*sorted(each))
        said = "-" if repeats[0] is None else f"{statistics.median(repeats):.1f}"
        print(f"| {num_ranks} | {name} | {statistics.median(rates):,.0f} | {said} | {statistics.median(elements):,.0f} | "
              f"{rates[0]:,.0f} .. {rates[-1]:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
