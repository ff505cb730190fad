#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the shared objects show to the process that loads them: a plugin its seven vtables and the function that prints
# its parameters, the runtime NCCL's names and our documented additions. Anything more could collide with a symbol of
# the host program, and anything less of NCCL's keep a program from starting.
set -u
export LC_ALL=C
number=0 failed=0

verdict() { # NAME EXPECTED GOT
  number=$((number + 1))
  if [[ $2 == "$3" ]]; then
    echo "ok $number - $1"
  else
    diff <(echo "$2") <(echo "$3") | sed 's/^/# /'
    echo "not ok $number - $1"
    failed=1
  fi
}
exports() { nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort; }

vtables=$(printf 'ncclNetPlugin_v%s\n' 6 7 8 9 10 11 12 | sort; echo railPluginParams)
plugins=("$RAIL_BUILD"/lib/libnccl-net-*.so)
for lib in "${plugins[@]}"; do
  verdict "${lib##*/} exports its vtables and parameters only" "$vtables" "$(exports "$lib")"
  verdict "${lib##*/}: the vtables are data" 7 "$(nm -D --defined-only "$lib" | grep -c ' [BDRV] ncclNetPlugin_v')"
done

runtime=$RAIL_BUILD/lib/librailyard.so
allowed='^(p?nccl|rail)[A-Z]'
verdict "librailyard.so exports nccl* and rail* only" "" "$(exports "$runtime" | grep -Ev "$allowed")"
declared=$(grep -ohE '\b(p?nccl|rail)[A-Z][A-Za-z0-9]* *\(' include/rail/railyard.h | tr -d ' (' | sort -u)
verdict "each function of railyard.h is exported" "" "$(comm -23 <(echo "$declared") <(exports "$runtime"))"
verdict "each exported function is in railyard.h" "" "$(comm -13 <(echo "$declared") <(exports "$runtime"))"
theirs=$(grep -v '^#' test/e2e/nccl-2.30.7-exports.txt)
verdict "librailyard.so has each name of NCCL 2.30.7's libnccl.so.2, and no other of that kind" "$theirs" \
  "$(exports "$runtime" | grep -E '^p?nccl')"
for program in vllm torchcomms; do
  wanted=$(sed -n "s/^$program //p" test/e2e/nccl-callers.txt | tr ' ' '\n' | sort -u)
  verdict "$program names at least 20 calls" yes "$([[ $(wc -l <<< "$wanted") -ge 20 ]] && echo yes)"
  verdict "librailyard.so has each name that $program looks up" "" "$(comm -23 <(echo "$wanted") <(exports "$runtime"))"
done
versions() { readelf -V "$1" | grep -i 'version definition'; }
verdict "no symbol has a version: libnccl.so.2 has none either" "" "$(versions "$runtime")"
file=librailyard.so.$(<VERSION)
verdict "its soname has a version" "${file%.*.*}" "$(readelf -d "$runtime" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')"
verdict "the names that loader and linker look for lead to the file" "$file $file" \
  "$(for f in "$runtime" "${runtime%/*}/${file%.*.*}"; do basename "$(readlink -f "$f")"; done | xargs)"
verdict "a folder has it under libnccl's names" "$file $file" \
  "$(for f in "$RAIL_BUILD"/lib/nccl/libnccl.so{,.2}; do basename "$(readlink -f "$f")"; done | xargs)"
real=${RAIL_TEST_NCCL-}
for dir in /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu; do
  [[ -z $real && -f $dir/libnccl.so.2 ]] && real=$dir/libnccl.so.2
done
release=$([[ -n $real ]] && grep -aom1 'NCCL version 2\.[0-9]*\.[0-9]*' "$real")
if [[ ! $release =~ 2\.(28\.9|30\.7)$ ]]; then
  echo "ok $((number += 1)) - the names of the real library # SKIP no libnccl.so.2 of NCCL 2.30.7 or 2.28.9 \
(RAIL_TEST_NCCL)"
else
  names=$(exports "$real" | grep -E '^p?nccl')
  verdict "librailyard.so has all that $release exports" "" "$(comm -23 <(echo "$names") <(echo "$theirs"))"
  [[ $release != *2.30.7 ]] || verdict "the list of names is the real library's" "$theirs" "$names"
  verdict "the real library has no versions" "" "$(versions "$real")"
fi
verdict "no library leaves a text relocation" "" "$(readelf -d "${plugins[@]}" "$runtime" | grep TEXTREL)"
echo "1..$number"
exit $failed
