# SPDX-License-Identifier: Apache-2.0
"""What the library makes of arrays: sums by the PyTorch backend, in a process a rank, without an aggregator."""
import multiprocessing
import os
import sys
import time

import numpy

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(ROOT, "demo"))
import ranks as demo_ranks  # noqa: E402  # pylint: disable=wrong-import-position  # demo/ranks.py
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
LIMIT_S = 300


def by_library(tensors, folder, **variables):
    """The sums of tensors (each ranks x elements of float32) over ranks, each tensor by itself."""
    ranks = len(tensors[0])
    numpy.savez(os.path.join(folder, "in.npz"), *tensors)
    library = [path for path in (os.path.join(BUILD, each, "libswitchml.so") for each in ("lib", "src/lib"))
               if os.path.exists(path)]
    if not library:
        raise SystemExit(f"the library is not built in {BUILD}: make")
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(demo_ranks.free_port()), "WORLD_SIZE": str(ranks),
                   "SWITCHML_LIBRARY": library[0], "SWITCHML_SUMMARY": "0", "SWITCHML_REQUIRE": "1", "USE_LIBUV": "0", **variables}
    fork = multiprocessing.get_context("fork")  # the caller may have imported torch, which takes seconds
    started = [fork.Process(target=rank_main, args=(folder, {**environment, "RANK": str(rank)})) for rank in range(ranks)]
    try:
        for each in started:
            each.start()
        deadline = time.monotonic() + LIMIT_S
        for each in started:
            each.join(max(0, deadline - time.monotonic()))
        statuses = [each.exitcode for each in started]
    finally:
        for each in started:
            if each.pid:
                each.kill()
    if any(status != 0 for status in statuses):
        raise SystemExit(f"ranks ended with {statuses}")
    with numpy.load(os.path.join(folder, "out.npz")) as found:
        return [found[name] for name in found.files]


def rank_main(folder, environment):
    os.environ.update(environment)
    sys.path.insert(0, os.path.join(ROOT, "integrations/pytorch"))
    import torch  # pylint: disable=import-outside-toplevel
    import switchml.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    torch.distributed.init_process_group("switchml")
    rank = torch.distributed.get_rank()
    with numpy.load(os.path.join(folder, "in.npz")) as tensors:
        sums = [torch.from_numpy(tensors[name][rank].copy()) for name in tensors.files]
    for each in sums:
        torch.distributed.all_reduce(each)
    if rank == 0:
        numpy.savez(os.path.join(folder, "out.npz"), *[each.numpy() for each in sums])
    torch.distributed.destroy_process_group()
    switchml.process.Process.at_exit()  # a forked rank ends without it, and others may wait for what this one adds up
