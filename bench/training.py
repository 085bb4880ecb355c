# SPDX-License-Identifier: Apache-2.0
"""Training, replayed: one plan (`switchml bench training --plan`) by libswitchml, Gloo and Open MPI over the same links.

The links have 1 Gbit/s. A nominal rate of k Gbit/s is that with everything computed k times as slowly, and times are
given over k (ADR 25). A row's bound is its own plan's over a link without any latency."""
import csv
import io
import json
import os
import re
import statistics
import subprocess
import tempfile

import netbed
import places
from contenders import BUILD, FRAME_BYTES, HEADER_BYTES, ROUND_TIMEOUT_S, Gloo, OpenMPI, SwitchML, base_environment, \
    program_paths
from paths import Embedded

LINK = "1gbit"
BUCKETS = ["--bucket", "25"]
MODELS = ["resnet50", "vgg16", "bert_base", "alexnet", "inception_v3"]
ITERS, WARMUP = 2, 1


class Case:
    """A network at a nominal rate, and n ranks of one GPU each."""

    def __init__(self, model, gpu, rate, num_ranks, more=()):
        self.model, self.gpu, self.rate, self.num_ranks = model, gpu, rate, num_ranks
        self.scale = netbed.parse_rate(rate) / netbed.parse_rate(LINK)
        self.arguments = ["training", "--model", model, "--gpu", gpu, "--rate", rate, "--time-scale", f"{self.scale:g}", *more]

    def ask(self, *more):
        command = [program_paths(BUILD)[1], "bench", *self.arguments, "--ranks", str(self.num_ranks), *more]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=base_environment()).stdout

    def predict(self, *more):
        (row,) = csv.DictReader(io.StringIO(self.ask("--predict", "--csv", *more)))
        return {name: float(row[name]) / 1e3 for name in ("compute_ms", "predicted_ms", "ring_ms", "gloo_ms") if name in row} | {
            "regime": row["regime"], "bytes": round(float(row["MB"]) * 1e6)}


def result(case, size, times_s, more):
    """Of the slowest rank of each iteration, time scale taken out."""
    times = [time / case.scale for time in times_s]
    return {"bytes": size, "median_s": statistics.median(times), "p99_s": max(times), "wire_bytes": None,
            "retransmissions": None, **more}


class ReplayedSwitchML(SwitchML):
    def __init__(self, processes, case, title=None, plan=(), port=4860, environment=None):
        super().__init__(processes, case.num_ranks, title, environment, job="training", port=port)
        self.case, self.plan = case, list(plan)
        self.command = " ".join(["switchml bench", *case.arguments, *self.plan])

    def round(self, runs, type_name):
        ((size, iters),) = runs
        cpu_s = self.daemon_cpu_s()
        command = [self.command_path, "bench", *self.case.arguments, *self.plan, "--iters", str(iters), "--warmup",
                   str(WARMUP), "--job", self.job, "--timeout", "200", "--json"]
        workers = [self.processes.start(self.place.at_rank(rank, command), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env={**self.environment, "RANK": str(rank), "WORLD_SIZE": str(self.num_ranks)})
                   for rank in range(self.num_ranks)]
        outputs = [worker.communicate(timeout=ROUND_TIMEOUT_S) for worker in workers]
        failed = [worker for worker in workers if worker.returncode != 0]
        self.processes.stop(workers)
        if failed:
            raise places.BenchError("switchml bench training: " + " ".join(error.strip() for _, error in outputs)[-800:])
        (each,) = json.loads(outputs[0][0])["results"]
        if each["wrong"] != 0 or each["path"] != "network" or each["operations"] == 0:
            raise places.BenchError(f"not over the network, or wrong: {each}")
        daemon_cpu_s = (self.daemon_cpu_s() - cpu_s) / (iters + WARMUP)
        payload = self.place.bed.mtu - 28 - HEADER_BYTES
        return [{"bytes": size, "median_s": each["time_ms"] / 1e3, "p99_s": each["slowest_ms"] / 1e3,
                 "cpu_s": each["cpu_s"] * self.num_ranks + daemon_cpu_s, "aggregator_cpu_s": daemon_cpu_s,
                 "wire_bytes": each["wire_bytes_per_rank"] * (1 + FRAME_BYTES / (payload + HEADER_BYTES)),
                 "retransmissions": each["retransmits"] / (iters + WARMUP), "operations": each["operations"]}]


