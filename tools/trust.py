#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""trust.py [PART...] [--runs N] [--seconds N] [--seed N] [--build DIR]: the promises about failing processes, counted
and measured with real ones on loopback. The same episodes as in tests/, many times and with the true durations.

Parts (all, if none is named):
  kill        kill -9 of a worker at a random moment, 50 times: who is told what after how long; when the slots are back
  stop        SIGSTOP of a worker and of switchmld for 1 s and for 10 s, and kill -9 of switchmld, 5 times each
  training    kill -9 of a rank of a real PyTorch training, 50 times
  retry       kill -9 of switchmld in a PyTorch training that tries again, 20 times: the same weights
  control     abuse of the control port, for as long as a connection may stay unjoined and longer
  flood       100,000 datagrams/s for 30 s at either end, against the same flood of another port
  forger      10^7 datagrams with forged source addresses at either end of jobs without a key: none changes or ends one
  soak        jobs that nobody attacks beside killed ranks, floods, squatters, stalled logs, .. for --seconds (1,800)
  mixed       200 jobs of 100 operations of all collectives, drawn at random, with lost datagrams: every result is right
  lease       ten spinning processes beside three jobs of four ranks for --seconds (600): nobody is taken for lost
  starve      a rank that is stopped for 300 of every 320 ms, 15 s with each of four windows: at most 6 packets a sum
