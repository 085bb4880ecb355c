#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tidy.py [--tap] [--root DIR] [--build DIR]: the rules of the house that a program can check.

Each rule is a function that takes the tree and yields "file:line: what is wrong". --build names a Meson
build directory, for the rules that look at objects. Exit status 1 if any rule is broken.
"""
import argparse
import ast
import os
import re
import shutil
import subprocess
import sys

import python_api # beside this file

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 120
ASSERTS_PER_1000 = 10

# Which folder of src/ may include which, besides itself and base. meson.build and docs/ARCHITECTURE.md say the same.
# A file instead of a folder: only that header. "api" is the public header.
LAYERS = {
    "base": [],
    "core": [],
    "quant": [],
    "ctl": ["api"],
    "netio": [],
    "shm": ["quant"],
    "trace": ["core/drop.h"],
    "engine": ["core", "quant", "trace", "netio/netio.h", "api"],
    "aggd": ["engine", "ctl", "core", "quant", "trace", "netio/netio.h", "api"],
    "dataplane": ["aggd/dataplane.h", "engine/engine.h", "netio/netio.h"],
    "pipeline": [],
    "switchd": ["aggd", "dataplane", "trace", "api"],
    "process": ["engine", "quant", "trace/recorder.h", "netio/netio.h", "api"],
    "meet": ["process", "aggd", "shm", "ctl", "core/wire.h", "quant", "netio/netio.h", "api"],
    "method": ["process", "engine", "shm", "ctl", "core", "quant", "netio/netio.h", "api"],
    "lib": ["meet", "method", "process", "engine", "shm", "aggd", "ctl", "core", "quant", "trace", "netio/netio.h", "api"],
    "cli": ["api", "aggd/key_reader.h", "ctl", "netio/netio.h", "trace", "quant/quant.h", "quant/format.h", "core/stream.h", "core/wire.h"],
}
# What a test beside a file may use in addition: the stack below it, to stand on.
TEST_LAYERS = {
    "netio": [],
    "engine": ["core", "quant", "trace", "netio"],
    "aggd": ["engine", "ctl", "core", "quant", "trace", "netio", "api"],
    "lib": ["meet", "method", "process", "engine", "shm", "aggd", "ctl", "core", "quant", "trace", "netio", "api"],
    "cli": ["quant/images.h"],
}
# The pure part: objects without any undefined symbol but these and our own, and what a folder has besides:
# ctl writes sentences into memory.
PURE_FOLDERS = {"core": r"$^", "quant": r"$^", "ctl": r"^(__)?v?snprintf(_chk)?$"}
PURE_SYMBOLS = re.compile(
    r"^(mem(cpy|set|move|cmp|chr)|str(len|nlen|cmp|ncmp)|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_"
    r"|__(mem(cpy|set|move)|str\w+)_chk|__cpu_(model|indicator_init)|sml_(?!(clock_ns|clock_cpu_ns|random_bits)$)\w+"
    r"|__(asan|ubsan|tsan|sanitizer|gcov)_\w+|__llvm_\w+)$")

# How many files of a folder use each other in a circle, at most; where no number stands, none do. Numbers only fall.
CIRCLES = {
    "src/aggd": 2,
    "src/cli/training": 2,
    "src/core": 2,
    "src/ctl": 11, # the registry
    "src/lib": 3, # what runs under the lock of one job
    "src/netio": 2,
    "src/quant": 2,
}

# Structs whose fields many would reach into: the header that has them, and who may include it, besides tests.
SEEN_BY = {"lib/job.h": ("src/lib/job.c", "src/lib/job_events.c", "src/lib/operation.c", "src/lib/trace.c")}

# Folders whose C code is as .clang-format says. The list may only grow.
FORMATTED = ("bench/", "examples/", "fuzz/", "include/", "model/", "sim/", "integrations/", "src/aggd/", "src/base/", "src/cli/",
             "src/ctl/", "src/dataplane/", "src/meet/", "src/method/", "src/netio/", "src/pipeline/", "src/process/",
             "src/quant/", "src/shm/", "src/switchd/", "src/trace/")

CODE = re.compile(r"\.(c|cc|h|p4|py|sh|build|txt)$")
C_FILE = re.compile(r"\.(c|h)$")
FORBIDDEN = [
    (re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b"), "work that is left belongs to the tracker, not to the tree"),
    (re.compile(r"/wor[k]/|\.\./share[d]\b|\bissues (?:show|lis[t])\b"), "names a place outside the repository"),
]
SKIPPED_DIRECTORIES = re.compile(r"^(build|build-.*|\.git|__pycache__|.*\.egg-info)$")


class Tree:
    """The files of a checkout, read once."""

    def __init__(self, root, build=None):
        self.root, self.build = os.path.abspath(root), build
        self.files = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(f for f in folders if not SKIPPED_DIRECTORIES.match(f))
            for name in sorted(set(names) - {".git"}): # a file in a second work tree
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    continue
                try:
                    with open(path, encoding="utf-8") as data:
                        text = data.read()
                except (UnicodeDecodeError, OSError): # not text, or an editor's file that is gone again
                    continue
                if "\0" not in text:
                    self.files[os.path.relpath(path, self.root)] = text

    def code(self):
        """Sources and scripts: by their name, or by their first line."""
        for path, text in self.files.items():
            if CODE.search(path) or os.path.basename(path) == "Makefile" or text.startswith("#!"):
                yield path, text

    def c_files(self):
        return ((path, text) for path, text in self.files.items() if C_FILE.search(path))


def check_layers(tree):
    for path, text in tree.c_files():
        parts = path.split(os.sep)
        if parts[0] != "src" or len(parts) < 3:
            continue
        folder = parts[1]
        if folder not in LAYERS:
            yield f"{path}:1: folder src/{folder} has no line in the table of layers (tools/tidy.py)"
            continue
        allowed = set(LAYERS[folder]) | {folder, "base"}
        if path.endswith("_test.c"):
            allowed |= set(TEST_LAYERS.get(folder, []))
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
            used = match.group(1).split("/")[0] if match else ""
            if used == "switchml":
                used = "api"
            elif used not in LAYERS:
                continue
            if used not in allowed and match.group(1) not in allowed:
                yield f"{path}:{number}: {folder} may not include {match.group(1)}"


def check_layer_lists(tree):
    """meson.build links what LAYERS lets a folder include, and docs/ARCHITECTURE.md's table says the same."""
    build, page = tree.files.get("meson.build", ""), tree.files.get("docs/ARCHITECTURE.md", "")
    listed = re.search(r"^layers = \[\n(.*?)^\]", build, re.MULTILINE | re.DOTALL)
    for folder, used in re.findall(r"\['(\w+)', \[(.*?)\]\]", listed.group(1)) if listed else []:
        allowed = {name.split("/")[0] for name in LAYERS.get(folder, [])} - {"api"}
        for name in sorted(set(re.findall(r"\w+", used)) ^ allowed):
            yield f"meson.build:1: layer {folder}: {name} is {'not linked' if name in allowed else 'linked but not allowed'}"
    for folder, words in re.findall(r"^\| `src/(\w+)` \|.*\| ([^|]*) \|$", page, re.MULTILINE):
        names = [f"`{name}`" if "." in name else name for name in LAYERS.get(folder, [])]
        says = ", ".join(["base"] * (folder != "base") + names).replace("api", "the public API") or "-"
        if words != says:
            yield f"docs/ARCHITECTURE.md:1: src/{folder} may include: {says}; not: {words}"


