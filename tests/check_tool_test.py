#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check.py counts what programs say, and gives a second run to those, and only those, that may have one: each
case is a tree of tests that fail in their own way."""
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile

import tap

TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools")
sys.path.insert(0, TOOLS)
import check # pylint: disable=wrong-import-position

# What each program prints and how it ends, the first time and from then on.
GOOD = ("ok 1 - good", 0)
BAD = ("# it is late\nnot ok 1 - bad", 1)
RACE = ("WARNING: ThreadSanitizer: data race\nnot ok 1 - race", 1)
SKIPS = ("# skipped: no such thing here\nok 1 - optional", 0)
CRASH = ("not ok 1 - crash", "kill -SEGV $$")
# meson.build says nothing of programs that end by a signal: so the shell is the program.
PROGRAM = """#!/bin/sh
echo 1..1
if [ -e "$0.ran" ]; then {second}; fi
: > "$0.ran"
{first}
"""


def commands(line):
    text, end = line
    says = "; ".join(f"echo '{part}'" for part in text.splitlines())
    return f"{says}; " + (end if isinstance(end, str) else f"exit {end}")


def set_up_tools(root):
    os.makedirs(os.path.join(root, "tools"))
    os.symlink(os.path.join(TOOLS, "configure"), os.path.join(root, "tools/configure"))
    with open(os.path.join(root, "tools/stage"), "w", encoding="utf-8") as stage:
        stage.write("#!/bin/sh\n")
    os.chmod(os.path.join(root, "tools/stage"), 0o755)


def call_check(root, *arguments):
    """Exit status and output of check.py over the tree in root: of the suite "tree", and of the others that are named."""
    check.ROOT = root
    check.SUITES = {"tree": ("build", [], None, ["--suite=some"]), "more": ("build-more", [], None, ["--suite=more"]),
                    "last": ("build-last", [], None, ["--suite=more"]), "next": ("build-next", [], None, ["--no-suite=some"])}
    output = io.StringIO()
    sys.stdout.flush()
    kept = os.dup(1)
    try: # what meson writes itself is not TAP of this test's
        with open(os.devnull, "w", encoding="ascii") as nothing:
            os.dup2(nothing.fileno(), 1)
        with contextlib.redirect_stdout(output):
            status = check.main(["tree", *arguments])
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    return status, output.getvalue()


def make_tree(root):
    """One for all cases, as its set-up takes longer than they do: each writes the programs that it names."""
    with open(os.path.join(root, "meson.build"), "w", encoding="utf-8") as out:
        out.write("project('tree')\n")
        for name in "abcd":
            write_program(root, name, GOOD, GOOD)
            out.write(f"test('{name}', files('{name}'), suite: 'some', protocol: 'tap')\n")
    set_up_tools(root)


def write_program(root, name, first, second):
    path = os.path.join(root, name)
    with open(path, "w", encoding="utf-8") as script:
        script.write(PROGRAM.format(first=commands(first), second=commands(second)))
    os.chmod(path, 0o755)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path + ".ran")


TREE = tempfile.TemporaryDirectory()
make_tree(TREE.name)


def run_check(programs, *arguments):
    """Exit status and output of check.py over programs {name: (first run, later runs)}."""
    for name, runs in programs.items():
        write_program(TREE.name, name, *runs)
    return call_check(TREE.name, *arguments, *([] if "--" in arguments else ["--"]), *programs)


def expect(programs, status, closing, *words, arguments=()):
    got, output = run_check(programs, *arguments)
    assert got == status and output.splitlines()[-1] == closing, (got, output)
    for word in words:
        assert word in output, (word, output)
    return output


def test_all_good():
    output = expect({"a": (GOOD, GOOD), "b": (GOOD, GOOD)}, 0, "2 passed, 0 failed, 0 skipped")
    assert "again" not in output, output


def test_skips_are_counted_with_their_reasons():
    expect({"a": (GOOD, GOOD), "b": (SKIPS, SKIPS)}, 0, "1 passed, 0 failed, 1 skipped",
           "skipped: tree b: optional # skip no such thing here")


def test_programs_in_a_wrapper_are_counted():
    expect({"a": (GOOD, GOOD), "b": (BAD, GOOD)}, 0, "2 passed, 0 failed, 0 skipped", "passed alone: tree b: bad",
           arguments=["--", "--wrap", "env"])


def test_what_fails_twice_has_failed():
    expect({"a": (GOOD, GOOD), "b": (BAD, BAD)}, 1, "1 passed, 1 failed, 0 skipped", "again, alone: b",
           "FAILED: tree b: bad", "# it is late")


def test_what_passes_alone_is_listed():
    expect({"a": (GOOD, GOOD), "b": (BAD, GOOD)}, 0, "2 passed, 0 failed, 0 skipped",
           "failed beside others, passed alone: tree b: bad\n    # it is late")


def test_once_means_once():
    expect({"b": (BAD, GOOD)}, 1, "0 passed, 1 failed, 0 skipped", "FAILED: tree b: bad", arguments=["--once"])


def test_no_second_run_after_a_sanitizers_report():
    expect({"a": (GOOD, GOOD), "b": (RACE, GOOD)}, 1, "1 passed, 1 failed, 0 skipped", "FAILED: tree b: race")


def test_no_second_run_after_a_crash():
    expect({"a": (GOOD, GOOD), "b": (CRASH, GOOD)}, 1, "1 passed, 1 failed, 0 skipped", "FAILED: tree b: crash")


# In build-more something is built, and then something that cannot be: twice, if it is begun twice.
BUILT_AHEAD = """project('tree')
test('waits', files('waits'), suite: 'some', timeout: 300)
test('built', find_program('test'), args: ['-e', meson.project_build_root() / 'made'], suite: 'more')
if meson.project_build_root().endswith('-more')
  made = custom_target(output: 'made', command: ['touch', '@OUTPUT@'], build_by_default: true)
  custom_target(input: made, output: 'never', command: ['sh', '-c', 'echo x >> ' + meson.project_source_root() / 'tried; {}'],
    build_by_default: true)
