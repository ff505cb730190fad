#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/install.sh install|uninstall BUILD DESTDIR PREFIX VERSION
# What is installed is noted in PREFIX/share/railyard/manifest, and that list
# is what uninstall removes: it works from any later state of the tree.
set -euo pipefail

action=$1 build=$2 destdir=$3 prefix=$4 version=$5
[[ $prefix == /* ]] || { echo "PREFIX must be an absolute path, not '$prefix'" >&2; exit 1; }
manifest=$prefix/share/railyard/manifest

put() { # MODE SOURCE TARGET
  install -D -m "$1" "$2" "$destdir$3"
  echo "$3" >>"$destdir$manifest"
}

link_to() { # TARGET NAME
  mkdir -p "$destdir${2%/*}"
  ln -sfn "$1" "$destdir$2"
  echo "$2" >>"$destdir$manifest"
}

pkg_config() {
  cat <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: railyard
Description: Collective communication with NCCL's interface, and NCCL network plugins
Version: $version
Libs: -L\${libdir} -lrailyard
Cflags: -I\${includedir}
PC
}

do_install() {
  mkdir -p "$destdir${manifest%/*}"
  : >"$destdir$manifest"
  local f tmp
  for f in "$build"/lib/*.so; do [[ -e $f ]] && put 755 "$f" "$prefix/lib/${f##*/}"; done
  for f in "$build"/lib/nccl/*; do [[ -L $f ]] && link_to "$(readlink "$f")" "$prefix/lib/nccl/${f##*/}"; done
  for f in "$build"/bin/*; do [[ -e $f ]] && put 755 "$f" "$prefix/bin/${f##*/}"; done
  for f in "$build"/share/railyard/*.py; do [[ -e $f ]] && put 755 "$f" "$prefix/share/railyard/${f##*/}"; done
  for f in include/rail/*.h; do put 644 "$f" "$prefix/include/rail/${f##*/}"; done
  for f in docs/man/*.[1-9]; do [[ -e $f ]] && put 644 "$f" "$prefix/share/man/man${f##*.}/${f##*/}"; done
  put 755 kit/plot.py "$prefix/share/railyard/plot.py"
  tmp=$(mktemp)
  pkg_config >"$tmp"
  put 644 "$tmp" "$prefix/lib/pkgconfig/railyard.pc"
  rm -f "$tmp"
  echo "installed $(wc -l <"$destdir$manifest") files under $destdir$prefix"
}

do_uninstall() {
  [[ -e $destdir$manifest ]] || { echo "nothing installed under $destdir$prefix"; return; }
  local f
  while IFS= read -r f; do rm -f "$destdir$f"; done <"$destdir$manifest"
  rm -f "$destdir$manifest"
  # Only folders that are ours alone; lib, bin and the like belong to the prefix.
  rmdir "$destdir$prefix/share/railyard" "$destdir$prefix/include/rail" "$destdir$prefix/lib/nccl" 2>/dev/null || true
  echo "removed railyard from $destdir$prefix"
}

"do_$action"
