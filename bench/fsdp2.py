# SPDX-License-Identifier: Apache-2.0
"""A real step of PyTorch's FSDP2 over shaped links: over SwitchML with an aggregator and without, and over Gloo.

Its ranks run in the chroot of tools/torch2 that has a PyTorch with FSDP2 for the CPU, and each trains over all backends in
turns. The model is layers of parameters with next to no computing, so only the network counts. Its bound is that of its
bytes: a forward pass gathers S, a backward pass gathers S while it reduces and scatters S."""
import contextlib
import json
import os
import statistics
import subprocess
import tempfile

import netbed
import places
from contenders import BUILD, FRAME_BYTES, HEADER_BYTES, ROOT, SwitchML, base_environment, percentile
from sharded import KEYED_HEADER_BYTES

RATE = "100mbit"  # PyTorch itself takes half a second of processor a step and rank: at 250 Mbit/s that is what counts
LAYERS, WIDTH = 12, 768
CHECK_LAYERS, CHECK_WIDTH, CHECK_STEPS = 4, 512, 100
PARTS = "aggregator", "embedded", "gloo", "bits"  # ours, beside Gloo; Gloo overlapped; and the check of parameters
RELEASE = "testing"
CHROOT = os.path.join(BUILD, f"torch2-{RELEASE}")
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# What both of a step's directions carry, over S/B: alone to be gathered, then gathered and reduced at once.
SHARES = {"switchml": lambda n: (n - 1) / n + 1, "embedded": lambda n: 3 * (n - 1) / n, "gloo": lambda n: 4 * (n - 1) / n}


