#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What the commands say and take: help, names that are nearly right, exit statuses, keys that they make."""
import glob
import json
import os
import re
import socket
import stat
import subprocess
import tempfile

import e2e
import tap

SWITCHML, SWITCHMLD = e2e.SWITCHML, e2e.SWITCHMLD
PIPELINE = os.path.join(os.path.dirname(SWITCHMLD), "../pipeline/switchml-pipeline")


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
        os.unlink(link)
        os.symlink(path, link)
        assert "it is a symbolic link: name the file itself" in run(SWITCHML, "genkey", "carol", link, status=1)[1]
        os.chmod(path, 0o644)
        assert "chmod 600" in run(SWITCHML, "genkey", "carol", path, status=1)[1]
    assert "is no name" in run(SWITCHML, "genkey", "two words", status=1)[1]
    assert "is no name" in run(SWITCHML, "genkey", "x" * 32, status=1)[1]
    assert "cannot write" in run("sh", "-c", f"{SWITCHML} genkey > /dev/full", status=1)[1]


def test_a_key_for_which_there_is_no_room_leaves_nothing():
    """A file with half a key, or an empty one, would be refused by the daemon, and by the next genkey."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        for kib, before in ((0, None), (1, "a " + 32 * "1" + "\n#" + 960 * "x" + "\n")): # room for some bytes of the key
            if before:
                with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                    file.write(before)
            said = run("bash", "-c", f'ulimit -f {kib}; exec "$@"', "-", SWITCHML, "genkey", "bob", path, status=1)[1]
            assert f"cannot write {path}: File too large" in said, said
            assert os.path.exists(path) == bool(before)
        with open(path, encoding="utf-8") as file:
            assert file.read() == before


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


def test_help_is_a_command_and_names_the_command():
    assert run(SWITCHML, "help") == run(SWITCHML, "--help")
    for command in ("bench", "conform", "doctor", "genkey", "status", "top", "trace"):
        text = run(SWITCHML, "help", command)[0]
        assert text == run(SWITCHML, command, "--help")[0]
        assert text.startswith(f"Usage: switchml {command} "), text.splitlines()[0]
    assert "no command 'fly'; there are: bench" in run(SWITCHML, "help", "fly", status=2)[1]


def documented_options(page):
    """Of each command of a manual page ("": none) the long options of its synopsis, and all that the page explains."""
    with open(os.path.join(os.path.dirname(__file__), "../docs/man", page), encoding="utf-8") as file:
        text = file.read()
    synopsis = text[text.index(".Sh SYNOPSIS"):text.index(".Sh DESCRIPTION")]
    commands = {}
    for part in synopsis.split("\n.Nm\n")[1:]:
        name = re.match(r"(?:\.Cm (.*)\n)?", part).group(1) or ""
        commands.setdefault(name, set()).update(re.findall(r"\bFl -([\w-]+)", part))
    return commands, set(re.findall(r"\bFl -([\w-]+)", " ".join(re.findall(r"^\.It (Fl .*)", text, re.MULTILINE))))


def test_manual_pages_have_the_options_that_the_commands_take():
    """By each command's own --usage, which is made of its table of options."""
    everywhere, also_called = {"help", "usage", "version"}, {"threads"}
    pages = [(SWITCHML, "switchml.1"), (SWITCHMLD, "switchmld.1")]
    if os.path.exists(PIPELINE): # built where libdpdk is
        pages.append((PIPELINE, "switchml-pipeline.1"))
    for program, page in pages:
        commands, explained = documented_options(page)
        assert len(commands) == (11 if program == SWITCHML else 1), commands
        for command, documented in commands.items():
            taken = set(re.findall(r"--([\w-]+)", run(program, *command.split(), "--usage")[0])) - everywhere
            assert taken - also_called == documented - everywhere, (command, taken ^ documented)
            assert taken <= explained, (command, taken - explained)


