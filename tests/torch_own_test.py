#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of process groups, as far as the installed torch brings them, on Gloo and on this backend.

    torch_own_test.py [--all] [--ranks N] [TEST...]

A test of theirs that passes on Gloo passes here, or is among EXPECTED with its reason. --all (`make check-torch`) runs
each of them in four ways: with a switchmld and without, over the network and in one host's memory; without it, a few in
the first of these ways. Their tests ask for "gloo" by name, so a run of ours puts its group in Gloo's place, and that
is all that differs. Ranks are forked from a process that has imported torch."""
import argparse
import os
import subprocess
import sys
import tempfile
import types
import unittest

import ports
import tap
import torch_ranks

FEW = """all_gather_coalesced_full_group all_gather_object_subgroup all_reduce_coalesced_full_group_max
    all_reduce_coalesced_group_sum all_reduce_full_group_max all_reduce_group_product all_reduce_sum_async
    barrier_timeout_group broadcast_group gather_object get_future isend_autograd_profiler monitored_barrier_gloo
    reduce_group_sum scatter_full_group send_recv_any_source sparse_all_reduce_sum""".split()
EXPECTED = {}
WAYS = [("daemon, network", True, "0"), ("daemon, memory", True, "1"), ("network", False, "0"), ("memory", False, "1")]


# ---- In the process that forks the ranks -----------------------------------------------------------------

def put_ours_in_place_of_gloo():
    import switchml.torch  # pylint: disable=import-outside-toplevel
    from torch.distributed import distributed_c10d  # pylint: disable=import-outside-toplevel

    class Ours(switchml.torch.SwitchMLGroup):
        def __init__(self, store, rank, size, timeout):
            super().__init__(store, rank, size, timeout)

        def getBackendName(self):  # pylint: disable=invalid-name
            return "gloo"
    distributed_c10d.ProcessGroupGloo = Ours
    # Under TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps its own groups, and no others.
    distributed_c10d._create_process_group_wrapper = lambda wrapped_pg, **_: wrapped_pg


def run_theirs(is_ours, num_ranks, results, names):
    """In this process; a line a test in the file `results`."""
    folder = tempfile.mkdtemp(prefix="switchml-torch-own-")
    for each in "barrier", "test_dir":
        os.mkdir(os.path.join(folder, each))
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(num_ranks), TEMP_DIR=folder, MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(ports.fixed_port()), USE_LIBUV="0")
    # Debian has no expecttest; what is needed of it is a base class.
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False)
    import torch  # pylint: disable=import-outside-toplevel
    from torch.testing._internal import common_distributed  # pylint: disable=import-outside-toplevel
    from torch.testing._internal.distributed import distributed_test  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    common_distributed.TIMEOUT_DEFAULT = 100

    class Theirs(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, *arguments, **keywords):
            if is_ours:
                put_ours_in_place_of_gloo()
            super()._run(rank, *arguments, **keywords)

    class Results(unittest.TestResult):
        def say(self, test, what):
            results.write(f"{test._testMethodName.replace('test_', '', 1)} {what}\n")
            results.flush()

        def addSuccess(self, test):
            self.say(test, "ok")

        def addError(self, test, err):
            self.say(test, "failed " + self._exc_info_to_string(err, test).replace("\n", "\\n"))

        addFailure = addError

        def addSkip(self, test, reason):
            self.say(test, "skipped")

    all_names = unittest.TestLoader().getTestCaseNames(Theirs)
    chosen = [f"test_{name}" for name in names] or all_names
    unittest.TestSuite([Theirs(name) for name in chosen if name in all_names]).run(Results())


# ---- In the test program -----------------------------------------------------------------------------------

def outcomes(is_ours, num_ranks, names, **environment):
    """{name of a test: (ok, skipped or failed, what it said)}"""
    base = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHML_")}
    base.update(PYTHONPATH=torch_ranks.PYTHONPATH, OMP_NUM_THREADS="1", SWITCHML_LIBRARY=torch_ranks.library(),
                GLOO_SOCKET_IFNAME="lo", **environment)
    with tempfile.NamedTemporaryFile("r") as results, tempfile.TemporaryFile("w+") as said:
        subprocess.run([torch_ranks.PYTHON, "-B", os.path.abspath(__file__), "--run", "ours" if is_ours else "gloo",
                        "--results", results.name, "--ranks", str(num_ranks), *names], env=base, check=True,
                       stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        found = {}
        for line in results.read().splitlines():
            name, what, *rest = line.split(" ", 2)
            found[name] = what, rest[0].replace("\\n", "\n") if rest else ""
        return found


def differences(way, num_ranks, names, on_gloo):
    """(how many passed in both, sentences about what did not and was not expected)"""
    _, has_daemon, shared_memory = way
    more = {"SWITCHML_SHARED_MEMORY": shared_memory, "SWITCHML_REQUIRE": "1"}
    if has_daemon:
        with torch_ranks.Daemon() as daemon:
            on_ours = outcomes(True, num_ranks, names, SWITCHML_AGGREGATOR=daemon.address, **more)
    else:
        on_ours = outcomes(True, num_ranks, names, **more)
    passed = [name for name, (what, _) in on_gloo.items() if what == "ok"]
    differ = [name for name in passed if on_ours.get(name, ("is missing", ""))[0] != "ok"]
    expected = [name for name in differ if name in EXPECTED]
    print(f"# {way[0]}: of {len(passed)} tests of PyTorch's that pass on Gloo {len(passed) - len(differ)} pass here, "
          f"{len(expected)} differ as expected: {' '.join(expected)}", flush=True)
    return len(passed) - len(differ), [f"{name} {' '.join(on_ours.get(name, ('is missing', '')))}"
                                       for name in differ if name not in EXPECTED]


def test_what_passes_on_gloo_passes_here(num_ranks=3, names=FEW, ways=WAYS[:1]):
    on_gloo = outcomes(False, num_ranks, names)
    for way in ways:
        num_same, differ = differences(way, num_ranks, names, on_gloo)
        assert num_same > 0 and not differ, "\n".join(differ)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--run", choices=["ours", "gloo"])
    parser.add_argument("--results")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.run:
        with open(options.results, "w", encoding="utf-8") as results:
            run_theirs(options.run == "ours", options.ranks, results, options.names)
        return 0
    found = subprocess.run([torch_ranks.PYTHON, "-c", "import torch.testing._internal.distributed"], check=False,
                           stderr=subprocess.DEVNULL)
    if found.returncode != 0:
        print("1..0 # SKIP this machine has no PyTorch that brings its tests (Debian: python3-torch)")
        return 0
    if options.all or options.names:
        def test_all():
            test_what_passes_on_gloo_passes_here(options.ranks, options.names, WAYS)
        return tap.run([test_all], [])
    return tap.run([test_what_passes_on_gloo_passes_here], [])


if __name__ == "__main__":
    sys.exit(main())
