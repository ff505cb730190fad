#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh: collectives on buffers of the GPU, the programs that run over a driver without one in `make test`.
# Uses its case_line, why_not_shared, $build, $log, $build_only.

plans_test() { # PROGRAM
  local program=$build/test/e2e/test_device_$1 name="device plans: $1" reason status
  [[ -x $program ]] || { case_line ok "$name # SKIP no C++17 compiler here, so it was not built"; return; }
  [[ -n $build_only ]] && { case_line ok "$name: the program links"; return; }
  nvidia-smi -L 2>/dev/null | grep -q GPU || { case_line ok "$name # SKIP no NVIDIA GPU here"; return; }
  reason=$(why_not_shared)
  [[ -n $reason ]] && { case_line ok "$name # SKIP $reason"; return; }
  RAIL_BUILD=$build TEST_REAL_GPU=1 timeout -k 10 600 "$program" 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
  ((status == 0)) || grep -q '^not ok ' "$log" || case_line "not ok" "$name: the program ended with status $status"
}