def test_the_manual_page_has_every_variable_that_is_read():
    """doctor's list of known variables is made of the page. What only tests and the daemon's tests read has other names."""
    root = os.path.join(os.path.dirname(__file__), "..")
    with open(os.path.join(root, "docs/man/switchml.1"), encoding="utf-8") as file:
        page = file.read()
    listed = set(re.findall(r"SWITCHML_\w+", page[page.index(".Sh ENVIRONMENT"):]))
    read = set()
    for folder in "src", "integrations":
        for path in glob.glob(os.path.join(root, folder, "**/*.[ch]*"), recursive=True) + glob.glob(
                os.path.join(root, folder, "**/*.py"), recursive=True):
            if "_test." in path or os.path.isdir(path):
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                read.update(re.findall(r'"(SWITCHML_[A-Z0-9_]+[A-Z0-9])"', file.read()))
    assert len(read) > 30 and read <= listed, read - listed


def test_operating_has_every_event_of_the_log():
    root = os.path.join(os.path.dirname(__file__), "..")
    with open(os.path.join(root, "docs/operating.md"), encoding="utf-8") as file:
        listed = set(re.findall(r"`(\w+)`", file.read().partition("\n## Logs\n")[2]))
    events = set()
    for path in glob.glob(os.path.join(root, "src/aggd/*.c")) + glob.glob(os.path.join(root, "src/switchd/*.c")):
        if "_test." not in path:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            events.update(re.findall(r'sml_log_event\(\w+, "(\w+)"', text))
            for pattern in r'note_(?:job|turned_away)\([^;]*?"(\w+)"', r'\.name = "(\w+)"', r'_NOTE_\w+\] = \{"(\w+)"':
                events.update(re.findall(pattern, text))
    assert len(events) > 35 and events <= listed, events - listed


def test_the_manual_page_has_every_member_that_bench_prints():
    """Members of the object, and of its results."""
    with open(os.path.join(os.path.dirname(__file__), "../docs/man/switchml.1"), encoding="utf-8") as file:
        page = file.read()
    output = page[page.index(".Sh OUTPUT"):page.index(".Sh ENVIRONMENT")]
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"^\.(?:It )?Va (.*)", output, re.MULTILINE))))
    report = e2e.bench_json("--local", "2", "--sizes", "4", "--iters", "1")
    printed = set(report) | set(report["results"][0])
    assert printed == listed, printed ^ listed


def test_a_command_that_is_nearly_right():
    for typed, meant in (("benhc", "bench"), ("stats", "status"), ("doktor", "doctor"), ("tpo", "top")):
        assert f"no command '{typed}': do you mean '{meant}'?" in run(SWITCHML, typed, status=2)[1]
    assert "do you mean" not in run(SWITCHML, "frobnicate", status=2)[1]


def test_sizes_of_nothing_are_refused():
    for sizes in ("0", "4,0", "0K"):
        assert "nothing to sum of 0 bytes" in run(SWITCHML, "bench", "--local", "2", "--sizes", sizes, status=2)[1]


def test_an_address_that_is_none_is_wrong_usage():
    for command in ("status", "top", "conform"):
        assert "HOST:PORT" in run(SWITCHML, command, status=2)[1]
        run(SWITCHML, command, "127.0.0.1:x", status=2)
        said = run(SWITCHML, command, status=2, SWITCHML_AGGREGATOR="127.0.0.1:1,127.0.0.1:2")[1] # as ranks have it
        assert "'127.0.0.1:1,127.0.0.1:2' are several aggregators: give the HOST:PORT of one" in said, said
    assert "HOST:PORT" in run(SWITCHML, "evict", "train", status=2)[1]
    run(SWITCHML, "evict", "train", "127.0.0.1:1,127.0.0.1:x,127.0.0.1:1", status=2)
    run(SWITCHML, "evict", "train", "127.0.0.1:1", status=2, SWITCHML_KEY_FILE="/nowhere")
    assert "letters, digits" in run(SWITCHML, "evict", "no name", "127.0.0.1:1", status=2)[1]
    for command in (["status"], ["evict", "train"]):
        run(SWITCHML, *command, "127.0.0.1:1", status=1) # one that does not answer


def test_a_processor_that_is_not_there_is_named():
    said = run(SWITCHMLD, "--listen", "127.0.0.1:0", "--cpus", "1022", status=1)[1]
    assert "processor 1022" in said and "SWITCHML_CPUS" in said, said


def test_a_folder_for_traces_is_there_from_the_start():
    with tempfile.TemporaryDirectory() as folder:
        missing, file = os.path.join(folder, "missing"), os.path.join(folder, "file")
        os.mkfifo(file)
        for path, why in ((missing, "No such file or directory"), (file, "Not a directory")):
            for more in ([], ["--check-config"]):
                said = run(SWITCHMLD, "--listen", "127.0.0.1:0", "--trace-dir", path, *more, status=1)[1]
                assert f"cannot write traces to {path}: {why}" in said, said
        run(SWITCHMLD, "--trace-dir", folder, "--check-config")