endif
"""


def test_the_next_suite_is_built_while_tests_wait():
    for end, status, closing in (("exit 1", 1, "1 passed, 1 failed, 0 skipped"), ("touch never", 0, "2 passed, 0 failed, 0 skipped")):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "meson.build"), "w", encoding="utf-8") as out:
                out.write(BUILT_AHEAD.format(end))
            with open(os.path.join(root, "waits"), "w", encoding="utf-8") as script:
                script.write(f"#!/bin/sh\nuntil [ -e {root}/tried ]; do sleep 0.1; done\n")
            os.chmod(os.path.join(root, "waits"), 0o755)
            set_up_tools(root)
            got, output = call_check(root, "more")
            assert (got, output.splitlines()[-1]) == (status, closing), output
            assert ("FAILED: more: build failed" in output) == (status == 1), output


BUILT_LATER = """project('tree')
test('waits', files('waits'), suite: 'some', timeout: 60)
test('built', find_program('true'), suite: 'more')
custom_target(output: 'made', command: ['touch', '@OUTPUT@'], build_by_default: true)
"""


def test_so_are_those_behind_it():
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(root, "meson.build"), "w", encoding="utf-8") as out:
            out.write(BUILT_LATER)
        with open(os.path.join(root, "waits"), "w", encoding="utf-8") as script:
            script.write(f"#!/bin/sh\nuntil [ -e {root}/build-last/made ]; do sleep 0.1; done\n")
        os.chmod(os.path.join(root, "waits"), 0o755)
        set_up_tools(root)
        got, output = call_check(root, "more", "last")
        assert (got, output.splitlines()[-1]) == (0, "3 passed, 0 failed, 0 skipped"), output


TESTED_AHEAD = """project('tree')
test('waits', files('waits'), suite: 'some', timeout: 60)
test('quick', files('quick'), suite: 'core')
test('slow', files('slow'), suite: 'core', timeout: 60)
test('clock', files('quick'), suite: 'lib', args: 'clock')
"""


def test_what_needs_no_clock_is_tested_while_others_wait():
    with tempfile.TemporaryDirectory() as root:
        scripts = {"waits": f"until [ -e {root}/quick.ran ] && [ -e {root}/slow.ran ]; do sleep 0.1; done; sleep 1",
                   "quick": f"echo ran $1 >> {root}/quick.ran",
                   # still running when it is over, so it has to run again
                   "slow": f"[ -e {root}/slow.ran ] && exit 0; touch {root}/slow.ran; sleep 300"}
        for name, text in {**scripts, "meson.build": None}.items():
            with open(os.path.join(root, name), "w", encoding="utf-8") as out:
                out.write(f"#!/bin/sh\n{text}\n" if text else TESTED_AHEAD)
            os.chmod(os.path.join(root, name), 0o755)
        set_up_tools(root)
        got, output = call_check(root, "next")
        assert (got, output.splitlines()[-1]) == (0, "4 passed, 0 failed, 0 skipped"), output
        with open(os.path.join(root, "quick.ran"), encoding="utf-8") as ran:
            assert ran.read() == "ran\nran clock\n"


def test_no_second_run_where_many_fail():
    expect({name: (BAD, GOOD) for name in "abcd"}, 1, "0 passed, 4 failed, 0 skipped")
    expect({"a": (BAD, GOOD), "b": (BAD, GOOD), "c": (BAD, GOOD), "d": (GOOD, GOOD)}, 0, "4 passed, 0 failed, 0 skipped")


OPTIONAL = """project('tree')
test('always', find_program('true'), suite: 'some')
fake = find_program('sml-optional-program', required: false)
if fake.found()
  test('optional', fake, suite: 'some')
