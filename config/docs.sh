#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/docs.sh BUILD [check]
# Writes the documents that come from the programs: docs/parameters.md from the
# parameter tables, docs/man/NAME.1 from docs/man/NAME.1.in and `NAME --help`;
# a page of a subcommand is called PROGRAM-SUBCOMMAND, and without a source of
# its own it has what `PROGRAM help` says.
# With "check": compares instead, and fails when one is stale.
set -euo pipefail

build=$1 mode=${2:-write}
version=$(<VERSION)
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
stale=0

settle() { # NAME: what lies in $fresh/NAME belongs at docs/NAME
  cmp -s "$fresh/$1" "docs/$1" && return
  if [[ $mode == check ]]; then
    echo "docs/$1 is stale: run make docs" >&2
    stale=1
  else
    mkdir -p "docs/$(dirname "$1")"
    cp "$fresh/$1" "docs/$1"
    echo "wrote docs/$1"
  fi
}

# A line of roff must not begin with a request, and a backslash is its escape.
roff_escape() { sed -e 's/\\/\\e/g' -e "s/^\([.']\)/\\\\\&\1/" -e 's/-/\\-/g'; }

help_of() { # PAGE
  local program=$1
  if [[ -x $build/bin/$program ]]; then "$build/bin/$program" --help; return; fi
  program=${1%-*}
  [[ -x $build/bin/$program ]] || { echo "docs/man/$1.1.in: there is no program for it" >&2; return 1; }
  "$build/bin/$program" help "${1##*-}"
}

man_page() { # PAGE
  while IFS= read -r line; do
    if [[ $line == @HELP@ ]]; then
      printf '.nf\n'
      help_of "$1" | roff_escape
      printf '.fi\n'
    else
      printf '%s\n' "${line//@VERSION@/$version}"
    fi
  done <"docs/man/$1.1.in"
}

subcommands() { # PROGRAM: NAME WHAT..., a line each
  "$build/bin/$1" --help | sed -n '/^subcommands:$/,/^$/s/^  \([a-z-]*\)  *\(.*\)$/\1 \2/p' | grep -v '^help '
}

plain_page() { # PROGRAM SUBCOMMAND WHAT
  local page=$1-$2
  cat <<ROFF
.TH ${page^^} 1 "" "Railyard $version" "Railyard"
.SH NAME
$page \- $3
.SH SYNOPSIS
.B $1 $2
.RI [ argument ...]
.SH DESCRIPTION
.nf
$("$build/bin/$1" help "$2" | roff_escape)
.fi
.SH SEE ALSO
.BR $1 (1);
docs/kit.md
ROFF
}

"$build/gen-params" >"$fresh/parameters.md"
settle parameters.md
mkdir -p "$fresh/man"
for source in docs/man/*.1.in; do
  [[ -e $source ]] || continue
  page=$(basename "$source" .1.in)
  man_page "$page" >"$fresh/man/$page.1"
  settle "man/$page.1"
  [[ -x $build/bin/$page ]] || continue
  while read -r name what; do
    [[ ! -e docs/man/$page-$name.1.in ]] || continue
    plain_page "$page" "$name" "$what" >"$fresh/man/$page-$name.1"
    settle "man/$page-$name.1"
  done < <(subcommands "$page" || true)
done
exit $stale
