#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: check_consumer.sh LIBRARY PKG_CONFIG_FILE HEADER
# Installs the library as a package would and builds a C and a C++ program against it with what
# pkg-config says, warnings as errors; both run.
set -eu
library=$1 pc=$2 header=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# By hand what `meson install` does for these three files: a test must not rebuild what it runs in.
mkdir -p "$dir/lib/pkgconfig" "$dir/include/switchml"
cp "$library" "$dir/lib/libswitchml.so.0"
ln -s libswitchml.so.0 "$dir/lib/libswitchml.so"
cp "$header" "$dir/include/switchml/"
sed -e "s|^prefix=.*|prefix=$dir|" -e 's|^libdir=.*|libdir=${prefix}/lib|' "$pc" > "$dir/lib/pkgconfig/switchml.pc"
export PKG_CONFIG_PATH="$dir/lib/pkgconfig" LD_LIBRARY_PATH="$dir/lib"
cat > "$dir/consumer.c" <<'END'
#include <switchml/switchml.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  sml_context_options options = SML_CONTEXT_OPTIONS_INIT;
  sml_job_options job_options = SML_JOB_OPTIONS_INIT;
  sml_context *context = NULL;
  sml_job *job = NULL;
  sml_operation *operation = NULL;
  float x = 2;
  job_options.world_size = 1;
  if (sml_context_create(&options, &context) != SML_OK) return 1;
  if (sml_job_create(context, &job_options, &job) != SML_OK) return 2;
  if (sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &operation) != SML_OK) return 3;
  if (sml_operation_wait(operation, 0) != SML_OK || x != 2) return 4;
  sml_operation_release(operation);
  sml_job_destroy(job);
  sml_context_destroy(context);
  printf("switchml %s\n", sml_version());
  return strcmp(sml_status_string(SML_OK), "success") != 0;
}
END
cp "$dir/consumer.c" "$dir/consumer.cpp"
warnings="-Wall -Wextra -Wpedantic -Wshadow -Werror"
# shellcheck disable=SC2046,SC2086 # flags are words
cc -std=c11 $warnings "$dir/consumer.c" -o "$dir/consumer_c" $(pkg-config --cflags --libs switchml)
# SML_..._INIT is a C++20 designated initializer, and of one member only.
# shellcheck disable=SC2046,SC2086
c++ -std=c++20 $warnings -Wno-missing-field-initializers "$dir/consumer.cpp" -o "$dir/consumer_cpp" $(pkg-config --cflags --libs switchml)
echo '#include <switchml/switchml.h>' > "$dir/header.cpp"
# shellcheck disable=SC2046,SC2086
c++ -std=c++11 $warnings -fsyntax-only "$dir/header.cpp" $(pkg-config --cflags switchml)
"$dir/consumer_c"
"$dir/consumer_cpp"
test "$(pkg-config --modversion switchml)" = "$("$dir/consumer_c" | sed 's/switchml //')"
