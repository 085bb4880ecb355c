#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of collectives drawn at random, through the PyTorch backend: every kind, type and reduction, on views of
memory that calls share, in several groups, within ranges and outside, waited for at once, late, in any order or never;
through a switchmld and without one, over the network and in memory, with lost packets and without. Each rank computes
what every rank's memory must have, and compares all of its own, also what lies between and beside the tensors
(torch_mixed_calls.py, torch_mixed_places.py).

    torch_mixed_test.py [--all] [--seed S] [--runs N] [--calls N]

Without options a few fixed seeds. --all (`make check-torch`): 150 seeds of 150 calls each; --seed says the first,
--runs how many, --calls how long. A job that fails is printed with its seed, its settings and, of several jobs, the fewest
calls that were seen to fail. `--seed S --calls N` plays it again, also as far as call N only: the first calls of a seed
are always the same. How ranks wait is drawn, too, but not how fast they are, so that some failures take some tries. A
rank that fails prints its last calls, and one that hangs where its threads are."""
import argparse
import contextlib
import os
import random
import sys
import tempfile
import time

import tap
import torch_ranks
from torch_ranks import Daemon, Ranks, report

SEEDS = (2, 13, 32, 38, 43)  # of `make check`: of 2 and 3 ranks
NUM_CALLS, NUM_CALLS_OF_ALL, NUM_RUNS_OF_ALL = 50, 150, 150
TIMEOUT_S, LIMIT_S = 30, 60  # a group's; a rank's, which hangs then
NOBODY_S = 3  # a group's where there is no switchmld at the address, which ends the look for one


# ---- What the ranks do ---------------------------------------------------------------------------------

def run_program():
    import torch_mixed_calls  # pylint: disable=import-outside-toplevel  # needs torch
    report(stats=torch_mixed_calls.run(int(os.environ["CASE_SEED"]), int(os.environ["CASE_CALLS"]),
                                       float(os.environ["CASE_TIMEOUT_S"]), torch_ranks.patience_s(LIMIT_S)))


def case_destroys_its_groups():
    run_program()
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    dist.destroy_process_group()


@torch_ranks.ends_as_interpreters_do
def case_just_ends():
    run_program()


# ---- The jobs ------------------------------------------------------------------------------------------

def drawn(seed):
    """(case, ranks, what is at the aggregator's address if they have one, environment) of a job."""
    draw, env = random.Random(f"job {seed}"), {}
    for name, values, often in [("SHARED_MEMORY", "1", 0.5), ("ONE_WAY", "0", 0.3), ("EXACT", "1", 0.2),
                                ("CHECK", "1", 0.2), ("FLOAT64_BITS", ["64", "96"], 0.3),
                                ("FLOAT_BITS", ["16", "32"], 0.2), ("THREADS", "123", 0.4),
                                ("SLOTS", ["8", "16", "64", "256"], 0.3),
                                ("MAX_DATAGRAM", ["600", "1472", "8960"], 0.3), ("NO_OFFLOAD", "1", 0.1),
                                ("DISABLE", "1", 0.04), ("RETRY", ["20"], 0.1)]:
        if draw.random() < often:
            env["SWITCHML_" + name] = draw.choice(values)
    if draw.random() < 0.3:
        env["SWITCHML_FAULTS"] = (f"loss={draw.choice([0.003, 0.01])},duplicate={draw.choice([0, 0.01])},"
                                  f"reorder={draw.choice([0, 0.02])},seed={draw.randrange(1000)}")
    if draw.random() < 0.3:
        env["CASE_FEW_OF_GLOO"] = "1"
    case, num_ranks = draw.choice(["destroys_its_groups", "just_ends"]), draw.choice([1, 2, 2, 3, 3, 4, 4])
    aggregator = draw.choice([None] * 6 + ["daemon"] * 7 + ["nobody"])
    if aggregator != "daemon":
        env.pop("SWITCHML_RETRY", None)  # it is a wait for an aggregator's successor
    return case, num_ranks, aggregator, env


def attempt(seed, num_calls):
    """One job; what its ranks counted. AssertionError if anything was wrong."""
    case, num_ranks, aggregator, env = drawn(seed)
    timeout_s = torch_ranks.patience_s(NOBODY_S if aggregator == "nobody" else TIMEOUT_S)
    more = {"CASE_SEED": str(seed), "CASE_CALLS": str(num_calls), "CASE_TIMEOUT_S": str(timeout_s)}
    with contextlib.ExitStack() as stack:
        address = None
        if aggregator == "daemon":
            address = stack.enter_context(Daemon("--lanes", env.get("SWITCHML_THREADS", "1"))).address
        elif aggregator == "nobody":
            address = f"127.0.0.1:{torch_ranks.fixed_port()}"
            more["CASE_BEGIN"] = "1"
        stats = [result["stats"] for result in Ranks(case, num_ranks, address, **more, **env).wait()]
    assert not any(each["failed_calls"] for each in stats), stats
    is_ours = aggregator != "nobody" and "SWITCHML_DISABLE" not in env and num_ranks > 1 and num_calls >= NUM_CALLS
    assert not is_ours or all(each["offloaded_calls"] for each in stats), stats
    return stats


def fewest_that_fail(seed, num_calls):
    """(calls, what went wrong), by halves; three tries each."""
    works, why = 0, "(not again in three tries)"
    while num_calls - works > 1:
        middle = (num_calls + works) // 2
        try:
            for _ in range(3):
                attempt(seed, middle)
            works = middle
        except AssertionError as problem:
            num_calls, why = middle, str(problem)
    return num_calls, why


def run_job(seed, num_calls):
    began = time.monotonic()
    try:
        stats = attempt(seed, num_calls)
    except AssertionError as problem:
        raise AssertionError(f"seed {seed}, {num_calls} calls, {drawn(seed)}:\n{problem}") from None
    print(f"# seed {seed}: {drawn(seed)}, {stats[0]}, {time.monotonic() - began:.1f} s", flush=True)


def skip_where_it_does_not_fit():
    if torch_ranks.torch_major() >= 2:
        raise tap.Skip("its ranges of calls are those of PyTorch 1")


def test_fixed_seeds():
    skip_where_it_does_not_fit()
    for seed in SEEDS:
        run_job(seed, NUM_CALLS)


def test_random_programs():
    """Of --all and the other options."""
    skip_where_it_does_not_fit()
    first, num_failed = OPTIONS.seed or 1, 0
    for seed in range(first, first + OPTIONS.runs):
        try:
            run_job(seed, OPTIONS.calls)
        except AssertionError as problem:
            num_failed += 1
            print(f"FAILED: {problem}", flush=True)
            if OPTIONS.runs > 1:
                fewest, why = fewest_that_fail(seed, OPTIONS.calls)
                print(f"FAILED: --seed {seed} --calls {fewest}\n{why}", flush=True)
    assert not num_failed, f"{num_failed} of {OPTIONS.runs} failed"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--all", action="store_true")
    for option in "--seed", "--runs", "--calls":
        parser.add_argument(option, type=int)
    OPTIONS, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="switchml-torch-") as work:
        if "--nursery" not in sys.argv:
            is_long = OPTIONS.all or OPTIONS.seed or OPTIONS.runs or OPTIONS.calls
            OPTIONS.runs = OPTIONS.runs or (NUM_RUNS_OF_ALL if OPTIONS.all else 1)
            OPTIONS.calls = OPTIONS.calls or NUM_CALLS_OF_ALL
            sys.argv[1:] = ["test_random_programs" if is_long else "test_fixed_seeds"]
            if is_long:
                torch_ranks.freeze(work)
        torch_ranks.main(globals())
