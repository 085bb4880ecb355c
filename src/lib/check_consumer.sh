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
cat > "$dir/inits.cpp" <<'END'
#include <switchml/switchml.h>
static sml_operation_options of_the_file = SML_OPERATION_OPTIONS_INIT;
int main() {
  sml_context_options context = SML_CONTEXT_OPTIONS_INIT;
  sml_job_options job = SML_JOB_OPTIONS_INIT;
  sml_error error = SML_ERROR_INIT;
  sml_stats stats = SML_STATS_INIT;
  return context.struct_bytes != sizeof(context) || job.struct_bytes != sizeof(job) || job.aggregator != nullptr ||
         error.struct_bytes != sizeof(error) || error.detail[511] != 0 || stats.struct_bytes != sizeof(stats) ||
         of_the_file.struct_bytes != sizeof(of_the_file) || of_the_file.timeout_ns != 0;
}
END
# As old a C++ as a program may ask for, and every one since.
for compiler in c++ g++ clang++; do
  command -v "$compiler" > /dev/null || continue
  for standard in c++11 c++14 c++17 c++20; do
    for program in consumer inits; do
      # shellcheck disable=SC2046,SC2086
      "$compiler" -std=$standard $warnings -Wold-style-cast "$dir/$program.cpp" -o "$dir/${program}_cpp" $(pkg-config --cflags --libs switchml)
      "$dir/${program}_cpp"
    done
  done
done
"$dir/consumer_c"
test "$(pkg-config --modversion switchml)" = "$("$dir/consumer_c" | sed 's/switchml //')"
