#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that the generated documents are fresh, and that a link in a document leads somewhere.
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

broken=
while IFS=: read -r file link; do
  target=${link#*](}
  target=${target%%[)#]*}
  case $target in http*|'') continue ;; esac
  [[ -e $(dirname "$file")/$target ]] || broken+=" $file:$target"
done < <(grep -oHE '\]\([^)]+\)' README.md CONTRIBUTING.md CHANGELOG.md docs/*.md demo/data/*.md bench/*.md test/*.md)
if [[ -z $broken ]]; then
  echo "ok 2 - links lead somewhere"
else
  echo "# broken:$broken"
  echo "not ok 2 - links lead somewhere"
  failed=1
fi
echo 1..2
exit $failed
