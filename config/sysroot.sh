#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/sysroot.sh FOLDER ARCH PACKAGE...
# Unpacks Debian packages of another architecture, and all that they depend on, into FOLDER: what a cross compiler takes
# for --sysroot and qemu-user for QEMU_LD_PREFIX. They come from the sources that the machine's apt has, by an apt of
# its own state: nothing is installed, and no architecture is added to the machine. Needs no root.
set -euo pipefail

folder=$1 arch=$2
shift 2
[[ ! -e $folder/.complete || $(<"$folder/.complete") != "$*" ]] || exit 0
command -v apt-get >/dev/null || { echo "$folder: needs Debian's apt-get" >&2; exit 1; }
echo "$folder: downloading $* and what they depend on, for $arch"
state=$folder.apt
rm -rf "$folder" "$state"
mkdir -p "$folder" "$state"/{lists/partial,cache/archives/partial,preferences}
: >"$state/status"
apt() {
  apt-get -q -y -o APT::Architecture="$arch" -o APT::Architectures::="$arch" -o Dir::State="$state" \
    -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
    -o Dir::Etc::preferencesparts="$state/preferences" \
    -o Debug::NoLocking=1 -o APT::Install-Recommends=0 -o APT::Sandbox::User= -o Acquire::Retries=3 "$@" \
    >>"$state/log" 2>&1 </dev/null || { tail -n 20 "$state/log" >&2; exit 1; }
}
state=$(realpath "$state")
apt update
apt install --download-only "$@"
for package in "$state"/cache/archives/*.deb; do dpkg-deb -x "$package" "$folder"; done
rm -rf "$state"
echo "$*" >"$folder/.complete"
