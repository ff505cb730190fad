#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All-reduce side by side: bench/run.sh BUILD [option...]   (--help lists the options)
# Builds the two programs of this folder, then hands over to allreduce.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${1:?usage: bench/run.sh BUILD [option...]}
shift
for tool in mpicc mpirun python3; do
  command -v "$tool" >/dev/null || { echo "bench: $tool is missing; config/setup.sh bench brings it" >&2; exit 1; }
done
[[ -x $build/bin/rail-coll ]] || { echo "bench: $build/bin/rail-coll is not built; run make first" >&2; exit 1; }

flags=(-std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror)
mkdir -p "$build/bench"
mpicc "${flags[@]}" "$here/mpi_allreduce.c" -o "$build/bench/mpi_allreduce"
"${CC:-gcc}" "${flags[@]}" "$here/memcpy.c" -o "$build/bench/memcpy"
PYTHONDONTWRITEBYTECODE=1 exec python3 "$here/allreduce.py" --build "$build" "$@"
