#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Vectors as pcap files, for switches that read and write such (simple_switch --use-files) or for tcpreplay.

  pcap.py make DIR [--lanes N] [--family switch|ordinary] [--cannot NEED]   portN_in.pcap, and plan.json: what the control plane must set
  pcap.py compare DIR          reads portN_out.pcap, compares; a line a vector (TAP), exit status 1 if one failed
  pcap.py stand-in DIR         what a right switch would do (aggregator.py): writes portN_out.pcap

All vectors are in one run: each has jobs with numbers and slot windows of their own. Rank r is at switch port r; who
registered no address is at the stranger's port. Packets go in by their time stamps, over all ports. What comes out at
the CPU port is looked at for reports of mismatches only.
"""
import argparse
import json
import os
import struct
import sys

import vectors  # before aggregator: it makes peer.py be found
import aggregator

CANNOT = {"key", "membership"}  # what a data path does not have
AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT = "10.77.0.254", "02:53:4d:4c:00:fe", 48880
STRANGER, CPU = 30, 31
REPORT = 15  # the type of a switch's report (docs/PROTOCOL.md, switch format)
FIRST_EPOCH, FIRST_UDP_PORT, STEP_US = 0x51000000, 40000, 1000


# ---- the plan ----------------------------------------------------------------------------------------------

def member(port, job_number):
    return {"port": port, "mac": f"02:53:4d:4c:00:{port:02x}", "ip": f"10.77.0.{port + 1}", "udp_port": FIRST_UDP_PORT + job_number}


def job_of(entry):
    return vectors.Job({"ranks": entry["ranks"], "checked": entry["is_checked"], "narrow": entry["is_narrow"],
                        "one_way": entry["has_one_way"]}, entry["job"], entry["epoch"],
                       entry["slot_base"], entry["num_slots"], entry["payload_bytes"], entry["first_phase"],
                       entry["first_chunk"], entry["is_switch"])


def make_plan(family, lanes, cannot=()):
    """For each vector that applies the jobs with everything a control plane sets; and the vectors that do not."""
    plan = {"family": family, "lanes": lanes, "aggregator": {"ip": AGGREGATOR_IP, "mac": AGGREGATOR_MAC, "udp_port": AGGREGATOR_PORT},
            "stranger": member(STRANGER, 0), "cpu_port": CPU, "vectors": [], "skipped": []}
    number, slot_base = 1, 0
    for vector in vectors.read(family):
        missing = (CANNOT | set(cannot)) & set(vector["needs"])
        if missing or max(job["ranks"] for job in vector["jobs"]) > STRANGER:
            plan["skipped"].append({"vector": vector["vector"], "why": ", ".join(sorted(missing)) or "ranks"})
            continue
        jobs = []
        for shape in vector["jobs"]:
            all_slots = shape["slots"] * (4 if shape.get("one_way") else 1)
            slot_base = -(-slot_base // all_slots) * all_slots
            jobs.append({"job": number, "epoch": FIRST_EPOCH + 100 * number, "slot_base": slot_base, "num_slots": shape["slots"],
                         "ranks": shape["ranks"], "is_checked": shape.get("checked", False), "is_narrow": shape.get("narrow", False), "has_one_way": shape.get("one_way", False), "is_switch": family == "switch",
                         "first_phase": shape.get("first_phase", 2), "first_chunk": 1000 * number, "payload_bytes": 4 * lanes,
                         "members": [member(rank, number) for rank in range(shape["ranks"])]})
            number, slot_base = number + 1, slot_base + all_slots
        plan["vectors"].append({"vector": vector["vector"], "jobs": jobs})
    plan["num_slots"], plan["num_jobs"] = slot_base, number
    return plan


# ---- frames ------------------------------------------------------------------------------------------------

def ip_checksum(header):
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total ^ 0xffff


def address(text):
    return bytes(map(int, text.split(".")))


def hardware(text):
    return bytes.fromhex(text.replace(":", ""))


def wrap(source, target, datagram):
    """Ethernet, IPv4 and UDP around it; without UDP's checksum, which IPv4 allows."""
    udp = struct.pack(">HHHH", source["udp_port"], target["udp_port"], 8 + len(datagram), 0) + datagram
    ip = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0) + address(source["ip"]) + address(target["ip"]))
    struct.pack_into(">H", ip, 10, ip_checksum(bytes(ip)))
    return hardware(target["mac"]) + hardware(source["mac"]) + b"\x08\x00" + bytes(ip) + udp


