#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test/package/minimal_root.sh FOLDER: Debian with its essential packages and apt, of the machine's release and from its
# mirror, in FOLDER; kept there for the next time.
set -euo pipefail

folder=$1
[[ ! -e $folder/.complete ]] || exit 0
# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
  awk -v release="$release" '$1 == release && $2 == "main" { print $3; exit }')
[[ -n $mirror ]] || { echo "apt has no source for Debian $release" >&2; exit 1; }
echo "debootstrap: Debian $release from $mirror into $folder"
rm -rf "$folder"
mkdir -p "$folder"
debootstrap --variant=minbase "$release" "$folder" "$mirror" >"$folder.log" 2>&1 || { tail "$folder.log" >&2; exit 1; }
rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
touch "$folder/.complete"
