#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/package.sh deb|rpm FOLDER VERSION [JOBS]: builds packages in FOLDER, from a copy of the sources. The tree
# itself, and what is built in it, stays as it is.
set -euo pipefail

kind=$1 folder=$(realpath -m "$2") name=railyard-$3 jobs=${4:-1}
# Not the outer make's: neither its flags and job server nor its variables.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES BUILD CC SAN

# What git knows and what is about to be added; everything but build where there is no git.
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -co --exclude-standard -z |
      while IFS= read -rd '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done
  else
    find . -path ./build -prune -o ! -type d -print0
  fi
}

deb() {
  rm -rf "${folder:?}/$name" "$folder"/*.{deb,changes,buildinfo}
  mkdir -p "$folder/$name"
  sources | tar -c --null -T - | tar -x -C "$folder/$name"
  cd "$folder/$name"
  dpkg-buildpackage -us -uc -b "-j$jobs"
}

# rpm asks its own database what is installed. On Debian, where that is empty, nothing can be told of what is missing.
rpm_() {
  local missing=()
  [[ -s /var/lib/rpm/rpmdb.sqlite ]] || missing=(--nodeps)
  rm -rf "$folder"
  mkdir -p "$folder"/SOURCES
  sources | tar -cz --null -T - --transform "s,^\(\./\)\?,$name/," -f "$folder/SOURCES/$name.tar.gz"
  RPM_BUILD_NCPUS=$jobs rpmbuild -bb "${missing[@]}" --define "_topdir $folder" packaging/railyard.spec
}

case $kind in deb) deb ;; rpm) rpm_ ;; esac
