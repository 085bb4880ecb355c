#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Many jobs at one aggregator, of real processes: none stalls another, what a killed one had is free within a second,
tenants keep their quotas, and the configuration is read again while jobs run."""
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time

import e2e
import real
import tap

KEYS = {"red": bytes(range(16)), "blue": bytes(range(1, 17))}
LARGE = {"MEMBER_ELEMENTS": 1_000_000, "MEMBER_SLOTS": 64}


def write(path, text):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def write_keys(path, *names):
    return write(path, "".join(f"{name} {KEYS[name].hex()}\n" for name in names))


def job_of(daemon, name):
    return next((job for job in e2e.status(daemon.address)["jobs"] if job["name"] == name), None)


def completed(daemon, name):
    """Sums of the job: operations are counted at heartbeats only."""
    job = job_of(daemon, name)
    return job["sums"] if job else 0


def wait_for_sums(daemon, name, more):
    start = completed(daemon, name)
    e2e.wait_until(lambda: completed(daemon, name) >= start + more, f"{more} more sums of job {name}", 20)


# --- jobs side by side ---

def test_a_third_job_is_killed_while_two_work_under_loss():
    env = e2e.environment(SWITCHML_FAULTS="loss=0.01,duplicate=0.01,reorder=0.02,seed=5")
    with e2e.Daemon("--slots", "512", env=env) as daemon, contextlib.ExitStack() as stack:
        large = [stack.enter_context(real.job(daemon.address, 2, MEMBER_JOB=name,
                                              SWITCHML_FAULTS=f"loss=0.01,reorder=0.01,seed={seed}", **LARGE))
                 for seed, name in enumerate(["one", "two"])]
        for member in large[0] + large[1]:
            member.wait_for("joined")
        third = stack.enter_context(real.job(daemon.address, 3, MEMBER_JOB="third", MEMBER_SLOTS=128,
                                             MEMBER_ELEMENTS=100_000))
        for member in third:
            member.wait_for("working")
        assert e2e.status(daemon.address)["lanes"][0]["slots_used"] == 2 * 64 + 128
        killed = time.monotonic()
        for member in third[1:]:
            member.send_signal(signal.SIGKILL)
        _, code, ranks, detail = third[0].error()
        assert code == real.RANK_LOST and ranks in ([1], [2]), (code, ranks, detail)
        e2e.wait_until(lambda: e2e.status(daemon.address)["lanes"][0]["slots_used"] == 2 * 64, "the slots are counted back", 10)
        took = time.monotonic() - killed
        now = e2e.status(daemon.address)
        assert {job["name"] for job in now["jobs"]} == {"one", "two"}, (took, now)
        assert now["ended"][0]["name"] == "third" and now["ended"][0]["failed"], now["ended"]
        for name in "one", "two": # in the middle of it, and never noticed
            wait_for_sums(daemon, name, 1000)
            assert job_of(daemon, name)["retransmissions"] > 0
        for member in large[0] + large[1]:
            assert member.process.poll() is None, member.text()

def test_a_stopped_rank_stalls_only_its_own_job():
    """All slots of its job wait, its socket and the aggregator's queue to it are full of results that nobody takes."""
    with e2e.Daemon("--slots", "512") as daemon, contextlib.ExitStack() as stack:
        stuck = stack.enter_context(real.job(daemon.address, 3, MEMBER_JOB="stuck", MEMBER_OPERATIONS=20,
                                             MEMBER_LEASE_MS=60_000, **LARGE))
        for member in stuck:
            member.wait_for("working")
        stuck[2].send_signal(signal.SIGSTOP)
        try:
            e2e.wait_until(lambda: job_of(daemon, "stuck")["slots_waiting"] > 0, "its slots wait")
            with real.job(daemon.address, 3, MEMBER_JOB="free", MEMBER_OPERATIONS=12, **LARGE) as free:
                for member in free: # all of it, from the join to the end
                    member.expect_done()
            before = completed(daemon, "stuck")
            assert job_of(daemon, "stuck")["slots_waiting"] > 0 and completed(daemon, "stuck") == before
        finally:
            stuck[2].send_signal(signal.SIGCONT)
        for member in stuck:
            member.expect_done()


