#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test/arm64/qemu-user.sh PROGRAM COMMAND...: runs COMMAND where arm64's programs can be executed; PROGRAM is one to
# try. By itself on arm64 and where the machine has qemu-user registered; else in a user namespace of its own, in which
# Linux since 6.7 lets anybody register an interpreter. Exit status 77: it cannot be, and why was said.
set -u

program=$1
shift
if "$program" --version >/dev/null 2>&1; then exec "$@"; fi
if [[ ${RAIL_QEMU_USER-} != inside ]]; then
  RAIL_QEMU_USER=inside exec unshare -Urm bash "$0" "$program" "$@"
fi
register() {
  mount -t binfmt_misc none /proc/sys/fs/binfmt_misc || return
  # The magic of ELF files for EM_AARCH64, as Debian's qemu-user-static has it; F: opened now.
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf '%s' ":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F" >/proc/sys/fs/binfmt_misc/register
}
if ! error=$(register 2>&1) || ! error=$("$program" --version 2>&1); then
  echo "this machine does not run arm64's programs, and its kernel allows no registration of qemu-user (${error##*: })"
  exit 77
fi
exec "$@"
