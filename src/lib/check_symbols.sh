#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: check_symbols.sh LIBRARY HEADER
# The library exports the public header's functions, under their version, and nothing else.
set -eu
library=$1 header=$2
trap 'rm -f "$exported" "$declared"' EXIT
exported=$(mktemp) declared=$(mktemp)
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort > "$exported"
# Declarations begin with SML_API; the name stands before the first parenthesis.
grep '^SML_API ' "$header" | sed 's/(.*//; s/.*[ *]//; s/$/@@SWITCHML_0.1/' | sort > "$declared"
test -s "$declared"
if ! diff "$declared" "$exported"; then
  echo "exported symbols (>) are not the header's functions (<): see src/lib/switchml.map" >&2
  exit 1
fi
readelf -d "$library" | grep -q 'SONAME.*\[libswitchml\.so\.0\]'
