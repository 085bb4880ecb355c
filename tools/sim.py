#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""sim.py [--first N] [--jobs N] [--nice] [--build DIR] [--tap] [--max-ops N] SEEDS: runs that many seeds of the simulator.

Sums what happened, and fails if a sum was wrong, something hung or leaked, a kind of fault never came, or a
seed gave another run when it was run again. For a seed that fails it looks for the shortest run that still
does, and prints the command that shows it.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys
import time

BATCH_SEEDS = 8
SEED_TIMEOUT_S = 300
SEEDS_FOR_ALL_KINDS = 400  # fewer need not have every kind of fault
REPEATED_SEEDS = 5

# The count that shows that a kind of trouble came. The others have their own name.
SHOWN_BY = {
    "loss": "lost", "burst": "lost_in_burst", "duplicate": "duplicated", "reorder": "reordered",
    "corrupt": "corrupted", "truncate": "truncated", "queue": "lost_in_link_queue", "mtu": "lost_too_long",
    "slow": "late_wakes",
}
KINDS = ["loss", "burst", "duplicate", "reorder", "corrupt", "truncate", "queue", "mtu", "slow", "clock", "replay",
         "forge", "late", "capacity", "epoch", "cut", "pause", "kill", "host", "daemon-kill", "daemon-stop",
         "daemon-pause", "misdeed", "haste"]


class Finding:
    """A seed that failed: its cuts and what is wrong."""

    def __init__(self, seed, text, facts):
        self.seed, self.text, self.facts = seed, text, facts


def run_sim(binary, arguments, timeout_s=SEED_TIMEOUT_S):
    """(exit status, output); a run that does not end counts as failed."""
    try:
        done = subprocess.run([binary, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout_s, check=False)
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as expired:
        return 124, (expired.stdout or b"").decode(errors="replace") + "WRONG the simulator itself does not end\n"


def describe_failure(output):
    lines = [line for line in output.splitlines() if "WRONG " in line and "datagrams=" not in line]
    if lines:
        return re.sub(r"^.*?WRONG ", "", lines[-1])
    return "it stopped: " + (output.splitlines()[-1] if output.strip() else "without a word")


def run_batch(binary, cuts, first, last):
    """Lines of the seeds that ended well, findings of the others."""
    lines, findings, seed = [], [], first
    while seed <= last:
        status, output = run_sim(binary, ["--seeds", f"{seed}-{last}", *cuts], SEED_TIMEOUT_S * (last - seed + 1))
        good = [line for line in output.splitlines() if re.match(r"seed=\d+ ok ", line)]
        lines += good
        seed += len(good)
        if status != 0:
            facts = dict(re.findall(r"(faults-end|incidents)=(\d+)", output))
            findings.append(Finding(seed, describe_failure(output), facts))
            seed += 1
        elif seed <= last:
            findings.append(Finding(seed, "the simulator ended early without a word", {}))
            seed += 1
    return lines, findings


def shrink(binary, finding, max_ops):
    """The shortest run of the seed that still fails: each cut as small as it can be, one after the other."""
    facts = finding.facts
    limits = {"--max-rounds": 3, "--max-ops": max_ops or 48, "--max-incidents": int(facts.get("incidents", 24)),
              "--until": int(facts.get("faults-end", 30 * 10**9))}
    least = {"--max-rounds": 1, "--max-ops": 1, "--max-incidents": 0, "--until": 1}
    kept = {"--max-ops": max_ops} if max_ops else {}

    def fails(name, value):
        cuts = {**kept, name: value}
        arguments = [str(x) for pair in cuts.items() for x in pair]
        status, output = run_sim(binary, ["--seed", str(finding.seed), *arguments], 60)
        if status not in (0, 2):
            finding.text = describe_failure(output)
            return True
        return False

    for name, high in limits.items():
        low, found = least[name], None
        while low <= high:
            middle = (low + high) // 2
            if fails(name, middle):
                found, high = middle, middle - 1
            else:
                low = middle + 1
            if name == "--until" and high - low < high // 16:
                break
        if found is not None:
            kept[name] = found
    return " ".join(f"{name} {value}" for name, value in kept.items())


def add_up(lines):
    totals = collections.Counter()
    digest = hashlib.sha256()
    for line in lines:
        for name, value in re.findall(r" ([\w-]+)=(\d+)(?= |$)", line):
            totals[name] += int(value)
        digest.update(re.search(r"digest=(\w+)", line).group(1).encode())
    return totals, digest.hexdigest()[:16]


def find_missing_kinds(totals):
    return [kind for kind in KINDS if totals[SHOWN_BY.get(kind, kind)] == 0]


def find_changed_seeds(binary, cuts, lines):
    """Seeds whose second run differs from the first."""
    step = max(1, len(lines) // REPEATED_SEEDS)
    changed = []
    for line in lines[::step][:REPEATED_SEEDS]:
        seed = re.match(r"seed=(\d+)", line).group(1)
        output = run_sim(binary, ["--seed", seed, *cuts])[1]
        if line not in output.splitlines():
            changed.append(seed)
    return changed


def report(totals, digest, num_seeds, seconds):
    datagrams = totals["datagrams"]
    print(f"# {num_seeds} seeds, {datagrams} datagrams, {totals['events']} events in {seconds:.1f} s: "
          f"{num_seeds / seconds:.1f} seeds/s, {datagrams / seconds:.0f} datagrams/s; digest {digest}")
    print(f"# operations {totals['ops']} right, {totals['ops-failed']} failed; joins {totals['joins']}, "
          f"{totals['joins-failed']} failed; {totals['sums-checked']} sums checked on the wire, {totals['one-way']} results that go one way; "
          f"{totals['retransmissions']} updates sent again")
    print("# faults: " + ", ".join(f"{kind} {totals[SHOWN_BY.get(kind, kind)]}" for kind in KINDS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=int)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nice", action="store_true", help="other programs go first")
    parser.add_argument("--build", default="build")
    parser.add_argument("--tap", action="store_true")
    parser.add_argument("--max-ops", type=int, help="operations of a membership: fewer shorten the worlds of much data alone")
    options = parser.parse_args()
    cuts = ["--max-ops", str(options.max_ops)] if options.max_ops else []
    binary = os.path.join(options.build, "sim", "sim")
    if options.nice:
        os.nice(10)
    begin = time.monotonic()
    last = options.first + options.seeds - 1
    batches = [(first, min(first + BATCH_SEEDS - 1, last)) for first in range(options.first, last + 1, BATCH_SEEDS)]
    lines, findings = [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for good, bad in pool.map(lambda batch: run_batch(binary, cuts, *batch), batches):
            lines += good
            findings += bad
    seconds = time.monotonic() - begin
    totals, digest = add_up(lines)
    report(totals, digest, options.seeds, seconds)
    failures = []
    for finding in findings[:5]:
        least = shrink(binary, finding, options.max_ops)
        failures.append(f"seed {finding.seed}: {finding.text}\n"
                        f"#   {binary} --seed {finding.seed} {least} --verbose")
    failures += [f"seed {finding.seed}: {finding.text}" for finding in findings[5:]]
    if options.seeds >= SEEDS_FOR_ALL_KINDS:
        failures += [f"no {kind} ever came: the draw or the network is broken" for kind in find_missing_kinds(totals)]
    failures += [f"seed {seed} gives another run the second time" for seed in find_changed_seeds(binary, cuts, lines)]
    for failure in failures:
        print(f"# {failure}")
    if options.tap:
        print(f"{'not ok' if failures else 'ok'} 1 - {options.seeds} seeds\n1..1")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
