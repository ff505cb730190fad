#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks at what this machine can build and prints make variables.
set -u
cc=${CC:-gcc}
probe() { printf '%s\n' "$2" | $cc -x c -fsyntax-only - >/dev/null 2>&1 &&
    echo "HAVE_$1 := 1" || echo "HAVE_$1 :="; }
have() { command -v "$2" >/dev/null 2>&1 && echo "HAVE_$1 := 1" || echo "HAVE_$1 :="; }
probe VERBS '#include <infiniband/verbs.h>'
probe RDMACM '#include <rdma/rdma_cma.h>'
probe LIBFABRIC '#include <rdma/fabric.h>'
probe LIBELF '#include <gelf.h>'
probe OPENSSL '#include <openssl/ssl.h>
#if OPENSSL_VERSION_NUMBER < 0x30000000L
#error too old
#endif'
# jansson's archive is made for programs, not for shared objects.
printf '%s\n' '#include <jansson.h>
int main(void) { return json_load_file("", 0, NULL) != NULL; }' |
  $cc -x c -o /dev/null - -l:libjansson.a >/dev/null 2>&1 &&
  echo "HAVE_JANSSON := 1" || echo "HAVE_JANSSON :="
# On the path, or where toolkits are; one that knows the newest GPU we compile for.
nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || command -v /usr/local/cuda/bin/nvcc)
# Its objects are for the machine that it runs on.
[ "$($cc -dumpmachine | cut -d- -f1)" = "$(uname -m)" ] || nvcc=
if [ -n "$nvcc" ] && "$nvcc" --list-gpu-code 2>/dev/null | grep -qx sm_100; then
  echo "HAVE_NVCC := 1"
  echo "NVCC := $nvcc"
  # Debian's ccache has links for C compilers only; who calls them through it wants nvcc, too, called through it.
  real=$(readlink -f "$(command -v "${cc%% *}")")
  [ "${real##*/}" = ccache ] && echo "NVCC_CACHE := ccache" || echo "NVCC_CACHE :="
else
  echo "HAVE_NVCC :="
fi
printf 'static_assert(__cplusplus >= 201703L, "");' | $cc -x c++ -std=c++17 -fsyntax-only - >/dev/null 2>&1 &&
  echo "HAVE_CXX := 1" || echo "HAVE_CXX :="
have MPIRUN mpirun
# A faster linker than the usual one, for test programs.
echo 'int main(void) { return 0; }' | $cc -x c -o /dev/null - -fuse-ld=gold >/dev/null 2>&1 &&
  echo "TEST_LD := -fuse-ld=gold" || echo "TEST_LD :="
echo "BUILT_SAN := ${SAN-}"  # the test runner asks a build directory which sanitizer it has