class Ranks:
    """n processes of bench/peers/fsdp2_rank.py, which stay, blocked, between the rounds."""

    def __init__(self, processes, place, num_ranks, aggregator):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "WORLD_SIZE": str(num_ranks),
                       "MASTER_ADDR": place.bed.worker_address(0), "MASTER_PORT": "29511", "AGGREGATOR": aggregator,
                       "GLOO_SOCKET_IFNAME": place.interface, "USE_LIBUV": "0", "PYTHONPATH": "/tree/integrations/pytorch",
                       "SWITCHML_LIBRARY": "/tree-build/src/lib/libswitchml.so", "SWITCHML_REQUIRE": "1",
                       "SWITCHML_SUMMARY": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                       "SWITCHML_SHARED_MEMORY": "0", **KEPT_MEMORY}
        self.processes, self.workers, self.log = processes, [], tempfile.TemporaryFile("w+")
        for rank in range(num_ranks):
            words = [f"{name}={value}" for name, value in {**environment, "RANK": rank}.items()]
            command = [os.path.join(ROOT, "tools/torch2"), BUILD, "--release", RELEASE, "--run", "env", "-i", *words,
                       "/usr/bin/python3", "-P", "/tree/bench/peers/fsdp2_rank.py"]
            self.workers.append(processes.start(place.at_rank(rank, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                stderr=self.log, env=base_environment()))
        self._answers(lambda line: line.strip() == "ready", "did not start")

    def _answers(self, is_right, problem):
        """A line of each rank."""
        lines = [worker.stdout.readline() for worker in self.workers]
        if not all(map(is_right, lines)):
            self.log.seek(0)
            raise places.BenchError(f"a rank of PyTorch {problem}: {lines}\n{self.log.read()[-2000:]}")
        return lines

    def train(self, *words):
        """What each rank answers."""
        for worker in self.workers:
            worker.stdin.write(" ".join(map(str, words)) + "\n")
            worker.stdin.flush()
        answers = list(map(json.loads, self._answers(lambda line: line.startswith("{"), "ended")))
        if any(each["fallback"] for each in answers):
            raise places.BenchError("Gloo took a call of SwitchML's")
        return answers

    def hash_of(self, *words):
        """Of all parameters, which ranks must have alike."""
        hashes = [each["hash"] for each in self.train(*words, 0)]
        if len(set(hashes)) != 1:
            raise places.BenchError(f"ranks hold different parameters: {hashes}")
        return hashes[0]

    def stop(self):
        """At the end of its input a rank leaves."""
        for worker in self.workers:
            worker.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for worker in self.workers:
                worker.wait(timeout=20)
        self.processes.stop(self.workers)


class Step:
    """A contender: a kind of group, and whether collectives overlap."""

    def __init__(self, ranks, num_ranks, title, family, kind, is_overlapped):
        self.ranks, self.num_ranks, self.title, self.family, self.kind = ranks, num_ranks, title, family, kind
        self.is_overlapped, self.place = is_overlapped, None
        self.command = f"fsdp2_rank.py {'aggregator' if ':' in kind else kind} {int(is_overlapped)} {LAYERS} {WIDTH}"

    def start(self, place):
        self.place = place
        self.ranks.train(self.kind, int(self.is_overlapped), LAYERS, WIDTH, 1)  # joins, and has memory afterwards

    def round(self, runs, _type_name):
        ((size, iters),) = runs
        up, down = self.place.sent_bytes(), self.place.received_bytes()
        answers = self.ranks.train(self.kind, int(self.is_overlapped), LAYERS, WIDTH, iters)
        slowest = [max(times) for times in zip(*(each["times_s"] for each in answers))]
        share = 1 / iters / self.num_ranks
        return [{"bytes": size, "median_s": statistics.median(slowest), "p99_s": percentile(slowest, 0.99),
                 "cpu_s": sum(each["cpu_s"] for each in answers) / iters, "retransmissions": None,
                 "wire_bytes": (self.place.sent_bytes() - up) * share,
                 "received_bytes": (self.place.received_bytes() - down) * share}]

    def stop(self):
        """Compares the ranks' parameters."""
        self.ranks.hash_of(self.kind, int(self.is_overlapped), LAYERS, WIDTH)


def contenders(aggregator):
    """In which parts each is, and its title, family, kind and whether it overlaps."""
    yield {"aggregator"}, "SwitchML", "switchml", aggregator, True
    yield {"embedded"}, "SwitchML, embedded", "switchml", "embedded", True
    yield {"aggregator", "embedded"}, "Gloo", "gloo", "gloo", False
    yield {"gloo"}, "Gloo, overlapped", "gloo", "gloo", True


def give_bounds(rows, rate_bps, mtu):
    for row in rows:
        n, link_s = row["ranks"], row["bytes"] * 8 / rate_bps
        kind = "embedded" if "embedded" in row["contender"] else row["family"]
        header = {"switchml": HEADER_BYTES, "embedded": KEYED_HEADER_BYTES}.get(kind)
        floor = (mtu + 14) / (mtu - 28 - header) if header else (mtu + 14) / (mtu - 52)
        row["link_s"], row["bound_s"], row["bound"] = link_s, SHARES[kind](n) * link_s * floor, f"{SHARES[kind](n):.4g} S/B"
        row["bound_ratio"] = row["time_s"] / row["bound_s"]
    gloo = [row["time_s"] for row in rows if row["family"] == "gloo"]
    for row in rows:
        row["speedup"] = min(gloo) / row["time_s"] if gloo else None


def check_bits(session, ranks, aggregator, rows, rate):
    """After 100 steps parameters are those of all-reduce and slice, bit by bit; that ranks agree is seen each time."""
    steps = 10 if session.options.quick else CHECK_STEPS
    hashes = {}
    for kind, is_overlapped in (aggregator, 1), ("slice", 0):
        ranks.train(kind, is_overlapped, CHECK_LAYERS, CHECK_WIDTH, steps)
        hashes[kind] = ranks.hash_of(kind, is_overlapped, CHECK_LAYERS, CHECK_WIDTH)
    session.note(f"parameters after {steps} steps at {rate}: {' '.join(hashes.values())}")
    if len(set(hashes.values())) != 1:
        raise places.BenchError(f"reduce-scatters and all-reduces with slices differ: {hashes}")
    for row in rows:
        row["hash_after_steps"] = steps, *hashes.values()


def fsdp2(session):
    """A real step of PyTorch's FSDP2 where only the network counts: ours with an aggregator and without, and Gloo, n = 8"""
    if not os.path.exists(CHROOT):
        session.note(f"not measured: there is no {CHROOT}; tools/torch2 build --release {RELEASE} --run true makes it")
        return
    parts = set(session.options.parts or PARTS)
    for n in session.pick("n", [8], [3]):
        for rate in session.pick("rates", [RATE], [RATE]):
            with places.bed(n, rate=rate, mtu=1500) as place:
                daemon = SwitchML(session.processes, n, port=4870)
                daemon.start(place)
                aggregator = daemon.environment["SWITCHML_AGGREGATOR"]
                ranks = Ranks(session.processes, place, n, aggregator)
                chosen = [Step(ranks, n, *each) for part, *each in contenders(aggregator) if parts & part]
                if not session.wants("gloo"):
                    chosen = [each for each in chosen if each.family != "gloo"]
                rows = []
                if chosen:
                    rows = session.measure(place, chosen, [(4 * LAYERS * WIDTH * WIDTH, 2)], {
                        "mtu": 1500, "rate": rate, "aggregator_rate": "none", "model": f"{LAYERS} layers of {WIDTH}"})
                    give_bounds(rows, netbed.parse_rate(rate), 1500)
                    session.save()  # the check takes as long as all rounds
                if "bits" in parts:
                    check_bits(session, ranks, aggregator, rows, rate)
                ranks.stop()
                daemon.stop()
                session.save()
