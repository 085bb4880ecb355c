#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What switchmld tells a service manager: that it is ready, reads its files again, lives, and ends."""
import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import tempfile

import tap

SWITCHMLD = os.environ["SWITCHMLD"]
PATIENCE_S = 20


def notified(address, name, config):
    """What a daemon told a manager at the socket, from its start, over a reload, to its end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0", "--config", config],
                              env={**os.environ, "NOTIFY_SOCKET": name}, stderr=subprocess.DEVNULL) as daemon:
            told = [manager.recv(4096).decode()]
            daemon.send_signal(signal.SIGHUP)
            told += [manager.recv(4096).decode() for _ in range(2)]
            daemon.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in told[-1]:
                told.append(manager.recv(4096).decode())
            assert daemon.wait(PATIENCE_S) == 0
    return told


def test_service_manager_is_told():
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write("log-level = warning\n")
        path = os.path.join(folder, "notify")
        abstract = f"switchml-manager-test-{os.getpid()}"
        for address, name in [(path, path), ("\0" + abstract, "@" + abstract)]:
            told = notified(address, name, config)
            assert re.match(r"READY=1\nSTATUS=listening on 127\.0\.0\.1:\d+, 1 lanes$", told[0]), told
            assert re.match(r"RELOADING=1\nMONOTONIC_USEC=\d+\nSTATUS=", told[1]) and told[2] == told[0], told


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


def ptrace(request, thread):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, thread, None, None) != 0:
        raise tap.Skip(f"this machine lets nobody trace: {os.strerror(ctypes.get_errno())}")


def test_watchdog_watches_the_thread_that_keeps_the_jobs():
    """The manager hears of life as long as that thread runs, and not from one that only waits for signals."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(folder + "/notify")
        manager.settimeout(PATIENCE_S)
        env = {**os.environ, "NOTIFY_SOCKET": folder + "/notify", "WATCHDOG_USEC": "300000"}
        with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0"], env=env, stderr=subprocess.PIPE,
                              text=True) as daemon:
            try:
                assert manager.recv(4096).startswith(b"READY=1")
                assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
                tasks = f"/proc/{daemon.pid}/task"
                thread, = [int(task) for task in os.listdir(tasks)
                           if open(f"{tasks}/{task}/comm", encoding="utf-8").read() == "sml-aggd\n"]
                ptrace(PTRACE_SEIZE, thread)
                ptrace(PTRACE_INTERRUPT, thread)
                os.waitpid(thread, WALL)
                try:
                    assert any("control_thread_stuck" in line for line in iter(daemon.stderr.readline, "")), "said nothing"
                    manager.setblocking(False) # what it said before the thread stopped
                    with contextlib.suppress(BlockingIOError):
                        while manager.recv(4096):
                            pass
                    manager.settimeout(2)
                    with contextlib.suppress(TimeoutError):
                        raise AssertionError(f"a word of life: {manager.recv(4096)}")
                finally:
                    ptrace(PTRACE_DETACH, thread) # else nobody could end the daemon
                manager.settimeout(PATIENCE_S)
                assert manager.recv(4096) == b"WATCHDOG=1"
            finally:
                daemon.kill()
        env["WATCHDOG_PID"] = "1" # somebody else is to be watched
        with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0"], env=env, stderr=subprocess.DEVNULL) as daemon:
            assert manager.recv(4096).startswith(b"READY=1")
            daemon.send_signal(signal.SIGTERM)
            assert manager.recv(4096).startswith(b"STOPPING=1")


STUCK_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
int open(const char *path, int flags, ...) {
  int (*next)(const char *, int, mode_t) = dlsym(RTLD_NEXT, "open");
  while (strstr(path, ".trace.")) pause();
  return next(path, flags, 0600);
}
int open64(const char *path, int flags, ...) { return open(path, flags); }
"""


def test_a_disk_that_stands_still_keeps_nobody_waiting():
    """With its flight recorder on such a disk the daemon lives, says what it does not write, and ends."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        with open(folder + "/disk.c", "w", encoding="utf-8") as file:
            file.write(STUCK_DISK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder + "/disk.so", folder + "/disk.c", "-ldl"], check=True)
        manager.bind(folder + "/notify")
        manager.settimeout(PATIENCE_S)
        env = {**os.environ, "NOTIFY_SOCKET": folder + "/notify", "WATCHDOG_USEC": "3000000", "LD_PRELOAD": folder + "/disk.so"}
        with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0", "--trace-dir", folder], env=env, stderr=subprocess.PIPE,
                              text=True) as daemon:
            try:
                assert manager.recv(4096).startswith(b"READY=1")
                daemon.send_signal(signal.SIGUSR1)
                assert [manager.recv(4096) for _ in range(2)] == [b"WATCHDOG=1"] * 2
                daemon.send_signal(signal.SIGUSR1)
                assert any("still being written" in line for line in iter(daemon.stderr.readline, "")), "said nothing"
                daemon.send_signal(signal.SIGTERM)
                while manager.recv(4096) == b"WATCHDOG=1":
                    pass
                assert daemon.wait(PATIENCE_S) == 0
            finally:
                daemon.kill()


def test_service_manager_that_is_gone_is_no_failure():
    for name in ["/nowhere/at/all", "no-path", "/" + "x" * 200]:
        with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0"], env={**os.environ, "NOTIFY_SOCKET": name},
                              stderr=subprocess.PIPE, text=True) as daemon:
            line = next(line for line in daemon.stderr if "service_manager_deaf" in line)
            assert name in line, line
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=PATIENCE_S)
            assert daemon.returncode == 0


if __name__ == "__main__":
    tap.main(globals())
