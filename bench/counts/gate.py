#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""gate.py PROGRAM [--record] [--limits FILE] [--only NAME]: what an all-reduce costs, in counts that are the same each
time, against limits.json beside this file: instructions a chunk (callgrind), system calls a MiB, bytes on the wire a
byte of tensor. A count above its limit and the tolerance fails; --record writes what is measured now as the limits.

Each count is the difference of two runs of unlike length over their difference in chunks: the start costs nothing."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMITS = os.path.join(HERE, "limits.json")
SHORT, LONG = 256, 512 # chunks; the former fills the window
LONG_CALLS = 4096      # calls are few
# The system's calls depend a little on when the kernel delivers on loopback; of some tries the least is taken.
NUM_TRIES = 3
TOLERANCE = {"instructions": 0.02, "calls": 0.10, "wire": 0.002}
ROLES = {"worker": "sml_worker_engine_run_once", "aggregator": "sml_aggregator_engine_run_once"}


class NotHere(Exception):
    """Why a count cannot be made on this machine."""


def run_counts(program, *arguments, wrapper=()):
    result = subprocess.run([*wrapper, program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if result.returncode == 77:
        raise NotHere(f"no {arguments[-1]} kernels")
    if result.returncode != 0:
        raise RuntimeError(f"{program} {arguments}: {result.returncode} {result.stderr[-800:]}")
    counts = json.loads(result.stdout)
    if counts["lost"] or counts["retransmissions"]:
        raise RuntimeError(f"{program} {arguments}: packets were lost, which would be counted: {counts}")
    return counts


def inclusive(path, functions):
    """{function: instructions in it and below it} of a callgrind file."""
    names, sums, called = {}, dict.fromkeys(functions, 0), None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            match = re.match(r"c?fn=\((\d+)\)(?: (.*))?", line)
            if match:
                names.setdefault(match.group(1), match.group(2))
                is_call = line.startswith("c")
                called = names[match.group(1)] if is_call else None
            elif line.startswith("calls=") and called in sums:
                sums[called] += int(next(lines).split()[1])
    return sums


def count_instructions(program, ranks, type_name):
    """{role: instructions a chunk of one worker, or an update at the aggregator}"""
    if not shutil.which("valgrind"):
        raise NotHere("valgrind is not installed (Debian: valgrind, libc6-dbg)")
    totals = []
    with tempfile.TemporaryDirectory() as folder:
        for chunks in (SHORT, LONG):
            path = os.path.join(folder, f"out{chunks}")
            run_counts(program, "mem", ranks, chunks, type_name, "avx2",
                       wrapper=["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={path}"])
            totals.append(inclusive(path, ROLES.values()))
    num_updates = (LONG - SHORT) * ranks
    return {role: (totals[1][name] - totals[0][name]) / num_updates for role, name in ROLES.items()}


def count_calls(program, ranks):
    """{role: system calls a MiB of one rank's tensor, all ranks together or the aggregator}"""
    best = {}
    for _ in range(NUM_TRIES):
        short, long = (run_counts(program, "udp", ranks, chunks, "float32", "scalar") for chunks in (SHORT, LONG_CALLS))
        mib = (long["payload_bytes"] - short["payload_bytes"]) / ranks / (1 << 20)
        for role, key in (("worker", "rank_calls"), ("aggregator", "aggregator_calls")):
            calls = (long[key] - short[key]) / mib / (ranks if role == "worker" else 1)
            best[role] = min(best.get(role, calls), calls)
    return best


def count_wire(program, type_name):
    short, long = (run_counts(program, "mem", 2, chunks, type_name, "scalar") for chunks in (SHORT, LONG))
    return (long["wire_bytes"] - short["wire_bytes"]) / (long["payload_bytes"] - short["payload_bytes"])


def measure(program, only=""):
    """{name: count, or a sentence why there is none}. Instructions are named after the compiler, which decides them."""
    counts = {}

    def put(prefix, function, *arguments):
        if only not in prefix:
            return
        try:
            found = function(program, *arguments)
            for role, value in (found if isinstance(found, dict) else {"": found}).items():
                counts[f"{prefix} {role}".strip()] = round(value, 4)
        except NotHere as why:
            counts[prefix] = str(why)
    made_by = run_counts(program, "mem", 2, 1, "int32", "scalar")["made_by"]
    for type_name in ("float32", "int32"):
        put(f"wire bytes a byte, {type_name}", count_wire, type_name)
    put("system calls a MiB, n 4", count_calls, 4)
    for ranks, type_name in ((2, "int32"), (8, "float32")):
        put(f"instructions a chunk, n {ranks}, {type_name}, {made_by},", count_instructions, ranks, type_name)
    return counts


def tolerance_of(name):
    return next(share for word, share in TOLERANCE.items() if word in name)


def compare(counts, limits):
    """[(name, verdict, sentence)]; verdict True: within its limit, False: not, None: not compared."""
    verdicts = []
    for name, count in counts.items():
        if isinstance(count, str):
            verdicts.append((name, None, count))
        elif name not in limits:
            verdicts.append((name, None, f"{count:g} has no limit yet; --record sets it"))
        else:
            limit, change = limits[name], count / limits[name] - 1
            text = f"{count:g}, limit {limit:g} ({100 * change:+.1f} %)"
            if change < -2 * tolerance_of(name):
                text += "; better: record it, so that it stays"
            verdicts.append((name, change <= tolerance_of(name), text))
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program `counts` of a build")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--limits", default=LIMITS)
    parser.add_argument("--only", default="", help="counts with this in their names")
    options = parser.parse_args()
    with open(options.limits, encoding="utf-8") as file:
        limits = json.load(file)
    counts = measure(options.program, options.only)
    if options.record:
        limits.update({name: count for name, count in counts.items() if not isinstance(count, str)})
        with open(options.limits, "w", encoding="utf-8") as file:
            json.dump(limits, file, indent=1)
            file.write("\n")
    verdicts = compare(counts, limits)
    print(f"1..{len(verdicts)}")
    for number, (name, verdict, text) in enumerate(verdicts, 1):
        print(f"{'not ok' if verdict is False else 'ok'} {number} - {name}" + (f" # SKIP {text}" if verdict is None else ""))
        print(f"# {text}")
    if any(verdict is False for _, verdict, _ in verdicts):
        print(f"# It costs more than it did. If it must: {os.path.relpath(__file__)} {options.program} --record")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
