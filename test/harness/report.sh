# SPDX-License-Identifier: Apache-2.0
# Cases of a test in shell; to be sourced. The test ends with: echo "1..$n"; exit "$failed"
n=0 failed=0
report() { # verdict, name
  n=$((n + 1))
  [ "$1" = 0 ] && echo "ok $n - $2" && return
  echo "not ok $n - $2"
  failed=1
}
