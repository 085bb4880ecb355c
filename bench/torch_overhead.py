#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a call: the median time of dist.all_reduce() beside that of the C calls under it.

    bench/torch_overhead.py [--ranks 1 2] [--elements 16] [--calls 3000]

Ranks are on this host, in shared memory. The C side is sml_allreduce, _wait and _release of the same job, called with
arguments converted beforehand; the two alternate in blocks of 100, so that both see the same machine. With one rank C
has next to nothing to do: what is left is Python's. Prints one line for each number of ranks.
"""
import argparse
import ctypes
import os
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = 100


def time_each(function, num_calls, times):
    for _ in range(num_calls):
        begin = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - begin)


def measure(num_elements, num_calls):
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    dist.init_process_group("switchml")
    tensor = torch.zeros(num_elements)
    dist.all_reduce(tensor)
    offload = dist.distributed_c10d._get_default_group()._offload
    library, job, address, handle = offload.job.library, offload.job.handle, tensor.data_ptr(), ctypes.c_void_p()
    submit, wait, release, out = (library.sml_allreduce, library.sml_operation_wait, library.sml_operation_release,
                                  ctypes.byref(handle))

    def call_c():
        submit(job, address, address, num_elements, 0, 0, None, out)
        assert wait(handle, 10_000_000_000) == 0
        release(handle)

    python_ns, c_ns = [], []
    for _ in range(num_calls // BLOCK):
        time_each(lambda: dist.all_reduce(tensor), BLOCK, python_ns)
        time_each(call_c, BLOCK, c_ns)
    assert switchml.torch.stats()["fallback_calls"] == 0
    if dist.get_rank() == 0:
        whole, below = statistics.median(python_ns) / 1000, statistics.median(c_ns) / 1000
        print(f"ranks {dist.get_world_size()}, {num_elements} elements: dist.all_reduce {whole:.1f} us, "
              f"C calls {below:.1f} us, Python {whole - below:.1f} us (medians of {num_calls})", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--elements", type=int, default=16)
    parser.add_argument("--calls", type=int, default=3000)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments.elements, arguments.calls)
        return
    for num_ranks in arguments.ranks:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "USE_LIBUV": "0",
                       "WORLD_SIZE": str(num_ranks), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                       "SWITCHML_REQUIRE": "1", "PYTHONPATH": os.path.join(ROOT, "integrations/pytorch")}
        command = [sys.executable, "-P", __file__, "--elements", str(arguments.elements), "--calls",
                   str(arguments.calls)]
        ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(num_ranks)]
        if any([rank.wait() for rank in ranks]):
            sys.exit("torch_overhead: a rank failed")


if __name__ == "__main__":
    main()
