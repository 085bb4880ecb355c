# SPDX-License-Identifier: Apache-2.0
"""Ours and the peers, each behind the same few calls:

    contender.start(place)                 what stays between the rounds: daemons, blocked processes
    contender.round(runs, type)            one round of [(bytes, iterations)]: [result], checked
    contender.stop()

A result has median_s and p99_s (of the slowest rank), cpu_s (all processes, one all-reduce), wire_bytes (a rank
sends for one all-reduce, as its link carries them; None: not counted) and retransmissions (of all ranks, for one).
"""
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import machine
from places import BenchError

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
FRAME_BYTES = 42       # Ethernet, IPv4 and UDP headers: what the shaper counts beside the datagram
HEADER_BYTES = 32      # of ours, in every datagram
ROUND_TIMEOUT_S = 300


def program_paths(build):
    """Our daemon and our command in a build directory."""
    return os.path.join(build, "src/switchd/switchmld"), os.path.join(build, "src/cli/switchml")


def base_environment():
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("SWITCHML_", "OMPI_", "MAKE"))}
    environment.update({"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "SWITCHML_SHARED_MEMORY": "0"})
    return environment


def percentile(values, share):
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Tools:
    """Programs of the benchmarks that are compiled when they are needed, into a folder of this run, or of several runs of a test."""

    def __init__(self, folder):
        self.folder = folder

    def _compile(self, name, *command):
        path = os.path.join(os.environ.get("SML_BENCH_TEST_TOOLS", self.folder), name)
        if not os.path.exists(path):
            result = subprocess.run([*command, "-o", path + ".new"], capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise BenchError(f"{' '.join(command)}: {result.stderr.strip()[-800:]}")
            os.replace(path + ".new", path)
        return path

    def memcopy(self):
        return self._compile("memcopy", "cc", "-O2", os.path.join(HERE, "memcopy.c"))

    def mpi(self):
        source = os.path.join(HERE, "peers/mpi_calls.c")
        return self._compile("mpi_calls", "mpicc.openmpi", "-O3", "-march=native", source)

    def mpi_replay(self):
        return self._compile("mpi_replay", "mpicc.openmpi", "-O3", "-march=native",
                             os.path.join(HERE, "peers/mpi_replay.c"))

    def gloo_replay(self):
        return self._compile("gloo_replay", "g++", "-O3", "-march=native", os.path.join(HERE, "peers/gloo_replay.cc"),
                             "-lgloo", "-lpthread")

    def gloo(self):
        return self._compile("gloo_calls", "g++", "-O3", "-march=native", os.path.join(HERE, "peers/gloo_calls.cc"),
                             "-lgloo", "-lpthread")


def copy_rate(tools, num_processes, size_bytes):
    """Bytes a second that so many processes together copy."""
    result = subprocess.run([tools.memcopy(), str(num_processes), str(size_bytes)], capture_output=True, text=True,
                            check=True)
    return float(result.stdout)


def missing_peers():
    """{name of a peer: why it cannot run here}"""
    missing = {}
    if not shutil.which("mpirun.openmpi") or not shutil.which("mpicc.openmpi"):
        missing["openmpi"] = "Open MPI is not installed (Debian: openmpi-bin, libopenmpi-dev)"
    if not os.path.exists("/usr/include/gloo/allreduce.h"):
        missing["gloo"] = "Gloo is not installed (Debian: libgloo-dev)"
    return missing


class SwitchML:
    """Our daemon, and `switchml bench` on each rank."""
    title, family = "SwitchML", "switchml"

    def __init__(self, processes, num_ranks, title=None, environment=None, faults="", arguments=(), job="bench",
                 port=4800, daemon=None, build=BUILD, daemon_arguments=()):
        self.daemon_arguments = list(daemon_arguments)
        self.processes, self.num_ranks, self.faults, self.port, self.job = processes, num_ranks, faults, port, job
        self.title = title or self.title
        self.environment = {**base_environment(), **(environment or {})}
        self.arguments, self.place, self.daemon, self.log = list(arguments), None, daemon, None
        self.daemon_path, self.command_path = program_paths(build)
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        words += [f"SWITCHML_FAULTS={faults}"] if faults else []
        self.command = " ".join([*words, "switchml bench", *self.arguments])

    def start(self, place):
        self.place = place
        address = f"{place.aggregator_address}:{self.port}"
        self.environment["SWITCHML_AGGREGATOR"] = address
        if self.daemon:
            return
        self.log = tempfile.TemporaryFile("w+")
        with tempfile.TemporaryDirectory() as folder:
            port_file = os.path.join(folder, "port")
            command = place.at_aggregator([self.daemon_path, "--listen", address, "--port-file", port_file,
                                           *self.daemon_arguments])
            self.daemon = self.processes.start(command, stdout=self.log, stderr=self.log,
                                               env={**self.environment, **self.faults_of(0)})
            deadline = time.monotonic() + 10
            while not os.path.exists(port_file):
                if self.daemon.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"switchmld did not start: {self.log_text()}")
                time.sleep(0.01)

    def log_text(self):
        self.log.seek(0)
        return self.log.read()

    def faults_of(self, receiver):
        """Each receiver draws its own losses."""
        return {"SWITCHML_FAULTS": f"{self.faults},seed={receiver + 1}"} if self.faults else {}

    def start_workers(self, sizes, iters, type_name, warmup=1, **keywords):
        command = [self.command_path, "bench", "--sizes", ",".join(map(str, sizes)), "--iters", str(iters), "--warmup", str(warmup),
                   "--type", type_name, "--job", self.job, "--timeout", "120", "--json", *self.arguments]
        keywords.setdefault("stdout", subprocess.PIPE)
        keywords.setdefault("stderr", subprocess.PIPE)
        return [self.processes.start(self.place.at_rank(rank, command),
                                     env={**self.environment, "RANK": str(rank), "WORLD_SIZE": str(self.num_ranks),
                                          **self.faults_of(rank + 1)}, **keywords)
                for rank in range(self.num_ranks)]

    def round(self, runs, type_name):
        """Runs of equal iterations share one start of the processes."""
        results = []
        for iters in dict.fromkeys(iters for _, iters in runs):
            results += self._round([size for size, each in runs if each == iters], iters, type_name)
        by_size = {result["bytes"]: result for result in results}
        return [by_size[size] for size, _ in runs]

    def daemon_cpu_s(self):
        return machine.threads_cpu_s(self.daemon.pid)

    def _round(self, sizes, iters, type_name):
        cpu_s = self.daemon_cpu_s()
        workers = self.start_workers(sizes, iters, type_name)
        outputs = [worker.communicate(timeout=ROUND_TIMEOUT_S) for worker in workers]
        failed = [worker for worker in workers if worker.returncode != 0]
        self.processes.stop(workers)
        if failed:
            raise BenchError("switchml bench failed: " + " ".join(error.strip() for _, error in outputs)[-800:])
        report = json.loads(outputs[0][0])
        daemon_cpu_s = self.daemon_cpu_s() - cpu_s
        total_bytes = sum(sizes)
        return [self._result(report, each, iters, daemon_cpu_s * each["bytes"] / total_bytes / (iters + 1))
                for each in report["results"]]

    def _result(self, report, each, iters, daemon_cpu_s):
        if each["wrong"] != 0:
            raise BenchError(f"switchml bench: {each['wrong']} wrong elements")
        payload = report["chunk_bytes"] or each["bytes"]
        median_s = each["time_us_median"] / 1e6
        framing = 1 + FRAME_BYTES / (payload + HEADER_BYTES)
        return {"bytes": each["bytes"], "median_s": median_s, "p99_s": each["time_us_p99"] / 1e6,
                "cpu_s": each["cpu_s"] * self.num_ranks + daemon_cpu_s, "aggregator_cpu_s": daemon_cpu_s,
                "aggregator_cores": daemon_cpu_s / median_s,
                "wire_bytes": each["wire_bytes_per_rank"] * framing,
                "received_bytes": each["wire_rx_bytes_per_rank"] * framing, "payload_bytes": each["wire_bytes_per_rank"],
                "retransmissions": each["retransmits"] / iters, "needless_results": each["needless_repeats"] / iters,
                "slot_spread": each["slot_spread"], "syscalls_per_chunk": each["syscalls_per_chunk"],
                "floor": (payload + HEADER_BYTES + FRAME_BYTES) / payload, "chunk_bytes": payload}

    def stop(self):
        if self.daemon:
            self.processes.stop([self.daemon])
        self.daemon = None


class MulticastSwitchML(SwitchML):
    """Results to all ranks by one datagram; the aggregator's log must say that they did go that way, to the end."""
    title = "SwitchML, multicast"

    def __init__(self, processes, num_ranks, port=4850, **keywords):
        super().__init__(processes, num_ranks, port=port, daemon_arguments=["--multicast", "239.192.77.0/64"], **keywords)
        self.command = "switchmld --multicast 239.192.77.0/64; " + self.command

    def round(self, runs, type_name):
        results = super().round(runs, type_name)
        text = self.log_text()
        if "no_multicast" in text or "multicast=1" not in text:
            raise BenchError(f"multicast was not used: {text[-500:]}")
        return results


class Peer:
    """Counts on the network's side what a peer does not say of itself."""
    needs = ""

    def __init__(self, processes, num_ranks, tools):
        self.processes, self.num_ranks, self.tools, self.place = processes, num_ranks, tools, None

    def start(self, place):
        self.place = place

    def stop(self):
        pass

    def round(self, runs, type_name):
        results = []
        for group in self.groups(runs):
            sent_bytes, retransmissions = self.place.sent_bytes(), self.place.retransmissions()
            measured = self.measure(group, type_name)
            if len(group) == 1 and sent_bytes is not None:
                num_calls = group[0][1] + 1  # with the one that is not timed
                measured[0]["wire_bytes"] = (self.place.sent_bytes() - sent_bytes) / num_calls / self.num_ranks
                measured[0]["retransmissions"] = (self.place.retransmissions() - retransmissions) / num_calls
            results += measured
        return results

    def groups(self, runs):
        return [[run] for run in runs]

    def measure(self, runs, type_name):
        raise NotImplementedError

    @staticmethod
    def result(size, times_us, cpu_s):
        return {"bytes": size, "median_s": statistics.median(times_us) / 1e6,
                "p99_s": percentile(times_us, 0.99) / 1e6, "cpu_s": cpu_s, "wire_bytes": None, "retransmissions": None}


class Gloo(Peer):
    """Its processes stay, blocked, between the rounds."""
    family = needs = "gloo"
    algorithms = ("ring", "ring-chunked", "halving-doubling", "bcube")

    def __init__(self, processes, num_ranks, tools, algorithm="ring"):
        super().__init__(processes, num_ranks, tools)
        self.algorithm, self.title = algorithm, f"Gloo, {algorithm}"
        self.command = f"gloo_calls RANK {num_ranks} INTERFACE STORE {algorithm}"
        self.workers, self.store = [], None

    def start(self, place):
        super().start(place)
        program = self.tools.gloo()
        self.store = tempfile.mkdtemp(dir=self.tools.folder)
        self.workers = [self.processes.start(
            place.at_rank(rank, [program, str(rank), str(self.num_ranks), place.interface, self.store, self.algorithm]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=base_environment()) for rank in range(self.num_ranks)]
        for worker in self.workers:
            if worker.stdout.readline().strip() != "ready":
                raise BenchError("a Gloo worker did not start")

    def measure(self, runs, type_name):
        results = []
        for size, iters in runs:
            for worker in self.workers:
                worker.stdin.write(f"{type_name} {size} {iters}\n")
                worker.stdin.flush()
            lines = [worker.stdout.readline() for worker in self.workers]
            if not all(lines):
                raise BenchError("a Gloo worker ended")
            answers = [json.loads(line) for line in lines]
            slowest = [max(times) for times in zip(*(answer["times_us"] for answer in answers))]
            results.append(self.result(size, slowest, sum(answer["cpu_s"] for answer in answers)))
        return results

    def stop(self):
        """At the end of its input a worker leaves, after it has checked its last result."""
        for worker in self.workers:
            try:
                worker.stdin.close()
            except OSError:
                pass
        statuses = []
        for worker in self.workers:
            try:
                statuses.append(worker.wait(timeout=10))
            except subprocess.TimeoutExpired:
                statuses.append(None)
        self.processes.stop(self.workers)
        self.workers = []
        if 1 in statuses:
            raise BenchError("Gloo: wrong elements")


# mpirun's way onto a "host": into that worker's namespace, under a host name of its own.
MPI_AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec {prefix}$host unshare --uts sh -c "hostname $host; $*"
"""


class OpenMPI(Peer):
    family = needs = "openmpi"
    algorithms = {0: "default", 2: "nonoverlapping", 3: "recursive doubling", 4: "ring", 5: "segmented ring",
                  6: "Rabenseifner"}
    parameters = {"all_reduce": "allreduce", "reduce_scatter": "reduce_scatter", "all_gather": "allgather",
                  "broadcast": "bcast"}

    def __init__(self, processes, num_ranks, tools, algorithm=0, transport="tcp", call="all_reduce"):
        super().__init__(processes, num_ranks, tools)
        self.algorithm, self.transport, self.call = algorithm, transport, call
        kind = {"tcp": "TCP", "vader": "shared memory"}[transport]
        self.title = f"Open MPI {kind}, {self.algorithms[algorithm]}"
        self.settings = ["--mca", "btl", f"{transport},self", "--mca", "mpi_yield_when_idle", "1"]
        if algorithm:
            self.settings += ["--mca", "coll_tuned_use_dynamic_rules", "1",
                              "--mca", f"coll_tuned_{self.parameters[call]}_algorithm", str(algorithm)]
        self.command = " ".join(["mpirun", f"-n {num_ranks}", *self.settings, "mpi_calls", call])
        self.program, self.agent = None, None

    def start(self, place):
        super().start(place)
        self.program = self.tools.mpi()
        if place.name == "bed":
            self.agent = os.path.join(self.tools.folder, f"agent{place.bed.num_workers}")
            with open(self.agent, "w", encoding="ascii") as file:
                file.write(MPI_AGENT.format(prefix=place.bed.worker("")[:-1]))
            os.chmod(self.agent, 0o755)

    def groups(self, runs):
        return [list(runs)]  # starting it costs a second

    def _hosts(self):
        if self.place.name != "bed":
            return ["--host", f"localhost:{self.num_ranks}", "--oversubscribe"]
        hosts = ",".join(f"w{rank}:1" for rank in range(self.num_ranks))
        return ["--host", hosts, "--mca", "plm_rsh_agent", self.agent, "--mca", "plm_rsh_no_tree_spawn", "1",
                "--leave-session-attached"]

    def launch(self, program, *arguments):
        """(exit status, standard output, standard error) of a program on all ranks."""
        networks = ["--mca", "oob_tcp_if_include", self.place.subnet, "--mca", "btl_tcp_if_include", self.place.subnet]
        command = ["mpirun.openmpi", "-n", str(self.num_ranks), *self._hosts(), *networks, "--bind-to", "none",
                   "--mca", "orte_base_help_aggregate", "0", *self.settings, program, *arguments]
        environment = {**base_environment(), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "PMIX_MCA_gds": "hash", "TMPDIR": self.tools.folder}
        process = self.processes.start(self.place.at_aggregator(command), env=environment, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE)
        output, errors = process.communicate(timeout=ROUND_TIMEOUT_S)
        self.processes.stop([process])
        return process.returncode, output, errors

    def measure(self, runs, type_name):
        status, output, errors = self.launch(self.program, self.call, type_name, ",".join(f"{size}:{iters}" for size, iters in runs))
        answers = [json.loads(line) for line in output.splitlines() if re.match(r'\{"bytes"', line)]
        if status != 0 or len(answers) != len(runs):
            raise BenchError(f"Open MPI failed ({status}): {output[-300:]}{errors[-900:]}")
        return [self.result(answer["bytes"], answer["times_us"], answer["cpu_s"]) for answer in answers]
