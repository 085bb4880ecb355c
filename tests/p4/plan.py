# SPDX-License-Identifier: Apache-2.0
"""Fills the tables of p4/v1model.p4 for the jobs of a plan, as docs/p4.md says.

A plan is {"aggregator": {"mac", "ip", "udp_port"}, "cpu_port": number, "voucher": number, "num_ports": number, "jobs": [...]}; a job has
"number", "epoch", "slot_base", "num_slots", "first_phase", "first_chunk", "is_checked" and "members", each of which has "rank",
"port", "mac", "ip" and "udp_port". MACs and addresses are numbers."""
import json
import os

import frames

VECTORS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../conformance/vectors/switch.jsonl")
VALID, TURN = 1 << 31, 1 << 30
FLOOD_GROUP, FIRST_RESULT_GROUP = 1, 16
NUM_VERDICTS = 64
COMPLETED, REPEATED, RETURNED = 34, 35, 41


def words(rank, num_ranks, turn):
    """(me, full, last) of a member in phases whose bit 1 is turn."""
    marks = VALID | (TURN if turn else 0)
    full = marks | (1 << num_ranks) - 1
    return marks | 1 << rank, full, full ^ 1 << rank


def cells_to_write(job):
    """Zeros are the phase before the first one, if that is 2."""
    return range(2 * job["slot_base"], 2 * (job["slot_base"] + job["num_slots"])) if job["first_phase"] != 2 else []


def fill_job(control, plan, job, cursor):
    aggregator, members = plan["aggregator"], job["members"]
    number, group = job["number"], FIRST_RESULT_GROUP + job["number"]
    control.write("cursor", cursor, job["first_chunk"] + job["num_slots"])
    for cell in cells_to_write(job):
        control.write("cell_phase", cell, job["first_phase"] - 2)
    control.add("window", [(number, 16), (job["slot_base"], 16, 0xffff & ~(job["num_slots"] - 1)),
                           (aggregator["udp_port"], 16)], "is_inside")
    nodes = []
    for member in members:
        rank, port = member["rank"], member["port"]
        rid = 1 + 32 * number + rank
        nodes.append((rid, [port]))
        control.add("replica", [(aggregator["udp_port"], 16), (rid, 16)], "to_member", (member["mac"], 48),
                    (member["ip"], 32), (member["udp_port"], 16))
        for turn in (0, 1):
            me, full, last = words(rank, len(members), turn)
            control.add("member", [(number, 16), (job["epoch"], 32), (rank, 16), (turn, 8), (member["ip"], 32),
                                   (member["udp_port"], 16), (aggregator["udp_port"], 16), (port, 16)],
                        "is_member", (me, 32), (full, 32), (last, 32), (cursor, 16), (group, 16), (port, 16),
                        (int(job["is_checked"]), 8))
    control.group(group, nodes)


def host(entry):
    return {"mac": int(entry["mac"].replace(":", ""), 16), "ip": frames.ip(entry["ip"]), "udp_port": entry["udp_port"]}


def of_vectors(folder):
    """The plan that tests/conformance/pcap.py wrote there."""
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    jobs = [{**{name: job[name] for name in ("epoch", "slot_base", "num_slots", "first_phase", "first_chunk", "is_checked")},
             "number": job["job"], "members": [{"rank": rank, "port": member["port"], **host(member)}
                                               for rank, member in enumerate(job["members"])]}
            for vector in plan["vectors"] for job in vector["jobs"]]
    return {"aggregator": host(plan["aggregator"]), "cpu_port": plan["cpu_port"], "voucher": 0, "num_ports": plan["cpu_port"] + 1,
            "jobs": jobs}


def fill(control, plan):
    aggregator = plan["aggregator"]
    control.add("source", [(aggregator["ip"], 32), (plan["cpu_port"], 16, 0xffff)], "is_own")
    control.add("source", [(aggregator["ip"], 32), (0, 16, 0)], "is_forged", order=2)
    control.add("aggregator", [(aggregator["ip"], 32), (aggregator["udp_port"], 16)], "is_ours",
                (plan["cpu_port"], 16), (plan["voucher"], 32))
    control.group(FLOOD_GROUP, [(0, list(range(plan["num_ports"])))])
    control.add("l2", [(aggregator["mac"], 48)], "forward", (plan["cpu_port"], 16))
    for cursor, job in enumerate(plan["jobs"]):
        fill_job(control, plan, job, cursor)


def tell_of_hosts(control, plan):
    """What a Tofino gets besides: it does not find out by itself where hosts are."""
    aggregator = plan["aggregator"]
    members = {member["mac"]: member["port"] for job in plan["jobs"] for member in job["members"]}
    for mac, port in {**members, aggregator["mac"]: plan["cpu_port"]}.items():
        control.add("host", [(mac, 48), (port, 16)], "is_here")
    for mac, port in members.items():
        control.add("l2", [(mac, 48)], "forward", (port, 16))
    control.add("listener", [(0, 8)], "tell", (aggregator["mac"], 48), (aggregator["ip"] ^ 1, 32), (aggregator["ip"], 32),
                (aggregator["udp_port"], 16), (plan["voucher"], 32), (plan["cpu_port"], 16))


# Indices of the counter `verdicts` by the vectors' words, where a switch and the software cannot but agree: what has
# several faults may be counted by another one, and the software counts what is punted to it.
CELL_VERDICTS = {("FIRST", None): 32, ("ADD", None): 33, ("COMPLETE", None): 34, ("REPEAT", None): 35,
                 ("REPEAT", "NEEDLESS"): 35, ("PENDING", None): 36, ("PENDING", "NEEDLESS"): 18,
                 ("DROP", "DUPLICATE"): 17, ("DROP", "STALE_PHASE"): 14, ("MISMATCH", "TAG_MISMATCH"): 37}


def wrong_counts(folder, counted):
    """What is wrong with {verdict: packets} after the vectors of a folder, or None."""
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        played = {vector["vector"] for vector in json.load(file)["vectors"]}
    due, name = dict.fromkeys(CELL_VERDICTS.values(), 0), None
    with open(VECTORS, encoding="utf-8") as file:
        for line in map(json.loads, file):
            name = line.get("vector", name)
            index = CELL_VERDICTS.get((line.get("verdict"), line.get("reason")))
            due[index] = due.get(index, 0) + (name in played)
    wrong = {index: (counted.get(index, 0), num) for index, num in due.items()
             if index is not None and counted.get(index, 0) != num}
    return f"verdicts (counted, due): {wrong}" if wrong else None
