# SPDX-License-Identifier: Apache-2.0
"""What the demo and the trainings share: the network bed or loopback, an aggregator in it, and the ranks of a
torch.distributed program. Nothing stays behind: namespaces and processes go at the end, at an error and at Ctrl-C.

The ranks are started right here, with MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK and WORLD_SIZE: the torchrun of
Debian 12 (torch 1.13 on Python 3.11) fails unless it is called as `torchrun -r 1 -t 1 ...`."""
import contextlib
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import netbed  # pylint: disable=wrong-import-position  # bench/netbed.py

# Debian's python3-torch belongs to Debian's python3, whatever comes first in PATH.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
DAEMON, LIBRARY = os.path.join(BUILD, "src/switchd/switchmld"), os.path.join(BUILD, "src/lib/libswitchml.so")
NAMES = {"switchml": "SwitchML", "gloo": "Gloo"}
START_TIMEOUT_S = 20
QUIET_S = 10  # of the workers, after which somebody who looks on hears that they are still at it
SILENT_S = 600  # after which they are not
RESULTS_GROUP = "239.77.0.1"
# Else glibc gives the memory of large gradients back to the kernel, to get it anew, page by page, in the next step.
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


class Interrupted(BaseException):
    """A signal asked us to end. Raised once; later signals change nothing, so that nothing stops the clean-up."""

    def __init__(self, number):
        super().__init__()
        self.number = number


class Signals:
    depth, pending, is_ending = 0, None, False

    @classmethod
    def install(cls):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, cls._arrived)

    @classmethod
    def _arrived(cls, number, _frame):
        if cls.is_ending:
            return
        cls.pending = number
        if cls.depth == 0:
            cls.is_ending = True
            raise Interrupted(number)

    @classmethod
    @contextlib.contextmanager
    def held(cls):
        """Between making something and noting that it must be removed no signal may come."""
        cls.depth += 1
        try:
            yield
        finally:
            cls.depth -= 1
        if cls.depth == 0 and cls.pending is not None and not cls.is_ending:
            cls.is_ending = True
            raise Interrupted(cls.pending)


class TrainingError(RuntimeError):
    pass


class Processes:
    """Everything that a run starts. Each is in a process group of its own, and dies with the run."""

    def __init__(self):
        self.started = []

    def start(self, command, **keywords):
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with Signals.held():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **keywords)
            self.started.append(process)
        return process

    def stop(self):
        for number, patience_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 5)):
            running = [process for process in self.started if process.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + patience_s
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.01, deadline - time.monotonic()))
        self.started = []


class Loopback:
    """Stands in for the bed where there is none."""
    aggregator = None
    aggregator_address = "127.0.0.1"
    interface = "lo"

    @staticmethod
    def worker(_rank):
        return None

    @staticmethod
    def worker_address(_rank):
        return "127.0.0.1"


def free_port(kind=socket.SOCK_STREAM):
    """Of those that the system gives to nobody, so it stays free until it is used."""
    draw = random.SystemRandom()
    while True:
        with socket.socket(socket.AF_INET, kind) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", draw.randrange(10_000, 30_000)))
            return probe.getsockname()[1]


def start_in(processes, place, command, **keywords):
    return processes.start(netbed.Netbed.command(place, command) if place else command, **keywords)


def prepare():
    """Installs and builds what is missing; make has done so already."""
    find = "import importlib.util as u; raise SystemExit(not (u.find_spec('torch') and u.find_spec('numpy')))"
    probe = subprocess.run([PYTHON, "-c", find], capture_output=True, check=False)
    if probe.returncode != 0 or not os.path.isdir("/usr/share/datasets/fashion-mnist"):
        if subprocess.run([os.path.join(ROOT, "tools/setup"), "build", "torch"], check=False).returncode != 0:
            raise TrainingError("PyTorch or Fashion-MNIST is missing (Debian: python3-torch dataset-fashion-mnist)")
    if not (os.path.exists(DAEMON) and os.path.exists(LIBRARY)):
        if subprocess.run(["make", "-C", ROOT], check=False).returncode != 0:
            raise TrainingError("the build failed")