def unwrap(frame):
    """((MAC, IP, port) of source, of target, datagram), or None: no UDP."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x00" or frame[14] != 0x45 or frame[23] != 17:
        return None
    source_port, target_port, num_bytes, _ = struct.unpack(">HHHH", frame[34:42])
    return ((frame[6:12], frame[26:30], source_port), (frame[:6], frame[30:34], target_port), frame[42:34 + num_bytes])


def place(who):
    return hardware(who["mac"]), address(who["ip"]), who["udp_port"]


def write_pcap(path, frames):
    """frames: (microseconds, bytes)."""
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for at, frame in frames:
            out.write(struct.pack("<IIII", at // 10**6, at % 10**6, len(frame), len(frame)) + frame)


def read_pcap(path):
    """[(microseconds, bytes)]; a file that is not there has none."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        data = file.read()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    unit = 1000 if data[:4] in (b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d") else 1
    found, at = [], 24
    while at + 16 <= len(data):
        seconds, fraction, num_bytes, _ = struct.unpack(order + "IIII", data[at:at + 16])
        found.append((seconds * 10**6 + fraction // unit, data[at + 16:at + 16 + num_bytes]))
        at += 16 + num_bytes
    return found


def port_file(folder, port, way):
    return os.path.join(folder, f"port{port}_{way}.pcap")


def sender(plan, entry, step):
    return plan["stranger"] if step["from"] == "stranger" else entry["jobs"][step.get("job", 0)]["members"][step["from"]]


def steps_of(plan):
    """(entry of the plan, vector, step) of all."""
    by_name = {vector["vector"]: vector for vector in vectors.read(plan["family"])}
    for entry in plan["vectors"]:
        for step in by_name[entry["vector"]]["steps"]:
            yield entry, step


# ---- make, compare, stand in -------------------------------------------------------------------------------

def make(folder, family, lanes, cannot=()):
    plan = make_plan(family, lanes, cannot)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "plan.json"), "w", encoding="utf-8") as out:
        json.dump(plan, out, indent=1)
    frames, at = {port: [] for port in range(CPU + 1)}, 10**6
    for entry, step in steps_of(plan):
        who, job = sender(plan, entry, step), job_of(entry["jobs"][step.get("job", 0)])
        rank = 0 if step["from"] == "stranger" else step["from"]
        frames[who["port"]].append((at, wrap(who, plan["aggregator"], job.pack(step["send"], rank))))
        at += STEP_US
    for port, each in frames.items():
        write_pcap(port_file(folder, port, "in"), each)
    return plan


def read_plan(folder):
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        return json.load(file)


def read_out(plan, folder):
    """What came out: {(port, target's UDP port): [(source, target, datagram)]}, and the CPU port's datagrams."""
    found, reports = {}, []
    for port in range(CPU + 1):
        for _, frame in read_pcap(port_file(folder, port, "out")):
            parts = unwrap(frame)
            if parts and port == plan["cpu_port"]:
                reports.append(parts[2])
            elif parts and parts[1][2] != plan["aggregator"]["udp_port"]:
                found.setdefault((port, parts[1][2]), []).append(parts)
    return found, reports


def compare_member(plan, entry, index, rank, steps, seen):
    """None, or the first difference, of what one rank of a job gets."""
    job, who = job_of(entry["jobs"][index]), entry["jobs"][index]["members"][rank]
    seen = [parts for parts in seen if not vectors.is_hint(parts[2])]
    for number, step in enumerate(steps, 1):
        for expected in step["out"] if step.get("job", 0) == index else []:
            if expected["to"] not in ("all", rank):
                continue
            why = job.compare(expected, seen[0][2]) if seen else "nothing came"
            if why and expected.get("optional"):
                continue
            if not why and (seen[0][0], seen[0][1]) != (place(plan["aggregator"]), place(who)):
                why = f"addresses are {seen[0][0]} to {seen[0][1]}"
            if why:
                came = vectors.describe(seen[0][2]) if seen else "nothing"
                return f"step {number}, rank {rank} of job {index}: expected {expected}\n  seen {came}\n  {why}"
            seen = seen[1:]
    if seen:
        return f"rank {rank} of job {index} got more than it should: {vectors.describe(seen[0][2])}"
    return None