def test_quotas_are_told_once_and_shown():
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = write(f"{folder}/conf", "[tenant default]\njobs = 2\nslots = 160\nworkers = 8\n")
        daemon = stack.enter_context(e2e.Daemon("--config", config))
        first = stack.enter_context(real.job(daemon.address, 2, MEMBER_JOB="one", MEMBER_SLOTS=128, MEMBER_PAUSE_US=5000))
        for member in first:
            member.wait_for("working")
        with real.job(daemon.address, 2, MEMBER_JOB="two", MEMBER_SLOTS=64) as second:
            for member in second:
                _, code, _, detail = member.error()
                assert code == -7 and detail == (
                    "tenant default has 1 of 2 jobs, 2 of 8 workers and 128 of 160 slots a lane; this job has 2 workers "
                    "and 64 slots: wait for one of its jobs to end, or raise its quota at the aggregator"), detail
        assert daemon.text().count("job_refused") == 1, daemon.text()
        with real.job(daemon.address, 2, MEMBER_JOB="three", MEMBER_OPERATIONS=0, MEMBER_PAUSE_US=5000) as third:
            for member in third:
                member.wait_for("working")
            assert job_of(daemon, "three")["slots"] == 32 # what is left, since it asks for no number
            assert e2e.status(daemon.address)["tenants"] == [{"name": "default", "jobs": 2, "max_jobs": 2, "workers": 4,
                                                  "max_workers": 8, "slots": 160, "max_slots": 160}]
            shown = subprocess.run([e2e.SWITCHML, "status", daemon.address, "--interval", "0"], text=True, check=False,
                                   env=e2e.environment(), capture_output=True, timeout=30 * e2e.PATIENCE).stdout
            assert "tenant default: 2 of 2 jobs, 4 of 8 workers, 160 of 160 slots" in shown, shown


def leases_under_load(seconds, load=10):
    """Nobody is lost for want of a processor: jobs of four ranks, idle, busy and in between, beside as many spinning
    processes as make that load, with a lease as long as makes a rank late. Returns the longest silences, in leases."""
    with e2e.Daemon() as daemon, contextlib.ExitStack() as stack:
        for _ in range(load):
            spinner = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"], env=e2e.environment()))
            stack.callback(spinner.kill)
        jobs = [stack.enter_context(real.job(daemon.address, 4, MEMBER_JOB=name, MEMBER_PAUSE_US=pause_us,
                                             MEMBER_ELEMENTS=100_000, MEMBER_JOIN_TIMEOUT_S=120,
                                             MEMBER_LEASE_MS=2000))
                for name, pause_us in [("idle", int(seconds * 2e6)), ("now-and-then", 100_000), ("busy", 0)]]
        members = [member for members in jobs for member in members]
        for member in members:
            member.wait_for("working", 120)
        silences, sums = [], completed(daemon, "busy")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(2, seconds / 4))
            now = e2e.status(daemon.address)
            silences += [rank["heard_s"] / job["lease_s"] for job in now["jobs"] for rank in job["ranks"]]
            for member in members:
                assert member.process.poll() is None, f"after {seconds - (end - time.monotonic()):.0f} s: {member.text()}"
        assert now["events"]["rank_lost"] == now["events"]["job_aborted"] == 0, (now["events"], daemon.text())
        assert {job["name"] for job in now["jobs"]} == {"idle", "now-and-then", "busy"} and completed(daemon, "busy") > sums
    return silences


# --- the configuration ---

def check_config(path, *arguments):
    process = subprocess.run([e2e.SWITCHMLD, "--config", path, "--check-config", *arguments], text=True, check=False,
                             env=e2e.environment(), capture_output=True, timeout=30 * e2e.PATIENCE)
    return process.returncode, process.stdout + process.stderr


