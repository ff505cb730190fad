#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration: demo/run.sh BUILD (make demo builds first and calls this).
# DEMO_QUICK=1 makes it short, for the tests. Ends with 0 only if every result was right.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build}
plugin=$(realpath -m "$build/lib/libnccl-net-socket.so")
if [[ ${DEMO_QUICK:-} ]]; then
  sizes=(-b 8 -e 1M -f 8 -n 2 -w 1) steps=(--steps 300)
else
  sizes=(-b 8 -e 64M -f 2 -n 5 -w 1) steps=()
fi
for product in "$plugin" "$build/bin/rail-coll" "$build/bin/rail-train"; do
  [[ -e $product ]] || { echo "demo: $product is not built; run make demo" >&2; exit 1; }
done

# Every byte between two ranks goes through the plugin: no shared memory, and this file and no other.
export NCCL_NET_PLUGIN=$plugin NCCL_SHM_DISABLE=1
# The ranks are on this machine and talk over its loopback interface, whatever else it has.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
unset NCCL_NET NCCL_COMM_ID RAIL_STORE

heading() { printf '\n== %s ==\n\n' "$1"; }

# Runs a part; its failure is told at the end too, and does not hide the other part.
failed=()
part() {
  local name=$1
  shift
  "$@" || failed+=("$name (exit status $?)")
}

heading "1. All-reduce: 4 ranks, 4 processes"
cat <<EOF
Each process is one rank. It opens the network plugin with dlopen, as NCCL does, connects to its neighbours over TCP
and adds up float arrays with all others. Every element of every result is compared with a sum that each
rank computes for itself; "#wrong" counts those that differ.
Plugin: $plugin

EOF
part "all-reduce" "$build/bin/rail-coll" all_reduce -r 4 "${sizes[@]}"

heading "2. A real use: training on 4 ranks"
cat <<EOF
A small neural network learns to read hand-written digits (a real data set, see demo/data/README.md): first in one
process, then as 4 processes which each take a quarter of every batch and average their gradients with ncclAllReduce
over the same plugin. If communication is right, both runs have the same loss at every step, but for rounding.

EOF
part "training" "$build/bin/rail-train" --data demo/data/digits.csv --ranks 4 "${steps[@]}"

heading "Result"
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
else
  echo "All results were right: every sum, and the loss of all training steps. $SECONDS s."
fi
exit $((${#failed[@]} > 0))