class ReplayedEmbedded(Embedded, ReplayedSwitchML):
    """No daemon: each rank aggregates its own parts."""

    def round(self, runs, type_name):
        sent_bytes = self.place.sent_bytes()
        (measured,) = super().round(runs, type_name)
        num_iters = runs[0][1] + WARMUP
        measured["wire_bytes"] = (self.place.sent_bytes() - sent_bytes) / num_iters / self.num_ranks  # also as an aggregator
        return [measured]


class ReplayedPeer:
    """What the two peers' replays have in common: the plan as a file, and what they print."""

    def set_plan(self, case, plan):
        self.case, self.plan, self.plan_path = case, list(plan), None  # pylint: disable=attribute-defined-outside-init
        self.title += ", 25 MiB buckets" if list(plan) == BUCKETS else ", a tensor each"
        self.command += " PLAN of switchml bench " + " ".join([*case.arguments, *self.plan, "--plan"])

    def write_plan(self):
        number, self.plan_path = tempfile.mkstemp(dir=self.tools.folder)  # pylint: disable=attribute-defined-outside-init
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(self.case.ask("--plan", *self.plan))

    def answer(self, outputs, size):
        answers = [json.loads(line) for text in outputs for line in text.splitlines() if re.match(r'\{"replay"', line)]
        if len(answers) != self.num_ranks or any(each["wrong"] for each in answers):
            raise places.BenchError(f"{self.title}: {answers}")
        slowest = [max(times) for times in zip(*(each["times_s"] for each in answers))]
        return result(self.case, size, slowest, {"cpu_s": sum(each["cpu_s"] for each in answers)})

    def round(self, runs, type_name):
        ((size, iters),) = runs
        sent_bytes, retransmissions = self.place.sent_bytes(), self.place.retransmissions()
        measured = self.replay(size, iters)
        measured["wire_bytes"] = (self.place.sent_bytes() - sent_bytes) / (iters + WARMUP) / self.num_ranks
        measured["retransmissions"] = (self.place.retransmissions() - retransmissions) / (iters + WARMUP)
        return [measured]


class ReplayedGloo(ReplayedPeer, Gloo):
    def __init__(self, processes, case, tools, plan=(), num_threads=2):
        super().__init__(processes, case.num_ranks, tools)
        self.num_threads = num_threads
        self.command = f"gloo_replay RANK {case.num_ranks} INTERFACE STORE {num_threads}"
        self.set_plan(case, plan)

    def start(self, place):
        self.place = place
        self.tools.gloo_replay()
        self.write_plan()

    def replay(self, size, iters):
        store = tempfile.mkdtemp(dir=self.tools.folder)
        workers = [self.processes.start(self.place.at_rank(rank, [
            self.tools.gloo_replay(), str(rank), str(self.num_ranks), self.place.interface, store, str(self.num_threads),
            self.plan_path, str(WARMUP), str(iters)]), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=base_environment()) for rank in range(self.num_ranks)]
        outputs = [worker.communicate(timeout=ROUND_TIMEOUT_S) for worker in workers]
        self.processes.stop(workers)
        if any(worker.returncode != 0 for worker in workers):
            raise places.BenchError("gloo_replay: " + " ".join(error for _, error in outputs)[-800:])
        return self.answer([output for output, _ in outputs], size)

    def stop(self):
        pass


class ReplayedMPI(ReplayedPeer, OpenMPI):
    def __init__(self, processes, case, tools, plan=(), algorithm=4):
        super().__init__(processes, case.num_ranks, tools, algorithm)
        self.command = " ".join(["mpirun", f"-n {case.num_ranks}", *self.settings, "mpi_replay"])
        self.set_plan(case, plan)

    def start(self, place):
        super().start(place)
        self.tools.mpi_replay()
        self.write_plan()

    def replay(self, size, iters):
        status, output, errors = self.launch(self.tools.mpi_replay(), self.plan_path, str(WARMUP), str(iters))
        if status != 0:
            raise places.BenchError(f"mpi_replay failed ({status}): {output[-300:]}{errors[-900:]}")
        return self.answer([output], size)