def start_aggregator(processes, bed):
    address = f"{bed.aggregator_address}:{free_port()}"
    log = tempfile.TemporaryFile("w+")
    # The bed's bridge copies results for all ranks, as a switch does. On loopback there is nothing that could.
    results = ["--multicast", RESULTS_GROUP] if bed.aggregator else []
    daemon = start_in(processes, bed.aggregator, [DAEMON, "--listen", address, *results], stdout=log, stderr=log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:  # its log says when it listens
        log.seek(0)
        text = log.read()
        if "listening" in text:
            return address
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise TrainingError("switchmld did not start: " + (text.strip() or "it said nothing"))
        time.sleep(0.05)


def start_workers(processes, bed, num_workers, aggregator, program, arguments):
    """The ranks of a Python program of this folder. Rank 0's output is a pipe; each one's errors are in its .log."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SWITCHML_", "MAKE"))}
    environment.update({
        "MASTER_ADDR": bed.worker_address(0), "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_workers),
        "GLOO_SOCKET_IFNAME": bed.interface, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "USE_LIBUV": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1",
        "SWITCHML_AGGREGATOR": aggregator, "SWITCHML_REQUIRE": "1",
        "SWITCHML_LIBRARY": LIBRARY, **KEPT_MEMORY,
        "PYTHONPATH": os.path.join(ROOT, "integrations/pytorch")})
    command = [PYTHON, os.path.join(ROOT, "demo", program), *arguments]
    workers = []
    for rank in range(num_workers):
        log = tempfile.TemporaryFile("w+")
        worker = start_in(processes, bed.worker(rank), command, text=True, stderr=log,
                          env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                          stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL)
        worker.log = log
        workers.append(worker)
    return workers


def lines_of(stream, on_quiet):
    """The lines that come. on_quiet(seconds since the last one) is called each QUIET_S without any."""
    lines, last = queue.Queue(), time.monotonic()

    def read():
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=QUIET_S)
        except queue.Empty:
            quiet_s = time.monotonic() - last
            if quiet_s > SILENT_S:
                return
            on_quiet(quiet_s)
            continue
        if line is None:
            return
        last = time.monotonic()
        yield line


def run_workers(processes, bed, num_workers, aggregator, program, arguments, on_progress, on_quiet=lambda _: None):
    """Runs them to their end. Returns the object with "ranks" that rank 0 printed; what it printed before goes to
    on_progress(state)."""
    workers, result = start_workers(processes, bed, num_workers, aggregator, program, arguments), None
    for line in lines_of(workers[0].stdout, on_quiet):
        if not line.startswith("{"):
            continue
        state = json.loads(line)
        if "ranks" in state:
            result = state
        else:
            on_progress(state)
    errors = []
    for rank, worker in enumerate(workers):
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            errors.append(f"rank {rank} did not end")
            worker.send_signal(signal.SIGABRT)  # its log says where it was
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(5)
            continue
        if worker.returncode != 0:
            errors.append(f"rank {rank} ended with {worker.returncode}")
    if errors or result is None:
        processes.stop()
        texts = []
        for worker in workers:
            worker.log.seek(0)
            texts.append(worker.log.read().strip())
        raise TrainingError(f"{program} {' '.join(arguments)} failed: {', '.join(errors)}\n"
                            + "\n".join(text[-2000:] for text in texts if text))
    return result


def bed_and_aggregator(stack, num_workers, rate, mtu, is_loopback):
    """(processes, bed, the aggregator's address, why it is loopback or ""), until the stack is left; says where all
    of it is. The stack is left by run_to_end(), where no signal can stop the clean-up."""
    prepare()
    why_not = "--loopback was given" if is_loopback else netbed.why_unavailable()
    processes = Processes()
    stack.enter_context(netbed.RaisedPriority())
    with Signals.held():
        if why_not:
            bed = Loopback()
        else:
            netbed.remove_abandoned()
            bed = netbed.Netbed(num_workers, rate, mtu)
            bed.interface = "eth0"
            stack.enter_context(bed)
        stack.callback(processes.stop)
    if why_not:
        print(f"Everything on loopback ({why_not}).", flush=True)
    else:
        print(f"{num_workers} workers, each in a network namespace on a {rate} link (MTU {mtu}); "
              "the aggregator on an unshaped port.", flush=True)
    return processes, bed, start_aggregator(processes, bed), why_not


def run_to_end(name, function):
    """The exit status of a program whose work is function(stack): what it entered there is left whatever comes."""
    Signals.install()
    try:
        with contextlib.ExitStack() as stack:
            try:
                function(stack)
            finally:
                Signals.is_ending = True
    except Interrupted as interrupted:
        print(f"\n{name}: interrupted; everything that was started is gone.", file=sys.stderr)
        return 128 + interrupted.number
    except (TrainingError, netbed.NetbedError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0
