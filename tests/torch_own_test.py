#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of process groups, as far as the installed torch brings them, on Gloo and on this backend.

    torch_own_test.py [--all] [--ranks N] [--source FOLDER] [TEST...]

A test of theirs that passes on Gloo passes here, or has its reason in EXPECTED. --all (`make check-torch`) runs
each of them in six ways at once, for they mostly wait: with a switchmld and without, over the network, there also with
one-way collectives, and in one host's memory; without it, a few over a switchmld, with one-way collectives and without.
--source: those of SOURCES in the folder test/distributed of PyTorch's source, which no package brings
(tools/torchsource fetches it). Their tests ask for "gloo" by name, so a run of ours puts its group in Gloo's place, and
that is all that differs. Ranks are forked from a process that has imported torch."""
import argparse
import concurrent.futures
import contextlib
import encodings.idna  # noqa: F401  # pylint: disable=unused-import  # each rank asks for host names
import gc
import glob
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest

import ports
import tap
import torch_ranks

FEW = """all_gather_coalesced_full_group all_gather_object_subgroup all_reduce_coalesced_full_group_max
    all_reduce_coalesced_group_sum all_reduce_full_group_max all_reduce_group_product all_reduce_sum_async
    barrier_timeout_group broadcast_group gather_object get_future isend_autograd_profiler monitored_barrier_gloo
    reduce_group_sum scatter_full_group send_recv_any_source sparse_all_reduce_sum""".split()
ROUND_ROBIN = "torch's C++ class that takes groups in turn, gone after 1.13, keeps no hold of a group written in Python"
EXPECTED = {"GlooProcessGroupWithDispatchedCollectivesTests.all_to_all_single":
            "it wants tensors refused that are not contiguous, which are taken here",
            "ProcessGroupGlooTest.set_gloo_pg_timeout": "it sets options of Gloo's own class"}
EXPECTED_ON_TORCH_1 = {
    "ProcessGroupGlooTest.round_robin": ROUND_ROBIN, "ProcessGroupGlooTest.round_robin_create_destroy": ROUND_ROBIN,
    "ddp_logging_data_cpu": "it asks for the name that DDP's logger was given, which in torch 1 can't be Gloo's"}
# Below test/distributed: Gloo's own tests; from torch 2 on also optimizers and tensors that are sharded. FSDP's want GPUs.
SOURCES = ["test_c10d_gloo.py", "test_c10d_object_collectives.py", "optim/test_zero_redundancy_optimizer.py",
           "*tensor/test_redistribute.py", "tensor/parallel/test_tp_style.py"]
LIMIT_S = 300  # of one test, on a machine that has a processor for each process that wants one
WAYS = [("daemon, network", True, {}), ("daemon, as sums", True, {"SWITCHML_ONE_WAY": "0"}), ("network", False, {}),
        ("network, as sums", False, {"SWITCHML_ONE_WAY": "0"}), ("daemon, memory", True, {"SWITCHML_SHARED_MEMORY": "1"}),
        ("memory", False, {"SWITCHML_SHARED_MEMORY": "1"})]


# ---- In the process that forks the ranks -----------------------------------------------------------------

def put_ours_in_place_of_gloo():
    sys.pycache_prefix, sys.dont_write_bytecode = os.path.join(torch_ranks.BUILD, "pycache"), False  # once for all ranks
    import switchml.torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    distributed_c10d, gloo = dist.distributed_c10d, dist.ProcessGroupGloo

    class Ours(switchml.torch.SwitchMLGroup):
        _Options, create_device = gloo._Options, gloo.create_device

        def __init__(self, store, rank, size, options=None, timeout=dist.default_pg_timeout, **_):
            super().__init__(store, rank, size, options._timeout if isinstance(options, gloo._Options) else timeout)
            self.options = types.SimpleNamespace()  # torch 2.14 writes there

        def getBackendName(self):  # pylint: disable=invalid-name
            # DDP's logger in torch 1 takes whatever is called so for Gloo's own object.
            is_logger = sys._getframe(1).f_globals["__name__"] == "torch.nn.parallel.distributed"
            return "switchml" if is_logger and torch_ranks.torch_major() < 2 else "gloo"
    dist.ProcessGroupGloo = distributed_c10d.ProcessGroupGloo = Ours
    # Under TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps its own groups, and no others.
    distributed_c10d._create_process_group_wrapper = lambda wrapped_pg, **_: wrapped_pg


def tests_of_the_package():
    from torch.testing._internal.distributed import distributed_test  # pylint: disable=import-outside-toplevel

    class Theirs(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._spawn_processes()
    return unittest.TestLoader().loadTestsFromTestCase(Theirs)


def tests_of_source(folder):
    """Those files of SOURCES that this torch has."""
    sys.path.insert(0, folder)
    patterns = SOURCES[:1 if torch_ranks.torch_major() < 2 else None]
    paths = sorted(path for pattern in patterns for path in glob.glob(pattern, root_dir=folder))
    return unittest.TestSuite(unittest.TestLoader().loadTestsFromName(path[:-3].replace("/", ".")) for path in paths)


def each_test(suite):
    for test in suite:
        yield from each_test(test) if isinstance(test, unittest.TestSuite) else [test]


def run_theirs(is_ours, num_ranks, results, names, source, part):
    """In this process; a line a test in the file `results`, and at its end how long all took. part: (i, n), of n parts the
    i-th."""
    began, folder = time.monotonic(), tempfile.mkdtemp(prefix="switchml-torch-own-")
    for each in "barrier", "test_dir":
        os.mkdir(os.path.join(folder, each))
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(num_ranks), TEMP_DIR=folder, MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(ports.fixed_port()), USE_LIBUV="0")
    # Debian has no expecttest; what is needed of it is a base class.
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False)
    sys.argv = sys.argv[:1]  # their files read it
    import torch  # pylint: disable=import-outside-toplevel
    from torch.testing._internal import common_distributed  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    common_distributed.get_timeout = lambda _test: torch_ranks.patience_s(LIMIT_S)
    of_ranks = common_distributed.MultiProcessTestCase

    def rank(target, **more):
        def run(*arguments, **keywords):
            if is_ours:
                put_ours_in_place_of_gloo()
            target(*arguments, **keywords)
        return torch.multiprocessing.get_context("fork").Process(target=run, **more)

    with contextlib.suppress(ImportError):  # torch 1.13 by itself does not ask for them, and Python 3.11 refuses their source
        from torch.nn.parallel import _replicated_tensor_ddp_utils  # pylint: disable=import-outside-toplevel
        _replicated_tensor_ddp_utils._set_ddp_with_replicated_tensor = lambda _: None
    of_ranks._spawn_processes = lambda test: test._start_processes(rank)

    def name_of(test):
        name = test._testMethodName.replace("test_", "", 1)
        return f"{type(test).__name__}.{name}" if source else name

    class Results(unittest.TestResult):
        def say(self, test, what):
            results.write(f"{name_of(test)} {what}\n")
            results.flush()

        def addSuccess(self, test):
            self.say(test, "ok")

        def addError(self, test, err):
            self.say(test, "failed " + self._exc_info_to_string(err, test).replace("\n", "\\n"))

        addFailure = addError

        def addSkip(self, test, reason):
            self.say(test, "skipped")

    tests = list(each_test(tests_of_source(source) if source else tests_of_the_package()))
    if names:
        tests = [test for test in tests if name_of(test) in names]
    tests = tests[part[0]::part[1]]
    gc.collect()
    gc.freeze()  # collections in a rank leave alone what it shares with this process
    unittest.TestSuite(test for test in tests if isinstance(test, of_ranks)).run(Results())
    if is_ours:  # those of this process come last: no rank is forked from it any more
        put_ours_in_place_of_gloo()
    unittest.TestSuite(test for test in tests if not isinstance(test, of_ranks)).run(Results())
    results.write(f"took {time.monotonic() - began:.0f} {sum(os.times()[:4]):.0f}\n")


# ---- In the test program -----------------------------------------------------------------------------------

def outcomes(is_ours, num_ranks, names, source, part=(0, 1), **environment):
    """{name of a test: (ok, skipped or failed, what it said)}, and how long they took: seconds, and those of processors"""
    base = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
    base.update(PYTHONPATH=torch_ranks.PYTHONPATH, OMP_NUM_THREADS="1", SWITCHML_LIBRARY=torch_ranks.library(),
                GLOO_SOCKET_IFNAME="lo", **environment)
    with tempfile.NamedTemporaryFile("r") as results, tempfile.TemporaryFile("w+") as said:
        options = ["--run", "ours" if is_ours else "gloo", "--results", results.name, "--ranks", str(num_ranks),
                   "--part", *map(str, part)]
        options += ["--source", source] if source else []
        program = os.path.join(torch_ranks.HERE, os.path.basename(__file__))
        done = subprocess.run([torch_ranks.PYTHON, "-B", program, *options, *names], env=base, check=False,
                              stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        said.seek(0)
        assert done.returncode == 0, f"the process that forks the ranks ended with {done.returncode}:\n{said.read()[-4000:]}"
        found = {}
        for line in results.read().splitlines():
            name, what, *rest = line.split(" ", 2)
            found[name] = what, rest[0].replace("\\n", "\n") if rest else ""
        return found, [int(seconds) for seconds in (found["took"][0], found.pop("took")[1])]


def outcomes_on_gloo(num_ranks, names, source, num_parts):
    """As outcomes(); in so many parts at once."""
    with concurrent.futures.ThreadPoolExecutor(num_parts) as pool:
        parts = list(pool.map(lambda i: outcomes(False, num_ranks, names, source, (i, num_parts)), range(num_parts)))
    found = {name: outcome for found, _ in parts for name, outcome in found.items()}
    return found, [max(took[0] for _, took in parts), sum(took[1] for _, took in parts)]


def differences(way, num_ranks, passed, source):
    """(how many passed in both, sentences about what did not and was not expected)"""
    _, has_daemon, more = way
    more = {"SWITCHML_SHARED_MEMORY": "0", "SWITCHML_REQUIRE": "1", **more}
    if has_daemon:
        with torch_ranks.Daemon() as daemon:
            on_ours, took = outcomes(True, num_ranks, passed, source, SWITCHML_AGGREGATOR=daemon.address, **more)
    else:
        on_ours, took = outcomes(True, num_ranks, passed, source, **more)
    differ = [name for name in passed if on_ours.get(name, ("is missing", ""))[0] != "ok"]
    reasons = {**EXPECTED, **(EXPECTED_ON_TORCH_1 if torch_ranks.torch_major() < 2 else {})}
    expected = [name for name in differ if name in reasons]
    print(f"# {way[0]}: of {len(passed)} tests of PyTorch's that pass on Gloo {len(passed) - len(differ)} pass here, "
          f"{len(expected)} differ as expected; {took[0]} s, {took[1]} s of processors", flush=True)
    for name in expected:
        print(f"# {name}: {reasons[name]}", flush=True)
    return len(passed) - len(differ), [f"{name} {' '.join(on_ours.get(name, ('is missing', '')))}"
                                       for name in differ if name not in reasons]


def test_what_passes_on_gloo_passes_here(num_ranks=3, names=FEW, ways=WAYS[:2], source=None):
    # a few take less time than to import torch once more
    on_gloo, took = outcomes_on_gloo(num_ranks, names, source, 1 if names is FEW else len(ways))
    passed = [name for name, (what, _) in on_gloo.items() if what == "ok"]
    assert passed, "none of theirs passes on Gloo"
    failed = [name for name, (what, _) in on_gloo.items() if what == "failed"]
    print(f"# Gloo: {len(passed)} of {len(on_gloo)} tests pass, {len(failed)} fail{': ' * bool(failed)}{', '.join(failed)}, "
          f"the others are skipped; {took[0]} s, {took[1]} s of processors", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(ways)) as pool:
        found = list(pool.map(lambda way: differences(way, num_ranks, passed, source), ways))
    assert all(num_same > 0 for num_same, _ in found), found
    assert not any(differ for _, differ in found), "\n".join(
        f"{way[0]}: {each}" for way, (_, differ) in zip(ways, found) for each in differ)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--run", choices=["ours", "gloo"])
    parser.add_argument("--results")
    parser.add_argument("--source")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.run:
        with open(options.results, "w", encoding="utf-8") as results:
            run_theirs(options.run == "ours", options.ranks, results, options.names, options.source,
                       options.part)
        return 0
    find = ("import importlib.util as u, os; found = u.find_spec('torch'); raise SystemExit(not (found and "
            "os.path.isdir(found.submodule_search_locations[0] + '/testing/_internal/distributed')))")
    if subprocess.run([torch_ranks.PYTHON, "-P", "-c", find], check=False).returncode != 0:
        print("1..0 # SKIP this machine has no PyTorch that brings its tests (Debian: python3-torch)")
        return 0
    ports.leave_others()
    with torch_ranks.folder_of_this_program():
        if options.all or options.names or options.source:
            def test_all():
                with tempfile.TemporaryDirectory() as folder:
                    torch_ranks.freeze(folder)
                    test_what_passes_on_gloo_passes_here(options.ranks, options.names, WAYS, options.source)
            return tap.run([test_all], [])
        return tap.run([test_what_passes_on_gloo_passes_here], [])


if __name__ == "__main__":
    sys.exit(main())
