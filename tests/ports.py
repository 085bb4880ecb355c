# SPDX-License-Identifier: Apache-2.0
"""Ports for tests that need to know one before somebody listens there, and for those that nobody else may call."""
import contextlib
import ctypes
import fcntl
import os
import random
import socket
import struct

_NEW_NETWORK, _SET_FLAGS, _UP = 0x40000000, 0x8914, 1  # CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP


def fixed_port():
    """A port that is free, and stays so until it is used: the system gives none of these to anybody."""
    draw = random.SystemRandom()
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", draw.randrange(10_000, 30_000)))
            return probe.getsockname()[1]


def leave_others():
    """From here on this process, and what it starts, has a loopback of its own, where it may have one (root does). Gloo up to
    2022, that of Debian 12, takes whoever calls first for the rank that it waits for, and then listens no more: a test beside
    this one that calls a daemon of its own that has ended, whose port Gloo has now, would end a group of this one."""
    libc = ctypes.CDLL(None)
    with open("/proc/self/ns/net", "rb") as of_others:
        if os.geteuid() != 0 or libc.unshare(_NEW_NETWORK) != 0:
            return
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as interface:
                fcntl.ioctl(interface, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))
        except OSError:  # a container may allow the one and not the other
            libc.setns(of_others.fileno(), 0)
