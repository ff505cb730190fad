#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves that everything that states Railyard's version states what the file VERSION has.
# TEST-SAN: none
# TEST-LIMIT: 60
set -u
cd "$(dirname "$0")/../.." || exit 1
. test/harness/report.sh
version=$(<VERSION)

says() { # NAME TEXT: TEXT is the version
  [[ $2 == "$version" ]]
  local verdict=$?
  ((verdict == 0)) || echo "# VERSION has $version, it has '$2'"
  report $verdict "$1"
}

for tool in rail-coll rail-kit rail-stat; do
  says "$tool --version" "$("$RAIL_BUILD/bin/$tool" --version | sed -E 's/^[a-z-]+ ([0-9.]+).*/\1/')"
done
says "include/rail/version.h" "$(sed -n 's/^#define RAIL_VERSION "\(.*\)"/\1/p' include/rail/version.h)"
says "its numbers" "$(sed -n 's/^#define RAIL_VERSION_[A-Z]* //p' include/rail/version.h | paste -sd.)"
says "CHANGELOG.md's newest entry" "$(sed -nE '0,/^## /s/^## ([0-9.]+).*/\1/p' CHANGELOG.md)"
says "debian/changelog's newest entry" "$(sed -nE '1s/^railyard \(([^)]*)\).*/\1/p' debian/changelog)"
says "packaging/railyard.spec" "$(sed -nE 's/^Version: +//p' packaging/railyard.spec)"
says "its newest entry" "$(sed -nE '0,/^\* /s/^\* .*> - ([0-9.]+)-[0-9]+$/\1/p' packaging/railyard.spec)"
for page in docs/man/*.1; do
  says "$page" "$(sed -nE '1s/.*"Railyard ([^"]*)".*/\1/p' "$page")"
done
echo "1..$n"
exit "$failed"
