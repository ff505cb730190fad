#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks at what this machine can build and prints make variables.
set -u
cc=${CC:-gcc}
probe() { printf '%s\n' "$2" | $cc -x c -fsyntax-only - >/dev/null 2>&1 &&
    echo "HAVE_$1 := 1" || echo "HAVE_$1 :="; }
have() { command -v "$2" >/dev/null 2>&1 && echo "HAVE_$1 := 1" || echo "HAVE_$1 :="; }
probe VERBS '#include <infiniband/verbs.h>'
probe LIBFABRIC '#include <rdma/fabric.h>'
probe LIBELF '#include <gelf.h>'
links() {
  printf '%s\n' "$3" | $cc -x c -fPIC -shared -o /dev/null - "$2" >/dev/null 2>&1 &&
    echo "HAVE_$1 := 1" || echo "HAVE_$1 :="
}
links URING -l:liburing.a '#include <liburing.h>
int f(struct io_uring *r); int f(struct io_uring *r) { return io_uring_submit_and_get_events(r); }'
# Its archive is made for programs, not for shared objects.
printf '%s\n' '#include <jansson.h>
int main(void) { return json_load_file("", 0, NULL) != NULL; }' |
  $cc -x c -o /dev/null - -l:libjansson.a >/dev/null 2>&1 &&
  echo "HAVE_JANSSON := 1" || echo "HAVE_JANSSON :="
have NVCC nvcc
have MPIRUN mpirun
echo "BUILT_SAN := ${SAN-}"  # the test runner asks a build directory which sanitizer it has