def check_sizes(tree):
    for path, text in tree.code():
        num_lines = text.count("\n")
        if num_lines > MAX_FILE_LINES:
            yield f"{path}:1: {num_lines} lines; split it (at most {MAX_FILE_LINES})"


def c_functions(text):
    """(name, first line, number of lines) of each function whose body opens and closes in column 0."""
    lines = text.splitlines()
    start, name = None, None
    for index, line in enumerate(lines):
        if start is None:
            match = re.match(r"(?=[A-Za-z_]).*?\b(\w+)\(", line)
            if match and not line.startswith("typedef") and not line.rstrip().endswith(";"):
                start, name = index, match.group(1)
        if start is not None:
            if line.startswith("}"):
                yield name, start + 1, index - start + 1
                start = None
            elif line.rstrip().endswith(";") and "{" not in "".join(lines[start:index + 1]):
                start = None # a declaration over several lines


def cpp_functions(text):
    """The same of C++, where functions also stand in classes: up to the brace below the first letter."""
    whole = r"^( *)(?!.*\b(?:if|for|while|switch)\b)(?=[\w~])[^\n;{]*?\b(\w+)\([^;{}]*\{\n(?:.*\n)*?\1\}"
    for match in re.finditer(whole, text, re.MULTILINE):
        yield match.group(2), text.count("\n", 0, match.start()) + 1, match.group(0).count("\n") + 1