def compare_reports(entry, steps, reports):
    """None, or what was reported to the CPU port and should not have been, or the other way round."""
    numbers = [job["job"] for job in entry["jobs"]]
    seen = [struct.unpack(">HIH", data[2:10]) + struct.unpack(">I", data[24:28]) for data in reports
            if len(data) >= 32 and data[0] == 0x10 | REPORT]
    seen = {each for each in seen if each[0] in numbers}
    wanted = set()
    for step in steps:
        job = entry["jobs"][step.get("job", 0)]
        if step["verdict"] == "MISMATCH":
            wanted.add((job["job"], job["epoch"], *step["report"]))
    return None if seen == wanted else f"reports of (job, epoch, rank, first rank) at the CPU port: {seen}, not {wanted}"


def compare(folder, has_reports):
    """A line a vector; how many failed."""
    plan = read_plan(folder)
    out, reports = read_out(plan, folder)
    by_vector = {}
    for entry, step in steps_of(plan):
        by_vector.setdefault(entry["vector"], (entry, []))[1].append(step)
    print(f"1..{len(by_vector) + len(plan['skipped'])}")
    num_failed = 0
    for number, (name, (entry, steps)) in enumerate(by_vector.items(), 1):
        wrong = [compare_member(plan, entry, index, rank, steps, out.get((who["port"], who["udp_port"]), []))
                 for index, job in enumerate(entry["jobs"]) for rank, who in enumerate(job["members"])]
        wrong += [compare_reports(entry, steps, reports)] if has_reports else []
        wrong = [why for why in wrong if why]
        num_failed += bool(wrong)
        print(f"{'not ' if wrong else ''}ok {number} - {name}")
        for line in "\n".join(wrong[:2]).splitlines():
            print(f"# {line}")
    for number, skipped in enumerate(plan["skipped"], len(by_vector) + 1):
        print(f"ok {number} - {skipped['vector']} # SKIP needs {skipped['why']}")
    return num_failed


def stand_in(folder, change=None):
    """change: what makes it a wrong one: (frames out, where each goes) of one packet in -> the same."""
    plan = read_plan(folder)
    jobs = [job for entry in plan["vectors"] for job in entry["jobs"]]
    members = {place(who): (index, rank) for index, job in enumerate(jobs) for rank, who in enumerate(job["members"])}
    switch = aggregator.Aggregator([job_of(job) for job in jobs], plan["family"] == "switch")
    taken = [frame for port in range(CPU + 1) for frame in read_pcap(port_file(folder, port, "in"))]
    frames = {port: [] for port in range(CPU + 1)}
    for at, frame in sorted(taken):
        source, _, datagram = unwrap(frame)
        answers, report = switch.take(members.get(source), datagram)
        if report and report[0] == "MISMATCH":
            first = switch.cells[members[source][0]][struct.unpack(">H", datagram[12:14])[0] - jobs[members[source][0]]["slot_base"], datagram[19] & 1]
            told = bytes([0x10 | REPORT]) + datagram[1:10] + bytes(2) + datagram[12:24] + struct.pack(">I", first.first_rank) + bytes(4)
            frames[plan["cpu_port"]].append((at, wrap(jobs[members[source][0]]["members"][members[source][1]], plan["aggregator"], told)))
        for (index, rank), answer in answers if change is None else change(answers):
            who = jobs[index]["members"][rank]
            frames[who["port"]].append((at, wrap(plan["aggregator"], who, answer)))
    for port, each in frames.items():
        write_pcap(port_file(folder, port, "out"), each)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=["make", "compare", "stand-in"])
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--lanes", type=int, default=32, help="32-bit elements of a packet, check word included (make)")
    parser.add_argument("--family", choices=["switch", "ordinary"], default="switch", help="(make)")
    parser.add_argument("--cannot", metavar="NEED", action="append", default=[], help="leave out vectors that need it (make)")
    parser.add_argument("--no-reports", action="store_true", help="do not look for reports at the CPU port (compare)")
    options = parser.parse_args()
    if options.act == "make":
        plan = make(options.folder, options.family, options.lanes, options.cannot)
        print(f"{len(plan['vectors'])} vectors, {plan['num_jobs'] - 1} jobs, {plan['num_slots']} slots; {len(plan['skipped'])} left out")
    elif options.act == "stand-in":
        stand_in(options.folder)
    else:
        return 1 if compare(options.folder, not options.no_reports) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
