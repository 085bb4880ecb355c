#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""python_api.py [ROOT]: writes integrations/pytorch/switchml/api.py, the part of switchml.h that Python needs, from the
header. tidy.py looks whether it is what the header says."""
import os
import re
import sys

HEADER, OUTPUT = "include/switchml/switchml.h", "integrations/pytorch/switchml/api.py"
ENUMS = ("sml_status", "sml_type", "sml_reduction")
STRUCTS = {"sml_job_options": "JobOptions", "sml_operation_options": "OperationOptions", "sml_error": "Error",
           "sml_stats": "Stats"}
TYPES = {"size_t": "c_size_t", "uint32_t": "c_uint32", "uint64_t": "c_uint64", "const char *": "c_char_p",
         "void *": "c_void_p", "sml_status": "c_int", "char": "c_char", "const size_t *": "c_void_p"}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Numbers and structs of switchml.h. Made by tools/python_api.py: change the header."""
import ctypes

ALLGATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
'''


def fields_of(body):
    """Lines of Python, one a field."""
    for declaration in body.split(";"):
        match = re.match(r"\s*((?:const )?\w+(?: \*)?)\s*(.*)", declaration, re.DOTALL)
        if not match or not match.group(2):
            continue
        name_of = "ALLGATHER" if match.group(1) == "sml_allgather_fn" else "ctypes." + TYPES[match.group(1)]
        for name in re.split(r",\s*", match.group(2).strip()):
            name, length = re.match(r"\*?(\w+)(?:\[(\w+)\])?$", name).groups()
            yield f'("{name}", {name_of}{" * " + length if length else ""})'


def body_of(kind, name, text):
    return re.search(rf"typedef {kind} {name} {{(.*?)}}", text, re.DOTALL).group(1)


def generate(header):
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    parts = [HEAD]
    parts.append("".join(f"{name} = {value}\n" for name, value in re.findall(r"#define (SML_MAX_\w+) (\d+)", text)))
    for enum in ENUMS:
        body = body_of("enum", enum, text)
        parts.append("".join(f"{name} = {value}\n" for name, value in re.findall(r"(SML_\w+) = (-?\d+)", body)))
    for struct, name in STRUCTS.items():
        body = body_of("struct", struct, text)
        fields = "".join(f"        {field},\n" for field in fields_of(body))
        parts.append(f"\nclass {name}(ctypes.Structure):\n    _fields_ = [\n{fields}    ]\n")
    return "\n".join(parts)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(root, HEADER), encoding="utf-8") as header:
        text = generate(header.read())
    with open(os.path.join(root, OUTPUT), "w", encoding="utf-8") as output:
        output.write(text)


if __name__ == "__main__":
    main()
