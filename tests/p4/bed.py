# SPDX-License-Identifier: Apache-2.0
"""What stands between hosts in namespaces when a switch sums: BMv2 or DPDK's pipeline, and switchmld in front of it.
Needs root and the tools of docs/p4.md."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
os.environ.setdefault("SWITCHML", os.path.join(BUILD, "src/cli/switchml"))
os.environ.setdefault("SWITCHMLD", os.path.join(BUILD, "src/switchd/switchmld"))
os.environ.setdefault("SWITCHML_MEMBER", os.path.join(BUILD, "tests/member"))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "bench")]
# pylint: disable=wrong-import-position
import check
import dpdk
import netbed
from e2e import PATIENCE, SWITCHMLD, environment, wait_until

MEMBER = os.environ["SWITCHML_MEMBER"]
PIPELINE = os.path.join(BUILD, "src/pipeline/switchml-pipeline")
LANES, LANES_OF_DATA = 32, 31 # the last one is the check word
CONTROL_PORT, RUNTIME, RUNTIME_HOST = 48879, "192.0.2.1", "192.0.2.2"
LEASE_S = 3


class Bmv2:
    name = dataplane = "bmv2"

    @staticmethod
    def why_unavailable():
        return next((f"no {name}" for name, variable in (("p4c-bm2-ss", "P4C_BM2_SS"),
                                                         ("simple_switch", "SIMPLE_SWITCH"))
                     if not check.tool(name, variable)), "")

    def __init__(self, folder):
        self.program = os.path.join(folder, "switchml.json")
        problems = list(check.compile_p4(check.tool("p4c-bm2-ss", "P4C_BM2_SS"), "v1model.p4", LANES, self.program))
        assert not problems, problems

    def command(self, ports, _logs):
        interfaces = [word for number, port in enumerate(ports) for word in ("-i", f"{number}@{port}")]
        return [check.tool("simple_switch", "SIMPLE_SWITCH"), *interfaces, "--thrift-port", "9090", self.program]

    @staticmethod
    def is_up(bed):
        return ":2382 " in bed.inside(bed.bed.bridge, "cat", "/proc/net/tcp", "/proc/net/tcp6") # 9090

    @staticmethod
    def runtime(_logs):
        return f"{RUNTIME}:9090"


class Dpdk:
    name = dataplane = "dpdk-p4"

    @staticmethod
    def why_unavailable():
        if not check.tool("p4c-dpdk", "P4C_DPDK"):
            return "no p4c-dpdk"
        if not os.path.exists(PIPELINE):
            return "no switchml-pipeline: libdpdk-dev was not there when this was built"
        return "" if os.environ.get("P4_DPDK_PIPELINE") else "P4_DPDK_PIPELINE does not name DPDK's lib/pipeline"

    def __init__(self, folder):
        spec = os.path.join(folder, "switchml.spec")
        problems = list(check.compile_p4(check.tool("p4c-dpdk", "P4C_DPDK"), "pna.p4", LANES, spec, "--arch", "pna",
                                         check.PNA_QUIET))
        assert not problems, problems
        self.library = os.path.join(folder, "switchml.so")
        wrong = dpdk.build_library(folder, PIPELINE, spec, self.library, os.environ["P4_DPDK_PIPELINE"])
        assert not wrong, wrong

    def command(self, ports, logs):
        return [PIPELINE, "--control", self.runtime(logs), *(word for port in ports for word in ("--port", port)),
                self.library]

    @staticmethod
    def is_up(bed):
        return "control at" in bed.log("switch")

    @staticmethod
    def runtime(logs):
        return os.path.join(logs, "control")


class Translated(Dpdk):
    """pna.p4 as C that translate.py made of it: needs no tool of P4."""
    name, library = "translated", os.path.join(BUILD, "tests/p4/libp4_machines.so")

    @staticmethod
    def why_unavailable():
        return "" if os.path.exists(Translated.library) else "libp4_machines.so is not built (make check builds it)"

    def __init__(self, _folder):
        pass

    def command(self, ports, logs):
        return [sys.executable, os.path.join(HERE, "soft_switch.py"), self.library, self.runtime(logs), *ports]


SWITCHES = (Bmv2, Dpdk)


class Bed:
    """A network bed whose bridge is such a switch (port 0: the aggregator's host), with switchmld in front of it."""

    def __init__(self, kind, num_workers, has_spare_link=False):
        """has_spare_link: the last host's link is the first one's second one, eth1, from before the switch starts: BMv2
        stops when a link of its goes down."""
        self.kind, self.has_spare_link = kind, has_spare_link
        self.bed = netbed.Netbed(num_workers, rate="none")
        self.processes, self.logs = [], tempfile.TemporaryDirectory(prefix="switchml-p4-")

    def start(self, namespace, command, log=None, **variables):
        # pylint: disable-next=consider-using-with
        out = open(os.path.join(self.logs.name, log), "ab") if log else subprocess.PIPE
        process = subprocess.Popen(self.bed.command(namespace, command), env=environment(**variables), stdout=out,
                                   stderr=subprocess.STDOUT if log else subprocess.PIPE, stdin=subprocess.DEVNULL,
                                   text=True, process_group=0)
        if log:
            out.close()
        self.processes.append(process)
        return process

    def log(self, name):
        with open(os.path.join(self.logs.name, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def inside(self, namespace, *command):
        return subprocess.run(self.bed.command(namespace, command), check=True, capture_output=True, text=True,
                              timeout=60 * PATIENCE).stdout

    def plug(self):
        """The switch's ports instead of the bridge's; BMv2's runtime on a link that no packet of the ranks can take.
        Returns the switch's interfaces."""
        bed, ports = self.bed, ["agg"] + [f"w{rank}" for rank in range(self.bed.num_workers)]
        for port in ports:
            self.inside(bed.bridge, "ip", "link", "set", port, "nomaster")
        self.inside(bed.bridge, "ip", "link", "del", "br0")
        for namespace in [bed.bridge, bed.aggregator] + [bed.worker(rank) for rank in range(bed.num_workers)]:
            for device in ports if namespace == bed.bridge else ["eth0"]: # whole packets, with checksums
                self.inside(namespace, "ethtool", "-K", device, "tx", "off", "gso", "off", "tso", "off")
                self.inside(namespace, "sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6")
        if self.has_spare_link:
            last = bed.worker(bed.num_workers - 1)
            self.inside(last, "ip", "link", "set", "eth0", "netns", bed.worker(0), "name", "eth1")
            self.inside(bed.worker(0), "ip", "link", "set", "eth1", "up")
        self.inside(bed.bridge, "ip", "link", "add", "runtime", "type", "veth", "peer", "name", "runtime", "netns",
                    bed.aggregator)
        for namespace, address in ((bed.bridge, RUNTIME), (bed.aggregator, RUNTIME_HOST)):
            self.inside(namespace, "ip", "addr", "add", f"{address}/30", "dev", "runtime")
            self.inside(namespace, "ip", "link", "set", "runtime", "up")
        self.inside(bed.bridge, "ip", "link", "set", "lo", "up")
        return ports

    def start_daemon(self, log, port=CONTROL_PORT, *arguments):
        daemon = self.start(self.bed.aggregator, [SWITCHMLD, "--listen", f"{self.bed.aggregator_address}:{port}",
                                                  "--switch-format", str(LANES), *arguments], log)
        wait_until(lambda: "listening on" in self.log(log) or daemon.poll() is not None, "switchmld is up")
        assert daemon.poll() is None, self.log(log)
        return daemon

    def start_switch_daemon(self, log="daemon"):
        return self.start_daemon(log, CONTROL_PORT, "--dataplane", self.kind.dataplane, "--switch",
                                 self.kind.runtime(self.logs.name))

    def __enter__(self):
        self.bed.__enter__()
        try:
            ports = self.plug()
            self.switch = self.start(self.bed.bridge, self.kind.command(ports, self.logs.name), "switch")
            wait_until(lambda: self.kind.is_up(self) or self.switch.poll() is not None, "the switch is up")
            assert self.switch.poll() is None, self.log("switch")
            self.daemon = self.start_switch_daemon()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.bed.__exit__(None, None, None)
        self.logs.cleanup()

    def start_ranks(self, command, ranks, port=CONTROL_PORT, of_rank=lambda rank: {}, **variables):
        """command on the hosts `ranks`, as ranks 0, 1, .. of a job. of_rank: more variables of one of them."""
        return [self.start(self.bed.worker(host), command, RANK=rank, WORLD_SIZE=len(ranks),
                           SWITCHML_AGGREGATOR=f"{self.bed.aggregator_address}:{port}",
                           **{**variables, **of_rank(rank)})
                for rank, host in enumerate(ranks)]

    def start_members(self, ranks, of_rank=lambda rank: {}, **variables):
        return self.start_ranks([MEMBER], ranks, of_rank=of_rank, **{"MEMBER_LEASE_MS": LEASE_S * 1000, **variables})


def why_unavailable():
    if not check.tool("ethtool", "ETHTOOL"):
        return "no ethtool"
    return netbed.why_unavailable()
