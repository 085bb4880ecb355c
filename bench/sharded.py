# SPDX-License-Identifier: Apache-2.0
"""Several aggregators for a job: k daemons behind links of a worker's rate, and ranks that aggregate themselves."""
import os
import tempfile
import time

import machine
import netbed
import places
from contenders import FRAME_BYTES, Gloo, SwitchML

M = 1 << 20
RATE = "1gbit"
KEYED_HEADER_BYTES = 36


class SharedJob(SwitchML):
    """k daemons, each at a link like a worker's; k = 0: none, the ranks do without. Counts what the links carried."""

    def __init__(self, processes, num_ranks, num_daemons):
        title = f"SwitchML, {num_daemons} x B" if num_daemons else "SwitchML, no aggregator"
        super().__init__(processes, num_ranks, title, port=4800 + 10 * num_daemons)
        self.num_daemons, self.daemons = num_daemons, []

    def start(self, place):
        self.place = place
        if self.num_daemons == 0:
            self.environment["SWITCHML_RENDEZVOUS"] = f"{place.bed.worker_address(0)}:{self.port}"
            return
        self.environment["SWITCHML_AGGREGATOR"] = ",".join(
            f"{place.bed.worker_address(self.num_ranks + i)}:{self.port}" for i in range(self.num_daemons))
        self.log = tempfile.TemporaryFile("w+")
        with tempfile.TemporaryDirectory() as folder:
            for i, address in enumerate(self.environment["SWITCHML_AGGREGATOR"].split(",")):
                port_file = os.path.join(folder, f"port{i}")
                command = [self.daemon_path, "--listen", address, "--port-file", port_file]
                self.daemons.append(self.processes.start(place.at_rank(self.num_ranks + i, command), stdout=self.log,
                                                         stderr=self.log, env=self.environment))
                deadline = time.monotonic() + 10
                while not os.path.exists(port_file):
                    if self.daemons[-1].poll() is not None or time.monotonic() > deadline:
                        raise places.BenchError(f"switchmld did not start: {self.log_text()}")
                    time.sleep(0.01)

    def daemon_cpu_s(self):
        return sum(machine.threads_cpu_s(daemon.pid) for daemon in self.daemons)

    def round(self, runs, type_name):
        sent_bytes = self.place.sent_bytes()
        results = super().round(runs, type_name)
        num_calls = runs[0][1] + 1  # with the one that is not timed
        if len(runs) == 1:
            results[0]["wire_bytes"] = (self.place.sent_bytes() - sent_bytes) / num_calls / self.num_ranks
        return results

    def stop(self):
        self.processes.stop(self.daemons)
        self.daemons = []


def give_bounds(rows, rate_bps, mtu):
    """What a link allows: a worker's, and an aggregator's that has only a part of them."""
    for row in rows:
        n, link_s = row["ranks"], row["bytes"] * 8 / rate_bps
        num_daemons = row["num_daemons"]
        if num_daemons:
            share = max(1.0, n / num_daemons)
        else:
            share = 2 * (n - 1) / n
        floor = row["floor"] if row["family"] == "switchml" else (mtu + 14) / (mtu - 52)
        if row["family"] == "switchml" and num_daemons == 0:  # keyed; half of the payload is updates, of 28 bits a lane
            floor = 1 + (KEYED_HEADER_BYTES + FRAME_BYTES) / row["chunk_bytes"] - (n >= 5) / 16
        row["link_s"], row["bound_s"], row["bound"] = link_s, link_s * share * floor, f"{share:.3g} S/B"
        row["bound_ratio"], row["link_ratio"] = row["time_s"] / row["bound_s"], row["time_s"] / link_s


def small_latency(session, place, n):
    """4 B to 64 KiB over the same links."""
    sizes = [4, 64 << 10] if session.options.quick else [4, 1024, 16 << 10, 64 << 10]
    contenders = [SharedJob(session.processes, n, 0)]
    if session.wants("gloo"):
        contenders.append(Gloo(session.processes, n, session.tools))
    iters = 50 if session.options.quick else 300
    session.measure(place, contenders, [(size, iters) for size in sizes],
                    {"mtu": place.bed.mtu, "rate": RATE, "aggregator_rate": None})


def sharded(session):
    """No aggregator, and 1, 2, 4 that have one link each: 1 Gbit/s, n = 8, 64 MiB; and small ones without"""
    for n in session.pick("n", [8], [4]):
        daemons = [k for k in (0, 1, 2, 4) if k <= n]
        with places.bed(n + max(daemons), rate=RATE, mtu=1500) as place:
            for size in session.pick("sizes", [64 * M], [16 * M]):
                contenders = [SharedJob(session.processes, n, k) for k in daemons]
                if session.wants("gloo"):
                    contenders.append(Gloo(session.processes, n, session.tools))
                case = {"mtu": 1500, "rate": RATE, "aggregator_rate": None}
                rows = session.measure(place, contenders, [(size, 1)], case)
                by_title = {each.title: getattr(each, "num_daemons", 0) for each in contenders}
                for row in rows:
                    row["num_daemons"] = by_title[row["contender"]]
                give_bounds(rows, netbed.parse_rate(RATE), 1500)
                session.save()
            small_latency(session, place, n)
