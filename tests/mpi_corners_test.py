#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What MPI allows and promises beside plain sums (tools/mpi_corners.c): first sums that do not block, thousands of them
outstanding, statuses, attributes, wrong arguments, many communicators, pauses. Through the component of Open MPI and
through the libraries to preload, each with the ranks' own aggregation."""
import os
import re
import resource

import mpi_test as mpi
import tap


def ways():
    """(MPI, whether the library is preloaded) of those that are built here."""
    files = {("openmpi", False): mpi.COMPONENT, ("openmpi", True): "libswitchml_pmpi_openmpi.so",
             ("mpich", True): "libswitchml_pmpi_mpich.so"}
    found = [way for way, file in files.items() if os.path.exists(os.path.join(mpi.MODULES, file))]
    if not found:
        raise tap.Skip("neither Open MPI nor MPICH was installed when this was built")
    return found


def run(name, num_ranks, part, preload=False, **variables):
    """Of "openmpi" or "mpich": what it wrote, and how many sums each rank took in MPI_COMM_WORLD, and all in others."""
    library = os.path.join(mpi.MODULES, f"libswitchml_pmpi_{name}.so")
    words = []
    if name == "mpich": # which has no component
        words = ["-env", "LD_PRELOAD", library]
    elif preload:
        words = ["--mca", "coll", "^switchml", "-x", "LD_PRELOAD=" + library]
    else:
        library = mpi.COMPONENT
    mpi.need(library)
    program = mpi.compiled("mpicc." + name, "mpi_corners.c")
    out, taken = mpi.run("mpirun." + name, "-n", num_ranks, *words, program, part,
                         **{"SWITCHML_MPI_TYPES": None, "SWITCHML_MPI_JOIN_TIMEOUT": 60, **variables})
    assert "done" in out, out
    return out, taken


def test_first_sums_do_not_block():
    """Neither those that MPI keeps nor, once the ranks have met in what blocks, those that are taken."""
    for num_ranks in (2, 3):
        for name, preload in ways():
            _, taken = run(name, num_ranks, "first", preload)
            assert preload or taken == {"other": num_ranks * 3}, taken


def test_thousands_outstanding():
    """More than there are handles: they wait for room, and hold up no other communicator."""
    _, taken = run("openmpi", 2, "many", SWITCHML_MPI_MIN_COUNT=1)
    assert taken == {0: 24003, 1: 24003, "other": 2 * 2}, taken


def test_statuses_are_empty():
    _, taken = run("openmpi", 2, "statuses", MALLOC_PERTURB_=165)
    assert taken == {0: 101, 1: 101}, taken


def test_attributes_are_not_copied():
    for name, preload in ways():
        _, taken = run(name, 2, "attributes", preload)
        assert taken == {0: 1, 1: 1}, taken


def test_wrong_arguments_are_errors():
    for name, preload in ways():
        _, taken = run(name, 2, "arguments", preload)
        assert taken == {0: 1, 1: 1}, taken


def test_a_rank_without_memory_ends_the_job():
    """Else it would go MPI's way alone, and the others would wait for it."""
    for preload, said in ((False, "rank 1 of MPI_COMM_WORLD: out of memory: its calls fail"), (True, "out of memory, or an error of MPI's")):
        if ("openmpi", preload) not in ways():
            raise tap.Skip("Open MPI was not installed when this was built")
        words = ["-x", "LD_PRELOAD=" + os.path.join(mpi.MODULES, "libswitchml_pmpi_openmpi.so"), "--mca", "coll", "^switchml"]
        out, _ = mpi.run("mpirun.openmpi", "-n", 3, *(words if preload else []), mpi.compiled("mpicc.openmpi", "mpi_no_memory.c"),
                         expect=1)
        assert said in out, out


def test_large_counts():
    """MPI-4's calls, which MPICH has. mpi4py 4 makes no others."""
    _, taken = run("mpich", 2, "large counts", True)
    assert taken == {0: 2, 1: 2}, taken


def check_many(taken_communicators, name, preload, **variables):
    """Sums of 100 communicators, twice: those that are taken, on every rank, and what the process has open then."""
    out, taken = run(name, 2, "communicators", preload, **variables)
    assert taken == {"other": 2 * 2 * taken_communicators}, (taken, out[:2000])
    said = re.findall(r"no job: rank \d .*", out)
    assert len(said) == 1 and "MPI does the calls, here and in later communicators" in said[0], said
    descriptors, threads = map(max, zip(*(map(int, line) for line in
                                          re.findall(r"(\d+) descriptors, (\d+) threads", out))))
    return descriptors, threads, said[0]


def test_a_hundred_communicators():
    """A bound on the jobs of a process; when communicators are freed, later ones are taken."""
    for name, preload in ways():
        descriptors, threads, said = check_many(16, name, preload)
        assert descriptors < 256 and threads < 80 and "SWITCHML_MPI_MAX_JOBS" in said, (descriptors, threads, said)
        check_many(3, name, preload, SWITCHML_MPI_MAX_JOBS=3)


def test_few_descriptors():
    """A quarter of a process's descriptors at most, whatever the bound: 10 for each job of 2 ranks."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, old[1]))
    try:
        descriptors, _, said = check_many(6, "mpich", True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    assert descriptors < 128 and "ulimit -n" in said, (descriptors, said)


def test_a_pause_ends_nothing():
    """Of 3 s, where a rank counts as late after 2."""
    for name, preload in ways():
        _, taken = run(name, 2, "paused", preload)
        assert taken == {0: 3, 1: 3}, taken


if __name__ == "__main__":
    try:
        tap.main(globals())
    finally:
        mpi.FOLDER.cleanup()