def test_configurations():
    good = "# all\n  slots = 512 ; a lane\nlanes: 2\nno-offload = yes\n\n[tenant *]\njobs = 3\n"
    bad = [("slot = 512", ":1: there is no option 'slot': do you mean 'slots'?"),
           ("frobnicate = 1", ":1: there is no option 'frobnicate'; switchmld --help has them all"),
           ("\nslots = 512\n\nslots = 3", ":4: slots stands in line 2 already"),
           ("slots = 99999999", ":1: slots: '99999999' is not a number from 1 to 65536"),
           ("slots", ":1: neither NAME = VALUE nor [SECTION]"),
           ("config = x", ":1: there is no option 'config'"),
           ("no-offload = maybe", ":1: no-offload: 'maybe' is not yes or no"),
           ("poll = fast", ":1: poll: 'fast' is not auto, busy or block"),
           ("[tenat x]", ":1: unknown section [tenat x]: there is [tenant NAME]"),
           ("[tenant x", ":1: neither NAME = VALUE nor [SECTION]"),
           ("[tenant a b]", ":1: a tenant's name has 1 to 31 letters"),
           ("[tenant x]\njob = 3", ":2: a tenant has no 'job': there are jobs, workers, slots and key-file"),
           ("[tenant x]\njobs = 0", ":2: jobs: '0' is not a number from 1 to 1024"),
           ("[tenant x]\njobs = 1\njobs = 2", ":3: jobs stands here twice"),
           ("[tenant *]\nkey-file = k", ":2: key-file is for one tenant"),
           ("a" * 300 + " = 1", ":1: the line is too long"),
           ("slots = 1\0", ":1: this is no text"),
           ("dataplane = bmv2", ":1: dataplane: bmv2 goes with --switch-format"),
           ("dataplane = dpdk-p4", ":1: dataplane: dpdk-p4 goes with --switch-format"),
           ("dataplane = asic", ":1: dataplane: 'asic' is not"),
           ("dataplane = bmv2\nswitch-format = 256", ":1: dataplane: bmv2 takes at most 128 lanes"),
           ("dataplane = tofino", ":1: dataplane: "),
           ("switch-format = 33", ":1: switch-format: '33': it must be 32, 64, 128 or 256"), ("listen = nowhere", ":1: listen: ")]
    with tempfile.TemporaryDirectory() as folder:
        path = write(f"{folder}/conf", good)
        code, said = check_config(path)
        assert code == 0 and said == f"{path} is fine: 0 keys, 1 tenants\n", (code, said)
        code, said = check_config(path, "--slots", "0") # the command line comes first, and is looked at as well
        assert code == 2 and "--slots: '0'" in said, (code, said)
        for text, sentence in bad:
            write(path, text)
            code, said = check_config(path)
            assert code == 2 and path + sentence in said, (text, code, said)
        for path in folder, f"{folder}/none":
            code, said = check_config(path)
            assert code == 2 and f"cannot read {path}: " in said, (code, said)
        red = write_keys(f"{folder}/red", "red")
        for text, expected, sentence in [
                (f"[tenant red]\nkey-file = {red}", 0, "1 keys, 1 tenants"),
                (f"[tenant blue]\nkey-file = {red}", 1, f":2: there is no key blue in {red}"),
                (f"key-file = {red}\n[tenant red]\nkey-file = {red}", 1, ":1: key-file: the key red stands in another"),
                (f"key-file = {red}\n[tenant blue]\njobs = 1", 0, "its section has no effect: no key has that name"),
                ("[tenant red]\njobs = 1", 0, "without keys all ranks are of the tenant default")]:
            code, said = check_config(write(f"{folder}/conf", text))
            assert code == expected and sentence in said, (text, code, said)


