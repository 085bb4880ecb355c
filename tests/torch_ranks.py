# SPDX-License-Identifier: Apache-2.0
"""What the tests of the PyTorch backend share: real ranks on loopback (processes forked from one that has imported
torch), a switchmld where they need one, and what the ranks report."""
import atexit
import contextlib
import ctypes
import datetime
import functools
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import tap
from ports import fixed_port, leave_others
from tap import patience_s

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
# Debian's python3-torch belongs to Debian's python3, whatever comes first in PATH.
PYTHON = os.environ.get("SML_TEST_PYTHON", "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable)
_RANK_LIMIT_S = 120 + int(os.environ.get("SML_TEST_GROUPS", "0")) // 2
PYTHONPATH = os.path.join(ROOT, "integrations/pytorch") + ":" + HERE


def built(*candidates):
    for candidate in candidates:
        if os.path.exists(os.path.join(BUILD, candidate)):
            return os.path.join(BUILD, candidate)
    raise AssertionError(f"{candidates[0]} is not built in {BUILD}")


def library():
    return built("src/lib/libswitchml.so", "lib/libswitchml.so")


def daemon():
    return built("src/switchd/switchmld", "bin/switchmld")


@functools.cache
def torch_major():
    """Of the PyTorch that ranks have, without the time to import it."""
    version = subprocess.run([PYTHON, "-P", "-c", "import importlib.metadata; print(importlib.metadata.version('torch'))"],
                             check=True, text=True, stdout=subprocess.PIPE).stdout
    return int(version.split(".", maxsplit=1)[0])


def freeze(folder):
    """From here on this program and its ranks use copies of the library, of switchmld, of the package and of the tests: a
    long run is of one state, whatever is built or edited beside it."""
    global BUILD, HERE, PYTHONPATH  # pylint: disable=global-statement
    for source, target in ((library(), "build/lib/libswitchml.so"), (daemon(), "build/bin/switchmld")):
        os.makedirs(os.path.join(folder, os.path.dirname(target)))
        shutil.copy(source, os.path.join(folder, target))
    for each in "integrations/pytorch/switchml", "tests", "demo":
        shutil.copytree(os.path.join(ROOT, each), os.path.join(folder, each),
                        ignore=lambda at, names: [name for name in names if not name.endswith(".py")])
    subprocess.run([PYTHON, "-m", "compileall", "-q", folder], check=True)  # ranks would do it, each for itself
    BUILD, HERE = os.path.join(folder, "build"), os.path.join(folder, "tests")
    PYTHONPATH = os.path.join(folder, "integrations/pytorch") + ":" + HERE


class Daemon:
    """A switchmld on a free port of loopback."""

    def __init__(self, *options):
        self.options = options

    def started(self):
        return subprocess.Popen([daemon(), "--listen", self.address, *self.options], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        self.address = f"127.0.0.1:{fixed_port()}"
        self.process = self.started()
        host, port = self.address.split(":")
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return self
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.process.kill()
                    raise AssertionError("switchmld did not start: " + self.process.communicate()[1]) from None
                time.sleep(0.02)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("switchmld did not end on SIGTERM") from None
        finally:
            self.process.communicate()


class Nursery:
    """A process that has imported torch, which takes longer than most tests, and forks the ranks. Each then is a
    process like any: it imports switchml by itself, with its own environment."""

    def __init__(self):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
        environment.update({"PYTHONPATH": PYTHONPATH,
                            "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"})
        self.process = subprocess.Popen([PYTHON, "-P", os.path.abspath(sys.argv[0]), "--nursery", str(theirs.fileno())],
                                        env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.control.settimeout(patience_s(_RANK_LIMIT_S))
        self.has_torch = self.control.recv(16) == b"torch"

    def start(self, case, environments, outputs):
        """One rank for each environment; outputs: two files each. Returns their process numbers."""
        request = json.dumps({"case": case, "environments": environments}).encode()
        socket.send_fds(self.control, [request], [output.fileno() for output in outputs])
        return self.answer(patience_s(_RANK_LIMIT_S))

    def answer(self, timeout_s):
        self.control.settimeout(timeout_s)
        answer = self.control.recv(65536)
        assert answer, "the process that forks ranks has ended"
        return json.loads(answer)

    def end(self):
        self.control.close()
        self.process.wait(patience_s(_RANK_LIMIT_S))


def enter_namespace(name):
    """This process's network is that of a namespace from now on (os.setns is there from Python 3.12 on)."""
    with open(f"/run/netns/{name}", "rb") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


def fork_ranks(control):
    """The nursery's loop. Returns in each rank, with its case, and in the nursery with None: at the end, or without
    torch."""
    try:
        import torch.distributed  # pylint: disable=import-outside-toplevel
        import torch.utils.data  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        return None
    if not torch.distributed.is_available():
        return None
    gc.collect()
    gc.freeze()  # collections in a rank, and that of its end, leave alone what it shares with this process
    control.send(b"torch")
    while True:
        request, outputs, _, _ = socket.recv_fds(control, 1 << 20, 64)
        if not request:
            return None
        request, ranks = json.loads(request), []
        for index, environment in enumerate(request["environments"]):
            ranks.append(os.fork())
            if ranks[-1] == 0:
                os.setsid()
                ctypes.CDLL(None).prctl(1, signal.SIGKILL) # PR_SET_PDEATHSIG: who ends the test ends its ranks too
                os.dup2(outputs[2 * index], 1)
                os.dup2(outputs[2 * index + 1], 2)
                for output in outputs:
                    os.close(output)
                control.close()
                os.environ.clear()
                os.environ.update(environment)
                sys.pycache_prefix, sys.dont_write_bytecode = os.path.join(BUILD, "pycache"), False
                if "NAMESPACE" in environment:
                    enter_namespace(environment["NAMESPACE"])
                return request["case"]
        for output in outputs:
            os.close(output)
        control.send(json.dumps(ranks).encode())
        control.send(json.dumps([os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]).encode())


NURSERY = None


class Ranks:
    """Starts a case on n ranks, in a bed each on a host of its own; wait() gives what each reported (the last line it
    printed, as JSON). A variable whose value is None is not set."""

    def __init__(self, case, num_ranks, aggregator=None, bed=None, **environment):
        base = {name: value for name, value in os.environ.items()
                if not name.startswith(("SWITCHML_", "SLURM_", "OMPI_"))}
        base.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(fixed_port()), "WORLD_SIZE": str(num_ranks),
                     "GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0", "SWITCHML_SHARED_MEMORY": "0",
                     "SWITCHML_LIBRARY": library()})
        if aggregator:
            base["SWITCHML_AGGREGATOR"] = aggregator
        base.update(environment)
        base = {name: value for name, value in base.items() if value is not None}
        self.started = time.monotonic()
        self.outputs = [tempfile.TemporaryFile("w+") for _ in range(2 * num_ranks)]
        of_rank = [{"NAMESPACE": bed.worker(rank)} if bed else {} for rank in range(num_ranks)]
        self.processes = NURSERY.start(case, [{**base, "RANK": str(rank), "LOCAL_RANK": str(rank), **of_rank[rank]}
                                              for rank in range(num_ranks)], self.outputs)

    def wait(self, expect=0, but=()):
        """Every rank must exit with `expect`, those in `but` excepted."""
        results, problems = [], []
        try:
            statuses = NURSERY.answer(max(1, self.started + patience_s(_RANK_LIMIT_S) - time.monotonic()))
        except TimeoutError:
            problems.append("some rank hung")
            for process in self.processes:
                try:
                    os.killpg(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            statuses = NURSERY.answer(10)
        self.took_s = time.monotonic() - self.started
        for rank, status in enumerate(statuses):
            out, err = [output.seek(0) or output.read() for output in self.outputs[2 * rank:2 * rank + 2]]
            if rank not in but and status != expect:
                problems.append(f"rank {rank} exited with {status}\n{out[-2000:]}\n{err[-4000:]}")
            lines = [line for line in out.splitlines() if line.startswith("{")]
            results.append({**(json.loads(lines[-1]) if lines else {}), "stderr": err})
        for output in self.outputs:
            output.close()
        if problems:
            raise AssertionError("\n".join(problems))
        return results


def run_ranks(case, num_ranks, aggregator=None, **environment):
    return Ranks(case, num_ranks, aggregator, **environment).wait()


# ---- What the ranks do ---------------------------------------------------------------------------------

def report(**values):
    print(json.dumps(values), flush=True)


def start(timeout_s=60):
    import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    dist.init_process_group("switchml", timeout=datetime.timedelta(seconds=timeout_s))
    return torch, dist, switchml.torch, dist.get_rank(), dist.get_world_size()


def ends_as_interpreters_do(case):
    """Of a case: its ranks take down the interpreter and torch, which takes longer than most cases."""
    case.ends_as_interpreters_do = True
    return case


def leave(dist, *_held):
    """Ends a rank that has Gloo groups of torch's own, which the caller holds until here: torch 1.13 frees one by joining
    its threads with the interpreter's lock held, and one of them may want that lock to drop the last call's tensors.
    Models hold groups too, which are left here as at any end of a program: rank 0 has a part of the aggregation."""
    dist.destroy_process_group()
    end()


def end():
    """Ends a rank as interpreters do, up to where they begin to free what they hold."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def error_text(function, *arguments, **keywords):
    """The text of what it raises; "" if nothing."""
    try:
        function(*arguments, **keywords)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# ---- A test program ------------------------------------------------------------------------------------

@contextlib.contextmanager
def folder_of_this_program():
    """What this program and its ranks leave in the folder for such files, and torch does, goes with it."""
    with tempfile.TemporaryDirectory(prefix="switchml-torch-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        yield


def main(namespace):
    """Of a test program with these globals: its test_ functions, with its case_ functions for the ranks."""
    global NURSERY  # pylint: disable=global-statement
    if "--nursery" in sys.argv:
        case = fork_ranks(socket.socket(fileno=int(sys.argv[sys.argv.index("--nursery") + 1])))
        if case is not None:
            case = namespace["case_" + case]
            case()
            if not hasattr(case, "ends_as_interpreters_do"):
                end()
        return
    leave_others()
    with folder_of_this_program():
        NURSERY = Nursery()
        try:
            if not NURSERY.has_torch:
                print("1..0 # SKIP PyTorch is not installed (Debian: python3-torch)")
                return
            tap.main(namespace)
        finally:
            NURSERY.end()
