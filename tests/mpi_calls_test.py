#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""MPI's collective calls beside sums (tools/mpi_calls.c), of all types and shapes: in place, without data, uneven parts,
derived types, one rank, several communicators, hundreds under way. What each rank gets has the bits that MPI by itself
gives it, and how many calls of each kind were taken is read from what the ranks say in the end."""
import re

import e2e
import mpi_corners_test as corners
import mpi_test as mpi
import tap

KINDS = ("allreduce", "reduce", "reduce_scatter", "allgather", "bcast", "barrier")
EVERY = {f"SWITCHML_MPI_{kind.upper()}_BYTES": 1 << 30 for kind in KINDS}
# On one host, and the kinds that are none by default.
SHORT = {"SWITCHML_MPI_TYPES": None, "SWITCHML_MPI_SHORT_HOSTS": 1, "SWITCHML_MPI_BCAST_BYTES": 4096,
         "SWITCHML_MPI_REDUCE_BYTES": 4096, "SWITCHML_MPI_BARRIER_BYTES": 4}
DIGESTS = {} # of MPI by itself


def run(name, preload, num_ranks, parts, **variables):
    """On "openmpi" or "mpich": the digests, how many calls of each kind were taken in MPI_COMM_WORLD, and how many were
    MPI's, by reason; the same on all ranks."""
    words = []
    if variables.get("without"):
        variables, words = {}, ["--mca", "coll", "^switchml"] if name == "openmpi" else []
    elif preload:
        library = f"{mpi.MODULES}/libswitchml_pmpi_{name}.so"
        mpi.need(library)
        words = ["-env", "LD_PRELOAD", library] if name == "mpich" else \
                ["--mca", "coll", "^switchml", "-x", "LD_PRELOAD=" + library]
    else:
        mpi.need(mpi.COMPONENT)
    program = mpi.compiled("mpicc." + name, "mpi_calls.c")
    out, _ = mpi.run("mpirun." + name, "-n", num_ranks, *words, program, *parts,
                     **{**SHORT, **variables})
    assert "done" in out, out
    told = set(re.findall(r"of MPI_COMM_WORLD: \d+ calls of \d+ bytes taken \((.*?)\); MPI's: (.*?);", out))
    assert len(told) <= 1, out
    taken, passed = told.pop() if told else ("", "")
    return (re.search("^digests .*", out, re.MULTILINE).group(),
            {kind: int(num) for num, kind in re.findall(r"(\d+) (\w+)", taken)},
            {why: int(num) for num, why in re.findall(r"(\d+) ([^,]+(?:, operation or no data)?)", passed)})


def check(name, preload, num_ranks, *parts, **variables):
    """As MPI by itself. Returns what was taken, and what not."""
    key = name, num_ranks, parts
    if key not in DIGESTS:
        DIGESTS[key] = run(name, False, num_ranks, parts, without=True)[0]
    digests, taken, passed = run(name, preload, num_ranks, parts, **variables)
    assert digests == DIGESTS[key], (digests, DIGESTS[key], taken)
    return taken, passed


def check_taken(taken, blocking_only, kinds=KINDS):
    """Some calls of each kind; libraries to preload take those that block."""
    assert set(taken) == set(kinds), taken
    assert all(taken[kind] >= (10 if blocking_only else 40) for kind in kinds), taken


def test_short_calls():
    """In one host's memory, by every way that there is."""
    for name, preload in corners.ways():
        taken, passed = check(name, preload, 3, "short")
        check_taken(taken, preload)
        assert passed["size"] > 0 and passed["ranks had not met"] > 0, passed


def test_parts_in_the_whole():
    """One buffer for both on rank 0 alone: it counts the calls as the others do, and all have the right result."""
    for name, preload in corners.ways():
        if name == "openmpi":
            taken, _ = check(name, preload, 3, "aliased")
            assert taken["reduce_scatter"] >= 12 and taken["allgather"] >= 16, taken


def test_over_a_daemon():
    """In small datagrams; then with check words, which products do not have."""
    with e2e.Daemon() as daemon:
        over_it = {"SWITCHML_AGGREGATOR": daemon.address, "SWITCHML_SHARED_MEMORY": 0, "SWITCHML_REQUIRE": 1,
                   "SWITCHML_MAX_DATAGRAM": 600}
        taken, passed = check("openmpi", False, 4, "short", **over_it)
        check_taken(taken, False)
        assert "not offered" not in passed, passed
        _, passed = check("openmpi", False, 4, "short", **over_it, SWITCHML_CHECK=1)
        assert passed["not offered"] > 0, passed


def test_communicators():
    """A half, a copy, one of one rank, one that is copied without waiting; 300 calls under way in each of two, whose
    order differs between ranks."""
    for name, preload in corners.ways():
        if not preload:
            check(name, preload, 4, "communicators")
            check(name, preload, 2, "communicators", SWITCHML_SHARED_MEMORY=0)
        else:
            check(name, preload, 3, "communicators")


