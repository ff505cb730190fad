#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test/package/test_rpm.sh FOLDER: what make rpm left in FOLDER.
# Proves that the spec can be read and names the version, that each package has its files, what they need and provide,
# and that the programs of the unpacked packages work.
set -u
cd "$(dirname "$0")/../.." || exit 1
. test/harness/report.sh
folder=$(realpath "$1") version=$(<VERSION) work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { # NAME COMMAND...
  local name=$1 out verdict
  shift
  out=$("$@" 2>&1)
  verdict=$?
  ((verdict == 0)) || printf '%s\n' "$out" | tail -n 40 | sed 's/^/# /'
  report $verdict "$name"
}
package() { echo "$folder"/RPMS/*/"$1-$version"-*.rpm; }
has() { # PACKAGE PATTERN...: for each pattern there is a file
  local list pattern
  list=$(rpm -qpl "$(package "$1")") || return
  shift
  for pattern in "$@"; do
    grep -Eqx -- "$pattern" <<<"$list" || { printf '%s\n' "$pattern is not in:" "$list"; return 1; }
  done
}

check "the spec is readable" rpmspec -P packaging/railyard.spec
spec_version() { [[ $(rpmspec -q --srpm --qf '%{version}' packaging/railyard.spec) == "$version" ]]; }
check "its version is that of VERSION" spec_version
lib='/usr/lib[^ ]*'
check "libnccl-net-railyard" has libnccl-net-railyard "$lib/libnccl-net-"{socket,ib,ofi,railtrace}'\.so' \
  ".*/"{install,net-ib,parameters,rdma-errors,roce,trace,tuning-tcp}"\.md"
check "librailyard0" has librailyard0 "$lib/librailyard\.so\.${version%%.*}" "$lib/nccl/libnccl\.so\.2"
check "railyard-tools" has railyard-tools /usr/bin/rail-{coll,kit,stat} "$lib/railyard/librail-fault\.so" \
  "$lib/railyard/emu/"{libibverbs,librdmacm}'\.so\.1' \
  '.*/rail-kit\.1.*'
check "librailyard-devel" has librailyard-devel /usr/include/rail/{net,railyard,version}.h "$lib/librailyard\.so" \
  "$lib/pkgconfig/railyard\.pc"
provides() { rpm -qp --provides "$(package librailyard0)" | grep -F "librailyard.so.${version%%.*}"; }
check "librailyard0 provides the soname" provides
needs() { rpm -qp --requires "$(package railyard-tools)" | grep -F "librailyard.so.${version%%.*}"; }
check "railyard-tools needs it" needs
emulated() { ! rpm -qp --provides --requires "$(package railyard-tools)" | grep -E 'ibverbs|rdmacm'; }
check "railyard-tools neither provides nor needs the emulated libraries" emulated
lazily() { ! rpm -qp --requires "$(package libnccl-net-railyard)" | grep -E 'ibverbs|fabric|crypto|uring'; }
check "plugins need no library that they open when they use it" lazily
unpack() { for rpm in "$folder"/RPMS/*/*.rpm; do rpm2cpio "$rpm" | (cd "$work" && cpio -idm --quiet) || return; done; }
check "they unpack" unpack
libdir=$(dirname "$(find "$work" -name "librailyard.so.${version%%.*}")")
check "rail-kit inspect" "$work/usr/bin/rail-kit" inspect "$libdir/libnccl-net-socket.so"
check "rail-coll, 2 ranks over the plugin" env NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo LD_LIBRARY_PATH="$libdir" \
  NCCL_NET_PLUGIN=socket "$work/usr/bin/rail-coll" all_reduce -r 2 -b 8 -e 1M -f 8 -n 2
echo "1..$n"
exit "$failed"
