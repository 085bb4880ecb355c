#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# regenerate.sh GENERATE FAMILY FILE: the committed vectors are what the core says. With --write they are written anew.
if [ "$4" = --write ]; then
  exec "$1" "$2" > "$3"
fi
"$1" "$2" | diff "$3" - && exit 0
echo "$3 is not what $1 $2 says: look at the difference, then run: $0 $1 $2 $3 --write"
exit 1
