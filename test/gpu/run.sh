#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The device's kernels (kernels.sh); collectives on the GPU's memory (plans.sh); then real NCCL through the socket
# plugin: two processes on one GPU, every result checked.
#
#   test/gpu/run.sh BUILD [--results FILE] [--build-only] [option of nccl_pair...]
#
# CUDA_HOME and NCCL_HOME say where they are; else nvcc's folder, the system's and
# Python wheels' are searched. CUDA_VISIBLE_DEVICES picks the GPU or MIG instance. Prints TAP,
# then "N passed, N failed, N skipped". Where there is no GPU, CUDA or NCCL it says so and ends with 0.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?usage: test/gpu/run.sh BUILD [--results FILE] [--build-only] [option...]}" && pwd) || exit 2
shift
results='' build_only='' options=()
while (($#)); do
  case $1 in
    --results) results=${2:?--results wants a file} && shift ;;
    --build-only) build_only=1 ;;
    *) options+=("$1") ;;
  esac
  shift
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/output
plugin=$build/lib/libnccl-net-socket.so

case_line() { echo "$1 - $2" | tee -a "$log"; } # "ok" | "not ok", NAME
finish() { # counts what was printed
  local passed failed skipped
  skipped=$(grep -c '^ok .*# SKIP' "$log")
  passed=$(($(grep -c '^ok ' "$log") - skipped))
  failed=$(grep -c '^not ok ' "$log")
  [[ -n $results ]] && write_results "$passed passed, $failed failed, $skipped skipped"
  echo "1..$((passed + failed + skipped))"
  echo "$passed passed, $failed failed, $skipped skipped"
  exit $((failed > 0))
}
skip() { case_line ok "NCCL through the socket plugin # SKIP $1" && finish; }

# ---- where CUDA and NCCL are ----

first_of() { local f; for f in "$@"; do [[ -e $f ]] && { echo "$f"; return; }; done; return 1; }
wheels() { # folders that NVIDIA's Python wheels unpack to
  command -v python3 >/dev/null && python3 - <<'PY' 2>/dev/null
import glob, site
places = site.getsitepackages() + [site.getusersitepackages()]
print("\n".join(d for p in places for d in sorted(glob.glob(p + "/nvidia/*"), reverse=True)))
PY
}
roots() { # the named one first; a toolkit that nvcc belongs to; the usual places
  local nvcc
  printf '%s\n' "$@"
  nvcc=$(command -v nvcc) && { dirname "$(dirname "$nvcc")"; dirname "$(dirname "$(readlink -f "$nvcc")")"; }
  printf '%s\n' /usr/local/cuda /usr/local /usr
  wheels
}
find_include() { # HEADER ROOT...
  local header=$1 root
  shift
  while read -r root; do
    [[ -n $root ]] || continue
    first_of "$root"/include/"$header" "$root"/targets/*/include/"$header" "$root"/build/include/"$header" && return
  done < <(roots "$@") | head -n 1 | xargs -r dirname
}
find_library() { # NAME (libx.so) ROOT...: a wheel has only the versioned file
  local name=$1 root d found
  shift
  found=$(while read -r root; do
    [[ -n $root ]] || continue
    for d in "$root"/lib64 "$root"/lib "$root"/lib/*-linux-gnu "$root"/targets/*/lib "$root"/build/lib; do
      first_of "$d/$name" "$d/$name".[0-9]* && exit
    done
  done < <(roots "$@"))
  [[ -n $found ]] && echo "$found" && return
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | awk -v n="$name" 'index($1, n) == 1 { print $NF; exit }'
}

compile() {
  local objects=("$here/pair/main.c" "$here/pair/rank.c" "$here/pair/data.c")
  mkdir -p "$build/test/gpu"
  # Their headers are not held to our warnings. rpath: the very library that was found, not another on the path.
  "${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -isystem "$cuda_include" -isystem "$nccl_include" \
    "${objects[@]}" "$nccl_lib" "$cuda_lib" -Wl,-rpath,"$(dirname "$nccl_lib")" -Wl,-rpath,"$(dirname "$cuda_lib")" \
    -o "$build/test/gpu/nccl_pair"
}

# ---- the run ----

set_environment() {
  export NCCL_NET_PLUGIN=$plugin NCCL_NET=RailSocket NCCL_SOCKET_IFNAME=lo
  # Ranks named as two hosts must not find a faster way than the network after all.
  export NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0
  export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE=$work/nccl.%p.log
  unset NCCL_COMM_ID NCCL_HOSTID NCCL_TOPO_FILE
}

why_not_shared() { # two processes need the GPU at once
  local mode id=${CUDA_VISIBLE_DEVICES-}
  id=${id%%,*}
  mode=$(nvidia-smi ${id:+-i "$id"} --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | head -n 1)
  case $mode in
    Prohibited) echo "the GPU's compute mode is Prohibited" ;;
    Exclusive_Process)
      [[ -e ${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control ]] ||
        echo "the GPU's compute mode is Exclusive_Process and no MPS daemon runs, so two processes cannot share it" ;;
  esac
}