def test_everything_wrong_with_a_configuration_is_told_at_once():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write("lans = 2\nslots = many\npoll = often\n[tenant a]\njobs = 0\nusers = 2\n[room b]\n")
        said = run(SWITCHMLD, "--config", path, "--check-config", status=2)[1].splitlines()
        for number, line in enumerate((1, 5, 6, 7, 2, 3)): # what stands there, then what it means
            assert said[number].startswith(f"switchmld: {path}:{line}: "), (number, said)
        assert len(said) == 6, said


def test_lines_that_are_none_do_not_hide_others():
    """What a line is, and what it means, by line; what is in a section without a name says nothing more."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "conf")

        def check(text):
            with open(path, "wb") as file:
                file.write(text)
            return run(SWITCHMLD, "--config", path, "--check-config", status=2)[1].splitlines()

        said = check(b"\xef\xbb\xbfslots\nlans = 2\nno = \0\n  # slots\n\n" + 300 * b"a" + b"\n[tenant x ; no end]\njobs = 0\n"
                     b"[tenant a]\njobs = 0\n\tjobs")
        assert [line[len(f"switchmld: {path}:"):].split(":")[0] for line in said] == ["1", "2", "3", "3", "6", "7", "10", "11"], said
        said = check(b"[tenant a] jobs = 8\n[tenant b] ; fine\njobs = 0\n[tenant c] # this too\njobs = 0\n")
        assert len(said) == 3 and f"{path}:1: behind a section's ]" in said[0], said
        said = check(b"slots\n" * 20)
        assert len(said) == 20 and "more" not in said[-1], said
        said = check(b"slots\n" * 2000)
        assert len(said) == 21 and said[-1].endswith("and more") and f"{path}:20: " in said[-2], said
        said = check(b"listen = nowhere\nallow = x\nhttp = y\ndataplane = bmv2\n") # what they mean together
        assert len(said) == 4, said


def test_options_that_do_not_go_together_are_found_before_the_start():
    with tempfile.TemporaryDirectory() as folder:
        keys, path = os.path.join(folder, "keys"), os.path.join(folder, "conf")
        run(SWITCHML, "genkey", "a", keys)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"switch-format = 32\n[tenant a]\nkey-file = {keys}\n")
        for arguments, where, which in ((["--config", path], f"{path}:1: switch-format", "key-file"),
                                        (["--switch-format", "32", "--key-file", keys], "--switch-format", "key-file"),
                                        (["--switch-format", "32", "--multicast", "239.192.7.0"], "--switch-format", "multicast")):
            said = run(SWITCHMLD, *arguments, "--check-config", status=2)[1]
            assert f"switchmld: {where}: in switch format there are neither" in said and f"leave {which} away" in said, said


def test_what_would_fail_the_start_is_found_before_it():
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(os.path.join(folder, "pipe"))
        missing, pipe = os.path.join(folder, "missing", "file"), os.path.join(folder, "pipe")
        said = run(SWITCHMLD, "--check-config", "--cpus", "0,1022", "--lanes", "2", "--port-file", missing, "--pcap", pipe,
                   status=1)[1].splitlines()
        assert len(said) == 3 and "processor 1022, one of --cpus or SWITCHML_CPUS" in said[0], said
        assert said[1] == f"switchmld: cannot write the port file {missing}: No such file or directory", said
        assert said[2] == f"switchmld: cannot write the capture {pipe}: a file that is not regular is there", said
        run(SWITCHMLD, "--check-config", "--cpus", "0,1022", "--port-file", os.path.join(folder, "port"), "--pcap", "file")
        assert os.listdir(folder) == ["pipe"]
    for kind in "bmv2", "dpdk-p4":
        for listen in ["--listen", "0.0.0.0:1"], ["--listen", "[::1]:1"], []:
            said = run(SWITCHMLD, "--check-config", "--dataplane", kind, "--switch-format", "32", *listen, status=2)[1]
            assert f"--listen: with {kind} it must be the IPv4 address by which ranks reach this host" in said, said
        run(SWITCHMLD, "--check-config", "--dataplane", kind, "--switch-format", "32", "--listen", "127.0.0.1:1")


def test_addresses_of_other_hosts_are_found_before_the_start():
    said = run(SWITCHMLD, "--check-config", "--listen", "198.51.100.1:1", "--http", "198.51.100.2:0", status=1)[1].splitlines()
    assert len(said) == 2 and said[0].startswith("switchmld: cannot listen on 198.51.100.1:1: "), said
    assert said[1].startswith("switchmld: --http: cannot listen on 198.51.100.2:0: "), said
    with socket.create_server(("127.0.0.1", 0)) as taken: # by the daemon that runs, maybe
        run(SWITCHMLD, "--check-config", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--http", "127.0.0.1:1")


def test_an_option_without_effect_is_named():
    for arguments, other in ((["--multicast-ttl", "2"], "multicast"), (["--multicast-interface", "lo"], "multicast"),
                             (["--http-host", "agg"], "http"), (["--switch", "127.0.0.1"], "dataplane"),
                             (["--switch-cpu-port", "1"], "dataplane"), (["--switch-program", "p"], "dataplane tofino"),
                             (["--end-withdrawn"], "key-file")):
        said = run(SWITCHMLD, *arguments, "--check-config")[1]
        assert re.search(f"warning without_effect option={arguments[0][2:]} .*only with --{other}\"$", said.strip()), said
    assert run(SWITCHMLD, "--multicast-ttl", "2", "--multicast", "239.192.7.0", "--check-config")[1] == ""


def test_a_tofino_is_said_to_be_untried():
    """By --help, and by a daemon that starts with one, whether the switch answers or not."""
    assert "a Tofino (never run on one)" in " ".join(run(SWITCHMLD, "--help")[0].split())
    done = subprocess.run([SWITCHMLD, "--listen", "127.0.0.1:0", "--dataplane", "tofino", "--switch", "127.0.0.1:1",
                           "--switch-format", "32"], text=True, capture_output=True, check=False, timeout=60 * e2e.PATIENCE)
    if "was built without" in done.stderr:
        raise tap.Skip("built without --dataplane tofino")
    assert done.returncode != 0 and "has never run on a Tofino" in done.stderr.splitlines()[0], done


def test_the_pipeline_warns_of_long_frames():
    """Loopback's MTU is 64 KiB, which its rings do not take. It then fails: there is no such program."""
    if not os.path.exists(PIPELINE):
        raise tap.Skip("no switchml-pipeline: libdpdk-dev was not there when this was built")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([PIPELINE, "--control", os.path.join(folder, "c"), "--port", "lo", "/nowhere.so"], text=True,
                              capture_output=True, check=False, timeout=60 * e2e.PATIENCE, cwd=folder)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and re.search(r"lo has an MTU of \d+: frames of more than 9216 bytes may be lost", said), done


