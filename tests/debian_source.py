# SPDX-License-Identifier: Apache-2.0
"""Folders out of Debian's source packages, which apt fetches from the mirror of this machine's apt when a test is run."""
import os
import subprocess

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def fetched(package, work, members, num_stripped, release=None):
    """The folder of those members (patterns of tar's, with spaces between) of the package's upstream archive, without the
    first folders of their paths, in `work`; None if apt can't. release: of Debian; unless it is given, this machine's."""
    source, apt, log = (os.path.join(work, name) for name in ("source", "apt", "apt.log"))
    if os.path.isdir(source):
        return source
    os.makedirs(os.path.join(apt, "lists/partial"), exist_ok=True)
    targets = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages",
                              "Origin: Debian", "Label: Debian"], text=True, stdout=subprocess.PIPE,
                             check=True).stdout.splitlines()
    if not targets:
        return None
    site, own_release = targets[0].split()
    with open(os.path.join(apt, "sources.list"), "w", encoding="utf-8") as file:
        file.write(f"deb-src [signed-by={KEYRING}] {site} {release or own_release} main\n")
    options = [f"Dir::Etc::sourcelist={apt}/sources.list", "Dir::Etc::sourceparts=-", f"Dir::State::lists={apt}/lists",
               "Dir::Cache::srcpkgcache=", "Dir::Cache::pkgcache="]
    for words in ("update",), ("source", "--download-only", "--tar-only", package):
        with open(log, "a", encoding="utf-8") as said:
            done = subprocess.run(["apt-get", *(word for option in options for word in ("-o", option)), *words], cwd=apt,
                                  stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False)
        if done.returncode != 0:
            print(f"# apt-get {words[0]} ended with {done.returncode}: {log}", flush=True)
            return None
    archive = next(name for name in os.listdir(apt) if ".orig.tar" in name and not name.endswith(".asc"))
    os.makedirs(source + ".new", exist_ok=True)
    subprocess.run(["tar", "-xf", archive, "-C", source + ".new", f"--strip-components={num_stripped}", "--wildcards",
                    *members.split()], cwd=apt, check=True)
    os.rename(source + ".new", source)
    return source