def test_reload():
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        keys = {name: write_keys(f"{folder}/{name}", name) for name in KEYS}
        all_keys = write_keys(f"{folder}/all", *KEYS)
        config = write(f"{folder}/conf", f"key-file = {all_keys}\nslots = 512\nlog-level = warning\n")
        daemon = stack.enter_context(e2e.Daemon("--config", config))

        def reload(word):
            count = daemon.text().count(word)
            daemon.process.send_signal(signal.SIGHUP)
            e2e.wait_until(lambda: daemon.text().count(word) > count, f"the log says {word}")
            return daemon.text()

        running = stack.enter_context(real.job(daemon.address, 2, MEMBER_JOB="old", MEMBER_PAUSE_US=2000,
                                               SWITCHML_KEY_FILE=keys["red"]))
        for member in running:
            member.wait_for("working")
        write(config, f"key-file = {all_keys}\nslots = 51x\n")
        assert f"{config}:2: slots: '51x' is not a number" in reload("reload_refused")
        write(config, "slots = 512\n") # no keys at all
        assert "need a restart" in reload("none instead of keys")
        write_keys(all_keys, "blue")
        # A name that is no host's does not keep what counts at once from counting: it is not looked up.
        write(config, f"key-file = {all_keys}\nslots = 256\nhttp = agg.invalid:80\nlog-level = info\n[tenant blue]\njobs = 1\n")
        said = reload("reloaded")
        assert "reloaded keys=1 tenants=1" in said and re.search('restart_needed options="?(http, slots|slots, http)', said), said
        wait_for_sums(daemon, "old", 10)
        with real.job(daemon.address, 2, SWITCHML_KEY_FILE=keys["red"]) as refused:
            for member in refused:
                assert "has no key 'red', or not the same one" in member.error()[3]
        assert all(re.search(f'join_refused job=[a-z]+ rank={rank} "', daemon.text()) for rank in range(2)), daemon.text()
        blue = stack.enter_context(real.job(daemon.address, 2, MEMBER_JOB="new", MEMBER_PAUSE_US=2000,
                                            SWITCHML_KEY_FILE=keys["blue"]))
        for member in blue:
            member.wait_for("working")
        with real.job(daemon.address, 2, SWITCHML_KEY_FILE=keys["blue"]) as refused:
            for member in refused:
                assert "tenant blue has 1 of 1 jobs" in member.error()[3]
        wait_for_sums(daemon, "old", 10)
        assert e2e.status(daemon.address)["limits"]["slots"] == 512
        for member in running + blue:
            assert member.process.poll() is None, member.text()


def test_a_reload_refuses_addresses_that_are_none():
    """As --check-config does; but what a name means is not asked."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = write(f"{folder}/conf", "listen = 127.0.0.1:0\n")
        daemon = stack.enter_context(subprocess.Popen([e2e.SWITCHMLD, "--config", config], env=e2e.environment(),
                                                      stderr=subprocess.PIPE, text=True))
        stack.callback(daemon.kill)
        line = daemon.stderr.readline()
        for text, said in [("listen = 127.0.0.1", ":1: listen: '127.0.0.1' has no port"),
                           ("http = 127.0.0.1:x", ":1: http: '127.0.0.1:x': the port is not a number"),
                           ("multicast = 192.0.2.1", ":1: multicast: '192.0.2.1' is no range of multicast groups"),
                           ("listen = agg.invalid:7\nmulticast = ff15::7:0\nmulticast-interface = nowhere", "reloaded")]:
            write(config, text)
            daemon.send_signal(signal.SIGHUP)
            while not re.search("reloaded|reload_refused", line):
                line = daemon.stderr.readline()
                assert line, text
            assert said in line, (text, line)
            line = ""


def test_hangup_ends_a_daemon_without_files():
    with e2e.Daemon() as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.process.wait(10 * e2e.PATIENCE) == 0


def test_nothing_is_left():
    assert not e2e.marked_processes(), e2e.marked_processes()


if __name__ == "__main__":
    tap.main(globals())
