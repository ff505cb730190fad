#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/left-out.sh CONFIG.MK [PLUGIN: WHY]...
# Says, after a build, what was left out for want of a library or compiler.
set -u
grep -q '^HAVE_OPENSSL := 1' "$1" || echo "left out: RAIL_SOCKET_TLS (no openssl/ssl.h of OpenSSL 3, libssl-dev)"
grep -q '^HAVE_LIBELF := 1' "$1" || echo "left out: rail-kit inspect's look into ELF files (no gelf.h, libelf-dev)"
grep -q '^HAVE_JANSSON := 1' "$1" || echo "left out: rail-kit bench --compare (no libjansson.a)"
grep -q '^HAVE_NVCC := 1' "$1" || echo "left out: CUDA kernels (no nvcc for sm_100); collectives run on host buffers"
grep -q '^HAVE_CXX := 1' "$1" || echo "left out: tests of the CUDA kernels' source on the CPU (no C++17 compiler)"
shift
for plugin in "$@"; do echo "left out: the ${plugin%%:*} plugin (${plugin#*: })"; done
