#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make install puts everything where a user's compiler and loader find it, in whatever folders; make uninstall leaves
# no file of it.
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
version=$(<VERSION) soname=librailyard.so.${version%%.*}

check "install" make_it install
tree_only() { # LIBRARY: its build.mk says so
  local plugin=${1##*/libnccl-net-}
  grep -qs "^install_${plugin%.so} := no" "plugin/${plugin%.so}/build.mk"
}
for lib in "$RAIL_BUILD"/lib/*.so; do
  if tree_only "$lib"; then check "${lib##*/} is for the tree only" test ! -e "$top/root/opt/rail/lib/${lib##*/}"
  else check "${lib##*/}" has "opt/rail/lib/${lib##*/}"; fi
done
for tool in "$RAIL_BUILD"/bin/rail-{coll,kit,stat}; do check "${tool##*/}" has "opt/rail/bin/${tool##*/}"; done
for lib in "$RAIL_BUILD"/lib/emu/*; do
  [[ ! -e $lib ]] || check "the emulated ${lib##*/}" has "opt/rail/lib/railyard/emu/${lib##*/}"
done
for header in include/rail/*.h; do check "${header##*/}" has "opt/rail/include/rail/${header##*/}"; done
check "railyard.pc" has opt/rail/lib/pkgconfig/railyard.pc
named=$(grep -rhoE '"[^"]*docs/[a-z-]+\.md' plugin core common loader kit tools emu --include='*.[ch]' |
  grep -o 'docs/.*' | sort -u)
check "messages name documents" test -n "$named"
for file in $named; do check "$file, which messages name" has "opt/rail/share/doc/railyard/${file##*/}"; done
check "the stand-in for libnccl" test "$(readlink -f "$top/root/opt/rail/lib/nccl/libnccl.so")" = \
  "$(readlink -f "$top/root")/opt/rail/lib/librailyard.so.$(<VERSION)"
check "the name that programs ask for" test "$(readlink "$top/root/opt/rail/lib/nccl/libnccl.so.2")" = \
  "../$soname"

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

[[ $(readelf -d "$top/user") == *"[$soname]"* ]]
check "the program asks for the library by its soname" test $? = 0

touch "$top/root/opt/rail/lib/other.so"
check "uninstall" make_it uninstall
check "it leaves what is not ours" has opt/rail/lib/other.so
rm -f "$top/root/opt/rail/lib/other.so"
check "it leaves nothing of ours" no_files
check "a second uninstall is harmless" make_it uninstall

# Folders that are no neighbours: programs find libraries and scripts all the same.
places=(BINDIR=/opt/programs LIBDIR=/opt/rail/lib/any INCLUDEDIR=/opt/headers DATADIR=/opt/data MANDIR=/opt/man
  DOCDIR=/opt/doc)
check "install into other folders" make_it install "${places[@]}"
for file in programs/rail-{coll,kit,stat} headers/rail/railyard.h data/railyard/plot.py man/man1/rail-kit.1 \
  doc/roce.md \
  rail/lib/any/{"$soname",libnccl-net-socket.so,nccl/libnccl.so.2,railyard/librail-fault.so,pkgconfig/railyard.pc}
do
  check "$file" has "opt/$file"
done
programs=$top/root/opt/programs
check "rail-coll finds its library there" "$programs/rail-coll" --help
check "rail-kit finds a plugin there by its name" "$programs/rail-kit" inspect socket
fails() { "$programs/rail-kit" fault "$1" --only fail.sockets --calls 1 | tee /dev/stderr | grep -q '^1 passed'; }
check "rail-kit finds the library that makes calls fail" \
  fails "$top/root/opt/rail/lib/any/libnccl-net-socket.so"
if [[ -e $RAIL_BUILD/lib/emu/libibverbs.so.1 ]]; then
  check "rail-kit finds the emulated verbs device" "$programs/rail-kit" conform --verbs emu ib --only order.any_order
fi
check "rail-kit knows where its script lies" grep -qaF ../data "$programs/rail-kit"
check "uninstall from there" make_it uninstall "${places[@]}"
check "nothing is left there" no_files

check "install where the loader looks" make_it install PREFIX=/usr LIBDIR="/usr/lib/$(${CC:-gcc} -print-multiarch)"
runpath() { readelf -d "$top/root/usr/bin/rail-coll" | grep -E 'RPATH|RUNPATH'; }
check "programs then have no path to the library" test -z "$(runpath)"
check "a folder must be absolute" bash -c "! make -s BUILD='$RAIL_BUILD' DESTDIR='$top/root' LIBDIR=lib uninstall"
finish