Exit status: 0 if every promise was kept."""
import argparse
import os
import random
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = {"SWITCHML": "src/cli/switchml", "SWITCHMLD": "src/switchd/switchmld", "SWITCHML_MEMBER": "tests/member",
            "SWITCHML_FLOOD": "tests/flood", "SWITCHML_MIXED": "tests/mixed"}


class Tally:
    """How often an episode kept its promise, and what was measured."""

    def __init__(self, name, bounds=""):
        self.name, self.bounds = name, bounds
        self.num_kept, self.num_runs = 0, 0
        self.values = {}

    def run(self, episode, *arguments, **keywords):
        self.num_runs += 1
        try:
            measured = episode(*arguments, **keywords)
        except (AssertionError, OSError) as error:
            print(f"{self.name}: run {self.num_runs} broke its promise:\n{error}", flush=True)
            return
        self.num_kept += 1
        for what, seconds in (measured or {}).items():
            self.values.setdefault(what, []).extend(seconds)

    def report(self, summary):
        parts = [f"{what}: {summary(seconds)}" for what, seconds in self.values.items()]
        print(f"{self.name}: {self.num_kept} of {self.num_runs} {self.bounds}" + "".join(f"\n    {part}" for part in parts),
              flush=True)
        return self.num_kept == self.num_runs


def errors_and_slots(measured):
    errors, back = measured
    return {"error after": errors, "slots back after": [back]}


def part_kill(options, tallies):
    import e2e_kill
    draw = random.Random(options.seed)
    tally = Tally("kill -9 of a worker", "(error within lease 2 s + 1 s, slots within 1 s more)")
    for _ in range(options.runs or 50):
        tally.run(lambda: errors_and_slots(e2e_kill.killed_worker(draw)))
    tallies.append(tally)


def part_stop(options, tallies):
    import e2e_kill
    draw, runs = random.Random(options.seed), options.runs or 5
    episodes = [
        ("SIGSTOP of a worker for 1 s: completes", lambda: e2e_kill.paused(draw, lambda _, m: m[-1].process.pid)),
        ("SIGSTOP of switchmld for 1 s: completes", lambda: e2e_kill.paused(draw, lambda a, _: a.process.pid)),
        ("SIGSTOP of a worker for 10 s: error, for it too",
         lambda: errors_and_slots(e2e_kill.stopped_worker(draw, stop_s=10))),
        ("SIGSTOP of switchmld for 10 s: error", lambda: {"error after": e2e_kill.stopped_aggregator(draw, stop_s=10)}),
        ("kill -9 of switchmld: error", lambda: {"error after": e2e_kill.killed_aggregator(draw)})]
    for name, episode in episodes:
        tally = Tally(name)
        for _ in range(runs):
            tally.run(episode)
        tallies.append(tally)


def part_training(options, tallies):
    import e2e_training
    draw = random.Random(options.seed)
    tally = Tally("kill -9 of a rank of a PyTorch training", "(error within lease 2 s + 1 s)")
    for _ in range(options.runs or 50):
        tally.run(lambda: {"error after": e2e_training.lost_rank(draw)})
    tallies.append(tally)


def part_retry(options, tallies):
    import e2e_training
    draw = random.Random(options.seed)
    tally = Tally("kill -9 of switchmld, PyTorch training tries again", "(weights as of an undisturbed run)")
    expected = e2e_training.undisturbed()
    for _ in range(options.runs or 20):
        tally.run(lambda: {"training took": [e2e_training.killed_aggregator(draw, expected)]})
    tallies.append(tally)
    import e2e_kill
    tally = Tally("kill -9 of switchmld, C workers try again", "(every sum right, with and without keys and check words)")
    for _ in range(options.runs or 50):
        tally.run(lambda: {"job took": [e2e_kill.restarted_aggregator(draw)]})
    tallies.append(tally)


def part_control(options, tallies):
    import e2e_control
    tally = Tally("abuse of the control port", "(a real join succeeds meanwhile)")
    for abuse in e2e_control.ABUSES:
        tally.run(lambda abuse=abuse: {f"join during {abuse.__name__}": e2e_control.abused(abuse, num_joins=20)})
    tallies.append(tally)


def part_flood(options, tallies):
    import e2e_flood
    for end in ("aggregator", "worker"):
        for kind in ("random", "fields"):
            tally = Tally(f"flood of the {end}'s data port, {kind}", "(bits exact, memory flat, goodput >= 70 %)")
            tally.run(e2e_flood.compared, end, kind, rate=100_000, seconds=30, rounds=options.runs or 3)
            tallies.append(tally)


def part_forger(options, tallies):
    import e2e_flood
    for end in ("aggregator", "worker"):
        tally = Tally(f"an outside forger at the {end}, 10^7 datagrams", "(no key; bits exact, no job ends)")
        tally.run(lambda end=end: {"none": [e2e_flood.outside_forger(end, 10**7) or 0]})
        tallies.append(tally)


def part_lease(options, tallies):
    import e2e_jobs
    seconds = options.seconds or 600
    tally = Tally(f"leases under load for {seconds} s", "(no rank lost)")
    for _ in range(options.runs or 1):
        tally.run(lambda: {"silence in leases": e2e_jobs.leases_under_load(seconds)})
    tallies.append(tally)


def part_soak(options, tallies):
    import e2e_soak
    seconds = options.seconds or 1800
    tally = Tally(f"soak of {seconds} s", "(no job ends that nobody attacked, no wrong sum)")

    def soak():
        for what, number in sorted(e2e_soak.soaked(seconds, options.seed).items()):
            print(f"    {what}: {number}", flush=True)
    for _ in range(options.runs or 1):
        tally.run(soak)
    tallies.append(tally)


def part_mixed(options, tallies):
    import e2e_mixed
    tally = Tally("jobs of 100 operations at random", "(every element of every result right)")
    for number in range(options.runs or 200):
        tally.run(lambda seed=options.seed + number: print("    " + e2e_mixed.mixed(seed, 100, 1_500_000), flush=True))
    tallies.append(tally)


def part_starve(options, tallies):
    import e2e_starved
    tally = Tally("a rank with 6 % of a processor", "(of four ranks: 4 packets a sum are needed, at most 6 come)")
    for _ in range(options.runs or 1):
        for num_slots in (256, 1024, 4096, 8192):
            tally.run(e2e_starved.packets_a_sum, num_slots, 15)
    tallies.append(tally)


PARTS = {"kill": part_kill, "stop": part_stop, "training": part_training, "retry": part_retry, "control": part_control,
         "flood": part_flood, "forger": part_forger, "lease": part_lease, "starve": part_starve,
         "soak": part_soak, "mixed": part_mixed}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--build", default=os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build")))
    options = parser.parse_args()
    os.environ["SML_BUILD_DIR"] = options.build
    for name, path in PROGRAMS.items():
        os.environ.setdefault(name, os.path.join(options.build, path))
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(ROOT, "tests"))
    import real
    print(f"trust: --seed {options.seed}", flush=True)
    tallies = []
    for part in options.parts or PARTS:
        done = len(tallies)
        PARTS[part](options, tallies)
        for tally in tallies[done:]:
            tally.report(real.summary)
    kept = all(tally.num_kept == tally.num_runs for tally in tallies)
    print(f"trust: {sum(tally.num_kept for tally in tallies)} of {sum(tally.num_runs for tally in tallies)} runs "
          f"kept their promise", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