def check_functions(tree):
    for path, text in tree.files.items():
        found = []
        if C_FILE.search(path):
            found = list(c_functions(text))
        elif path.endswith(".cc"):
            found = list(cpp_functions(text))
        elif path.endswith(".py") or re.match(r"#!.*python", text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found.append((node.name, node.lineno, node.end_lineno - node.lineno + 1))
        for name, line, num_lines in found:
            if num_lines > MAX_FUNCTION_LINES:
                yield f"{path}:{line}: {name} has {num_lines} lines (at most {MAX_FUNCTION_LINES})"


def uses_within(tree, folder):
    """{file: files of the same folder whose functions or tables it uses}, of a folder's .c files."""
    texts, owners = {}, {}
    for path, text in tree.c_files():
        name = os.path.basename(path)
        if os.path.dirname(path) != folder or not name.endswith(".c") or re.match(r"test_|.*_test\.c", name):
            continue
        texts[name] = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
        lines = text.splitlines()
        owners.update({f: name for f, line, _ in c_functions(text) if not lines[line - 1].startswith("static")})
        owners.update(dict.fromkeys(re.findall(r"^(?:const )?struct \w+ (sml_\w+) = ", text, re.MULTILINE), name))
    return {name: {owners[word] for word in set(re.findall(r"\bsml_\w+", text)) if word in owners} - {name}
            for name, text in texts.items()}


def largest_circle(uses):
    """The most files of which each reaches each other one."""
    reached = {}
    for start in uses:
        reached[start], left = set(), [start]
        while left:
            new = uses[left.pop()] - reached[start]
            reached[start] |= new
            left += new
    circles = [sorted({start} | {to for to in reached[start] if start in reached[to]}) for start in uses]
    return max(circles, key=len, default=[])


def check_circles(tree):
    for folder in sorted({os.path.dirname(path) for path, _ in tree.c_files() if path.startswith("src/")}):
        circle, most = largest_circle(uses_within(tree, folder)), CIRCLES.get(folder, 1)
        if len(circle) > most:
            yield f"{folder}:1: {len(circle)} files use each other in a circle (at most {most}): {', '.join(circle)}"
        elif max(len(circle), 1) < most and "tools/tidy.py" in tree.files: # a whole tree
            yield f"tools/tidy.py:1: the largest circle in {folder} has fewer than {most} files now: let CIRCLES say so"


def check_seen_by(tree):
    for path, text in tree.c_files():
        for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
            if path not in SEEN_BY.get(header, [path]) and not re.search(r"_test\.c$|/test_|^sim/", path):
                yield f"{path}:1: may not see the fields in {header} (SEEN_BY in tools/tidy.py): ask by a function"


def check_columns(tree):
    for path, text in tree.files.items():
        if not path.endswith((".c", ".cc", ".h", ".p4")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns (at most {MAX_COLUMNS})"
            if "\t" in line or line != line.rstrip():
                yield f"{path}:{number}: tab or trailing space"


def check_licence_lines(tree):
    for path, text in tree.code():
        head = text.split("\n", 2)[:2]
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
            yield f"{path}:1: no SPDX line"


def check_words(tree):
    for path, text in tree.files.items():
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, why in FORBIDDEN:
                if pattern.search(line):
                    yield f"{path}:{number}: '{pattern.search(line).group(0)}': {why}"


def check_descriptors(tree):
    """What the library and the daemons open goes above 2, and they say nothing to standard error but by the writer."""
    opens = re.compile(r"(?<![\w>.])(?:socket|accept4?|open(?:at)?|eventfd|epoll_create1?|memfd_create|timerfd_create|"
                       r"signalfd|inotify_init1?|pipe2?|socketpair|dup)\(")
    says = re.compile(r"\b(?:stderr|STDERR_FILENO|perror)\b|\bwrite\(2\b")
    for path, text in tree.c_files():
        if not path.startswith("src/") or re.search(r"^src/(cli|pipeline/(main|program))|^src/base/fd\.c|[/_]test", path):
            continue
        for number, line in enumerate(re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text,
                                             flags=re.DOTALL).splitlines(), 1):
            found = opens.search(re.sub(r"sml_fd_raise\(\w+\(", "", line))
            if found and path.endswith(".c"):
                yield f"{path}:{number}: '{found.group(0)}' without sml_fd_raise() around it (base/fd.h)"
            if path != "src/switchd/main.c" and says.search(line):
                yield f"{path}:{number}: writes to standard error by itself: let base/writer.h do it"


def check_cancellation(tree):
    """Each public function that may wait or take a lock holds pthread_cancel() off."""
    names = set(re.findall(r"^ +(sml_\w+);", tree.files.get("src/lib/switchml.map", ""), re.MULTILINE))
    names -= {"sml_version", "sml_status_string", "sml_error_detail", "sml_supported", "sml_rank_from_environment"}
    for path, text in tree.c_files():
        if not path.startswith(("src/lib/", "src/meet/", "src/process/")):
            continue
        lines = text.splitlines()
        for name, line, num_lines in c_functions(text):
            if name in names and "  SML_UNCANCELLED;" not in lines[line - 1:line - 1 + num_lines]:
                yield f"{path}:{line}: {name}() without SML_UNCANCELLED (lib/uncancelled.h)"


def check_asserts(tree):
    """The pure core says what it takes for granted: so many assertions in 1,000 lines."""
    texts = [text for path, text in tree.c_files()
             if path.startswith("src/core/") and not re.search(r"_(test|calls|world)\.[ch]$", path)]
    num_lines, num_asserts = (sum(text.count(what) for text in texts) for what in ("\n", "SML_ASSERT("))
    if 1000 * num_asserts < ASSERTS_PER_1000 * num_lines and num_lines >= 1000:
        yield f"src/core:1: {num_asserts} assertions in {num_lines} lines (at least {ASSERTS_PER_1000} in 1,000)"


def check_memory_orders(tree):
    """Each acquire and release names its pair: where it stands, or where the variable is declared."""
    says = re.compile(r"(?i)\bpairs? with\b|(?<!memory_order_)\b(?:acquires?|releases?|acq_rel)\b")
    files = {path: text.splitlines() for path, text in tree.c_files()
             if path.startswith("src/") and not re.search(r"_test\.c$|/test_|_calls\.h$", path)}
    explained = set()
    for lines in files.values():
        for index, line in enumerate(lines):
            if "_Atomic" in line and len(says.findall(" ".join(lines[max(0, index - 11):index + 2]))) >= 2:
                explained |= set(re.findall(r"\w+", line))
    for path, lines in files.items():
        for index, line in enumerate(lines):
            used = re.search(r"\(\s*(?:[^,;]*?)(\w+)(?:\[[^\]]*\])?,[^;]*?memory_order_(?:acquire|release|acq_rel)", line)
            if used and used.group(1) not in explained and not says.search("\n".join(lines[max(0, index - 4):index + 1])):
                yield f"{path}:{index + 1}: {used.group(1)}: with what does this acquire or release pair?"


def check_drops(tree):
    """Each reason to drop a packet has a test that makes it fire."""
    declared = tree.files.get("src/core/drop.h", "")
    tests = "\n".join(text for path, text in tree.files.items() if path.endswith("_test.c"))
    for name in re.findall(r"^\s*X\((\w+),", declared, re.MULTILINE):
        if not re.search(rf"\bSML_DROP_{name}\b", tests):
            yield f"src/core/drop.h:1: no test names SML_DROP_{name}"


def check_switch_numbers(tree):
    """The switch programs count drops under the numbers that drop.h gives the reasons."""
    reasons = re.findall(r"^\s*X\((\w+),", tree.files.get("src/core/drop.h", ""), re.MULTILINE)
    for path in ("p4/common/headers.p4", "p4/common/rules.p4"):
        numbers = re.findall(r"^const bit<8> (\w+) = (\d+);", tree.files.get(path, ""), re.MULTILINE)
        for name, value in numbers:
            if name in reasons and reasons.index(name) != int(value):
                yield f"{path}:1: {name} is {value}, in src/core/drop.h {reasons.index(name)}"


def check_documents(tree):
    """The functions that the documents name exist."""
    known = {word for _, text in tree.c_files() for word in re.findall(r"\bsml_\w+", text)}
    for path, text in tree.files.items():
        if not path.endswith((".md", ".1", ".8", ".3")):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for name in re.findall(r"\bsml_[a-z0-9_]*[a-z0-9]\b(?!_?\*)", line):
                if name not in known:
                    yield f"{path}:{number}: {name} is nowhere in the code"


def check_data_path(tree):
    """The way of one tensor (docs/ARCHITECTURE.md): each function is in a file, or the folder, that its row names."""
    page = tree.files.get("docs/ARCHITECTURE.md", "")
    table = page.partition("## The way of one tensor")[2].partition("\n\n**")[0]
    for names, places in re.findall(r"^\|[^|]*\| ([^|]*`[^|]*) \| ([^|]*) \|$", table, re.MULTILINE):
        texts = [text for path, text in tree.c_files() if path.startswith(tuple(places.split(", ")))]
        found = {name for text in texts for name, _, _ in c_functions(text)}
        for name in re.findall(r"`(\w+)`", names):
            if name not in found:
                yield f"docs/ARCHITECTURE.md:1: {name} is not in {places}"


def check_format(tree):
    """The code of some folders is as .clang-format says, where clang-format 14 is installed."""
    paths = [path for path, _ in tree.c_files() if path.startswith(FORMATTED)]
    if ".clang-format" not in tree.files or not paths or not shutil.which("clang-format-14"):
        return
    result = subprocess.run(["clang-format-14", "--dry-run", *paths], cwd=tree.root, capture_output=True, text=True,
                            check=False)
    for line in re.findall(r"^([^:]+:\d+):\d+: warning", result.stderr, re.MULTILINE):
        yield f"{line}: not as .clang-format says: run clang-format-14 -i"


def check_rules(tree):
    """PROTOCOL.md gives each rule one number, and the rules that others cite ("rules R15 to R24") are there."""
    defined = re.findall(r"^(?:- )?(?:\*\*)?R(\d+)(?:\*\*)? ", tree.files.get("docs/PROTOCOL.md", ""), re.MULTILINE)
    for number in sorted(set(defined), key=int):
        if defined.count(number) > 1:
            yield f"docs/PROTOCOL.md:1: R{number} is the number of two rules"
    for path, text in tree.files.items():
        for number, line in enumerate(text.splitlines(), 1):
            for cited in re.findall(r"\b[Rr]ules? (R\d+(?:(?:, | and | to )R\d+)*)", line):
                for name in re.findall(r"\d+", cited):
                    if name not in defined:
                        yield f"{path}:{number}: docs/PROTOCOL.md has no rule R{name}"


# Words of the glossary's right columns that mean nothing else here, so that a program can look for them. The others
# (client, session, token ...) are the right words for things that are not ours.
AVOIDED = ["in place of", "dear", "to who", "for who", "hosted", "hosting", "keepalive", "shadow copy", "resend", "scaling factor"]


def comments_of(path, text):
    """(line number, text) of each line of a document, and of each line of a program that is in a comment."""
    lines = text.splitlines()
    if path.endswith((".md", ".1", ".3", ".8")):
        return enumerate(lines, 1)
    if path.endswith((".c", ".h", ".p4")):
        spans = [(m.start(), m.end()) for m in re.finditer(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', text, re.DOTALL)
                 if m.group(0)[0] == "/"]
        return [(text.count("\n", 0, start) + index, line)
                for start, end in spans for index, line in enumerate(text[start:end].split("\n"), 1)]
    return [(number, line[line.index("#"):]) for number, line in enumerate(lines, 1) if "#" in line]


def check_glossary(tree):
    """Documents and comments have no word that docs/GLOSSARY.md tells to avoid, as far as a program can see it."""
    rows = re.findall(r"^\|.*\|(.*)\|$", tree.files.get("docs/GLOSSARY.md", ""), re.MULTILINE)
    if not rows:
        return
    for word in AVOIDED:
        if not re.search(rf"\b{word}\b", " ".join(rows)):
            yield f"docs/GLOSSARY.md:1: tidy.py looks for '{word}', which no right column has"
    words = re.compile(rf"\b(?:{'|'.join(AVOIDED)})s?\b", re.IGNORECASE)
    for path, text in tree.files.items():
        if path in ("docs/GLOSSARY.md", "CHANGELOG.md") or not (path.endswith(".md") or CODE.search(path)):
            continue
        for number, line in comments_of(path, text):
            found = words.search(line)
            if found:
                yield f"{path}:{number}: '{found.group(0)}': docs/GLOSSARY.md has another word"
            if re.search(r"^\s*(?:/\*|//|#|\*) Of\b|\. Of [a-z]", line):
                yield f"{path}:{number}: a sentence that begins with 'Of': say what the thing is"


def check_python_api(tree):
    """What Python knows of the public header is what stands in it."""
    if python_api.HEADER in tree.files and tree.files.get(python_api.OUTPUT) != python_api.generate(
            tree.files[python_api.HEADER]):
        yield f"{python_api.OUTPUT}:1: is not what {python_api.HEADER} says: run tools/python_api.py"


def objects_of(tree, folder):
    for parent in [tree.build, os.path.join(tree.build, "src", folder)]:
        directory = os.path.join(parent, f"libsml_{folder}.a.p")
        if os.path.isdir(directory):
            return sorted(os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".o"))
    return []


def check_purity(tree):
    """The protocol and the numbers ask the operating system for nothing."""
    if not tree.build:
        return
    for folder, also in PURE_FOLDERS.items():
        paths = objects_of(tree, folder)
        if not paths:
            yield f"src/{folder}:1: there are no objects of it in {tree.build} to look at"
        for path in paths:
            symbols = subprocess.run(["nm", "-u", "--format=posix", path], text=True, check=True,
                                     stdout=subprocess.PIPE).stdout
            for line in symbols.splitlines():
                symbol = line.split()[0]
                if not PURE_SYMBOLS.match(symbol) and not re.match(also, symbol):
                    yield f"{os.path.relpath(path, tree.build)}:1: needs {symbol}, but {folder} is pure"


RULES = [check_layers, check_layer_lists, check_sizes, check_functions, check_circles, check_seen_by,
         check_columns, check_licence_lines, check_words, check_descriptors, check_cancellation, check_asserts,
         check_memory_orders,
         check_drops, check_switch_numbers, check_documents, check_data_path, check_format,
         check_rules, check_glossary, check_python_api, check_purity]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tap", action="store_true", help="print the Test Anything Protocol")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--build", help="build directory, for the rules about objects")
    options = parser.parse_args()
    tree = Tree(options.root, options.build)
    num_broken = 0
    if options.tap:
        print(f"1..{len(RULES)}")
    for number, rule in enumerate(RULES, 1):
        problems = list(rule(tree))
        num_broken += bool(problems)
        if options.tap:
            print(f"{'not ok' if problems else 'ok'} {number} - {rule.__name__[6:]}")
        for problem in problems:
            print(f"# {problem}" if options.tap else problem)
    return 1 if num_broken else 0


if __name__ == "__main__":
    sys.exit(main())
