#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/install.sh install PROGRAM... | uninstall
# Where things go is in the environment: BUILD, DESTDIR, PREFIX, BINDIR, LIBDIR, INCLUDEDIR, DATADIR, MANDIR, DOCDIR,
# VERSION, PLUGINS (names). What is installed is noted in DATADIR/railyard/manifest, and that list is what uninstall
# removes: it works from any later state of the tree.
set -euo pipefail

for dir in PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR DOCDIR; do
  [[ ${!dir} == /* ]] || { echo "$dir must be an absolute path, not '${!dir}'" >&2; exit 1; }
done
manifest=$DATADIR/railyard/manifest

put() { # MODE SOURCE TARGET
  install -D -m "$1" "$2" "$DESTDIR$3"
  echo "$3" >>"$DESTDIR$manifest"
}

link_to() { # TARGET NAME
  mkdir -p "$DESTDIR${2%/*}"
  ln -sfn "$1" "$DESTDIR$2"
  echo "$2" >>"$DESTDIR$manifest"
}

pkg_config() {
  cat <<PC
prefix=$PREFIX
libdir=${LIBDIR/#$PREFIX\//\$\{prefix\}/}
includedir=${INCLUDEDIR/#$PREFIX\//\$\{prefix\}/}

Name: railyard
Description: Collective communication with NCCL's interface, and NCCL network plugins
Version: $VERSION
Libs: -L\${libdir} -lrailyard
Cflags: -I\${includedir}
PC
}

# A file, or a link to its neighbour.
put_library() { # SOURCE TARGET
  if [[ -L $1 ]]; then link_to "$(readlink "$1")" "$2"; else put 755 "$1" "$2"; fi
}

do_install() {
  mkdir -p "$DESTDIR${manifest%/*}"
  : >"$DESTDIR$manifest"
  local f tmp
  for f in $PLUGINS; do put 755 "$BUILD/lib/libnccl-net-$f.so" "$LIBDIR/libnccl-net-$f.so"; done
  for f in "$BUILD"/lib/librailyard.so{,."${VERSION%%.*}",."$VERSION"}; do
    put_library "$f" "$LIBDIR/${f##*/}"
  done
  link_to ../librailyard.so."${VERSION%%.*}" "$LIBDIR/nccl/libnccl.so.2"
  link_to libnccl.so.2 "$LIBDIR/nccl/libnccl.so"
  put 755 "$BUILD/lib/railyard/librail-fault.so" "$LIBDIR/railyard/librail-fault.so"
  for f in "$BUILD"/lib/emu/*; do [[ ! -e $f ]] || put_library "$f" "$LIBDIR/railyard/emu/${f##*/}"; done
  for f in "$@"; do put 755 "$f" "$BINDIR/${f##*/}"; done
  put 755 kit/plot.py "$DATADIR/railyard/plot.py"
  for f in include/rail/*.h; do put 644 "$f" "$INCLUDEDIR/rail/${f##*/}"; done
  for f in docs/man/*.[1-9]; do put 644 "$f" "$MANDIR/man${f##*.}/${f##*/}"; done
  for f in README.md docs/*.md; do put 644 "$f" "$DOCDIR/${f##*/}"; done
  tmp=$(mktemp)
  pkg_config >"$tmp"
  put 644 "$tmp" "$LIBDIR/pkgconfig/railyard.pc"
  rm -f "$tmp"
  echo "installed $(wc -l <"$DESTDIR$manifest") files under $DESTDIR$PREFIX"
}

do_uninstall() {
  [[ -e $DESTDIR$manifest ]] || { echo "nothing installed under $DESTDIR$PREFIX"; return; }
  local f
  while IFS= read -r f; do rm -f "$DESTDIR$f"; done <"$DESTDIR$manifest"
  rm -f "$DESTDIR$manifest"
  # Only folders that are ours alone; lib, bin and the like belong to others, too.
  rmdir "$DESTDIR$DATADIR/railyard" "$DESTDIR$DOCDIR" "$DESTDIR$INCLUDEDIR/rail" \
    "$DESTDIR$LIBDIR"/{nccl,railyard/emu,railyard} 2>/dev/null || true
  echo "removed railyard from $DESTDIR$PREFIX"
}

action=$1
shift
"do_$action" "$@"
