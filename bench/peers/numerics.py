#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""numerics.py gloo|openmpi [FILE RANKS ELEMENTS CUTS [rank]]: the peers of `switchml bench numerics`, which has this text
inside. FILE holds the float32 gradients of all ranks, and behind them room for their sum by each list of CUTS: elements of
bucket after bucket, as JSON. Without FILE: exits with 0 if the library is here."""
import ctypes
import ctypes.util
import datetime
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile


class Gloo:
    def __init__(self, rank, size, folder):
        import torch  # pylint: disable=import-outside-toplevel
        torch.set_num_threads(1)
        self.torch = torch
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size,
                                             timeout=datetime.timedelta(seconds=60))

    def sum(self, memory, first, count):
        self.torch.distributed.all_reduce(self.torch.frombuffer(memory, dtype=self.torch.float32, offset=4 * first,
                                                                count=count))


class OpenMPI:
    """By its C functions: MPI_COMM_WORLD and the like are addresses of its objects."""

    def __init__(self):
        self.mpi = ctypes.CDLL(ctypes.util.find_library("mpi"), mode=ctypes.RTLD_GLOBAL)
        self.handles = [ctypes.byref(ctypes.c_char.in_dll(self.mpi, f"ompi_mpi_{name}"))
                        for name in ("float", "op_sum", "comm_world")]
        self.mpi.MPI_Init(None, None)

    def sum(self, memory, first, count):
        data = (ctypes.c_float * count).from_buffer(memory, 4 * first)
        in_place = ctypes.c_void_p(1)
        if self.mpi.MPI_Allreduce(in_place, data, count, *self.handles) != 0:
            raise SystemExit("MPI_Allreduce failed")


def sum_all(library, path, rank, num_ranks, num_elems, cuts):
    with open(path, "r+b") as file:
        for which, counts in enumerate(cuts):
            own = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            first = rank * num_elems
            for count in counts:
                library.sum(own, first, count)
                first += count
            if rank == 0:
                file.seek(4 * (num_ranks + which) * num_elems)
                file.write(memoryview(own)[:4 * num_elems])


def run_gloo(path, num_ranks, num_elems, cuts):
    import torch.distributed  # pylint: disable=import-outside-toplevel,unused-import  # once, ahead of the processes
    pids = []
    with tempfile.TemporaryDirectory(prefix="switchml-bench-") as folder:
        for rank in range(num_ranks):
            pids.append(os.fork())
            if pids[-1] == 0:
                ctypes.CDLL(None).prctl(1, 9)  # it ends with its parent
                sum_all(Gloo(rank, num_ranks, folder), path, rank, num_ranks, num_elems, cuts)
                os._exit(0)
        return all([os.waitpid(pid, 0)[1] == 0 for pid in pids])


def mpirun():
    return shutil.which("mpirun.openmpi") or shutil.which("mpirun")


def run_openmpi(arguments, num_ranks):
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "PMIX_MCA_gds": "hash", "OMPI_MCA_mpi_yield_when_idle": "1"}
    command = [mpirun(), "-n", str(num_ranks), "--host", f"localhost:{num_ranks}", "--oversubscribe", "--bind-to", "none",
               sys.executable, "-c", sys.argv[0], *arguments, "rank"]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def is_here(name):
    if name == "openmpi":
        found = mpirun() and ctypes.util.find_library("mpi")
        return found and re.search("Open MPI|OpenRTE", subprocess.run([mpirun(), "--version"], capture_output=True, text=True,
                                                                      check=False).stdout)
    import torch.distributed  # pylint: disable=import-outside-toplevel
    return torch.distributed.is_available() and hasattr(torch, "frombuffer")


def main(name, *arguments):
    if not arguments:
        return is_here(name)
    path, num_ranks, num_elems, cuts = arguments[0], int(arguments[1]), int(arguments[2]), json.loads(arguments[3])
    if name == "gloo":
        return run_gloo(path, num_ranks, num_elems, cuts)
    if len(arguments) == 4:
        return run_openmpi([name, *arguments], num_ranks)
    library = OpenMPI()
    sum_all(library, path, int(os.environ["OMPI_COMM_WORLD_RANK"]), num_ranks, num_elems, cuts)
    library.mpi.MPI_Finalize()
    return True


sys.exit(0 if main(*sys.argv[1:]) else 1)