endif
"""


def test_packages_that_come_later_are_found():
    """A package manager that is an echo, and a package that is a program."""
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as commands_dir:
        def install(name, says):
            path = os.path.join(commands_dir, name)
            with open(path, "w", encoding="utf-8") as script:
                script.write(f"#!/bin/sh\necho '{says}'\n")
            os.chmod(path, 0o755)
        with open(os.path.join(root, "meson.build"), "w", encoding="utf-8") as out:
            out.write(OPTIONAL)
        set_up_tools(root)
        path = os.environ["PATH"]
        os.environ["PATH"] = f"{commands_dir}:{path}"
        try:
            install("dpkg-query", "some 1.0")
            status, output = call_check(root)
            assert status == 0 and output.splitlines()[-1] == "1 passed, 0 failed, 0 skipped", output
            configured = os.stat(os.path.join(root, "build/build.ninja")).st_mtime_ns
            call_check(root)
            assert os.stat(os.path.join(root, "build/build.ninja")).st_mtime_ns == configured, "set up for nothing"
            install("sml-optional-program", "ok")
            install("dpkg-query", "some 1.0, optional 1.0")
            status, output = call_check(root)
            assert status == 0 and output.splitlines()[-1] == "2 passed, 0 failed, 0 skipped", output
        finally:
            os.environ["PATH"] = path


def read(*path):
    with open(os.path.join(os.path.dirname(TOOLS), *path), encoding="utf-8") as file:
        return file.read()


def setup_groups():
    found = re.findall(r"^    ([a-z0-9]+)\) echo ((?:.*\\\n)*.*?) ;;", read("tools/setup"), re.M)
    return {group: set(packages.replace("\\", " ").split()) for group, packages in found}


def test_what_tests_skip_without_is_installed_in_ci():
    check_recipe = re.search(r"^check:\n((?:\t.*\n)+)", read("Makefile"), re.M).group(1)
    set_up = re.findall(r"\$\(SETUP\) (?:--optional )?(\w+)", check_recipe)
    set_up += re.search(r"^for group in (.*); do$", read(".ci/run"), re.M).group(1).split()
    installed = set().union(*(setup_groups()[group] for group in set_up))
    folder = os.path.join(os.path.dirname(TOOLS), "tests")
    tests = [read("tests", name) for name in os.listdir(folder) if name.endswith(".py")]
    needed = set(re.findall(r"\(Debian: ([a-z0-9-]+)\)|need\(\"[a-z.-]+\", \"([a-z0-9-]+)\"\)", "".join(tests)))
    needed = {package for pair in needed for package in pair if package}
    assert {"chromium", "prometheus", "tshark", "slurm-wlm", "cmake"} <= needed and "build" in set_up, (needed, set_up)
    assert needed <= installed, needed - installed


def test_setup_brings_what_debian_packages_are_built_with():
    """As `make deb` needs it where nothing is installed; tools/minimal really does so."""
    control = re.search(r"^Build-Depends:\n((?: .*\n)+)", read("packaging/debian/control"), re.M).group(1)
    needed = set(re.findall(r"^ ([a-z0-9-]+)", control, re.M))
    needed = {"debhelper" if name == "debhelper-compat" else name for name in needed}
    assert {"debhelper", "meson", "pkgconf"} <= needed, needed # Meson finds all else by pkg-config
    needed |= {"build-essential", "git", "lintian", "dpkg-dev", "fakeroot"}
    assert needed <= setup_groups()["deb"], needed - setup_groups()["deb"]


# As apt does without a terminal: it reports on a descriptor that programs after it do not get, and these write to what is left.
APT = """#!/bin/sh
for option; do case $option in APT::Status-Fd=*) eval "exec 9>&${option#*=} ${option#*=}>&-" ;; esac; done
echo pmstatus:one:10.5:Unpacking >&9
sh -c 'exec 9>&-; printf "Regenerating fonts cache... "' || exit 1
echo pmstatus:one:100:done >&9
"""
SUDO = "#!/bin/sh\nshift\nexec 3>&- 4>&- 5>&- 6>&-\nexec \"$@\"\n"


def call_setup(folder, **programs):
    for name, text in {"dpkg-query": "#!/bin/sh\n", **programs}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as program:
            program.write(text)
        os.chmod(program.name, 0o755)
    done = subprocess.run([os.path.join(TOOLS, "setup"), "model"], env={"PATH": f"{folder}:/usr/bin:/bin"}, timeout=30, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def test_setup_leaves_packages_a_standard_output():
    told = "setup: installing spin gcc\nsetup: installed 10 %\nsetup: installed 100 %\n"
    for user, more in ("0", {}), ("1000", {"sudo": SUDO}):
        with tempfile.TemporaryDirectory() as folder:
            status, output = call_setup(folder, id=f"#!/bin/sh\necho {user}\n", **{"apt-get": APT}, **more)
            assert (status, output) == (0, told), (user, status, output)


def test_setup_says_what_apt_says_when_it_fails():
    with tempfile.TemporaryDirectory() as folder:
        status, output = call_setup(folder, id="#!/bin/sh\necho 0\n", **{"apt-get": "#!/bin/sh\necho E: no network >&2\nexit 100\n"})
    assert status == 1 and "E: no network" in output and output.endswith("setup: apt-get could not install: spin gcc\n"), output


if __name__ == "__main__":
    tap.main(globals())
