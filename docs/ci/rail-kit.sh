#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests a network plugin for NCCL: copy this file into your repository and call it from your CI.
#
#   ./rail-kit.sh PLUGIN.so [REPORTS]
#
# REPORTS (rail-kit-reports) is a folder for what each step reports, as JSON and as JUnit XML. It needs no NCCL, no GPU
# and no network card; for InfiniBand and RoCE give it a machine that has RDMA devices (Soft-RoCE will do). All steps
# run, also after one that failed. Exit status: 0 all passed, 1 one failed, 2 bad arguments.
#
# From the environment:
#   RAILYARD    where Railyard is installed (PREFIX of its make install); unset: rail-kit and rail-coll are in PATH
#   KNOWN       file of checks to leave out, lines of "PATTERN REASON": they are reported as skipped
#   VERSIONS    newest (the default): the newest vtable that the plugin exports; all: every one
#   LEVELS      of checks: must,should (the default), or must
#   BASELINE    bench.json of an earlier run on the same machine: a figure below FAIL_BELOW (0.7) of it is a failure
# The plugin sees all of the environment: NCCL_SOCKET_IFNAME, NCCL_IB_HCA and its own variables work as usual.
set -u
(($# == 1 || $# == 2)) || { echo "usage: $0 PLUGIN.so [REPORTS]" >&2; exit 2; }
[[ -f $1 ]] || { echo "$0: there is no file $1" >&2; exit 2; }
plugin=$(realpath "$1") reports=${2:-rail-kit-reports}
mkdir -p "$reports" || exit 2
[[ -n ${RAILYARD:-} ]] && PATH=$RAILYARD/bin:$PATH
for tool in rail-kit rail-coll; do
  command -v "$tool" >/dev/null || { echo "$0: no $tool; set RAILYARD to the folder that has bin/$tool" >&2; exit 2; }
done

failed=()
step() { # NAME COMMAND...
  local name=$1
  shift
  echo "== $name: $*"
  "$@" || failed+=("$name")
}

checks=(--level "${LEVELS:-must,should}")
[[ -n ${KNOWN:-} ]] && checks+=(--skip-file "$KNOWN")
versions=()
[[ ${VERSIONS:-newest} == all ]] && versions=(--all-versions)

# Which NCCL releases take it, under which names, and what they would crash on.
step inspect rail-kit inspect "$plugin" --json "$reports/inspect.json"
# The contract. "cost" measures the machine, which a CI shares with others.
step conform rail-kit conform "$plugin" "${checks[@]}" "${versions[@]}" --skip cost \
  --json "$reports/conform.json" --junit "$reports/conform.xml"
# Peers that die, stop and lie, while data flows. What happens to links needs root.
step fault rail-kit fault "$plugin" "${checks[@]}" --json "$reports/fault.json" --junit "$reports/fault.xml"
# Real collectives, every element checked; --plugin: an error if it is not this plugin that carries them.
step collectives rail-coll all_reduce -r 2 -b 8 -e 16M -f 4 -n 5 --net-only --plugin "$plugin" \
  --json "$reports/all_reduce.json"
step alltoall rail-coll alltoall -r 4 -b 1K -e 1M -f 8 -n 5 --net-only --plugin "$plugin"
# Figures, beside what plain TCP does here.
bench=(rail-kit bench "$plugin" --tcp --quick --json "$reports/bench.json")
[[ -n ${BASELINE:-} ]] && bench+=(--compare "$BASELINE" --fail-below "${FAIL_BELOW:-0.7}")
step bench "${bench[@]}"

if ((${#failed[@]})); then
  echo "rail-kit: failed: ${failed[*]}; reports in $reports"
  exit 1
fi
echo "rail-kit: all steps passed; reports in $reports"
