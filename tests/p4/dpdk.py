# SPDX-License-Identifier: Apache-2.0
"""p4/pna.p4 in DPDK's pipeline: from .spec to a shared object, and a run of it over packet files (pipeline.c).

p4c-dpdk writes what stands in the shared control as _TABLE and _ACTION_0, and registers by the path to them."""
import os
import subprocess

import frames
from frames import Host
from plan import FIRST_RESULT_GROUP, FLOOD_GROUP, NUM_VERDICTS, cells_to_write, words, wrong_counts

HERE = os.path.dirname(os.path.abspath(__file__))
CURSOR, PHASE, VERDICTS = "aggregate_grant_cursor", "aggregate_state_cell_phase", "verdicts_0"
GROUP = Host(0x01005e010203, frames.ip("239.1.2.3"), 7000) # where results go: there is no egress


def run(arguments, folder, deadline_s=300):
    done = subprocess.run(arguments, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=deadline_s, check=False)
    return done.returncode, done.stdout


def flags(what):
    done = subprocess.run(["pkg-config", what, "libdpdk"], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          check=False)
    return done.stdout.split() if done.returncode == 0 else None


INCLUDE = ["-w", "-DALLOW_EXPERIMENTAL_API"] # for DPDK's headers


def build_library(folder, maker, spec, library, headers):
    """maker: a program that makes C of a .spec with --code. headers: the folder lib/pipeline of DPDK's sources, whose
    private headers the generated code includes. Returns what went wrong, or None."""
    for arguments in ([maker, "--code", spec, "switchml.c"],
                      ["cc", "-O3", *INCLUDE, *flags("--cflags"), "-I", headers, "-shared", "-fPIC", "-o", library,
                       "switchml.c"]):
        status, text = run(arguments, folder)
        if status != 0:
            return f"{' '.join(arguments)}: {text[:2000]}"
    return None


def build(folder, spec, headers):
    """Builds FOLDER/pipeline and FOLDER/switchml.so. Returns what went wrong, or None."""
    arguments = ["cc", "-O1", *INCLUDE, *flags("--cflags"), "-o", "pipeline", os.path.join(HERE, "pipeline.c"),
                 *flags("--libs")]
    status, text = run(arguments, folder)
    if status != 0:
        return f"{' '.join(arguments)}: {text[:2000]}"
    return build_library(folder, "./pipeline", spec, "switchml.so", headers)


def fill_job(plan, job, cursor, copies):
    number, group, aggregator = job["number"], FIRST_RESULT_GROUP + job["number"], plan["aggregator"]
    mask = 0xffff & ~(job["num_slots"] - 1)
    yield f"register {CURSOR} {cursor} {job['first_chunk'] + job['num_slots']}"
    for cell in cells_to_write(job):
        yield f"register {PHASE} {cell} {job['first_phase'] - 2}"
    yield (f"entry _window match {number:#x} {job['slot_base']:#x}/{mask:#x} {aggregator['udp_port']:#x} priority 1 "
           "action _is_inside_0")
    yield f"entry copies match {group:#x} action {copies}"
    for member in job["members"]:
        for turn in (0, 1):
            me, full, last = words(member["rank"], len(job["members"]), turn)
            yield (f"entry _member match {number:#x} {job['epoch']:#x} {member['rank']:#x} {turn:#x} {member['ip']:#x} "
                   f"{member['udp_port']:#x} {aggregator['udp_port']:#x} {member['port']:#x} "
                   f"action _is_member_0 me {me:#x} full {full:#x} last {last:#x} cursor {cursor:#x} "
                   f"group {group:#x} port {member['port']:#x} is_checked {int(job['is_checked']):#x}")


