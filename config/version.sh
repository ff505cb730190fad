#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/version.sh HEADER: writes the version of the file VERSION as macros, if HEADER does not have it already.
set -euo pipefail

header=$1
IFS=. read -r major minor patch rest <VERSION
for number in "$major" "$minor" "$patch"; do
  [[ -z $rest && $number =~ ^(0|[1-9][0-9]*)$ ]] ||
    { echo "VERSION has '$(<VERSION)'; it takes three numbers: MAJOR.MINOR.PATCH" >&2; exit 1; }
done
text="/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's own version, for the preprocessor. Generated from the file VERSION: change that. The version of NCCL's API
 * that librailyard follows is NCCL_VERSION_CODE of rail/railyard.h.
 */
#ifndef RAIL_VERSION_H
#define RAIL_VERSION_H

#define RAIL_VERSION_MAJOR $major
#define RAIL_VERSION_MINOR $minor
#define RAIL_VERSION_PATCH $patch
#define RAIL_VERSION \"$major.$minor.$patch\"

#endif"
if [[ -e $header && $(<"$header") == "$text" ]]; then
  touch "$header" 2>/dev/null || true # newer than VERSION from now on; harmless where nothing may be written
else
  printf '%s\n' "$text" >"$header"
fi
