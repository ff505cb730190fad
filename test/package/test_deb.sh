#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test/package/test_deb.sh FOLDER: what make deb left in FOLDER.
# Proves that lintian has nothing to say of the Debian packages; that in a Debian with nothing but its essential
# packages they install, and the plugins are found, load and work; that a program is built with librailyard-dev; that
# nothing is left when they are purged. Root's, for debootstrap and chroot; without, the cases in there are skipped.
set -u
cd "$(dirname "$0")/../.." || exit 1
. test/harness/report.sh
folder=$(realpath "$1") version=$(<VERSION)
packages=(librailyard0 libnccl-net-railyard railyard-tools librailyard-dev)

check() { # NAME COMMAND...
  local name=$1 out verdict
  shift
  out=$("$@" 2>&1)
  verdict=$?
  ((verdict == 0)) || printf '%s\n' "$out" | tail -n 40 | sed 's/^/# /'
  report $verdict "$name"
}
finish() { echo "1..$n"; exit "$failed"; }
skip_rest() { echo "ok $((n += 1)) - in a minimal Debian # SKIP $1"; finish; }

if [[ ${IN_NAMESPACE-} != 1 ]]; then
  ((EUID == 0)) || exec env IN_NAMESPACE=1 bash "$0" "$folder"
  bash test/package/minimal_root.sh "$folder/minimal" || exit 1
  # Mounts of its own: what is done to the root lies in memory and goes with the last process.
  exec env IN_NAMESPACE=1 unshare -m --propagation private bash "$0" "$folder"
fi

quiet_lintian() { # a line for whatever it finds, and for an override that is not needed
  local found
  found=$(lintian --fail-on none --tag-display-limit 0 "$folder"/railyard_"${version}"_*.changes 2>&1 |
    grep -v 'running with root privileges')
  [[ -z $found ]] || { echo "$found"; return 1; }
}
check "lintian" quiet_lintian
for package in "${packages[@]}"; do check "$package is there" compgen -G "$folder/${package}_${version}_*.deb"; done

for document in install net-ib parameters rdma-errors roce trace tuning-tcp; do
  check "$document.md is in the plugins' package" \
    bash -c "dpkg -c '$folder/libnccl-net-railyard_${version}_'*.deb | grep -q '/$document\.md'"
done

((EUID == 0)) || skip_rest "debootstrap and chroot need root"
work=$(mktemp -d)
mount -t tmpfs none "$work" && mkdir "$work"/{upper,work,root} &&
  mount -t overlay none -o "lowerdir=$folder/minimal,upperdir=$work/upper,workdir=$work/work" "$work/root" || exit 1
root=$work/root
for place in proc sys; do mount --rbind "/$place" "$root/$place" || exit 1; done
mount -t tmpfs none "$root/dev/shm" || exit 1
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "${set[@]}" chroot "$root" "$@"; }
set=()
# PATTERN COMMAND...: it ends well and its output has the pattern.
prints() {
  local pattern=$1 out
  shift
  out=$(inside "$@" 2>&1) || { echo "$out"; return 1; }
  grep -Eq -- "$pattern" <<<"$out" || { echo "$out"; return 1; }
}

mkdir "$root/packages"
for package in "${packages[@]}"; do cp "$folder/${package}_${version}"_*.deb "$root/packages/"; done
inside find / -xdev -path /packages -prune -o -path /var/lib/dpkg -prune -o -path /var/log -prune -o -print | sort \
  >"$work/before"
# dpkg alone: a dependency that is not among the essential packages is an error.
check "they install" inside bash -c 'dpkg -i /packages/*.deb'
lib=$(cd "$root" && echo usr/lib/*/librailyard.so.0)
check "the loader finds librailyard.so.0" prints "/${lib##*/}" ldconfig -p
check "rail-kit inspect socket" prints 'v12 .* RailSocket' rail-kit inspect socket
# Without a device, or a plugin to stand in front of, these say so; their tables are read all the same.
check "rail-kit inspect ib" prints 'v12 .* RailIB' bash -c 'rail-kit inspect ib || true'
check "rail-kit inspect ofi" prints 'v12 .* RailOFI' bash -c 'rail-kit inspect ofi || true'
check "rail-kit inspect railtrace" prints 'v12 .* 22 of 22 slots' bash -c 'rail-kit inspect railtrace || true'
check "rail-kit conform passes it" prints ' 0 failed' \
  rail-kit conform "/${lib%/*}/libnccl-net-socket.so" --only 'order.*'
check "rail-kit conform --verbs emu" prints ' 0 failed' \
  rail-kit conform --verbs emu "/${lib%/*}/libnccl-net-ib.so" --only order.any_order
check "the loader does not find the emulated libraries" bash -c \
  "! chroot '$root' ldconfig -p | grep -E 'railyard/emu'"
set=(NCCL_DEBUG=INFO NCCL_NET_PLUGIN=socket NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo)
check "rail-coll: 2 ranks over the socket plugin" prints 'RailSocket' rail-coll all_reduce -r 2 -b 8 -e 1M -f 8 -n 2
set=(NCCL_SOCKET_IFNAME=lo)
check "rail-coll: 2 ranks over shared memory" prints '# Out of bounds values : 0 OK' \
  rail-coll all_reduce -r 2 -b 8 -e 1M -f 8 -n 2
check "rail-stat" prints . rail-stat --json
check "each program and page of the manual is there" inside bash -c \
  'for p in rail-coll rail-kit rail-stat; do test -x /usr/bin/$p && test -e /usr/share/man/man1/$p.1.gz || exit; done'
check "every library that is needed is there" inside bash -c \
  '! ldd /usr/bin/rail-* /usr/lib/*/lib{railyard,nccl-net-}*.so* | grep "not found"'

cat >"$work/user.c" <<'C'
#include <rail/railyard.h>
int main(void) {
  int version = 0;
  return ncclGetVersion(&version) != ncclSuccess || version == 0;
}
C
builds() {
  local flags
  export PKG_CONFIG_PATH=$root/${lib%/*}/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
  flags=$(pkg-config --cflags --libs railyard) || return
  # shellcheck disable=SC2086
  "${CC:-gcc}" -Wall -Wextra -Werror -o "$root/usr/bin/user" "$work/user.c" $flags && inside user &&
    rm "$root/usr/bin/user"
}
check "a program is built with librailyard-dev" builds

check "they are purged" inside dpkg -P "${packages[@]}"
inside find / -xdev -path /packages -prune -o -path /var/lib/dpkg -prune -o -path /var/log -prune -o -print | sort \
  >"$work/after"
check "nothing is left" diff "$work/before" "$work/after"
finish
