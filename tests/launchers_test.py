#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that real launchers start: mpirun of Open MPI and of MPICH with a host file, Slurm's srun and sbatch, and the
examples. Each rank finds its number in the launcher's variables, says which it was, and sums through an aggregator,
which its own counters show."""
import os
import re
import shutil
import subprocess
import tempfile

import e2e
import openmpi
import ports
import slurm
import tap
import torch_ranks

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(os.path.dirname(HERE), "examples")
MEMBER = os.environ.get("SWITCHML_MEMBER", "member")
NUM_OPERATIONS, NUM_ELEMS = 4, 20000
FOLDER = tempfile.TemporaryDirectory(prefix="switchml-launchers-")


def variables(daemon, **more):
    return {"SWITCHML_AGGREGATOR": daemon.address, "SWITCHML_DEBUG": "INFO", "MEMBER_OPERATIONS": NUM_OPERATIONS,
            "MEMBER_ELEMENTS": NUM_ELEMS, "MEMBER_STATS": 1, **more}


def check_ranks(out, size, source):
    """All ranks were found where they should be, got the right sums, and sent all of their tensors."""
    if source:
        found = sorted(re.findall(r"rank (\d+) of (\d+), by (\w+)", out))
        assert found == [(str(rank), str(size), source) for rank in range(size)], f"{found}\n{out}"
    assert len(re.findall(rf"^\d+ done {NUM_OPERATIONS}$", out, re.MULTILINE)) == size, out
    sent = [int(number) for number in re.findall(r"^\d+ packets (\d+) ", out, re.MULTILINE)]
    least = NUM_OPERATIONS * NUM_ELEMS * 4 // 65536
    assert len(sent) == size and all(number >= least for number in sent), f"{sent}\n{out}"


def launch(*command, **env):
    """What it wrote; it must succeed."""
    result = subprocess.run(list(map(str, command)), env=e2e.environment(**env), text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60 * e2e.PATIENCE)
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout[-4000:]}"
    return result.stdout


def need(program, package):
    if not shutil.which(program):
        raise tap.Skip(f"{program} is not installed (Debian: {package})")


def host_file(line):
    path = os.path.join(FOLDER.name, "hosts")
    with open(path, "w", encoding="utf-8") as file:
        file.write(line + "\n")
    return path


def test_openmpi_with_a_host_file():
    need("mpirun.openmpi", "openmpi-bin")
    with e2e.Daemon() as daemon:
        out = launch("mpirun.openmpi", "--hostfile", host_file("localhost slots=3"), "-n", 3, MEMBER,
                     **openmpi.variables(FOLDER.name), **variables(daemon))
    check_ranks(out, 3, "OMPI_COMM_WORLD_RANK")


def test_mpich_with_a_host_file():
    need("mpirun.mpich", "mpich")
    with e2e.Daemon() as daemon:
        out = launch("mpirun.mpich", "-f", host_file("localhost:3"), "-n", 3, MEMBER, **variables(daemon))
    check_ranks(out, 3, "PMI_RANK")


def test_slurm():
    """Tasks of a step; a step of fewer tasks than the allocation; Open MPI's mpirun in an allocation, whose word
    counts more; a batch script, which is none of its tasks."""
    with slurm.Slurm() as cluster, e2e.Daemon() as daemon:
        check_ranks(cluster.run("srun", "-n", 4, MEMBER, **variables(daemon)), 4, "SLURM_PROCID")
        script = os.path.join(FOLDER.name, "steps")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{e2e.SWITCHML} bench --sizes 4 2>&1 | head -n 3\nset -e\nsrun -n 2 {MEMBER}\n"
                       f"echo next\nif command -v mpirun.openmpi; then mpirun.openmpi -n 3 {MEMBER}; fi\n")
        out = cluster.batch("-n", 4, script, **openmpi.variables(FOLDER.name), **variables(daemon))
        steps, mpi = out.split("next\n")
        assert "no launcher says which rank this is" in steps, steps
        check_ranks(steps, 2, "SLURM_PROCID")
        if mpi.strip():
            check_ranks(mpi, 3, "OMPI_COMM_WORLD_RANK")


def test_example_for_slurm():
    with slurm.Slurm() as cluster:
        cluster.variables["PATH"] = os.path.dirname(e2e.SWITCHMLD) + ":" + cluster.variables["PATH"]
        out = cluster.batch("--nodes", 1, "--ntasks-per-node", 3, os.path.join(EXAMPLES, "slurm/train.sbatch"), MEMBER,
                            MEMBER_OPERATIONS=NUM_OPERATIONS, MEMBER_ELEMENTS=NUM_ELEMS, MEMBER_STATS=1)
    check_ranks(out, 3, None)


def test_example_for_mpirun():
    need("mpirun.openmpi", "openmpi-bin")
    folder = os.path.join(FOLDER.name, "bin")
    os.mkdir(folder)
    os.symlink(shutil.which("mpirun.openmpi"), os.path.join(folder, "mpirun"))
    path = ":".join([folder, os.path.dirname(e2e.SWITCHMLD), os.environ["PATH"]])
    env = {**openmpi.variables(FOLDER.name), "MEMBER_OPERATIONS": NUM_OPERATIONS, "MEMBER_ELEMENTS": NUM_ELEMS,
           "MEMBER_STATS": 1, "PATH": path, "MASTER_PORT": ports.fixed_port()}
    check_ranks(launch(os.path.join(EXAMPLES, "mpirun/train"), 3, MEMBER, **env), 3, None)


# What the example calls of Ray: N processes in a group over gloo.
RAY = {"__init__": "import os\ndef init(runtime_env):\n    os.environ.update(runtime_env['env_vars'])\n",
       "train/__init__": "import collections\nScalingConfig = collections.namedtuple('ScalingConfig', 'num_workers')\n",
       "train/torch": """import os, torch, torch.multiprocessing
def prepare_model(model):
    return torch.nn.parallel.DistributedDataParallel(model)
def work(rank, train, size):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    train()
class TorchTrainer:
    def __init__(self, train, scaling_config):
        self.train, self.size = train, scaling_config.num_workers
    def fit(self):
        torch.multiprocessing.start_processes(work, (self.train, self.size), self.size, start_method="fork")
"""}


def test_example_for_ray():
    """With a stand-in for Ray, which Debian does not have."""
    found = subprocess.run([torch_ranks.PYTHON, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode != 0:
        raise tap.Skip("PyTorch is not installed (Debian: python3-torch)")
    for name, text in RAY.items():
        path = os.path.join(FOLDER.name, "ray-standin/ray", name + ".py")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    with torch_ranks.Daemon() as daemon:
        out = launch(torch_ranks.PYTHON, os.path.join(EXAMPLES, "ray/train.py"), SWITCHML_AGGREGATOR=daemon.address,
                     SWITCHML_LIBRARY=torch_ranks.library(), SWITCHML_SHARED_MEMORY=0, GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=ports.fixed_port(), USE_LIBUV=0,
                     PYTHONPATH=os.path.join(FOLDER.name, "ray-standin") + ":" + os.path.join(torch_ranks.ROOT, "integrations/pytorch"))
    ranks = re.findall(r"rank (\d): loss 0\.\d+, (\d+) calls through SwitchML", out)
    assert sorted(rank for rank, _ in ranks) == ["0", "1", "2", "3"] and min(int(calls) for _, calls in ranks) >= 100, out


if __name__ == "__main__":
    try:
        tap.main(globals())
    finally:
        FOLDER.cleanup()
