#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make install puts everything where a user's compiler and loader find it, and
# make uninstall leaves no file of it.
set -u
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
number=0 failed=0

check() { # NAME COMMAND...
  number=$((number + 1))
  local name=$1
  shift
  if "$@" >"$top/log" 2>&1; then
    echo "ok $number - $name"
  else
    sed 's/^/# /' "$top/log"
    echo "not ok $number - $name"
    failed=1
  fi
}
finish() { echo "1..$number"; exit $failed; }
installed() { (cd "$top/root" && find . ! -type d | sort); }
no_files() { [[ -z $(installed) ]] || { installed; return 1; }; }
has() { [[ -f $top/root/$1 ]] || { echo "missing $1"; installed; return 1; }; }

make_it() { make -s BUILD="$RAIL_BUILD" DESTDIR="$top/root" PREFIX=/opt/rail "$@"; }

check "install" make_it install
for lib in "$RAIL_BUILD"/lib/*.so; do check "${lib##*/}" has "opt/rail/lib/${lib##*/}"; done
for tool in "$RAIL_BUILD"/bin/*; do check "${tool##*/}" has "opt/rail/bin/${tool##*/}"; done
for header in include/rail/*.h; do check "${header##*/}" has "opt/rail/include/rail/${header##*/}"; done
check "railyard.pc" has opt/rail/lib/pkgconfig/railyard.pc
check "the stand-in for libnccl" test "$(readlink -f "$top/root/opt/rail/lib/nccl/libnccl.so")" = \
  "$(readlink -f "$top/root")/opt/rail/lib/librailyard.so"
check "the name that programs ask for" test "$(readlink "$top/root/opt/rail/lib/nccl/libnccl.so.2")" = ../librailyard.so

cat >"$top/user.c" <<'C'
#include <stdio.h>
#include <rail/railyard.h>
int main(void) {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version <= 0) return 1;
  printf("%d\n", version);
  return 0;
}
C
use() { # COMPILER ARGS...: as a user would, by pkg-config alone
  export PKG_CONFIG_PATH=$top/root/opt/rail/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$top/root
  local flags
  flags=$(pkg-config --cflags --libs railyard) || return
  # shellcheck disable=SC2086
  "$@" -Wall -Wextra -Werror -o "$top/user" "$top/user.c" $flags &&
    LD_LIBRARY_PATH=$top/root/opt/rail/lib "$top/user"
}
check "a program finds headers and library by pkg-config" use "${CC:-gcc}"
if command -v g++ >/dev/null; then check "the same in C++" use g++ -x c++ -std=c++11; fi
if [[ -x $top/root/opt/rail/bin/rail-coll ]]; then
  check "an installed tool finds the installed library" "$top/root/opt/rail/bin/rail-coll" --help
fi

touch "$top/root/opt/rail/lib/other.so"
check "uninstall" make_it uninstall
check "it leaves what is not ours" has opt/rail/lib/other.so
rm -f "$top/root/opt/rail/lib/other.so"
check "it leaves nothing of ours" no_files
check "a second uninstall is harmless" make_it uninstall
finish