def contenders(session, case):
    processes, tools = session.processes, session.tools
    found = [ReplayedSwitchML(processes, case)]
    if not session.options.quick:
        found.append(ReplayedSwitchML(processes, case, "SwitchML, priority", ["--priority"], port=4861))
    if session.wants("gloo"):
        found.append(ReplayedGloo(processes, case, tools, BUCKETS))
        if not session.options.quick:
            found.append(ReplayedGloo(processes, case, tools))
    if session.wants("openmpi"):
        found.append(ReplayedMPI(processes, case, tools, BUCKETS))
    return found


def give_bounds(case, rows, chosen):
    """Each one's own bound and what that is predicted to be with its latencies; the speed-up over Gloo in buckets."""
    by_title = {each.title: each for each in chosen}
    step_us = 50 / case.scale  # the real one
    for row in rows:
        contender = by_title[row["contender"]]
        plan, key = contender.plan, "predicted_ms" if row["family"] == "switchml" else "ring_ms"
        if isinstance(contender, Embedded):
            plan = plan + ["--aggregator", "embedded"]
        if row["family"] == "gloo" and "--fsdp" in case.arguments:
            key = "gloo_ms"
        bound = case.predict(*plan, "--ring-step", "0")
        row.update({"bound_s": bound[key], "predicted_s": case.predict(*plan, "--ring-step", f"{step_us:g}")[key],
                    "compute_s": bound["compute_ms"], "regime": bound["regime"],
                    "bound_speedup": bound["ring_ms"] / bound["predicted_ms"]})
        row["bound_ratio"], row["predicted_ratio"] = row["time_s"] / row["bound_s"], row["time_s"] / row["predicted_s"]
    peer = next((row for row in rows if row["family"] == "gloo"), None)
    for row in rows:
        row["speedup"] = peer["time_s"] / row["time_s"] if peer else None


def training(session):
    """Gradients of real networks when a GPU would have them ready: 1 Gbit/s links, and 10 by a time scale, n = 4"""
    for n in session.pick("n", [4], [4]):
        with places.bed(n, rate=LINK, mtu=1500) as place:
            for rate in session.pick("rates", [LINK, "10gbit"], [LINK]):
                for model in session.pick("models", MODELS, MODELS[:1]):
                    case = Case(model, session.options.gpu, rate, n)
                    size = case.predict()["bytes"]
                    chosen = contenders(session, case)
                    rows = session.measure(place, chosen, [(size, ITERS)], {
                        "mtu": 1500, "rate": rate, "aggregator_rate": "none", "model": model, "gpu": case.gpu,
                        "time_scale": case.scale})
                    if rows:
                        give_bounds(case, rows, chosen)
                    session.save()


def fsdp(session):
    """A step of sharded training as FSDP2 makes it: ours with an aggregator and without, and Gloo as PyTorch uses it, n = 8"""
    for n in session.pick("n", [8], [4]):
        with places.bed(n, rate=LINK, mtu=1500) as place:
            for model in session.pick("models", ["vit_b_16"], ["googlenet"]):
                units = ["--bucket", "5" if session.options.quick else "25"]
                case = Case(model, session.options.gpu, LINK, n, ["--fsdp", *units])
                processes = session.processes
                chosen = [ReplayedSwitchML(processes, case),
                          ReplayedEmbedded(processes, case, "SwitchML, embedded", port=4861)]
                if session.wants("gloo"):
                    chosen.append(ReplayedGloo(processes, case, session.tools))
                    chosen[-1].title = "Gloo, as in PyTorch"
                rows = session.measure(place, chosen, [(case.predict()["bytes"], ITERS)], {
                    "mtu": 1500, "rate": LINK, "aggregator_rate": "none", "model": model, "gpu": case.gpu,
                    "time_scale": case.scale})
                if rows:
                    give_bounds(case, rows, chosen)
                session.save()
