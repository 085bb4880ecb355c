#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""MPI programs that know nothing of SwitchML, under real launchers on loopback: what they compute is checked by
themselves, and that their sums went through SwitchML is read from the library's counters, which each rank tells at the
end of a communicator.
Compiled here by each MPI's own compilers."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import e2e
import openmpi
import ports
import tap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import contenders
import netbed
import places
MODULES = os.path.join(os.environ["SML_BUILD_DIR"], "integrations/mpi")
COMPONENT = os.path.join(MODULES, "mca_coll_switchml.so")
FOLDER = tempfile.TemporaryDirectory(prefix="switchml-mpi-")
PYTHON = "/usr/bin/python3"
OPENMPI = {**openmpi.variables(FOLDER.name), "OMPI_MCA_mca_base_component_path": "SYS_DEFAULT:" + MODULES}


TYPES = "float32,int32,int64,float16" # what most clients here sum: the defaults have no floats
ALL_TYPES = TYPES + ",float64"


def compiled(compiler, source):
    """The program, compiled once; a skip if it cannot be here."""
    if not shutil.which(compiler):
        raise tap.Skip(f"{compiler} is not installed")
    program = os.path.join(FOLDER.name, compiler + "-" + source)
    if not os.path.exists(program):
        sources = [source, "mpi_yield.c"] if "mpich" in compiler else [source]
        subprocess.run([compiler, "-O1", "-o", program, *(os.path.join(HERE, "tools", name) for name in sources), "-ldl"],
                       check=True, capture_output=True)
    return program


def need(*files):
    for file in files:
        if not os.path.exists(file):
            raise tap.Skip(f"{os.path.basename(file)} is not built: its MPI was not installed then")


