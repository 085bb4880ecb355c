# SPDX-License-Identifier: Apache-2.0
"""p4/pna.p4 in DPDK's pipeline: from .spec to a shared object, and a run of it over packet files (pipeline.c)."""
import os
import subprocess

import frames
from plan import FIRST_RESULT_GROUP, FLOOD_GROUP, words

HERE = os.path.dirname(os.path.abspath(__file__))


def run(arguments, folder, deadline_s=300):
    done = subprocess.run(arguments, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=deadline_s, check=False)
    return done.returncode, done.stdout


def flags(what):
    done = subprocess.run(["pkg-config", what, "libdpdk"], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          check=False)
    return done.stdout.split() if done.returncode == 0 else None


def build(folder, spec, headers):
    """Builds FOLDER/pipeline and FOLDER/switchml.so. headers: the folder lib/pipeline of DPDK's sources, whose private
    headers the generated code includes. Returns what went wrong, or None."""
    include = ["-O1", "-w", "-DALLOW_EXPERIMENTAL_API", *flags("--cflags")]
    for arguments in (["cc", *include, "-o", "pipeline", os.path.join(HERE, "pipeline.c"), *flags("--libs")],
                      ["./pipeline", "--code", spec, "switchml.c"],
                      ["cc", *include, "-I", headers, "-shared", "-fPIC", "-o", "switchml.so", "switchml.c"]):
        status, text = run(arguments, folder)
        if status != 0:
            return f"{' '.join(arguments)}: {text[:2000]}"
    return None


def script(plan, group_of, verdicts):
    """What the control plane does first. group_of(job): the host to which results go."""
    aggregator = plan["aggregator"]
    lines = [f"entry aggregator match {aggregator['ip']:#x} {aggregator['udp_port']:#x} "
             f"action is_ours cpu_port {plan['cpu_port']:#x}",
             f"entry l2 match {aggregator['mac']:#x} action forward port {plan['cpu_port']:#x}"]
    lines += [f"entry ports match {port:#x} action send port {port:#x}" for port in range(plan["num_ports"])]
    lines += [f"mirror {session} {session}" for session in (1, 2, 3)]
    lines.append(f"entry copies match {FLOOD_GROUP:#x} action copy_4 port 0x0")
    for cursor, job in enumerate(plan["jobs"]):
        number, group = job["number"], FIRST_RESULT_GROUP + job["number"]
        host, mask = group_of(job), 0xffff & ~(job["num_slots"] - 1)
        lines += [f"register cursor {cursor} {job['first_chunk'] + job['num_slots']}",
                  f"entry window match {number:#x}/0xffff {job['slot_base']:#x}/{mask:#x} priority 1 action is_inside",
                  f"entry copies match {group:#x} action copy_3 port 0x0"]
        if cursor == 0: # all jobs of a plan have one lane, and one address for results
            lines.append(f"entry replica match {aggregator['udp_port']:#x} "
                         f"action to_member mac {host.mac:#x} ip {host.ip:#x} port {host.udp:#x}")
        for member in job["members"]:
            for turn in (0, 1):
                me, full, last = words(member["rank"], len(job["members"]), turn)
                lines.append(f"entry member match {number:#x} {job['epoch']:#x} {member['rank']:#x} {turn:#x} "
                             f"{member['ip']:#x} {member['udp_port']:#x} {aggregator['udp_port']:#x} "
                             f"action is_member me {me:#x} full {full:#x} last {last:#x} cursor {cursor:#x} "
                             f"group {group:#x} port {member['port']:#x} is_checked {int(job['is_checked']):#x}")
    return "\n".join(lines + [f"show verdicts {verdict}" for verdict in verdicts]) + "\n"


def play(folder, sent, num_ports, text):
    """Runs the packets. Returns (exit status, what it said)."""
    frames.write_pcap(os.path.join(folder, "in.pcap"), list(enumerate(sent)))
    with open(os.path.join(folder, "io"), "w", encoding="ascii") as file:
        file.write("mirroring slots 4 sessions 64\nport in 0 source mempool POOL file in.pcap loop 1 packets 0\n")
        file.writelines(f"port out {port} sink file port{port}_out.pcap\n" for port in range(num_ports))
    with open(os.path.join(folder, "script"), "w", encoding="ascii") as file:
        file.write(text)
    return run(["./pipeline", "./switchml.so", "io", "script"], folder, 60)
