#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds nccl-tests outside their sources and this repository, as processes on the MPI of test/gpu/mpi:
#
#   test/gpu/nccl_tests.sh SOURCES FOLDER NCCL_LIBRARY NCCL_INCLUDE [SM]
#
# SOURCES: a checkout of github.com/NVIDIA/nccl-tests. FOLDER gets build/*_perf and what they are linked with, mpi and
# nccl. SM: the GPU's compute capability without the dot (90). CUDA_HOME says where nvcc is. The programs take
# whatever libnccl.so.2 LD_LIBRARY_PATH has first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "${1:?usage: nccl_tests.sh SOURCES FOLDER NCCL_LIBRARY NCCL_INCLUDE [SM]}" && pwd)
mkdir -p "${2:?FOLDER}"
folder=$(cd "$2" && pwd) library=${3:?NCCL_LIBRARY} include=${4:?NCCL_INCLUDE} sm=${5:-90}
cuda=${CUDA_HOME:-/usr/local/cuda}
programs='all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter'
cuda_lib=''
for d in "$cuda"/lib64 "$cuda"/lib "$cuda"/targets/*/lib; do
  [[ -e $d/libcudart_static.a ]] && cuda_lib=$d && break
done
[[ -n $cuda_lib ]] || { echo "nccl_tests.sh: no libcudart_static.a below $cuda" >&2; exit 1; }

# A folder with the one library: the toolkit may have another NCCL, and a Python package has no libnccl.so.
mkdir -p "$folder"/{mpi/lib,mpi/include,nccl/lib,nccl/include}
ln -sfn "$(readlink -f "$library")" "$folder/nccl/lib/libnccl.so"
cp "$include"/nccl*.h "$folder/nccl/include/"
[[ ! -d $include/nccl_device ]] || cp -r "$include/nccl_device" "$folder/nccl/include/"
cp "$here/mpi/mpi.h" "$folder/mpi/include/"
"${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -fPIC -shared -Wl,-soname,libmpi.so "$here/mpi/mpi.c" \
  -o "$folder/mpi/lib/libmpi.so"

# The runtime of CUDA goes into each program: it needs no folder of the toolkit when it runs.
make -C "$sources/src" -j"$(nproc)" build BIN_FILES_LIST="$programs" BUILDDIR="$folder/build" CXX="${CXX:-g++}" \
  CUDA_HOME="$cuda" NVCC="$cuda/bin/nvcc" CUDA_LIB="$folder/nccl/lib -L$cuda_lib" CUDARTLIB=cudart_static \
  NCCL_HOME="$folder/nccl" MPI=1 MPI_HOME="$folder/mpi" \
  NVCC_GENCODE="-gencode=arch=compute_$sm,code=sm_$sm"
rm -f "$folder"/build/*.o "$folder"/build/*/*.o
strip --strip-debug "$folder"/build/*_perf
for program in "$folder"/build/*_perf; do
  missing=$(LD_LIBRARY_PATH="$folder/nccl/lib:$folder/mpi/lib" ldd -r "$program" 2>&1 |
    grep -E 'undefined symbol' || true)
  [[ -z $missing ]] || { echo "nccl_tests.sh: $program: $missing" >&2; exit 1; }
done
echo "ok 1 - $(ls "$folder"/build/*_perf | wc -l) programs are built"
