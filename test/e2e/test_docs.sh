#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that the generated documents are fresh.
# TEST-SAN: none
set -u
cd "$(dirname "$0")/../.." || exit 1
failed=0

if out=$(bash config/docs.sh "${RAIL_BUILD:-build}" check 2>&1); then
  echo "ok 1 - generated documents are fresh"
else
  echo "$out" | sed 's/^/# /'
  echo "not ok 1 - generated documents are fresh"
  failed=1
fi

echo 1..1
exit $failed
