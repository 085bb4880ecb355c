#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/release on a small project: what it refuses, and that two people make the same bytes of a commit."""
import contextlib
import os
import shutil
import subprocess
import tempfile

import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = {
    "meson.build": "project('switchml', 'c', version: '1.0.0')\nsubdir('src/lib')\n",
    "src/lib/meson.build": "shared_library('switchml', 'one.c', version: '1.0.0', soversion: '0')\n",
    "src/lib/one.c": "int sml_one(void);\nint sml_two(int a);\nint sml_one(void) { return 1; }\nint sml_two(int a) { return a; }\n",
    "packaging/debian/changelog": "switchml (1.0.0) unstable; urgency=medium\n",
    "CHANGELOG.md": "# Changelog\n\n## Unreleased (1.0.0)\n\n- All.\n"}


class Project:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "project")
        for name, text in FILES.items():
            self.write(name, text)
        self.git("init", "--quiet")
        self.commit("all")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def change(self, name, old, new):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            text = file.read()
        assert old in text, (name, old)
        self.write(name, text.replace(old, new))

    def git(self, *arguments):
        return subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments], cwd=self.folder,
                              check=True, stdout=subprocess.PIPE, text=True).stdout

    def commit(self, what):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", what)

    def next_version(self):
        for name in ("meson.build", "src/lib/meson.build", "packaging/debian/changelog"):
            self.change(name, "1.0.0", "1.1.0")
        self.change("CHANGELOG.md", "# Changelog\n", "# Changelog\n\n## Unreleased (1.1.0)\n\n- More.\n")

    def release(self, *arguments, folder=None, umask=0o022):
        output = os.path.join(self.folder, "build/release")
        done = subprocess.run([os.path.join(ROOT, "tools/release"), "--root", folder or self.folder, "--output", output, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, umask=umask,
                              env={**os.environ, "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org",
                                   "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org"})
        if done.returncode != 0:
            return done.returncode, done.stdout, None
        with open(os.path.join(output, "SHA256SUMS"), encoding="utf-8") as file:
            return 0, done.stdout, file.read()


@contextlib.contextmanager
def project():
    if not shutil.which("git"):
        raise tap.Skip("git is not installed")
    with tempfile.TemporaryDirectory() as folder:
        yield Project(folder)


def test_two_people_make_the_same_archive():
    with project() as mine:
        status, said, sums = mine.release()
        assert status == 0 and "first release" in said and "no tag" in said, said
        clone = os.path.join(os.path.dirname(mine.folder), "clone")
        mine.git("clone", "--quiet", mine.folder, clone)
        assert mine.release(folder=clone, umask=0o077)[2] == sums
        assert sums.split()[1] == "switchml-1.0.0.tar.xz", sums
        checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=mine.folder + "/build/release", check=False)
        assert checked.returncode == 0


def test_what_differs_or_is_not_committed_is_refused():
    with project() as mine:
        mine.change("packaging/debian/changelog", "1.0.0", "0.9.0")
        mine.commit("another version")
        status, said, _ = mine.release()
        assert status == 1 and "packaging/debian/changelog says 0.9.0" in said and "meson.build says 1.0.0" in said, said
        mine.git("reset", "--quiet", "--hard", "HEAD~1")
        mine.change("src/lib/one.c", "return 1", "return 2")
        status, said, _ = mine.release()
        assert status == 1 and "not committed" in said and "src/lib/one.c" in said, said


def test_a_tag_is_made_once():
    with project() as mine:
        status, said, _ = mine.release("--tag")
        assert status == 0 and mine.git("tag", "--list") == "v1.0.0\n", said
        with open(os.path.join(mine.folder, "CHANGELOG.md"), encoding="utf-8") as file:
            assert "## 1.0.0, 20" in file.read()
        status, said, _ = mine.release()
        assert status == 1 and "there is a tag v1.0.0 already" in said, said


def test_an_incompatible_library_keeps_no_soname():
    if not shutil.which("abidiff"):
        raise tap.Skip("abidiff is not installed (Debian: abigail-tools)")
    with project() as mine:
        mine.release("--tag")
        mine.next_version()
        mine.change("src/lib/one.c", "int sml_one(void) {", "int sml_three(void);\nint sml_three(void) { return 3; }\nint sml_one(void) {")
        mine.commit("one more function")
        status, said, _ = mine.release()
        assert status == 0 and "changed, compatibly" in said, said
        mine.change("src/lib/one.c", "int sml_two(int a) { return a; }", "")
        mine.commit("one function less")
        status, said, _ = mine.release()
        assert status == 1 and "same soname, libswitchml.so.0" in said and "sml_two" in said, said
        mine.change("src/lib/meson.build", "soversion: '0'", "soversion: '1'")
        mine.commit("a new soname")
        status, said, _ = mine.release()
        assert status == 0 and "a new soname, libswitchml.so.1" in said, said


if __name__ == "__main__":
    tap.main(globals())
