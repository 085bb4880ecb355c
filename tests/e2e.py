# SPDX-License-Identifier: Apache-2.0
"""What the tests of real processes share: where the commands are, and their starting and ending.

SWITCHML and SWITCHMLD name the executables. Everything runs on the loopback interface.
"""
import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time

SWITCHML = os.environ.get("SWITCHML", "switchml")
SWITCHMLD = os.environ.get("SWITCHMLD", "switchmld")
# Sanitizers and busy machines: everything that waits is multiplied by this.
PATIENCE = float(os.environ.get("SWITCHML_TEST_PATIENCE", "1"))
MARK = f"SWITCHML_E2E_MARK={os.getpid()}"


def environment(**more):
    env = {name: value for name, value in os.environ.items()
           if not re.match(r"SWITCHML_(?!TEST)|RANK$|WORLD_SIZE$", name)}
    env[MARK.split("=")[0]] = MARK.split("=")[1]
    env["SWITCHML_SHARED_MEMORY"] = "0"  # what is tested is the network, unless `more` says otherwise
    env.update({name: str(value) for name, value in more.items()})
    return env


def run_bench(*arguments, timeout=60, env=None, stdout=subprocess.PIPE):
    """Exit status, standard output, standard error of `switchml bench ARGUMENTS`."""
    process = subprocess.run([SWITCHML, "bench", *arguments], env=env or environment(), text=True, check=False,
                             stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                             timeout=timeout * PATIENCE)
    return process.returncode, process.stdout, process.stderr


def bench_json(*arguments, **more):
    """The report of a run that must succeed."""
    status, out, err = run_bench(*arguments, "--json", **more)
    assert status == 0, f"{arguments}: exit status {status}\n{out}{err}"
    report = json.loads(out)
    for result in report["results"]:
        assert result["wrong"] == 0, result
        assert result["max_error"] <= result["max_error_bound"], result
    return report


def wait_until(claim, what, seconds=10):
    deadline = time.monotonic() + seconds * PATIENCE
    while not claim():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def status(address):
    """What the aggregator there says of itself and its jobs."""
    process = subprocess.run([SWITCHML, "status", address, "--json", "--interval", "0"], text=True, env=environment(),
                             stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30 * PATIENCE)
    assert process.stdout, process.stderr
    return json.loads(process.stdout)


def wait_completes(address, job_name):
    """Until a job of that name has completed an operation."""
    wait_until(lambda: any(job["name"] == job_name and job["operations_completed"] > 0 for job in status(address)["jobs"]),
               f"job {job_name} sums", 60)


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def marked_processes():
    """Processes that this test program started, directly or not, and that still run."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as data:
                if MARK.encode() in data.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


@atexit.register
def kill_marked_processes():
    """After a failed test: nothing of it may go on."""
    for pid in marked_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Daemon:
    """A switchmld on a port of its choice. stderr: where its log goes instead of to the file that text() reads."""

    def __init__(self, *arguments, env=None, stderr=None):
        self.directory = tempfile.TemporaryDirectory(prefix="switchml-e2e-")
        self.port_file = os.path.join(self.directory.name, "port")
        self.log = open(os.path.join(self.directory.name, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [SWITCHMLD, "--listen", "127.0.0.1:0", "--port-file", self.port_file, *arguments],
            env=env or environment(), stdin=subprocess.DEVNULL, stdout=self.log, stderr=stderr or self.log)
        wait_until(self.read_address, "switchmld wrote its address")
        self.address = self.read_address()
        self.port = int(self.address.rsplit(":", 1)[1])

    def read_address(self):
        assert self.process.poll() is None, f"switchmld ended: {self.text()}"
        with contextlib.suppress(OSError), open(self.port_file, encoding="utf-8") as file:
            return file.read().strip()
        return None

    def text(self):
        self.log.flush()
        with open(self.log.name, encoding="utf-8", errors="replace") as file:
            return file.read()

    def is_alive(self):
        return self.process.poll() is None

    def udp_ports(self):
        """Ports of the daemon's UDP sockets."""
        inodes = set()
        for name in os.listdir(f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{self.process.pid}/fd/{name}")
                inodes.update(re.findall(r"socket:\[(\d+)\]", link))
        ports = []
        with open("/proc/net/udp", encoding="utf-8") as table:
            for line in table.readlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    ports.append(int(fields[1].split(":")[1], 16))
        return ports

    def wait_busy(self):
        """Until jobs have made it work for a while: operations are going on."""
        start = cpu_ticks(self.process.pid)
        wait_until(lambda: cpu_ticks(self.process.pid) > start + 5, "the aggregator works", 20)

    def stop(self):
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(10 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = "killed: it did not end within 10 s of SIGTERM"
        text = self.text()
        self.log.close()
        self.directory.cleanup()
        return status, text

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        status, text = self.stop()
        assert kind is not None or status == 0, f"switchmld ended with {status}\n{text}"


class Worker:
    """One rank: `switchml bench` without --local."""

    def __init__(self, address, rank, world_size, *arguments, **env):
        variables = {"RANK": rank, "WORLD_SIZE": world_size, **env}
        if address:
            variables["SWITCHML_AGGREGATOR"] = address
        self.rank = rank
        self.process = subprocess.Popen([SWITCHML, "bench", *arguments], env=environment(**variables), text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)

    def finish(self, seconds=60):
        """Exit status, standard output, standard error."""
        try:
            out, err = self.process.communicate(timeout=seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"rank {self.rank} did not end within {seconds} s: {err}") from None
        return self.process.returncode, out, err

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def workers(address, world_size, *arguments, **env):
    """world_size ranks; whatever is left of them is killed at the end."""
    ranks = [Worker(address, rank, world_size, *arguments, **env) for rank in range(world_size)]
    try:
        yield ranks
    finally:
        for worker in ranks:
            worker.kill()


def said(worker_rank, err):
    """Standard error without the prefix that names the speaker."""
    return err.replace(f"switchml bench: rank {worker_rank}:", "switchml bench:")
