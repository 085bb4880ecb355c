#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""variables.py PAGE OUTPUT: the variables of the manual page's ENVIRONMENT, as C: the one list of them."""
import re
import sys

with open(sys.argv[1], encoding="utf-8") as page:
    names = set(re.findall(r"SWITCHML_\w+", re.search(r"^\.Sh ENVIRONMENT\n(.*?)^\.Sh ", page.read(), re.M | re.S).group(1)))
with open(sys.argv[2], "w", encoding="ascii") as out:
    out.write('#include "cli/doctor/doctor.h"\nconst char *const sml_doctor_variables[] = {\n')
    out.writelines(f'  "{name}",\n' for name in sorted(names))
    out.write("  NULL};\n")