def test_each_line_of_a_log_in_json_is_an_object():
    with tempfile.TemporaryDirectory() as folder:
        with e2e.Daemon("--log-format", "json", "--http", "127.0.0.1:0") as daemon:
            e2e.bench_json("--sizes", "4", env=e2e.environment(SWITCHML_AGGREGATOR=daemon.address, RANK=0, WORLD_SIZE=1))
            daemon.process.terminate()
            daemon.process.wait(20 * e2e.PATIENCE)
            events = [json.loads(line) for line in daemon.text().splitlines()]
        assert [event["event"] for event in events[:2]] == ["listening", "http"], events
        assert events[0]["address"] == daemon.address and events[-1]["event"] == "stopping", events
        path = os.path.join(folder, "conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write("[room]\n")
        failed = run(SWITCHMLD, "--log-format", "json", "--config", path, status=2)[1].splitlines()
        assert json.loads(failed[0])["event"] == "cannot_start" and len(failed) == 1, failed


def test_packaged_configuration_is_for_this_machine():
    """Whoever starts the service as it is opens no port to others."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "packaging/systemd/switchmld.conf")
    run(SWITCHMLD, "--config", path, "--check-config")
    with open(path, encoding="utf-8") as file:
        settings = dict(re.findall(r"^([a-z-]+) = (.*)$", file.read(), re.M))
    assert settings["listen"].startswith("127.0.0.1:") or "key-file" in settings, settings


if __name__ == "__main__":
    tap.main(globals())
