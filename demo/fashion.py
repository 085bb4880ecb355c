# SPDX-License-Identifier: Apache-2.0
"""What the ranks of the demo and of the trainings share: Fashion-MNIST, counters of the network's side, a digest."""
import gzip
import hashlib
import os
import re
import subprocess
import sys

import numpy
import torch

DATA = "/usr/share/datasets/fashion-mnist"
NUM_TEST_IMAGES = int(os.environ.get("SML_DEMO_TEST_IMAGES", "10000"))  # all; a test of the demo wants fewer


def read(kind, num_samples):
    """Images as rows of bytes and labels, from the IDX files of Debian's dataset-fashion-mnist."""
    with gzip.open(f"{DATA}/{kind}-images-idx3-ubyte.gz") as file:
        images = numpy.frombuffer(file.read(16 + num_samples * 784), numpy.uint8, offset=16).reshape(-1, 784)
    with gzip.open(f"{DATA}/{kind}-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(8 + num_samples), numpy.uint8, offset=8)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(int))


def normal(images):
    """As floats of mean 0 and deviation 1."""
    return (images.float() / 255 - 0.286) / 0.353


def load(kind, num_samples):
    """Images as float rows, and labels."""
    images, labels = read(kind, num_samples)
    return normal(images), labels


class Counters:
    """What this worker has sent and sent again over one backend, from the network's side."""

    def __init__(self, backend, interface, group=None):
        self.backend, self.interface, self.group = backend, interface, group
        self.totals, self.before = {}, self._read()

    def _read(self):
        values = {}
        if self.backend == "switchml":
            import switchml.torch  # pylint: disable=import-outside-toplevel
            stats = switchml.torch.stats(self.group)
            values = {"sent_bytes": stats.get("tx_bytes", 0), "library_bytes": stats.get("tx_bytes", 0),
                      "retransmissions": stats.get("retransmissions", 0),
                      "offloaded_calls": stats["offloaded_calls"], "fallback_calls": stats["fallback_calls"]}
        if self.interface != "lo":  # in a namespace of its own the counters are this worker's alone
            # The shaper counts the headers of every segment, the interface those of a segmented packet once.
            shaper = subprocess.run(["tc", "-s", "qdisc", "show", "dev", self.interface], capture_output=True,
                                    text=True, check=True).stdout
            values["sent_bytes"] = int(re.search(r"Sent (\d+) bytes", shaper).group(1))
            if self.backend == "gloo":
                with open("/proc/net/snmp", encoding="ascii") as file:
                    names, numbers = [line.split() for line in file if line.startswith("Tcp:")]
                values["retransmissions"] = int(numbers[names.index("RetransSegs")])
        return values

    def resume(self):
        """What was sent since the last pause() was another backend's."""
        self.before = self._read()

    def pause(self):
        for name, value in self._read().items():
            self.totals[name] = self.totals.get(name, 0) + value - self.before[name]

    def since_start(self):
        self.pause()
        self.resume()
        return self.totals


def digest(model):
    """Of all parameters, bit by bit."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def leave(backend):
    """Ends a rank whose work is done. torch 1.13 frees a Gloo group by joining its threads with the interpreter's lock
    held; one of them may want that lock to drop the last call's tensors, and then the process never ends."""
    if backend == "gloo":
        sys.stdout.flush()
        os._exit(0)
    torch.distributed.destroy_process_group()