def test_long_calls():
    """Hundreds of kilobytes: by default MPI's but for all-reduces; taken if the limits say so, or one-way windows."""
    taken, passed = check("openmpi", False, 3, "long")
    assert taken["allreduce"] > 20 and taken.get("bcast", 0) < 10 and passed["size"] > 100, (taken, passed)
    taken, _ = check("openmpi", False, 3, "long", **EVERY)
    check_taken(taken, False)
    with e2e.Daemon() as daemon:
        taken, _ = check("openmpi", False, 3, "long", SWITCHML_AGGREGATOR=daemon.address, SWITCHML_SHARED_MEMORY=0,
                         SWITCHML_ONE_WAY=1, SWITCHML_SLOTS=16, SWITCHML_MPI_ONE_WAY_BYTES=20000,
                         SWITCHML_MPI_SHORT_HOSTS=0)
    assert "barrier" not in taken and min(taken[kind] for kind in ("bcast", "allgather", "reduce_scatter")) > 0, taken


def test_types_of_mpi_itself():
    """Open MPI may gather parts at rank 0 and broadcast them, as a type of its own making that MPI's calls know little of."""
    taken, _ = check("openmpi", False, 3, "short", SWITCHML_MPI_ALLGATHER_BYTES=0, SWITCHML_MPI_BCAST_BYTES=1 << 30,
                     OMPI_MCA_coll_tuned_use_dynamic_rules=1, OMPI_MCA_coll_tuned_allgatherv_algorithm=1)
    assert "allgather" not in taken and taken["bcast"] > 72, taken # more than the program calls


def test_each_kind_has_a_limit():
    for kind in KINDS:
        variables = {f"SWITCHML_MPI_{kind.upper()}_BYTES": 0, "SWITCHML_MPI_MIN_COUNT": 1 << 40}
        taken, _ = check("openmpi", False, 2, "short", **variables)
        check_taken(taken, False, [other for other in KINDS if other != kind])


def test_defaults():
    """Broadcasts, reductions to a root and barriers are MPI's. One host is not enough, nor is the number of ranks."""
    taken, _ = check("openmpi", False, 3, "short", SWITCHML_MPI_BCAST_BYTES=None, SWITCHML_MPI_REDUCE_BYTES=None,
                     SWITCHML_MPI_BARRIER_BYTES=None)
    check_taken(taken, False, [kind for kind in KINDS if kind not in ("bcast", "reduce", "barrier")])
    for name, preload in corners.ways(): # MPICH 4.0's own MPI_Reduce crashes in place with 4 ranks
        taken, passed = check(name, preload, 5 if name == "openmpi" else 3, "short", SWITCHML_MPI_SHORT_HOSTS=None)
        assert not taken and passed["too few hosts"] > 100, (taken, passed)


def test_short_sums_of_floats_are_exact():
    """No result has a weaker bound than MPI's additions have, also where floats in general go in blocks."""
    program = mpi.compiled("mpicc.openmpi", "mpi_calls.c")
    found = []
    for variables in ({**SHORT, "SWITCHML_MPI_SHORT_HOSTS": 0}, SHORT, {**SHORT, "SWITCHML_EXACT": 0},
                      {**SHORT, "SWITCHML_SHARED_MEMORY": 0}):
        out, _ = mpi.run("mpirun.openmpi", "-n", 4, program, "floats", **variables)
        found.append(re.search(r"(\d+) of 384 floats are exact", out).group(1))
    assert int(found[0]) < 384 and found[1:] == ["384"] * 3, found


def test_settings_of_rank_0_count():
    """One rank would take nothing, or less: nobody waits elsewhere than the others."""
    for variable in ("SWITCHML_DISABLE=1", "SWITCHML_MPI_BCAST_BYTES=0", "SWITCHML_MPI_SHORT_HOSTS=0"):
        program = mpi.compiled("mpicc.openmpi", "mpi_calls.c")
        of_one = f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export {variable}; exec "$0" short'
        out, taken = mpi.run("mpirun.openmpi", "-n", 2, "sh", "-c", of_one, program, **SHORT)
        assert "done" in out and "rank 1 has other settings" in out and set(taken) == {0, 1} and taken[0] > 300, out


def test_a_lost_rank_is_named():
    mpi.need(mpi.COMPONENT)
    program = mpi.compiled("mpicc.openmpi", "mpi_calls.c")
    for kind in KINDS[1:]:
        out, _ = mpi.run("mpirun.openmpi", "-n", 3, program, kind, expect=1, **SHORT, SWITCHML_LEASE=2.5)
        for rank in (0, 2):
            assert re.search(rf"switchml: rank {rank} of MPI_COMM_WORLD: {kind} failed: .*rank 1\b", out), out
            assert f"rank {rank}: told" in out, out


def test_a_rank_without_memory_keeps_nobody_waiting():
    """Every rank has an error, long before an operation's deadline."""
    for name, preload in corners.ways():
        run(name, preload, 3, ("memory",), SWITCHML_MPI_BCAST_BYTES=1 << 30)


if __name__ == "__main__":
    try:
        tap.main(globals())
    finally:
        mpi.FOLDER.cleanup()