check_log() { # NCCL may fall back to another network without a word but in its log
  local logs=("$work"/nccl.*.log) file n=0
  for file in "${logs[@]}"; do
    grep -qE '(Using network|Assigned NET plugin) RailSocket' "$file" 2>/dev/null || continue
    grep -q 'via NET/RailSocket' "$file" && n=$((n + 1))
  done
  ((n == 2)) && case_line ok "NCCL's log: both ranks chose RailSocket and connected through it" && return
  echo "# $n of 2 ranks' logs say so"
  case_line "not ok" "NCCL's log: both ranks chose RailSocket and connected through it"
}

write_results() { # Markdown, to be kept with the sources
  local facts=name,driver_version,mig.mode.current,compute_mode
  {
    echo "# NCCL through libnccl-net-socket.so"
    echo
    echo "- date: $(date '+%Y-%m-%d %H:%M:%S %z')"
    echo "- railyard $(git -C "$here" describe --always --dirty --tags 2>/dev/null || echo '?'), Linux $(uname -r)"
    echo "- GPU: $(nvidia-smi --query-gpu="$facts" --format=csv,noheader 2>/dev/null | head -n 1)"
    echo "- $(grep -hoE 'NET/Plugin: Loaded net plugin.*' "$work"/nccl.*.log 2>/dev/null | head -n 1)"
    echo "- two processes on one GPU, each with its own NCCL_HOSTID: all data goes through the plugin over loopback."
    echo "  Without MPS the processes take turns on the GPU, so times say nothing about the network."
    echo "- command: \`make gpu-test\`, that is \`test/gpu/run.sh build${options[*]:+ ${options[*]}}\`"
    echo "- result: $1"
    printf '\n```\n'
    cat "$log"
    echo '```'
  } >"$results" && echo "# wrote $results"
}

: >"$log"
. "$here/kernels.sh"
kernels_test kernels
kernels_test blocks
. "$here/plans.sh"
plans_test calls
plans_test streams
[[ -f $plugin ]] || { case_line "not ok" "$plugin is built"; finish; }
cuda_include=$(find_include cuda_runtime_api.h "${CUDA_HOME-}" "${CUDA_PATH-}")
cuda_lib=$(find_library libcudart.so "${CUDA_HOME-}" "${CUDA_PATH-}")
nccl_include=$(find_include nccl.h "${NCCL_HOME-}")
nccl_lib=$(find_library libnccl.so "${NCCL_HOME-}")
[[ -n $cuda_include && -n $cuda_lib ]] || skip "no CUDA toolkit here (no nvcc, CUDA_HOME is ${CUDA_HOME:-not set})"
[[ -n $nccl_include && -n $nccl_lib ]] || skip "no NCCL here (NCCL_HOME is ${NCCL_HOME:-not set})"
echo "# CUDA: $cuda_include, $cuda_lib; NCCL: $nccl_include, $nccl_lib"
if ! compile; then
  case_line "not ok" "nccl_pair compiles"
  finish
fi
case_line ok "nccl_pair compiles"
[[ -n $build_only ]] && finish
command -v nvidia-smi >/dev/null || skip "no NVIDIA GPU here (there is no nvidia-smi)"
devices=$(nvidia-smi -L 2>&1) || skip "no NVIDIA GPU here (nvidia-smi: ${devices%%$'\n'*})"
[[ $devices == *GPU* ]] || skip "no NVIDIA GPU here (nvidia-smi lists none)"
echo "$devices" | sed -E 's/ ?\(UUID: [^)]*\)//; s/^/# /'
reason=$(why_not_shared)
[[ -z $reason ]] || skip "$reason"
reason=$("$build/test/gpu/nccl_pair" ${options[@]+"${options[@]}"} --probe)
case $? in
  0) ;;
  77) skip "the GPU cannot be used: $reason" ;;
  *) case_line "not ok" "nccl_pair starts" && finish ;;
esac

set_environment
timeout -k 10 1800 "$build/test/gpu/nccl_pair" ${options[@]+"${options[@]}"} 2>&1 | tee -a "$log"
status=${PIPESTATUS[0]}
if ((status != 0)) && ! grep -q '^not ok ' "$log"; then case_line "not ok" "nccl_pair ended with status $status"; fi
check_log
if grep -q '^not ok ' "$log"; then
  for file in "$work"/nccl.*.log; do
    [[ -e $file ]] && echo "# ${file##*/}:" && tail -n 40 "$file" | sed 's/^/#   /'
  done
fi
grep -hoE 'NET/Plugin: Loaded net plugin.*' "$work"/nccl.*.log 2>/dev/null | head -n 1 | sed 's/^/# /'
finish
