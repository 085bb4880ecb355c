#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Jumbo frames through switchml-pipeline, between two hosts in namespaces. What the program does with a frame does not
depend on its length, so the smallest one will do (forward.spec): no p4c is needed, but root, and P4_DPDK_PIPELINE."""
import os
import subprocess
import sys
import tempfile
import time

import dpdk

HERE = os.path.dirname(os.path.abspath(__file__))
PIPELINE = os.path.join(os.environ.get("SML_BUILD_DIR", os.path.join(HERE, "../../build")), "src/pipeline/switchml-pipeline")
HOSTS, SWITCH = ("sml-jumbo-a", "sml-jumbo-b"), "sml-jumbo-s"
MTU, SIZES, NUM_EACH = 9000, (100, 1472, 3000, 8000, 8972), 20
ECHO = """import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.9.9.2", 7))
while True:
    data, source = s.recvfrom(65536)
    s.sendto(data, source)"""
# IP_MTU_DISCOVER is 10, IP_PMTUDISC_DO 2: nothing is cut into fragments. What is lost is asked for again.
ASK = f"""import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 2)
s.settimeout(1)
for size in {SIZES}:
    for number in range({NUM_EACH}):
        data, tries = bytes([number]) * size, 0
        while tries < 10:
            tries += 1
            s.sendto(data, ("10.9.9.2", 7))
            try:
                if s.recv(65536) == data:
                    break
            except TimeoutError:
                pass
        else:
            sys.exit(f"a datagram of {{size}} bytes did not come back")"""


def why_unavailable():
    if os.geteuid() != 0:
        return "needs root"
    if not os.path.exists(PIPELINE):
        return "no switchml-pipeline: libdpdk-dev was not there when this was built"
    if not os.environ.get("P4_DPDK_PIPELINE") or dpdk.flags("--cflags") is None:
        return "no libdpdk-dev, or P4_DPDK_PIPELINE does not name its sources' lib/pipeline"
    return ""


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def plug():
    for name in (*HOSTS, SWITCH):
        run("ip", "netns", "add", name)
    for number, host in enumerate(HOSTS):
        run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", f"p{number}", "netns", SWITCH)
        for namespace, link in ((host, "eth0"), (SWITCH, f"p{number}")):
            run("ip", "-n", namespace, "link", "set", link, "mtu", str(MTU), "up")
            run("ip", "netns", "exec", namespace, "ethtool", "-K", link, "tx", "off", "gso", "off", "tso", "off")
        run("ip", "-n", host, "addr", "add", f"10.9.9.{number + 1}/24", "dev", "eth0")


def start(namespace, *command, log):
    # pylint: disable-next=consider-using-with
    return subprocess.Popen(["ip", "netns", "exec", namespace, *command], stdout=log, stderr=log)


def is_up(switch, log, deadline_s=60):
    end = time.monotonic() + deadline_s
    while time.monotonic() < end and switch.poll() is None:
        with open(log.name, encoding="utf-8") as file:
            if "control at" in file.read():
                return True
        time.sleep(0.1)
    return False


def problems(folder):
    """Sentences about what did not pass."""
    library, running = os.path.join(folder, "forward.so"), []
    wrong = dpdk.build_library(folder, PIPELINE, os.path.join(HERE, "forward.spec"), library, os.environ["P4_DPDK_PIPELINE"])
    if wrong:
        yield wrong
        return
    with open(os.path.join(folder, "jumbo.log"), "w+", encoding="utf-8") as log:
        try:
            plug()
            running.append(start(SWITCH, PIPELINE, "--control", os.path.join(folder, "control"), "--port", "p0", "--port",
                                 "p1", library, log=log))
            if not is_up(running[0], log):
                yield "switchml-pipeline does not start"
            else:
                running.append(start(HOSTS[1], sys.executable, "-c", ECHO, log=log))
                if start(HOSTS[0], sys.executable, "-c", ASK, log=log).wait(60 * len(SIZES)) != 0:
                    yield "not all came back"
        finally:
            for process in running:
                process.kill()
                process.wait()
            for name in (*HOSTS, SWITCH):
                subprocess.run(["ip", "netns", "del", name], check=False)
        log.seek(0)
        said = log.read()
        if "may be lost" in said or "did not come back" in said:
            yield said


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="switchml-p4-") as place:
        found = [why_unavailable()] if why_unavailable() else list(problems(place))
    print("\n".join(found) or "ok")
    sys.exit(bool(found))
