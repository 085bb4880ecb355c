#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs drawn at random, whose operations are, too (tests/tools/mixed.c): all collectives, types, lengths and parts, up to
16 under way at once, through a switchmld, which may be killed and started again under them, or among ranks that aggregate
for each other, with lost, doubled and reordered datagrams, long and short ones, few and many slots. No operation fails, and
every element of every result is right.
`tools/trust.py mixed --runs N` has as many as one likes; --seed says with which."""
import contextlib
import os
import random
import subprocess
import time

import e2e
import ports
import tap

MIXED = os.environ.get("SWITCHML_MIXED", "mixed")
NUM_JOBS, NUM_OPERATIONS, MOST_ELEMENTS = 8, 40, 400_000
LIMIT_S = 60


def drawn(draw):
    """(ranks, lanes of a switchmld or 0, its options, pauses before it is killed, environment, operations under way) of a
    job."""
    world_size, threads = draw.choice([2, 3, 4, 5, 8]), draw.choice([1, 1, 2, 3])
    faults = {"loss": draw.choice([0, 0.001, 0.01, 0.03]), "duplicate": draw.choice([0, 0.01]),
              "reorder": draw.choice([0, 0, 0.02])}
    env = {"SWITCHML_THREADS": threads, "SWITCHML_MAX_DATAGRAM": draw.choice([1472, 1472, 600, 8960])}
    if any(faults.values()):
        env["SWITCHML_FAULTS"] = ",".join(f"{what}={much}" for what, much in {**faults, "seed": draw.randrange(1000)}.items())
    for name, values, often in [("SWITCHML_SLOTS", [8, 16, 64, 256, 512], 0.5), ("SWITCHML_EXACT", [1], 0.2),
                                ("SWITCHML_NO_OFFLOAD", [1], 0.3), ("SWITCHML_CHECK", [1], 0.1),
                                ("SWITCHML_ONE_WAY", [0], 0.1)]:
        if draw.random() < often:
            env[name] = draw.choice(values)
    options = draw.choice([[], ["--slots", "1024"]])
    lanes, depth = threads if draw.random() < 0.6 else 0, draw.choice([1, 2, 4, 8, 16])
    pauses = [draw.choice([0.1, 0.5]) * draw.random() for _ in range(draw.choice([0, 0, 1, 3]) if lanes else 0)]
    if pauses:
        env["SWITCHML_RETRY"] = 40
    return world_size, lanes, options, pauses, env, depth


def mixed(seed, num_operations=NUM_OPERATIONS, most_elements=MOST_ELEMENTS):
    """One job; what it was."""
    world_size, lanes, options, pauses, env, depth = drawn(random.Random(seed))
    with contextlib.ExitStack() as stack:
        where = {"SWITCHML_RENDEZVOUS": f"127.0.0.1:{ports.fixed_port()}"}
        if lanes:
            where = {"SWITCHML_AGGREGATOR": f"127.0.0.1:{ports.fixed_port()}"}
            faults = {name: value for name, value in env.items() if name == "SWITCHML_FAULTS"}
            begin = lambda: e2e.Daemon("--listen", where["SWITCHML_AGGREGATOR"], "--lanes", str(lanes), *options,
                                       env=e2e.environment(**faults))
            daemons = [begin()]
            stack.push(lambda *error: daemons[-1].__exit__(*error))
        words = [MIXED, *map(str, (seed, num_operations, most_elements, depth))]
        ranks = [subprocess.Popen(words, env=e2e.environment(**env, **where, RANK=rank, WORLD_SIZE=world_size),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for rank in range(world_size)]
        stack.callback(lambda: [rank.kill() for rank in ranks])
        for pause_s in pauses:
            time.sleep(pause_s)
            daemons[-1].process.kill()
            daemons[-1].stop()
            daemons.append(begin())
        said = [rank.communicate(timeout=LIMIT_S * e2e.PATIENCE)[1] for rank in ranks]
    what = (f"seed {seed}: {world_size} ranks, {lanes or 'no'} lanes of a daemon's, killed {len(pauses)} times, {depth} at once, "
            f"{options}, {env}")
    assert not any(rank.returncode for rank in ranks), what + "\n" + "".join(said)
    return what


def test_random_jobs():
    seed = int(os.environ.get("SEED", "1"))
    for number in range(NUM_JOBS):
        print("# " + mixed(seed + number), flush=True)
    assert not e2e.marked_processes(), e2e.marked_processes()


if __name__ == "__main__":
    tap.main(globals())
