# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node for a test: its controller and its node, with a configuration, state and ports of their own, and
without munge (auth/none). Everything is on 127.0.0.1."""
import os
import re
import shutil
import socket
import subprocess
import tempfile

import e2e
import ports
import tap

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol")
NUM_CPUS = 8  # told, not counted: ranks are more than this machine may have
CONFIGURATION = """ClusterName=switchml
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmdPort={node_port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,defer_batch
CommunicationParameters=NoCtldInAddrAny
MpiDefault=none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """As a context manager it is up, and gone at the end."""

    def __init__(self):
        missing = [program for program in PROGRAMS if not shutil.which(program, path=self._path())]
        if missing:
            raise tap.Skip(f"{missing[0]} is not installed (Debian: slurm-wlm)")
        if os.geteuid() != 0:
            raise tap.Skip("a node of Slurm needs root")
        self.folder = tempfile.TemporaryDirectory(prefix="switchml-slurm-")
        for name in ("state", "spool"):
            os.mkdir(os.path.join(self.folder.name, name))
        path = os.path.join(self.folder.name, "slurm.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=self.folder.name,
                                            control_port=ports.fixed_port(), node_port=ports.fixed_port(),
                                            cpus=NUM_CPUS))
        self.variables = {"SLURM_CONF": path, "PATH": self._path()}
        self.daemons = []

    @staticmethod
    def _path():
        return os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"

    def _start(self, *command):
        log = open(os.path.join(self.folder.name, command[0] + ".log"), "w", encoding="utf-8")
        self.daemons.append(subprocess.Popen(command, env=e2e.environment(**self.variables), stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log))
        log.close()

    def text(self):
        """The logs."""
        texts = []
        for name in ("slurmctld.log", "slurmd.log"):
            with open(os.path.join(self.folder.name, name), encoding="utf-8", errors="replace") as file:
                texts.append(file.read()[-2000:])
        return "\n".join(texts)

    def run(self, *command, seconds=60, **variables):
        """What it wrote; it must succeed."""
        result = subprocess.run(list(map(str, command)), env=e2e.environment(**self.variables, **variables), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                timeout=seconds * e2e.PATIENCE, cwd=self.folder.name)
        assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout[-4000:]}\n{self.text()}"
        return result.stdout

    def batch(self, *words, **variables):
        """Submits a batch job; what it wrote. It must succeed. `sbatch --wait` looks too seldom."""
        log = os.path.join(self.folder.name, "batch.log")
        number = self.run("sbatch", "--parsable", "-o", log, *words, **variables).strip()

        def state():
            return re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", number)).group(1)
        e2e.wait_until(lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"),
                       f"batch job {number} ended", 60)
        with open(log, encoding="utf-8") as file:
            text = file.read()
        assert state() == "COMPLETED", f"{words}: {state()}\n{text}\n{self.text()}"
        return text

    def _is_idle(self):
        for daemon in self.daemons:
            assert daemon.poll() is None, f"{daemon.args[0]} ended with {daemon.returncode}\n{self.text()}"
        result = subprocess.run(["scontrol", "show", "node"], env=e2e.environment(**self.variables), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return "State=IDLE " in result.stdout

    def __enter__(self):
        self._start("slurmctld", "-D", "-c")
        self._start("slurmd", "-D")
        try:
            e2e.wait_until(self._is_idle, "the node is idle", 30)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):  # the node first: it ends its steps
            daemon.terminate()
            try:
                daemon.wait(10 * e2e.PATIENCE)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.folder.cleanup()
