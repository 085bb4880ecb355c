#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the commands say and take: help, names that are nearly right, exit statuses, keys that they make."""
import os
import re
import stat
import subprocess
import tempfile

import e2e
import tap

SWITCHML, SWITCHMLD = e2e.SWITCHML, e2e.SWITCHMLD


def run(*command, status=0, **more):
    """Standard output and standard error of a command that ends with the status."""
    done = subprocess.run(command, env=e2e.environment(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, timeout=30 * e2e.PATIENCE)
    assert done.returncode == status, f"{command}: {done.returncode}, not {status}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def test_keys_are_made():
    first, second = run(SWITCHML, "genkey")[0], run(SWITCHML, "genkey", "alice")[0]
    assert re.fullmatch(r"default [0-9a-f]{32}\n", first) and re.fullmatch(r"alice [0-9a-f]{32}\n", second)
    assert first.split()[1] != second.split()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        mask = os.umask(0)
        try:
            assert run(SWITCHML, "genkey", "alice", path) == ("", "")
        finally:
            os.umask(mask)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with open(path, "r+", encoding="utf-8") as file:
            file.truncate(len(file.read()) - 1) # as some editors leave it
        run(SWITCHML, "genkey", "bob", path)
        assert "2 keys" in run(SWITCHMLD, "--key-file", path, "--check-config")[0]
        assert "has a key 'bob' already" in run(SWITCHML, "genkey", "bob", path, status=1)[1]
        with e2e.Daemon("--key-file", path) as daemon: # and rank and aggregator take it
            e2e.bench_json("--sizes", "4", env=e2e.environment(
                SWITCHML_AGGREGATOR=daemon.address, SWITCHML_KEY_FILE=path, SWITCHML_KEY_NAME="bob", RANK=0, WORLD_SIZE=1))
        link = os.path.join(folder, "link")
        os.symlink(os.path.join(folder, "nothing"), link)
        run(SWITCHML, "genkey", "bob", link, status=1)
        os.chmod(path, 0o644)
        assert "chmod 600" in run(SWITCHML, "genkey", "carol", path, status=1)[1]
    assert "is no name" in run(SWITCHML, "genkey", "two words", status=1)[1]
    assert "is no name" in run(SWITCHML, "genkey", "x" * 32, status=1)[1]
    assert "cannot write" in run("sh", "-c", f"{SWITCHML} genkey > /dev/full", status=1)[1]


def test_daemon_with_keys_leaves_no_core():
    """The kernel neither dumps it nor lets its own user look into it: what is in /proc of it is root's."""
    nobody = 65534
    if os.geteuid() != 0:
        raise tap.Skip("to run the daemon as another user takes root")
    if subprocess.run([SWITCHMLD, "--version"], user=nobody, capture_output=True, check=False).returncode != 0:
        raise tap.Skip("another user cannot run what is built here")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        run(SWITCHML, "genkey", "alice", path)
        os.chmod(folder, 0o755)
        os.chown(path, nobody, -1)
        for arguments, owner in [(["--key-file", path], 0), ([], nobody)]:
            with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0", *arguments], env=e2e.environment(), user=nobody,
                                  stderr=subprocess.PIPE, text=True) as daemon:
                try:
                    assert "listening" in daemon.stderr.readline()
                    assert os.stat(f"/proc/{daemon.pid}/mem").st_uid == owner, arguments
                finally:
                    daemon.kill()


def test_packaged_configuration_is_for_this_machine():
    """Whoever starts the service as it is opens no port to others."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "packaging/systemd/switchmld.conf")
    run(SWITCHMLD, "--config", path, "--check-config")
    with open(path, encoding="utf-8") as file:
        settings = dict(re.findall(r"^([a-z-]+) = (.*)$", file.read(), re.M))
    assert settings["listen"].startswith("127.0.0.1:") or "key-file" in settings, settings


if __name__ == "__main__":
    tap.main(globals())
