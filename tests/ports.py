# SPDX-License-Identifier: Apache-2.0
"""Ports for tests that need to know one before somebody listens there."""
import contextlib
import random
import socket


def fixed_port():
    """A port that is free, and stays so until it is used: the system gives none of these to anybody."""
    draw = random.SystemRandom()
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", draw.randrange(10_000, 30_000)))
            return probe.getsockname()[1]
