# SPDX-License-Identifier: Apache-2.0
"""What a measurement has to know of the machine: what it is, who else works on it, how much CPU time went where."""
import contextlib
import ctypes
import os
import platform
import resource
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")


def _first(path, key):
    try:
        with open(path, encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "unknown")
    except OSError:
        return "unknown"


def _version(*command):
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "not installed"
    return text.strip().splitlines()[0] if text.strip() else "not installed"


def _package(name):
    return _version("dpkg-query", "-W", "-f", "${Version}", name)


def facts(root):
    """Of this machine and these sources, for the report."""
    flags = set(_first("/proc/cpuinfo", "flags").split())
    load = os.getloadavg()
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "vector": next((name for name in ("avx512f", "avx2", "asimd") if name in flags), "none"),
        "is_virtual": "hypervisor" in flags,
        "memory_MiB": int(_first("/proc/meminfo", "MemTotal").split()[0]) // 1024,
        "kernel": platform.release(),
        "load_before": [round(each, 2) for each in load],
        "commit": _version("git", "-C", root, "describe", "--always", "--dirty"),
        "openmpi": _package("openmpi-bin"),
        "gloo": _package("libgloo0"),
        "compiler": _version("cc", "--version"),
    }


def busy_s():
    """CPU seconds so far of all cores: of processes, with what the host of this machine stole; of interrupts, which
    this kernel may count for no process, though packets are received and token buckets emptied there."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + steal) / TICKS, (irq + softirq) / TICKS


def threads_cpu_s(pid):
    """CPU seconds of a process, all of its threads that live."""
    total_ns = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total_ns += int(file.read().split()[0])
    return total_ns / 1e9


def adopt_orphans():
    """Makes what Open MPI's daemons leave behind children of this process, so that their CPU time is known."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def reap_orphans(known_pids, deadline):
    """Waits for children that nobody here started, which end by themselves, until there is none or the deadline."""
    while time.monotonic() < deadline:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            orphans = set(map(int, file.read().split())) - set(known_pids)
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def own_cpu_s(pids):
    """CPU seconds of this process, of the children that ended, and of those that run."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for pid in pids:
        try:
            total += threads_cpu_s(pid)
        except OSError:
            pass
    return total


class ForeignLoad:
    """How many cores others kept busy while something was measured, and how many the kernel's interrupts:

        with ForeignLoad(pids) as load: ...
        load.cores, load.interrupt_cores
    """

    def __init__(self, pids, clock):
        self.pids, self.clock, self.cores = pids, clock, 0.0
        self.start, self.interrupt_cores = None, 0.0

    def __enter__(self):
        self.start = self._read()
        return self

    def __exit__(self, *_):
        time_s, all_s, interrupts_s, own_s = (end - begin for begin, end in zip(self.start, self._read()))
        self.cores = max(0.0, (all_s - own_s) / max(time_s, 1e-3))
        self.interrupt_cores = interrupts_s / max(time_s, 1e-3)

    def _read(self):
        return (self.clock(), *busy_s(), own_cpu_s(self.pids()))
