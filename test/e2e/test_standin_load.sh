#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves: a program that was linked with libnccl.so.2 gets librailyard.so by the ways that docs/standin.md names, and
# no libnccl beside it. libnccl is a library made here that exports NCCL's names and fails every call; where NCCL's own
# is installed, that one as well.
set -u
build=$(cd "${RAIL_BUILD:-build}" && pwd)
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=${CC:-cc}
. "$here/test/harness/report.sh"

# Says whether a libnccl is in the process, and lets two ranks do something.
cat > "$work/user.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "rail/railyard.h"
static int mapped(const char *name) {
  char line[4096];
  int n = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  while (f && fgets(line, sizeof line, f)) n += strstr(line, name) != NULL;
  if (f) fclose(f);
  return n;
}
int use_nccl(void) {
  int version = 0;
  ncclComm_t comm[2];
  float a[2] = {1, 2}, b[2] = {0, 0};
  if (ncclGetVersion(&version)) return 1;
  printf("%d %s\n", version, mapped("libnccl.so") ? "beside another" : "alone");
  fflush(stdout);
  ncclResult_t (*wait)(ncclComm_t) = (ncclResult_t(*)(ncclComm_t))dlsym(RTLD_DEFAULT, "railCommWait");
  if (!wait) return 3; /* not ours: it may need a GPU for what follows */
  if (ncclCommInitAll(comm, 2, NULL) || ncclGroupStart()) return 4;
  for (int c = 0; c < 2; c++)
    if (ncclAllReduce(&a[c], &b[c], 1, ncclFloat, ncclSum, comm[c], NULL)) return 5;
  if (ncclGroupEnd()) return 6;
  for (int c = 0; c < 2; c++)
    if (wait(comm[c]) || b[c] != 3 || ncclCommDestroy(comm[c])) return 7;
  return 0;
}
C
printf 'int use_nccl(void);\nint main(void) { return use_nccl(); }\n' > "$work/main.c"

mkdir "$work/stub" "$work/real"
grep -v '^#' "$here/test/e2e/nccl-2.30.7-exports.txt" | sed 's/.*/int &(void) { return 3; }/' > "$work/stub.c"
printf 'int %s(void);\n' $(grep -v '^#' "$here/test/e2e/nccl-2.30.7-exports.txt") > "$work/stub.h"
$cc -include "$work/stub.h" -shared -fPIC -Wl,-soname,libnccl.so.2 "$work/stub.c" -o "$work/stub/libnccl.so.2" &&
  ln -s libnccl.so.2 "$work/stub/libnccl.so"
for dir in /usr/local/cuda/lib64 /usr/local/cuda/lib; do
  [ -f "$dir/libnccl.so.2" ] && ln -sf "$dir/libnccl.so.2" "$work/real/" && ln -sf libnccl.so.2 "$work/real/libnccl.so"
done

link() { # FOLDER [FLAGS...]
  local dir=$1
  shift
  $cc -std=gnu11 -I"$here/include" "$work/user.c" "$work/main.c" -L"$dir" -lnccl -ldl "$@" -o "$work/program"
}
# As PyTorch's wheels are made: a library of its own, whose RPATH leads to a libnccl and goes before LD_LIBRARY_PATH.
link_library() { # FOLDER
  $cc -std=gnu11 -I"$here/include" -shared -fPIC "$work/user.c" -L"$1" -lnccl -ldl -Wl,-rpath,"$1" \
    -Wl,--disable-new-dtags -o "$work/libuser.so" &&
    $cc "$work/main.c" -L"$work" -luser -Wl,-rpath,"$work" -Wl,-rpath-link,"$1" -o "$work/program"
}
expect() { # NAME OUTPUT ENVIRONMENT...
  local name=$1 wanted=$2 out rc
  shift 2
  out=$(NCCL_SOCKET_IFNAME=lo timeout 60 env "$@" "$work/program" 2> "$work/log")
  rc=$?
  [ "$rc $out" = "$wanted" ] || { echo "# got \"$rc $out\", expected \"$wanted\""; sed 's/^/# /' "$work/log"; }
  [ "$rc $out" = "$wanted" ]
  report $? "$name"
}

by_path=LD_LIBRARY_PATH=$build/lib/nccl
for kind in stub real; do
  dir=$work/$kind
  [ -e "$dir/libnccl.so" ] || { echo "ok $((n += 1)) - $kind # SKIP NCCL's libnccl.so.2 is not here"; continue; }
  link "$dir"
  readelf -d "$work/program" | grep -q 'NEEDED.*libnccl\.so\.2'
  report $? "${kind}_is_what_the_program_asks_for"
  [ $kind = real ] || expect "${kind}_is_what_it_gets_otherwise" "1 " "LD_LIBRARY_PATH=$dir"
  expect "${kind}_by_library_path" "0 23007 alone" "$by_path"
  link "$dir" -Wl,-rpath,"$dir" -Wl,--enable-new-dtags # RUNPATH goes behind LD_LIBRARY_PATH
  expect "${kind}_by_library_path_before_a_runpath" "0 23007 alone" "$by_path"
  link_library "$dir"
  expect "${kind}_by_preload_before_a_library_with_rpath" "0 23007 alone" "$by_path" LD_PRELOAD=libnccl.so.2
  link "$dir" -Wl,-rpath,"$dir" -Wl,--disable-new-dtags
  expect "${kind}_by_preload_beside_it" "0 23007 beside another" "LD_PRELOAD=$build/lib/librailyard.so"
done

# Linked with ours in its place, by the names that a build system looks for.
link "$build/lib/nccl"
report $? linked_by_the_name_of_libnccl
expect it_runs_where_librailyard_is_found "0 23007 alone" "LD_LIBRARY_PATH=$build/lib"
echo "1..$n"
exit $failed
