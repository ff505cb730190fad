#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh: the device's kernels on the GPU (kernels.cu), the blocks that run collectives (blocks.cu), and
# a few of their cases under compute-sanitizer. Uses its case_line, $build, $log, $work.

kernels_link() { # NVCC PROGRAM: what `make tests` compiled, with the toolkit's own static runtime
  local objects=("$build/obj/test/device/cases.o")
  [[ $2 == blocks ]] && objects=("$build"/obj/test/device/{block_case,link}.o)
  mkdir -p "$build/test/gpu"
  "$1" -o "$build/test/gpu/$2" "$build/device/test/gpu/$2.o" "$build/device/core/device/rd_kernels.o" \
    "${objects[@]}" "$build/obj/librailcore.a" "$build/obj/librailcommon.a" -lm -ldl -lrt -lpthread
}

kernels_run() { # LIMIT COMMAND...: 77 with its reason in $work/kernels, or its output in the log
  local limit=$1 status
  shift
  timeout -k 10 "$limit" "$@" >"$work/kernels" 2>&1
  status=$?
  ((status == 77)) && return 77
  tee -a "$log" <"$work/kernels"
  return "$status"
}

kernels_sanitized() { # PROGRAM TOOL
  local name="device $1: compute-sanitizer $2" status
  timeout -k 10 300 "$sanitizer" --tool "$2" --error-exitcode 9 "$build/test/gpu/$1" --few >"$work/kernels" 2>&1
  status=$?
  ((status == 0)) && { case_line ok "$name"; return; }
  tail -n 30 "$work/kernels" | sed 's/^/# /'
  case_line "not ok" "$name (status $status)"
}

kernels_test() { # PROGRAM
  local name="device $1" nvcc status
  nvcc=$(sed -n 's/^NVCC := //p' "$build/config.mk")
  if [[ -z $nvcc || ! -f $build/device/test/gpu/$1.o ]]; then
    case_line ok "$name # SKIP no nvcc here, so they were not built"
    return
  fi
  kernels_link "$nvcc" "$1" || { case_line "not ok" "$name: the program links"; return; }
  [[ -n $build_only ]] && { case_line ok "$name: the program links"; return; }
  kernels_run 300 "$build/test/gpu/$1"
  status=$?
  ((status == 77)) && { case_line ok "$name # SKIP the GPU cannot be used: $(tail -n 1 "$work/kernels")"; return; }
  ((status == 0)) || grep -q "^not ok .*$name" "$log" ||
    { case_line "not ok" "$name: the program ended with status $status"; return; }
  sanitizer=$(command -v compute-sanitizer || first_of "$(dirname "$nvcc")/compute-sanitizer")
  if [[ -z $sanitizer ]]; then
    case_line ok "$name: memcheck, racecheck # SKIP no compute-sanitizer here"
    return
  fi
  kernels_sanitized "$1" memcheck
  kernels_sanitized "$1" racecheck
}
