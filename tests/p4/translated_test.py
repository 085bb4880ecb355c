#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""translated_test.py LIBRARY: the conformance vectors, and the steps of behaviour.py, on the switch programs as C that
translate.py made of them. No tool of P4 is needed."""
import os
import shutil
import subprocess
import sys
import tempfile

import behaviour
import check
import frames
import plan
from translated import Switch

CANNOT = {"tna": ["first_phase"]} # a Tofino's first phases are 2 and 3


def fill(switch, jobs):
    plan.fill(switch, jobs)
    if switch.target == "tna":
        plan.tell_of_hosts(switch, jobs)
    return {job["number"]: job["members"] for job in jobs["jobs"]}


def run_steps(library, target, lanes):
    """Sentences about what the program did otherwise than behaviour.py says."""
    steps = behaviour.steps(lanes, is_pna=target == "pna", is_tna=target == "tna")
    switch = Switch(library, target, behaviour.NUM_PORTS, is_group=True, lanes=lanes)
    members, out = fill(switch, behaviour.plan()), {port: [] for port in range(behaviour.NUM_PORTS)}
    for port, frame in steps.sent:
        for to, each in switch.take(port, frame, members):
            out[to].append(each)
    counted = switch.counts(plan.NUM_VERDICTS)
    num_results = sum(counted.get(verdict, 0) for verdict in (plan.COMPLETED, plan.REPEATED))
    if counted.pop(plan.RETURNED, 0) != (num_results if (target, lanes) == ("tna", 64) else 0):
        yield "not each result passes twice"
    if counted != steps.verdicts:
        yield f"verdicts {counted} instead of {steps.verdicts}"
    for port, due in enumerate(steps.due):
        for problem in behaviour.differences(due, out[port]):
            yield f"port {port}: {problem}"


def play_vectors(library, target, lanes, folder, jobs):
    """Runs the packets of a folder of vectors."""
    switch = Switch(library, target, jobs["num_ports"], lanes=lanes)
    members, out = fill(switch, jobs), {port: [] for port in range(jobs["num_ports"])}
    sent = sorted((time_us, port, frame) for port in range(jobs["num_ports"])
                  for time_us, frame in frames.read_timed(os.path.join(folder, f"port{port}_in.pcap")))
    for time_us, port, frame in sent:
        for to, each in switch.take(port, frame, members):
            out[to].append((time_us, each))
    for port, each in out.items():
        frames.write_pcap(os.path.join(folder, f"port{port}_out.pcap"), each)
    return plan.wrong_counts(folder, switch.counts(plan.NUM_VERDICTS))


# What p4c has refused in p4/: the file, what stands there, what would stand there instead, and what is said of it.
REFUSED = (("pna.p4", "(bit<16>)(bit<32>)standard.input_port", "(bit<16>)standard.input_port", "casts a type of its own"),
           ("common/headers.p4", "const bit<8> BAD_KEY = 7;", "const bit<8> BAD_KEY = 7;\nconst bit<8> BAD_KEY = 7;",
            "declares BAD_KEY 2 times"),
           ("common/headers.p4", "const bit<8> BAD_KEY = 7;", "const bit<8> BAD_KEY = 7;\nconst bit<8> BAD_CRC = 6;",
            "nobody uses BAD_CRC"))


def refusals():
    """What translate.py takes of that, as sentences."""
    for file, right, wrong, due in REFUSED:
        with tempfile.TemporaryDirectory(prefix="switchml-p4-") as folder:
            shutil.copytree(check.P4, os.path.join(folder, "p4"))
            path = os.path.join(folder, "p4", file)
            with open(path, encoding="utf-8") as source:
                text = source.read()
            with open(path, "w", encoding="utf-8") as source:
                source.write(text.replace(right, wrong))
            done = subprocess.run([sys.executable, os.path.join(check.HERE, "translate.py"),
                                   os.path.join(folder, "p4", "pna.p4"), "pna", os.path.join(folder, "pna.c")],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            if right not in text or done.returncode == 0 or due not in done.stdout:
                yield f"{wrong}: {done.stdout[-300:]}"


def main():
    library, tap = os.path.abspath(sys.argv[1]), check.Tap()
    tap.problems("what p4c refuses is refused", refusals())
    for target, lanes in (("v1model", 32), ("v1model", 64), ("v1model", 128), ("pna", 32), ("pna", 64), ("tna", 32),
                          ("tna", 64)):
        name = f"{target}.p4 with {lanes} lanes, translated,"
        tap.problems(f"{name} does what it should", run_steps(library, target, lanes))
        with tempfile.TemporaryDirectory(prefix="switchml-p4-") as folder:
            tap.problems(f"{name} passes the conformance vectors",
                         check.run_vectors(folder, lanes, play_vectors, library, target, lanes,
                                           cannot=CANNOT.get(target, ())))
    print(f"1..{tap.count}")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
