#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/tidy.py finds what it is there to find: each rule is given a tree with one violation of it."""
import os
import shutil
import subprocess
import sys
import tempfile

import tap

TIDY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools", "tidy.py")
SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"


def tidy(files, build=None):
    """Exit status and output of tidy.py over a tree made of {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                out.write(text)
        command = [sys.executable, TIDY, "--root", root] + (["--build", build] if build else [])
        result = subprocess.run(command, text=True, check=False, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
        return result.returncode, result.stdout


def expect_broken(files, words, build=None):
    status, output = tidy(files, build)
    assert status == 1 and words in output, f"status {status}, wanted '{words}' in:\n{output}"


def expect_clean(files, build=None):
    status, output = tidy(files, build)
    assert status == 0, output


def test_lists_of_layers_agree():
    row = "| `src/trace` | records | base, `core/drop.h` |\n"
    layers = "layers = [\n  ['core', []],\n  ['trace', ['core']],\n]\n"
    expect_clean({"docs/ARCHITECTURE.md": row, "meson.build": "# SPDX-License-Identifier: Apache-2.0\n" + layers})
    expect_broken({"docs/ARCHITECTURE.md": row.replace("`core/drop.h`", "core")}, "src/trace may include: base, `core/drop.h`")
    expect_broken({"meson.build": layers.replace("['core', []]", "['core', ['quant']]")}, "quant is linked but not allowed")
    expect_broken({"meson.build": layers.replace("'trace', ['core']", "'trace', []")}, "core is not linked")


def test_python_says_what_the_header_says():
    root = os.path.dirname(os.path.dirname(TIDY))
    files = {}
    for path in ("include/switchml/switchml.h", "integrations/pytorch/switchml/api.py"):
        with open(os.path.join(root, path), encoding="utf-8") as text:
            files[path] = text.read()
    expect_clean(files)
    header = files["include/switchml/switchml.h"]
    for old, new in (("SML_FLOAT16 = 2", "SML_FLOAT16 = 9"), ("uint64_t lost_results;", "uint32_t lost_results;")):
        assert old in header, old
        expect_broken({**files, "include/switchml/switchml.h": header.replace(old, new)}, "run tools/python_api.py")


def test_a_clean_tree_passes():
    expect_clean({"src/core/a.c": SPDX + '#include "base/base.h"\n\nint f(void) {\n  return 0;\n}\n',
                  "tools/x": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\ntrue\n"})


def test_layers():
    expect_broken({"src/core/a.c": SPDX + '#include "netio/netio.h"\n'}, "core may not include netio/netio.h")
    expect_broken({"src/core/a.h": SPDX + '#  include "quant/quant.h"\n'}, "core may not include quant")
    expect_broken({"src/engine/a.c": SPDX + '#include "netio/udp.h"\n'}, "engine may not include netio/udp.h")
    expect_broken({"src/quant/a.c": SPDX + "#include <switchml/switchml.h>\n"}, "quant may not include switchml")
    expect_broken({"src/base/a_test.c": SPDX + '#include "lib/job.h"\n'}, "base may not include lib")
    expect_broken({"src/novel/a.c": SPDX}, "no line in the table")
    expect_clean({"src/engine/a.c": SPDX + '#include "netio/netio.h"\n#include "core/wire.h"\n'})


def test_file_size():
    expect_broken({"src/core/a.c": SPDX + "int x;\n" * 800}, "801 lines")
    expect_broken({"tests/x.py": "# SPDX-License-Identifier: Apache-2.0\n" + "x = 1\n" * 800}, "801 lines")


def test_function_size():
    body = "  x++;\n" * 69
    expect_broken({"src/core/a.c": SPDX + "static int\nf(int x) {\n" + body + "}\n"}, "f has 71 lines")
    expect_broken({"src/core/a.c": SPDX + "static int f(int x,\n      int y) {\n" + body + "}\n"},
                  "f has 72 lines")
    expect_broken({"bench/a.cc": "// SPDX-License-Identifier: Apache-2.0\nclass a {\n  bool f(int x) const {\n  " + body + "  }\n};\n"},
                  "f has 71 lines")
    expect_broken({"tests/x.py": "# SPDX-License-Identifier: Apache-2.0\ndef f(x):\n" + "    x += 1\n" * 70},
                  "f has 71 lines")
    expect_clean({"src/core/a.c": SPDX + "int f(int x);\nint g(int x,\n      int y);\n"
                  + "struct s {\n" + "  int x;\n" * 90 + "};\n"})


def test_circles():
    f, g = SPDX + "void sml_f(void) {\n  sml_g();\n}\n", SPDX + "void sml_g(void) {\n  sml_f();\n}\n"
    expect_broken({"src/engine/f.c": f, "src/engine/g.c": g}, "2 files use each other in a circle (at most 1): f.c, g.c")
    expect_broken({"src/engine/f.c": f, "src/engine/g.c": SPDX + "void sml_g(void) {\n  sml_h();\n}\n",
                   "src/engine/h.c": SPDX + "const struct x sml_h = {sml_f};\n"}, "3 files use each other")
    expect_broken({"src/lib/f.c": f, "tools/tidy.py": "# SPDX-License-Identifier: Apache-2.0\n"},
                  "the largest circle in src/lib has fewer")
    expect_clean({"src/engine/f.c": f, "src/engine/g.c": SPDX + "/* sml_f */\nvoid sml_g(void) {\n}\n",
                  "src/engine/g_test.c": g})


def test_seen_by():
    see = SPDX + '#include "lib/job.h"\n'
    expect_broken({"src/lib/call.c": see}, "may not see the fields in lib/job.h")
    expect_clean({"src/lib/job.c": see, "src/lib/call_test.c": see, "src/lib/test_call.c": see})


def test_columns():
    expect_broken({"src/core/a.c": SPDX + "/* " + "x" * 120 + " */\n"}, "columns")
    expect_broken({"src/core/a.c": SPDX + "int x; \n"}, "trailing space")


def test_licence_line():
    expect_broken({"src/core/a.c": "int x;\n"}, "no SPDX line")
    expect_broken({"tools/x": "#!/bin/sh\ntrue\n"}, "no SPDX line")


def test_words():
    expect_broken({"src/core/a.c": SPDX + "/* TO" + "DO: later */\n"}, "belongs to the tracker")
    expect_broken({"docs/a.md": "see /wor" + "k/main\n"}, "outside the repository")


def test_descriptors():
    expect_broken({"src/lib/a.c": SPDX + "int f(void) {\n  return socket(1, 2, 3);\n}\n"}, "a.c:3: 'socket('")
    expect_broken({"src/netio/a.c": SPDX + "int f(void) {\n  return open(\"x\", 0);\n}\n"}, "'open('")
    expect_broken({"src/lib/a.c": SPDX + "void f(void) {\n  fputs(\"x\", stderr);\n}\n"}, "standard error by itself")
    expect_clean({"src/lib/a.c": SPDX + "/* open() of stderr */\nint f(void) {\n  return sml_fd_raise(socket(1, 2, 3));\n"
                                        "}\n\nint g(struct x *x) {\n  return x->open(1);\n}\n",
                  "src/lib/a_test.c": SPDX + "int f(void) {\n  return socket(1, 2, 3);\n}\n"})


def test_cancellation():
    exported = {"src/lib/switchml.map": "  global:\n    sml_wait;\n    sml_version;\n"}
    expect_broken({**exported, "src/lib/a.c": SPDX + "int sml_wait(int x) {\n  return x;\n}\n"}, "sml_wait() without")
    expect_clean({**exported, "src/lib/a.c": SPDX + "int sml_wait(int x) {\n  SML_UNCANCELLED;\n  return x;\n}\n\n"
                                                    "int sml_version(void) {\n  return 1;\n}\n"})


def test_drop_reasons():
    header = {"src/core/drop.h": SPDX + '#define SML_DROP_LIST(X) \\\n  X(STALE, "old") \\\n  X(FUTURE, "new")\n'}
    used = SPDX + "int x = SML_DROP_STALE + SML_DROP_FUTURE_NOT;\n"
    expect_broken({**header, "src/core/a_test.c": used}, "no test names SML_DROP_FUTURE")
    expect_broken({**header, "src/core/a.c": used}, "no test names SML_DROP_STALE")
    expect_clean({**header, "src/core/a_test.c": used + "int y = SML_DROP_FUTURE;\n"})


def test_documents():
    expect_broken({"docs/A.md": "`sml_no_such_thing()` does it\n"}, "sml_no_such_thing is nowhere")
    expect_clean({"docs/A.md": "`sml_f` does it\n", "src/core/a.h": SPDX + "int sml_f(void);\n"})


def test_rules():
    rules = {"docs/PROTOCOL.md": "**R1** One.\n\n- **R2** Two.\n\n```\nR3   three\n```\n"}
    expect_broken({"docs/PROTOCOL.md": "**R1** One.\n- **R1** Two.\n"}, "R1 is the number of two rules")
    expect_broken({**rules, "src/core/a.h": SPDX + "/* rules R1 to R4 */\n"}, "no rule R4")
    expect_clean({**rules, "src/core/a.h": SPDX + "/* Rules R1, R2 and R3. */\n"})


AVOIDED = "in place of, dear, to who, for who, hosted, hosting, keepalive, shadow copy, resend, scaling factor"


def test_data_path():
    page = "## The way of one tensor\n\n| step | function | in |\n|---|---|---|\n| a | `f` -> `g` | src/core/a.c, src/quant |\n\n**b"
    code = {"src/core/a.c": SPDX + "static void f(int a) {\n}\n", "src/quant/b.c": SPDX + "void g(void) {\n}\n"}
    expect_clean({**code, "docs/ARCHITECTURE.md": page})
    expect_broken({**code, "docs/ARCHITECTURE.md": page.replace("src/quant", "src/ctl")}, "g is not in src/core/a.c, src/ctl")


def test_format():
    if not shutil.which("clang-format-14"):
        raise tap.Skip("no clang-format 14")
    files = {".clang-format": "BasedOnStyle: Google\n", "bench/a.c": SPDX + "int x;\n"}
    expect_clean({**files, "src/core/a.c": SPDX + "int  x;\n"})
    expect_broken({**files, "bench/a.c": SPDX + "int  x;\n"}, "bench/a.c:2: not as .clang-format says")


def test_glossary():
    glossary = {"docs/GLOSSARY.md": f"| word | what | avoid |\n|---|---|---|\n| sum | all of them | {AVOIDED} |\n"}
    expect_clean(glossary)
    expect_broken({**glossary, "docs/a.md": "bytes in place of words\n"}, "docs/a.md:1: 'in place of'")
    expect_broken({**glossary, "src/core/a.h": SPDX + "\n/* One\n * that Resends. */\n"}, "src/core/a.h:4: 'Resends'")
    expect_broken({**glossary, "p4/a.p4": SPDX + "int x; // a dear one\n"}, "p4/a.p4:2: 'dear'")
    expect_broken({**glossary, "tests/a.py": f"x = 1  {chr(35)} a keepalive\n# SPDX-License-Identifier: Apache-2.0\n"}, "a.py:1")
    expect_broken({**glossary, "src/core/a.c": SPDX + "int x;  /* Of a lane. */\n"}, "a.c:2: a sentence that begins with 'Of'")
    expect_broken({**glossary, "docs/a.md": "Lanes end. Of others nothing.\n"}, "docs/a.md:1: a sentence that begins with 'Of'")
    expect_broken({**glossary, "docs/a.md": "told to who asks\n"}, "'to who'")
    expect_broken({**glossary, "docs/a.md": "a hosted aggregator\n"}, "'hosted'")
    expect_clean({**glossary, "docs/a.md": "to whoever asks, for whom it is\nOf all\n"})
    expect_clean({**glossary, "docs/a.md": "endearing presents\n",
                  "src/core/a.c": SPDX + 'const char *dear = "a \\" /* dear one */ resend";\n'})
    expect_broken({"docs/GLOSSARY.md": "| word | what | avoid |\n|---|---|---|\n"}, "looks for 'dear'")


def test_purity():
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise tap.Skip("no compiler")
    with tempfile.TemporaryDirectory() as build:
        expect_broken({}, "no objects", build)
        for name in ["core", "quant", "ctl"]:
            folder = os.path.join(build, f"libsml_{name}.a.p")
            os.makedirs(folder)
            subprocess.run([compiler, "-c", "-x", "c", "-", "-o", os.path.join(folder, "empty.o")],
                           input="int sml_x;", text=True, check=True)
        for name, code, is_pure in [
                ("copy", "void *memcpy(void *, const void *, unsigned long);"
                         "void f(void *a, void *b, unsigned long n) { memcpy(a, b, n); }", True),
                ("alloc", "void *malloc(unsigned long); void *g(void) { return malloc(8); }", False),
                ("clock", "long time(long *); long h(void) { return time(0); }", False)]:
            target = os.path.join(folder, name + ".o")
            subprocess.run([compiler, "-O1", "-c", "-x", "c", "-", "-o", target], input=code, text=True,
                           check=True)
            if is_pure:
                expect_clean({}, build)
            else:
                expect_broken({}, "but ctl is pure", build)
                os.unlink(target)


if __name__ == "__main__":
    tap.main(globals())
