#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs libFuzzer targets one after the other: BUILD=dir run.sh SECONDS TARGET...
# Fails when one of them found something; the input is then in BUILD/found/TARGET.
set -u
seconds=$1
shift
# 8 s for one input: everything has an end long before. The socket targets open and close by the thousands.
common=(-max_total_time="$seconds" -timeout=8 -rss_limit_mb=2048 -max_len=16384 -print_funcs=0)
# Freed memory is kept aside up to 16 MiB instead of 256: most of a short run's time went into fresh pages.
export ASAN_OPTIONS=quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
status=0
for target in "$@"; do
  learned=$BUILD/corpus/$target found=$BUILD/found/$target
  mkdir -p "$learned" "$found"
  echo "fuzz: $target, $seconds s"
  if ! "$BUILD/test/fuzz/$target" "${common[@]}" -artifact_prefix="$found/" "$learned" "test/fuzz/corpus/$target" \
    >"$BUILD/$target.log" 2>&1; then
    status=1
    tail -n 60 "$BUILD/$target.log"
    echo "fuzz: $target FOUND something: $found; again: $BUILD/test/fuzz/$target FILE"
  else
    tail -n 1 "$BUILD/$target.log"
  fi
done
exit $status
