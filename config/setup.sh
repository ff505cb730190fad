#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings in what a target needs: config/setup.sh GROUP... (build check test lab rdma fuzz bench docs lint arm64 deb rpm)
#
# Each need is looked for by what it provides, not by the package database, so
# a toolchain from elsewhere counts. Nothing missing: silent. As root: installs
# only what is missing. Otherwise: prints the line to run, and fails.
# Bash only, because the machine may have no more than git, make and a compiler.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

# group  Debian package  what shows that it is there (a command, or a path that may hold *)
needs='
build  gcc             gcc
build  libc6-dev       /usr/include/stdio.h
build  linux-libc-dev  /usr/include/linux/sockios.h
build  make            make
build  binutils        ar
build  libelf-dev      /usr/include/gelf.h
build  libibverbs-dev  /usr/include/infiniband/verbs.h
build  librdmacm-dev   /usr/include/rdma/rdma_cma.h
build  libfabric-dev   /usr/include/rdma/fabric.h
build  libjansson-dev  /usr/include/jansson.h
build  libssl-dev      /usr/include/openssl/ssl.h
check  python3         python3
check  g++             g++
test   python3         python3
test   iproute2        ip
test   pkgconf         pkg-config
test   g++             g++
test   clang           clang
test   python3-prometheus-client  /usr/lib/python3/dist-packages/prometheus_client
test   python3-matplotlib  /usr/lib/python3/dist-packages/matplotlib
test   openmpi-bin     mpirun
test   python3-torch   /usr/lib/python3/dist-packages/torch
test   libfabric1      /usr/lib/*/libfabric.so.1
lab    python3         python3
lab    qemu-system-x86  qemu-system-x86_64
lab    busybox-static  busybox
lab    cpio            cpio
lab    kmod            depmod
rdma   iproute2        rdma
rdma   ibverbs-providers  /usr/lib/*/libibverbs/librxe-rdmav*.so
rdma   ibverbs-utils   ibv_rc_pingpong
rdma   perftest        ib_write_bw
fuzz   clang           clang
fuzz   libclang-rt-dev /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a
bench  python3         python3
bench  openmpi-bin     mpirun
bench  libopenmpi-dev  /usr/lib/*/openmpi/include/mpi.h
bench  python3-matplotlib  /usr/lib/python3/dist-packages/matplotlib
bench  python3-torch   /usr/lib/python3/dist-packages/torch
bench  ucx-utils       ucx_perftest
bench  libfabric1      /usr/lib/*/libfabric.so.1
bench  libfabric-bin   fi_pingpong
bench  valgrind        valgrind
lint   python3         python3
lint   g++             g++
lint   clang-tidy      clang-tidy
lint   cppcheck        cppcheck
deb    dpkg-dev        dpkg-buildpackage
deb    debhelper       dh
deb    lintian         lintian
deb    debootstrap     debootstrap
deb    pkgconf         pkg-config
rpm    rpm             rpmbuild
arm64  make            make
arm64  gcc-aarch64-linux-gnu  aarch64-linux-gnu-gcc
arm64  g++-aarch64-linux-gnu  aarch64-linux-gnu-g++
arm64  qemu-user-static  qemu-aarch64-static
arm64  python3         python3
'

is_there() {
  case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
  esac
}

missing=()
while read -r group package sign; do
  [[ -n $group && " $* " == *" $group "* ]] || continue
  is_there "$sign" || [[ " ${missing[*]-} " == *" $package "* ]] || missing+=("$package")
done <<<"$needs"
((${#missing[@]})) || exit 0

install_line="apt-get install -y --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: missing, by Debian's names: ${missing[*]}; there is no apt-get here, please install them" >&2
  exit 1
fi
if ((EUID != 0)); then
  echo "setup: missing: ${missing[*]}. Please run" >&2
  echo "  sudo apt-get update && sudo $install_line" >&2
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null >>"$log" 2>&1; }
install() { apt -o Dpkg::Options::=--force-confold install -y --no-install-recommends "${missing[@]}"; }

# Lists older than a day may name versions that the mirror no longer has.
fresh_lists() { [[ -n $(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mtime -1 2>/dev/null) ]]; }

echo "setup: installing ${missing[*]}"
fresh_lists || apt update || true
install || { apt update && install; } || {
  tail -n 20 "$log" >&2
  echo "setup: apt-get failed; what it tried: $install_line" >&2
  exit 1
}

# What the last probe did not find may be there now.
rm -f "${BUILD:-build}"/config.mk "${BUILD:-build}"/*/config.mk