def run(launcher, *words, expect=0, **variables):
    """What it wrote, and how many sums each rank says it took in MPI_COMM_WORLD, and all in "other" communicators."""
    environment = {"SWITCHML_MPI_VERBOSE": 1, "SWITCHML_MPI_TYPES": TYPES, **(OPENMPI if "openmpi" in launcher else {}),
                   **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    result = subprocess.run([launcher, *map(str, words)], env=e2e.environment(**environment), text=True, timeout=tap.patience_s(100),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                            check=False)
    good = (result.returncode == 0) == (expect == 0)
    assert good, f"{launcher} ended with {result.returncode}:\n{result.stdout[-4000:]}"
    taken = {}
    for rank, name, count in re.findall(r"switchml: rank (\d+) of (.*): (\d+) calls of", result.stdout):
        rank = int(rank) if name == "MPI_COMM_WORLD" else "other"
        taken[rank] = taken.get(rank, 0) + int(count)
    return result.stdout, taken


PETSC = glob.glob("/usr/lib/petscdir/petsc*/*-real/lib/python3/dist-packages")
NUM_SUMS_OF_PETSC = 300 # three in each of 112 iterations
NUM_SUMS_OF_LAMMPS = 40  # of doubles, beside 10 and more of int32: how many atoms, bonds, ghosts there are


def check_client(out, taken, num_ranks, expected, expected_of_others=0):
    assert "done" in out, out
    others = taken.pop("other", 0)
    assert taken == {rank: expected for rank in range(num_ranks)} and others == expected_of_others, \
        f"{taken}, {others}, not {expected}, {expected_of_others}\n{out}"


# Calls of at least 4,096 elements: sums of two lengths, three times each, one beside a message, and a maximum; of 40 at
# once 30. Then three of each rank in a copy of MPI_COMM_WORLD, and three in half of it for ranks not alone there. Three in a
# copy that is freed while the last two, which do not block, are under way, if that is asked for.
NUM_BLOCKING, NUM_AT_ONCE, NUM_IN_OTHERS, NUM_IN_FREED = 2 * 3 + 2, 30, 3, 3
NUM_IN_WORLD = NUM_BLOCKING + NUM_AT_ONCE


def test_component_of_openmpi():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    out, taken = run("mpirun.openmpi", "-n", 3, client)
    check_client(out, taken, 3, NUM_IN_WORLD, (3 + 2) * NUM_IN_OTHERS)


def test_component_with_a_daemon():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    with e2e.Daemon() as daemon:
        out, taken = run("mpirun.openmpi", "-n", 4, client, "freed", SWITCHML_AGGREGATOR=daemon.address,
                         SWITCHML_SHARED_MEMORY=0, SWITCHML_REQUIRE=1)
    check_client(out, taken, 4, NUM_IN_WORLD, 8 * NUM_IN_OTHERS + 4 * NUM_IN_FREED)


# Each rank has int64 under five names, unsigned, and where the types say so float64; what MPIX_C_FLOAT16 is in an MPI
# that has it. Not: short, long double.
NUM_WHOLE, NUM_OF_TYPE = 6, 5003


def check_types(out, taken, num_ranks, num_doubles):
    num_halves = int("halves" in out)
    check_client(out, taken, num_ranks, NUM_WHOLE + num_doubles + num_halves)
    num_bytes = NUM_OF_TYPE * (5 * 8 + 4 + 8 * num_doubles + 2 * num_halves)
    told = re.findall(r"rank \d+ of MPI_COMM_WORLD: \d+ calls of (\d+) bytes taken .*; (\d+) chunks, (\d+) packets", out)
    assert len(told) == num_ranks and {int(line[0]) for line in told} == {num_bytes}, out
    # An element of int64 takes 12 bytes, a packet has at most 1,500.
    assert all(min(int(line[1]), int(line[2])) >= NUM_OF_TYPE * 5 * 12 // 1500 for line in told), out


def test_types_of_openmpi():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    with e2e.Daemon() as daemon:
        over_it = {"SWITCHML_AGGREGATOR": daemon.address, "SWITCHML_SHARED_MEMORY": 0, "SWITCHML_REQUIRE": 1,
                   "SWITCHML_MAX_DATAGRAM": 1472}
        check_types(*run("mpirun.openmpi", "-n", 3, client, "types", **over_it), 3, 0)
        check_types(*run("mpirun.openmpi", "--mca", "coll_switchml_types", ALL_TYPES, "-n", 3, client, "types",
                         **over_it), 3, 1)
        # Offered to nobody, as the variable has the last word.
        check_types(*run("mpirun.openmpi", "-n", 2, client, "types", **over_it, SWITCHML_MPI_TYPES=ALL_TYPES,
                         SWITCHML_FLOAT64_BITS=0), 2, 0)


def check_defaults(launcher, *words, **variables):
    """Whole numbers are taken, of each rank one sum, and floats beside a fill value keep what MPI gives them."""
    out, taken = run(launcher, "-n", 2, *words, "fill", SWITCHML_MPI_TYPES=None, **variables)
    check_client(out, taken, 2, 1)
    assert "20000 of 20000 floats are MPI's" in out, out
    # Floats that are asked for are exact: of two ranks what MPI's own addition gives.
    out, taken = run(launcher, "-n", 2, *words, "fill", SWITCHML_MPI_TYPES="float32,int32", **variables)
    assert "20000 of 20000 floats are MPI's" in out, out
    # What the documents say of block fixed point.
    out, taken = run(launcher, "-n", 2, *words, "fill", SWITCHML_MPI_TYPES="float32,int32", SWITCHML_EXACT=0, **variables)
    check_client(out, taken, 2, 2)
    assert re.search(r"^\d{1,4} of 20000 floats are MPI's", out, re.MULTILINE), out


def test_floats_are_left_to_mpi_by_default():
    need(COMPONENT)
    check_defaults("mpirun.openmpi", compiled("mpicc.openmpi", "mpi_client.c"))


def test_floats_are_left_to_mpich_by_default():
    library = os.path.join(MODULES, "libswitchml_pmpi_mpich.so")
    need(library)
    check_defaults("mpirun.mpich", "-env", "LD_PRELOAD", library, compiled("mpicc.mpich", "mpi_client.c"))


def check_few(out, taken, num_ranks, num_taken):
    """So many of each rank's 24 sums of 1 to 8 doubles are taken, of the longer ones none; and what is taken is exact."""
    check_client(out, taken, num_ranks, num_taken)
    assert num_taken < 24 or "24 of 24 are exact" in out, out


def test_few_doubles_go_by_hosts():
    """On one host they are MPI's, unless one is said to be enough; then with the type not named, but not with none."""
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_few.c")
    check_few(*run("mpirun.openmpi", "-n", 5, client, SWITCHML_MPI_TYPES=None), 5, 0)
    asked = {"SWITCHML_MPI_TYPES": None, "SWITCHML_MPI_SHORT_HOSTS": 1}
    check_few(*run("mpirun.openmpi", "-n", 4, client, **asked), 4, 24)
    check_few(*run("mpirun.openmpi", "--mca", "coll_switchml_short_hosts", 1, "-n", 3, client), 3, 24)
    check_few(*run("mpirun.openmpi", "-n", 3, client, SWITCHML_MPI_SHORT_HOSTS=2), 3, 0)
    check_few(*run("mpirun.openmpi", "-n", 3, client, SWITCHML_MPI_SHORT_HOSTS=0), 3, 0)
    out, taken = run("mpirun.openmpi", "-n", 3, client, SWITCHML_MPI_SHORT_HOSTS=1, SWITCHML_MPI_TYPES="none")
    assert "done" in out and not any(taken.values()), out
    with e2e.Daemon() as daemon:
        check_few(*run("mpirun.openmpi", "-n", 4, client, SWITCHML_AGGREGATOR=daemon.address, SWITCHML_SHARED_MEMORY=0,
                       SWITCHML_REQUIRE=1, **asked), 4, 24)


def test_few_doubles_of_preloaded_programs():
    """What MPI's messages go by is not seen there: only if it is asked for. MPI_Iallreduce stays with MPI."""
    for name, option in (("openmpi", ["-x", "LD_PRELOAD={}", "--mca", "coll", "^switchml"]),
                         ("mpich", ["-env", "LD_PRELOAD", "{}"])):
        library = os.path.join(MODULES, f"libswitchml_pmpi_{name}.so")
        need(library)
        words = [word.format(library) for word in option]
        client = compiled("mpicc." + name, "mpi_few.c")
        for hosts, num_taken in ((None, 0), (1, 16)):
            check_few(*run("mpirun." + name, *words, "-n", 3, client, SWITCHML_MPI_SHORT_HOSTS=hosts), 3, num_taken)


def run_on_hosts(num_hosts, *words, settings=()):
    """At the defaults, each rank in a network namespace of its own: what it wrote, and how many sums each rank took."""
    need(COMPONENT)
    if netbed.why_unavailable():
        raise tap.Skip(netbed.why_unavailable())
    processes = places.Processes()
    try:
        with places.bed(num_hosts, rate="none") as place:
            mpi = contenders.OpenMPI(processes, num_hosts, contenders.Tools(FOLDER.name))
            mpi.start(place)
            mpi.settings += ["--mca", "mca_base_component_path", "SYS_DEFAULT:" + MODULES, "-x", "SWITCHML_MPI_VERBOSE=1",
                             *settings]
            status, out, errors = mpi.launch(*words)
    finally:
        processes.stop()
    assert status == 0, out + errors
    taken = {}
    for rank, count in re.findall(r"switchml: rank (\d+) of .*: (\d+) calls of", errors):
        taken[int(rank)] = taken.get(int(rank), 0) + int(count)
    return out, taken


def test_few_doubles_of_five_hosts_are_taken():
    """By default, and of four they are not."""
    client = compiled("mpicc.openmpi", "mpi_few.c")
    for num_hosts, num_taken in ((5, 24), (4, 0)):
        check_few(*run_on_hosts(num_hosts, client), num_hosts, num_taken)


def test_petsc_of_five_hosts():
    """Most of its sums are taken by default, and it comes to the same end as with MPI's."""
    if not PETSC:
        raise tap.Skip("petsc4py is not installed (Debian: python3-petsc4py-real)")
    results = []
    for settings, least in ((["--mca", "coll", "^switchml"], None), ([], NUM_SUMS_OF_PETSC)):
        out, taken = run_on_hosts(5, PYTHON, os.path.join(HERE, "tools/petsc_cg.py"),
                                  settings=[*settings, "-x", "PYTHONPATH=" + os.pathsep.join(PETSC)])
        assert not taken if least is None else set(taken) == set(range(5)) and min(taken.values()) >= least, taken
        results.append(re.search("^solved: (.*)$", out, re.MULTILINE).group(1).split())
    assert results[0][0] == results[1][0], results
    for ours, theirs in zip(results[1][2:], results[0][2:]):
        assert abs(float(ours) - float(theirs)) <= 1e-12 * float(theirs), results


def test_lease():
    """By the parameter, by the variable, and rank 0's where they differ; a bad one is told, and the default stays."""
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    asked = ["--mca", "coll_switchml_lease", 300]
    differs = ["-n", 2, "sh", "-c", 'SWITCHML_LEASE=$((8 + OMPI_COMM_WORLD_RANK)) exec "$0"', client]
    for words, variable, expected in ((asked + ["-n", 2, client], "", 300), (["-n", 2, client], "7.5", 7.5),
                                      (differs, "", 8), (["-n", 2, client], "1e9", 60)):
        out, taken = run("mpirun.openmpi", *words, SWITCHML_DEBUG="INFO", SWITCHML_LEASE=variable)
        assert "done" in out and taken[0] > 0, out
        assert f"; lease {expected} s, " in out, out
        assert ("SWITCHML_LEASE=1e9: set seconds from 0.02 to 3600; 60 is used" in out) == (variable == "1e9"), out


def test_bad_parameters_are_told_and_nobody_waits():
    """Also of one rank: it goes by the defaults. Were it without the component, the others would wait for it."""
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    bad = {"types": ("int32,none", "there are"), "lease": ("abc", "set seconds from 0.02 to 3600; 60 is used"),
           "timeout": ("0", "is no number from 1 to 1000000000; 3600 is used"),
           "join_timeout": ("-1", "is no number from 1 to 1000000000; 10 is used"),
           "min_count": ("many", "is no number from 0 to 18446744073709551615; 4096 is used"),
           "priority": ("high", "is no number; 77 is used")}
    of_one = " ".join(f"OMPI_MCA_coll_switchml_{name}={text}" for name, (text, _) in bad.items())
    out, taken = run("mpirun.openmpi", "-n", 2, "sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export {of_one}; exec "$0"',
                     client)
    check_client(out, taken, 2, NUM_IN_WORLD, 2 * NUM_IN_OTHERS)
    for name, (text, said) in bad.items():
        assert re.search(f"coll_switchml_{name}={re.escape(text)}.* {re.escape(said)}", out), out


def test_words_of_switches():
    """All that are usual, in any case; others are told once a process, however many communicators it has."""
    library = os.path.join(MODULES, "libswitchml_pmpi_mpich.so")
    need(library)
    client = compiled("mpicc.mpich", "mpi_client.c")
    for word, num_taken in (("no", NUM_BLOCKING), ("FALSE", NUM_BLOCKING), ("Off", NUM_BLOCKING), ("maybe", NUM_BLOCKING),
                            ("yes", 0), ("True", 0)):
        out, taken = run("mpirun.mpich", "-n", 2, "-env", "LD_PRELOAD", library, client, SWITCHML_DISABLE=word)
        check_client(out, taken, 2, num_taken, 2 * NUM_IN_OTHERS if num_taken else 0)
        assert out.count("SWITCHML_DISABLE=maybe: set 1 or 0; 0 is used") == (2 if word == "maybe" else 0), out


def test_what_is_disabled_takes_nothing():
    """Whatever a site's file of parameters says."""
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    out, taken = run("mpirun.openmpi", "--mca", "coll_switchml_types", TYPES, "-n", 2, client, SWITCHML_DISABLE=1)
    check_client(out, taken, 2, 0, 0)


def test_types_that_are_empty_are_the_default():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    for words, types in (((), ""), (("--mca", "coll_switchml_types", ""), None)):
        out, taken = run("mpirun.openmpi", *words, "-n", 2, client, "fill", SWITCHML_MPI_TYPES=types)
        check_client(out, taken, 2, 1)
    out, _ = run("mpirun.openmpi", "-n", 2, client, "fill", SWITCHML_MPI_TYPES="float32,none")
    assert "SWITCHML_MPI_TYPES=float32,none: there are" in out, out


def test_component_can_be_left_out():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    for words in (["--mca", "coll", "^switchml"], ["--mca", "coll_switchml_priority", -1],
                  ["--mca", "coll_switchml_types", "none"]):
        out, taken = run("mpirun.openmpi", *words, "-n", 2, client)
        assert "done" in out and not any(taken.values()), out


def test_unreachable_aggregator():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    address = f"127.0.0.1:{ports.fixed_port()}"
    out, taken = run("mpirun.openmpi", "-n", 2, client, SWITCHML_AGGREGATOR=address,
                     SWITCHML_MPI_JOIN_TIMEOUT=1)
    assert "done" in out and not any(taken.values()) and address in out and "MPI does the calls" in out, out
    # Open MPI may lose what ranks wrote just before it ends them ("Data unpack had inadequate space"), so it goes to a file.
    errors = os.path.join(FOLDER.name, "errors")
    out, _ = run("mpirun.openmpi", "-n", 2, "sh", "-c", f'exec "$0" 2>> {errors}', client, expect=1,
                 SWITCHML_AGGREGATOR=address, SWITCHML_REQUIRE=1, SWITCHML_MPI_JOIN_TIMEOUT=1)
    with open(errors, encoding="utf-8") as file:
        text = file.read()
    assert "done" not in out and address in text, out + text


def test_settings_that_differ_are_those_of_rank_0():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    differs = '[ "$OMPI_COMM_WORLD_RANK" != 2 ] || export SWITCHML_MPI_MIN_COUNT=1; exec "$0"'
    out, taken = run("mpirun.openmpi", "-n", 3, "sh", "-c", differs, client)
    check_client(out, taken, 3, NUM_IN_WORLD, (3 + 2) * NUM_IN_OTHERS)
    assert "of MPI_COMM_WORLD: rank 2 has other settings" in out, out
    out, _ = run("mpirun.openmpi", "-n", 2, client, SWITCHML_MPI_MIN_COUNT="many", SWITCHML_MPI_TYPES="float80")
    assert "SWITCHML_MPI_MIN_COUNT=many is no number" in out and "SWITCHML_MPI_TYPES=float80: there are" in out, out


def test_a_stopped_rank_is_named():
    need(COMPONENT)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    out, _ = run("mpirun.openmpi", "-n", 3, client, "kill", expect=1, SWITCHML_LEASE=5)
    for rank in (0, 2):
        assert re.search(rf"switchml: rank {rank} of MPI_COMM_WORLD: allreduce failed: .*rank 1\b", out), out
        assert f"rank {rank}: told" in out, out


def test_fortran():
    need(COMPONENT)
    client = compiled("mpifort.openmpi", "mpi_client.f90")
    check_client(*run("mpirun.openmpi", "-n", 2, client, SWITCHML_MPI_TYPES=ALL_TYPES), 2, 5)


def test_mpi4py():
    need(COMPONENT)
    if subprocess.run([PYTHON, "-c", "import mpi4py, numpy"], capture_output=True, check=False).returncode != 0:
        raise tap.Skip("mpi4py is not installed (Debian: python3-mpi4py)")
    program = ("from mpi4py import MPI; import numpy as np; c = MPI.COMM_WORLD; x = np.arange(50000, dtype='f4');"
               "y = np.empty_like(x); c.Allreduce(x, y); assert (y == c.size * x).all();"
               "r = c.Iallreduce(MPI.IN_PLACE, x); r.Wait(); assert (x == y).all();"
               "k = np.arange(50000) << 40; c.Allreduce(MPI.IN_PLACE, k); assert (k == c.size * (np.arange(50000) << 40)).all();"
               "assert c.allreduce(c.rank) == 1; c.rank or print('done')")
    check_client(*run("mpirun.openmpi", "-n", 2, PYTHON, "-c", program), 2, 3)


def thermodynamics(*words, **variables):
    """The rows of a LAMMPS run, and what it wrote."""
    log = os.path.join(FOLDER.name, "log.lammps")
    out, taken = run("mpirun.openmpi", "-n", 3, "lmp", "-in", os.path.join(HERE, "tools/melt.lammps"), "-log", log,
                     "-screen", "none", *words, **variables)
    with open(log, encoding="utf-8") as file:
        rows = re.search(r"^Step.*?\n(.*?)^Loop time", file.read(), re.MULTILINE | re.DOTALL).group(1)
    return [[float(number) for number in row.split()] for row in rows.splitlines()], out, taken


def test_lammps():
    """Its sums are few and short: at the defaults they are MPI's. Then the threshold goes down to one element, and doubles
    are asked for."""
    need(COMPONENT)
    if not shutil.which("lmp"):
        raise tap.Skip("LAMMPS is not installed (Debian: lammps)")
    expected, _, taken = thermodynamics(OMPI_MCA_coll="^switchml")
    assert len(expected) == 5 and not taken, (expected, taken)
    rows, _, taken = thermodynamics(SWITCHML_MPI_TYPES=None)
    assert rows == expected and set(taken.values()) == {0}, (rows, expected, taken)
    with e2e.Daemon() as daemon:
        rows, out, taken = thermodynamics(SWITCHML_AGGREGATOR=daemon.address, SWITCHML_SHARED_MEMORY=0,
                                          SWITCHML_REQUIRE=1, SWITCHML_MPI_MIN_COUNT=1, SWITCHML_MPI_TYPES=ALL_TYPES)
    taken.pop("other", None)
    assert set(taken) == {0, 1, 2} and min(taken.values()) >= NUM_SUMS_OF_LAMMPS, f"{taken}\n{out}"
    for ours, theirs in zip(rows, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert abs(a - b) <= 1e-9 * abs(b), (ours, theirs)


def solution(*words, **variables):
    """What PETSc's solver says: iterations, residual, sum and norm. And the sums that each rank took."""
    out, taken = run("mpirun.openmpi", "-n", 3, *words, PYTHON, os.path.join(HERE, "tools/petsc_cg.py"),
                     PYTHONPATH=os.pathsep.join(PETSC), **variables)
    return re.search("^solved: (.*)$", out, re.MULTILINE).group(1).split(), taken


def test_petsc():
    """Its sums are doubles, one at a time: at the defaults they are MPI's. Asked for, they are close to MPI's."""
    need(COMPONENT)
    if not PETSC:
        raise tap.Skip("petsc4py is not installed (Debian: python3-petsc4py-real)")
    expected, taken = solution("--mca", "coll", "^switchml")
    assert not taken, taken
    found, taken = solution(SWITCHML_MPI_TYPES=None)
    assert found == expected and set(taken.values()) == {0}, (found, expected, taken)
    found, taken = solution(SWITCHML_MPI_MIN_COUNT=1, SWITCHML_MPI_TYPES=ALL_TYPES)
    assert found[0] == expected[0] and taken["other"] >= 3 * NUM_SUMS_OF_PETSC, (found, expected, taken)
    for ours, theirs in zip(found[2:], expected[2:]):
        assert abs(float(ours) - float(theirs)) <= 1e-12 * float(theirs), (found, expected)


# MPI_Iallreduce stays with MPI.
def test_preloaded_into_mpich():
    library = os.path.join(MODULES, "libswitchml_pmpi_mpich.so")
    need(library)
    client = compiled("mpicc.mpich", "mpi_client.c")
    out, taken = run("mpirun.mpich", "-n", 4, "-env", "LD_PRELOAD", library, client)
    check_client(out, taken, 4, NUM_BLOCKING, 8 * NUM_IN_OTHERS)
    with e2e.Daemon() as daemon:
        out, taken = run("mpirun.mpich", "-n", 3, "-env", "LD_PRELOAD", library, client, "types",
                         SWITCHML_AGGREGATOR=daemon.address, SWITCHML_SHARED_MEMORY=0, SWITCHML_REQUIRE=1,
                         SWITCHML_MAX_DATAGRAM=1472, SWITCHML_MPI_TYPES=ALL_TYPES)
    assert "halves" in out, out
    check_types(out, taken, 3, 1)
    fortran = compiled("mpifort.mpich", "mpi_client.f90")
    check_client(*run("mpirun.mpich", "-n", 2, "-env", "LD_PRELOAD", library, fortran), 2, 3)


def test_preloaded_into_openmpi():
    library = os.path.join(MODULES, "libswitchml_pmpi_openmpi.so")
    need(library)
    client = compiled("mpicc.openmpi", "mpi_client.c")
    out, taken = run("mpirun.openmpi", "--mca", "coll", "^switchml", "--mca", "btl", "tcp,self", "-n", 3, "-x",
                     "LD_PRELOAD=" + library, client)  # by TCP a large message needs both ranks
    check_client(out, taken, 3, NUM_BLOCKING, (3 + 2) * NUM_IN_OTHERS)


if __name__ == "__main__":
    try:
        tap.main(globals())
    finally:
        FOLDER.cleanup()