def script(plan, copies):
    """What the control plane does first, and that counts() are to be shown in the end. copies: the action that sends a
    job's results; all go to GROUP."""
    aggregator = plan["aggregator"]
    lines = [f"entry _source match {aggregator['ip']:#x} {plan['cpu_port']:#x}/0xffff priority 1 action _is_own_0",
             f"entry _source match {aggregator['ip']:#x} 0x0/0x0 priority 2 action _is_forged_0",
             f"entry _aggregator match {aggregator['ip']:#x} {aggregator['udp_port']:#x} "
             f"action _is_ours_0 cpu_port {plan['cpu_port']:#x} voucher {plan['voucher']:#x}",
             f"entry _l2 match {aggregator['mac']:#x} action _forward_0 port {plan['cpu_port']:#x}",
             f"entry copies match {FLOOD_GROUP:#x} action copy_4 port 0x0",
             f"entry replica match {aggregator['udp_port']:#x} " # all jobs of a plan have one lane
             f"action to_member mac {GROUP.mac:#x} ip {GROUP.ip:#x} port {GROUP.udp:#x}"]
    lines += [f"entry ports match {port:#x} action send port {port:#x}" for port in range(plan["num_ports"])]
    lines += [f"mirror {session} {session}" for session in (1, 2, 3)]
    for cursor, job in enumerate(plan["jobs"]):
        lines += fill_job(plan, job, cursor, copies)
    return "\n".join(lines + [f"show {VERDICTS} {verdict}" for verdict in range(NUM_VERDICTS)]) + "\n"


def counts(said):
    """{verdict: packets} of what a run said."""
    shown = [line.split() for line in said.splitlines() if line.startswith(VERDICTS)]
    return {int(verdict): int(count) for _, verdict, count in shown if count != "0"}


def play(folder, sent, num_ports, text):
    """Runs the packets, pairs of (port, frame), built in this folder. Returns (exit status, what it said)."""
    frames.write_pcap(os.path.join(folder, "in.pcap"), sent) # the time is the port
    num_in = 1 << (num_ports - 1).bit_length() # what a pipeline takes
    with open(os.path.join(folder, "io"), "w", encoding="ascii") as file:
        file.write("mirroring slots 4 sessions 64\n")
        file.writelines(f"port in {port} ring IN{port} bsz 1\n" for port in range(num_in))
        file.writelines(f"port out {port} sink file port{port}_out.pcap\n" for port in range(num_ports))
        file.write(f"port out {num_ports} sink file none\n") # the last one takes what is dropped
    with open(os.path.join(folder, "script"), "w", encoding="ascii") as file:
        file.write(text)
    return run(["./pipeline", "./switchml.so", "io", "script", "in.pcap"], folder, 60)


def readdressed(frame, member):
    """A frame as if it had been sent to this member."""
    head = frame[14:24] + b"\0\0" + frame[26:30] + member["ip"].to_bytes(4, "big")
    head = head[:10] + frames.checksum(head).to_bytes(2, "big") + head[12:]
    return (member["mac"].to_bytes(6, "big") + frame[6:14] + head + frame[34:36] +
            member["udp_port"].to_bytes(2, "big") + frame[38:])


def play_vectors(folder, vectors, plan):
    """Runs the packets of a folder of vectors. The network's part is done here: what is sent to GROUP reaches each
    member of the job, at its port. Returns what went wrong, or None."""
    ports, group_port = range(plan["num_ports"]), plan["num_ports"]
    sent = sorted((time_us, port, frame) for port in ports
                  for time_us, frame in frames.read_timed(os.path.join(vectors, f"port{port}_in.pcap")))
    status, said = play(folder, [each[1:] for each in sent], group_port + 1, script(plan, f"copy_1 port {group_port:#x}"))
    if status != 0:
        return f"exit status {status}: {said[:2000]}"
    out = {port: frames.read_timed(os.path.join(folder, f"port{port}_out.pcap")) for port in [*ports, group_port]}
    jobs = {job["number"]: job for job in plan["jobs"]}
    for time_us, frame in out.pop(group_port):
        _, target, head, _, is_sound = frames.parse(frame)
        if target != GROUP or not is_sound:
            return f"a result went to {target}, IPv4 checksum {is_sound}"
        for member in jobs[head.job]["members"]:
            out[member["port"]].append((time_us, readdressed(frame, member)))
    for port, each in out.items():
        frames.write_pcap(os.path.join(vectors, f"port{port}_out.pcap"), sorted(each, key=lambda pair: pair[0]))
    return wrong_counts(vectors, counts(said))
