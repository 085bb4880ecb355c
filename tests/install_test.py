#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What is installed works where it is put: CMake's package, the Python module, the service, completion, and the
examples."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ["SML_BUILD_DIR"]
SWITCHML, SWITCHMLD = os.environ["SWITCHML"], os.environ["SWITCHMLD"]
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
PATIENCE_S = 20


def run(*command, **arguments):
    """Output of a command that must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=120, **arguments)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def need(tool, package):
    if not shutil.which(tool):
        raise tap.Skip(f"{tool} is not installed (Debian: {package})")


class Tree:
    """The product, installed below a directory of its own."""
    options = {} # of the build, once they are known

    def __enter__(self):
        self.top = tempfile.mkdtemp()
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", self.top)
        if not self.options:
            known = json.loads(run("meson", "introspect", BUILD, "--buildoptions"))
            self.options.update({option["name"]: option["value"] for option in known})
        self.prefix = self.top + self.options["prefix"]
        self.lib = os.path.join(self.prefix, self.options["libdir"])
        self.env = {**os.environ, "LD_LIBRARY_PATH": self.lib}
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.top)

    def find(self, name):
        found = [os.path.join(folder, name) for folder, _, files in os.walk(self.top) if name in files]
        assert len(found) == 1, (name, found)
        return found[0]


def test_make_builds_what_is_installed_and_no_test():
    """By the commands that ninja would run for the targets that `make` names."""
    said = run("make", "--dry-run", "-C", ROOT, "NO_SETUP=1", f"BUILD={BUILD}", "all")
    words = re.search(r"^ninja -C \S+(.*)$", said, re.M).group(1).split()
    assert "--quiet" not in words, "no progress is shown"
    commands = run("ninja", "-C", BUILD, "-t", "commands", *words).splitlines()
    outputs = {match.group(1) for match in (re.search(r" -o (\S+)", command) for command in commands) if match}
    tests = [output for output in outputs if re.search(r"_test(\.|$)|^(tests|fuzz|sim|bench|model)/", output)]
    assert not tests, f"{len(tests)} of {len(outputs)} are of tests: {tests[:5]}"
    targets = json.loads(run("meson", "introspect", BUILD, "--targets"))
    files = {os.path.relpath(name, BUILD) for target in targets if target["installed"] for name in target["filename"]}
    assert len(files) >= 3 and files <= outputs, (files, files - outputs)


def configured_without(names):
    """Status and output of meson where pkg-config does not know these."""
    with tempfile.TemporaryDirectory() as folder:
        for place in run("pkg-config", "--variable", "pc_path", "pkg-config").strip().split(":"):
            for name in os.listdir(place) if os.path.isdir(place) else []:
                if name.removesuffix(".pc") not in names and not os.path.lexists(os.path.join(folder, name)):
                    os.symlink(os.path.join(place, name), os.path.join(folder, name))
        env = {**os.environ, "PKG_CONFIG_LIBDIR": folder, "CMAKE": "false"} # it knows some of them, too
        env.pop("PKG_CONFIG_PATH", None)
        done = subprocess.run(["meson", "setup", os.path.join(folder, "build"), ROOT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=env, check=False, timeout=120)
    return done.returncode, done.stdout


def test_a_missing_library_is_named_as_its_packages():
    packages = {"cmocka": ("libcmocka-dev", "libcmocka-devel"), "jansson": ("libjansson-dev", "jansson-devel", "libjansson-devel"),
                "smartcols": ("libsmartcols-dev", "libsmartcols-devel"), "inih": ("libinih-dev", "inih-devel", "libinih-devel")}
    for missing in (*([name] for name in packages), list(packages)):
        status, output = configured_without(missing)
        told = output.partition("What pkg-config does not find (docs/install.md):")[2]
        assert status != 0 and told, output
        assert re.findall(r"^  (\w+): ", told, re.M) == missing, (missing, told)
        for name in missing:
            for package in packages[name]:
                assert re.search(rf"^  {name}: .*\b{package}\b", told, re.M), (package, told)
    with open(os.path.join(ROOT, "docs/install.md"), encoding="utf-8") as file:
        text = file.read()
    assert not [name for names in packages.values() for name in names if not re.search(rf"[ `]{name}[ `]", text)]


def test_the_sample_in_c_after_make():
    """As README says: make, . build/env.sh, cc."""
    run(os.path.join(ROOT, "tools/stage"), BUILD)
    with tempfile.TemporaryDirectory(prefix="a folder ") as folder:
        log = os.path.join(folder, "log")
        script = f"""set -e
            . {BUILD}/env.sh
            cd "{folder}"
            cc {ROOT}/examples/c/allreduce.c $(pkg-config --cflags --libs "switchml >= 0.1")
            switchmld --listen 127.0.0.1:0 --port-file port 2> log &
            daemon=$!
            trap 'kill $daemon' EXIT
            while [ ! -s port ]; do kill -0 $daemon; sleep 0.05; done
            ./a.out "$(cat port)" 0 2 > first &
            ./a.out "$(cat port)" 1 2
            wait $!
            cat first"""
        done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=60,
                              env={name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PKG_CONFIG_PATH")})
        assert done.returncode == 0, (done.stdout, os.path.exists(log) and open(log, encoding="utf-8").read())
    assert done.stdout.splitlines() == [f"rank {rank} of 2: 99 on each rank is 198 in all" for rank in (1, 0)], done.stdout


def test_cmake_finds_the_package():
    need("cmake", "cmake")
    with Tree() as tree, tempfile.TemporaryDirectory() as work:
        def configure(version):
            with open(os.path.join(work, "CMakeLists.txt"), "w", encoding="utf-8") as file:
                file.write("cmake_minimum_required(VERSION 3.16)\nproject(consumer C)\n"
                           f"find_package(SwitchML {version} REQUIRED)\nadd_executable(consumer {ROOT}/examples/c/allreduce.c)\n"
                           "target_link_libraries(consumer SwitchML::switchml)\n")
            return subprocess.run(["cmake", "-S", work, "-B", work + "/build", f"-DCMAKE_PREFIX_PATH={tree.prefix}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        version = re.search(r"version: '([\d.]+)'", open(ROOT + "/meson.build", encoding="utf-8").read()).group(1)
        major, minor, patch = map(int, version.split("."))
        for other in [f"{major}.{minor + 1}", f"{major}.{minor}.{patch + 1}", f"{major + 1}.{minor}"]:
            done = configure(other)
            assert done.returncode != 0 and "SwitchML" in done.stdout, done.stdout
        done = configure(version)
        assert done.returncode == 0, done.stdout
        run("cmake", "--build", work + "/build")
        said = run(work + "/build/consumer", "127.0.0.1:1", "0", "1", env=tree.env) # one rank needs no aggregator
        assert said == "rank 0 of 1: 99 on each rank is 99 in all\n", said
        os.unlink(os.path.join(tree.prefix, "include/switchml/switchml.h"))
        shutil.rmtree(work + "/build")
        done = configure(version)
        assert done.returncode != 0 and "SwitchML again" in done.stdout, done.stdout


def test_what_was_installed_can_be_removed():
    with Tree() as tree:
        assert any(files for _, _, files in os.walk(tree.top))
        run("ninja", "-C", BUILD, "--quiet", "uninstall")
        left = [name for _, _, files in os.walk(tree.top) for name in files]
        assert left == ["switchmld.conf"], left # it is the operator's


def test_python_module_finds_its_library():
    with Tree() as tree:
        package = os.path.dirname(tree.find("torch.py"))
        source = os.path.join(ROOT, "integrations/pytorch/switchml")
        here = {name for name in os.listdir(source) if name.endswith(".py")}
        assert set(os.listdir(package)) == here | {"installed.py"}, os.listdir(package)
        said = run(PYTHON, "-c", "import switchml.installed as i; print(i.LIBRARY)",
                   env={**os.environ, "PYTHONPATH": os.path.dirname(package)}).strip()
        assert os.path.exists(tree.top + said), said
        try:
            run(PYTHON, "-P", "-c", "import importlib.util as u; raise SystemExit(not getattr(u.find_spec('torch'), 'origin', None))")
        except AssertionError as error:
            raise tap.Skip("PyTorch is not installed (Debian: python3-torch)") from error
        with open(os.path.join(package, "installed.py"), "w", encoding="utf-8") as file:
            file.write(f"LIBRARY = {tree.top + said!r}\n") # what it would be without a staging directory
        env = {name: value for name, value in os.environ.items() if name not in ("SWITCHML_LIBRARY", "LD_LIBRARY_PATH")}
        names = sorted(name.removesuffix(".py") for name in here - {"__init__.py"})
        used = run(PYTHON, "-c", "import importlib, sys, switchml.torch as t; print(t.Process.load()._name)\n"
                   "for name in sys.argv[1:]: print(importlib.import_module('switchml.' + name).__file__)", *names,
                   env={**env, "PYTHONPATH": os.path.dirname(package)})
        assert used.split() == [tree.top + said, *(os.path.join(package, f"{name}.py") for name in names)], used


def test_dissector_is_where_the_package_takes_it_from():
    with Tree() as tree:
        assert tree.find("switchml.lua") == os.path.join(tree.prefix, "share/switchml/switchml.lua")
    with open(os.path.join(ROOT, "packaging/debian/switchml.install"), encoding="utf-8") as file:
        assert "usr/share/switchml" in file.read().split()


def test_service_is_well_formed_and_confined():
    need("systemd-analyze", "systemd")
    with Tree() as tree:
        with open(tree.find("switchmld.service"), encoding="utf-8") as file:
            unit = file.read()
        path = os.path.join(tree.top, "switchmld.service")
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"ExecStart=\S+", f"ExecStart={SWITCHMLD}", unit))
        said = run("systemd-analyze", "verify", "--man=no", path)
        assert "switchmld" not in said, said
        try:
            run("systemd-analyze", "security", "--offline=true", "--threshold=20", path) # exposure 2.0 of 10
        except AssertionError as error:
            raise AssertionError("less confined than it was: " + str(error)[-4000:]) from error


def test_pipe_as_configuration_keeps_nobody_waiting():
    """Its opening would wait for a writer, on the thread that heeds signals."""
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write("log-level = warning\n")
        with subprocess.Popen([SWITCHMLD, "--listen", "127.0.0.1:0", "--config", config], stderr=subprocess.PIPE,
                              text=True) as daemon:
            assert "listening" in daemon.stderr.readline()
            os.unlink(config)
            os.mkfifo(config)
            daemon.send_signal(signal.SIGHUP)
            daemon.send_signal(signal.SIGTERM)
            try:
                assert daemon.wait(PATIENCE_S) == 0
            finally:
                daemon.kill()
            said = daemon.stderr.read()
            assert f"cannot read {config}: it is no regular file" in said, said
        done = subprocess.run([SWITCHMLD, "--check-config", "--config", config], stderr=subprocess.PIPE, text=True,
                              check=False, timeout=PATIENCE_S)
        assert done.returncode == 2 and "no regular file" in done.stderr, done


def test_changed_configuration_is_kept():
    with Tree() as tree:
        path = tree.find("switchmld.conf")
        run(SWITCHMLD, "--config", path, "--check-config")
        with open(path, "w", encoding="utf-8") as file:
            file.write("lanes = 2\n")
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", tree.top)
        with open(path, encoding="utf-8") as file:
            assert file.read() == "lanes = 2\n"


def test_service_is_limited():
    with Tree() as tree, open(tree.find("switchmld.service"), encoding="utf-8") as file:
        unit = file.read()
    for line in ("WatchdogSec=30s", "LimitCORE=0", "#MemoryMax=2G", "#TasksMax=64"):
        assert f"\n{line}\n" in unit, line


def completions(*words):
    """What bash would offer for the last of these words."""
    script = os.path.join(ROOT, "packaging/completion/switchml.bash")
    code = (f"source {script}; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); compopt() {{ :; }}; _switchml; "
            "printf '%s\\n' \"${COMPREPLY[@]}\"")
    return set(run("bash", "-c", code, "bash", *words).split())


def options_of(*command):
    return set(re.findall(r"--[a-z][a-z0-9-]*=?", run(*command, "--help")))


def test_bash_completes():
    assert "bench" in completions(SWITCHML, "be") and "--help" in completions(SWITCHML, "")
    assert completions(SWITCHMLD, "--pol") == {"--poll="}
    assert completions(SWITCHMLD, "--poll", "=", "b") == {"busy", "block"}
    assert completions(SWITCHMLD, "--poll", "=") == {"auto", "busy", "block"}
    assert "--float64-bits=" in completions(SWITCHML, "bench", "--fl")
    assert not completions(SWITCHML, "bench", "--fl") & {"--float", "--float="}
    assert completions(SWITCHMLD, "--") >= options_of(SWITCHMLD)
    assert completions(SWITCHML, "bench", "--") >= options_of(SWITCHML, "bench")
    assert completions(SWITCHML, "bench", "tr") == {"training"}
    assert completions(SWITCHML, "bench", "training", "--pr") >= {"--predict", "--priority"}
    assert completions(SWITCHML, "bench", "training", "--model", "=", "res") == {"resnet50", "resnet101"}
    assert completions(SWITCHMLD, "--key-file", "=", ROOT + "/READ") == {ROOT + "/README.md"}
    assert completions(SWITCHMLD, "--poll", "=", "auto", "--la") == {"--lanes="}


def test_examples_fit_the_commands():
    folder = os.path.join(ROOT, "examples")
    known = {option.rstrip("=") for option in options_of(SWITCHMLD)}
    num_uses = 0
    paths = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    for path in paths + [os.path.join(ROOT, "packaging/systemd/switchmld.default")]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for line in text.splitlines():
            if re.search(r"switchmld\b.* --|^#?OPTIONS=", line):
                # Those before the name belong to another program on the same line.
                used = set(re.findall(r"--[a-z][a-z-]*", line[max(line.find("switchmld"), 0):]))
                assert used <= known, (path, used - known)
                num_uses += 1
        first = text.splitlines()[0]
        if first.startswith("#!") and "sh" in first:
            run("bash" if "bash" in first else "sh", "-n", path)
        for name in set(re.findall(r"\bSWITCHML_[A-Z_]+\b", text)) - {"SWITCHML_LISTEN"}: # train's own
            found = subprocess.run(["grep", "-rqw", name, ROOT + "/src", ROOT + "/integrations"], check=False)
            assert found.returncode == 0, (path, name)
    assert num_uses >= 5, num_uses


def test_manifests_are_yaml():
    try:
        import yaml # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise tap.Skip("PyYAML is not installed (Debian: python3-yaml)") from error
    kinds = []
    for name in ["aggregator.yaml", "mpijob.yaml", "pytorchjob.yaml", "trainjob.yaml"]:
        with open(os.path.join(ROOT, "examples/kubernetes", name), encoding="utf-8") as file:
            documents = list(yaml.safe_load_all(file))
        kinds += [document["kind"] for document in documents]
        for document in documents:
            if document["kind"] == "Deployment":
                container = document["spec"]["template"]["spec"]["containers"][0]
                ports = {port["containerPort"] for port in container["ports"]}
                assert ports == {48879, 48880, 48881}, ports
    assert kinds == ["Service", "Deployment", "MPIJob", "PyTorchJob", "TrainJob"], kinds


if __name__ == "__main__":
    tap.main(globals())
