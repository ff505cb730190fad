#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
# TEST-SAN: none
# demo/run.sh in its short form: ends well, says what it should, and fails when a part fails.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${RAIL_BUILD:-$root/build}
cd "$root" || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
number=0 bad=0

check() { # name, command...
  local name=$1
  shift
  number=$((number + 1))
  if "$@"; then
    echo "ok $number - $name"
  else
    bad=1
    sed 's/^/# /' "$scratch/out"
    echo "not ok $number - $name"
  fi
}

DEMO_QUICK=1 timeout 200 bash demo/run.sh "$build" >"$scratch/out" 2>&1
status=$?
check "the demo ends well" test $status -eq 0
check "four processes" test "$(grep -c '^#  Rank .* Pid ' "$scratch/out")" -eq 4
check "all of them over the socket plugin" test "$(grep -c '^#  Rank .*NET/RailSocket' "$scratch/out")" -eq 4
check "no wrong element" grep -q '^# Out of bounds values : 0 OK' "$scratch/out"
check "training agrees at every step" grep -q '^losses compared: 300 steps, 0 differ' "$scratch/out"
check "training went over the plugin" \
  grep -q '^gradients went over NET/RailSocket, plugin .*libnccl-net-socket.so' "$scratch/out"
check "the result is told" grep -q '^All results were right' "$scratch/out"

# One element wrong on one rank: the demo must not end well.
CORRUPT_KIND=result CORRUPT_RANK=1 CORRUPT_COUNT=1024 LD_PRELOAD=$build/test/libcorrupt.so DEMO_QUICK=1 \
  timeout 200 bash demo/run.sh "$build" >"$scratch/out" 2>&1
status=$?
check "a wrong sum fails the demo" test $status -eq 1
check "and is told" grep -q '^FAILED: all-reduce' "$scratch/out"

bash demo/run.sh "$scratch/empty" >"$scratch/out" 2>&1
status=$?
check "without products it says so" test $status -eq 1 -a -n "$(grep 'is not built' "$scratch/out")"

echo "1..$number"
exit $bad
