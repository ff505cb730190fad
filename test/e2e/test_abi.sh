#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves: a program compiled against NVIDIA's own nccl.h sees the same names, values and sizes as one compiled against
# ours, and runs with librailyard.so in libnccl's place. Needs that header, of 2.30 or 2.28, which comes with CUDA, or
# with the library that RAIL_TEST_NCCL names (BUILD/lib/libnccl.so.2, BUILD/include/nccl.h); skips without it. With 2.28
# what came later is left out.
set -u
build=${RAIL_BUILD:-build}
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/test/harness/report.sh"

nvcc=$(command -v nvcc || true)
include= cuda=
for dir in ${nvcc:+"$(dirname "$(readlink -f "$nvcc")")/../include"} /usr/local/cuda/include /usr/include; do
  [ -f "$dir/cuda_runtime.h" ] || continue
  [ -n "$cuda" ] || cuda=$dir
  [ -f "$dir/nccl.h" ] && include=$dir && break
done
own=${RAIL_TEST_NCCL:+"$(dirname "$RAIL_TEST_NCCL")/../include"}
[ -n "$own" ] && [ -f "$own/nccl.h" ] && [ -n "$cuda" ] && include=$own
if [ -z "$include" ]; then
  echo "1..0 # SKIP no nccl.h with a cuda_runtime.h beside it (they come with CUDA)"
  exit 0
fi
version=$(awk '/define NCCL_(MAJOR|MINOR) /{printf "%s.", $3}' "$include/nccl.h")
case $version in
  2.30.) old= ;;
  2.28.) old=-DOLD ;;
  *)
    echo "1..0 # SKIP $include/nccl.h is of NCCL ${version%.}; the ABI followed is 2.30, and 2.28 is a part of it"
    exit 0
    ;;
esac
echo "# $include/nccl.h, of NCCL ${version%.}"

cat > "$work/values.c" <<'C'
#include <stddef.h>
#include <stdio.h>
#ifdef THEIRS
#include <nccl.h>
#else
#include "rail/railyard.h"
#endif
#define V(x) printf("%s %lld\n", #x, (long long)(x))
#define AT(t, f) printf(#t ": %s at %zu, %zu bytes\n", #f, offsetof(t, f), sizeof(((t *)0)->f))
#define FIELD(f) AT(ncclConfig_t, f)
int main(void) {
#ifndef OLD
  V(NCCL_MINOR); V(NCCL_VERSION_CODE); V(sizeof(ncclConfig_t)); V(ncclTimeout); V(ncclNumResults);
  FIELD(graphUsageMode); FIELD(numRmaCtx); FIELD(maxP2pPeers); FIELD(graphStreamOrdering);
  V(NCCL_API_MAGIC); V(NCCL_WIN_STRICT_ORDERING); V(NCCL_SUSPEND_MEM);
  V(ncclStatGpuMemSuspend); V(ncclStatGpuMemSuspended); V(ncclStatGpuMemPersist); V(ncclStatGpuMemTotal);
  V(sizeof(ncclWaitSignalDesc_t)); AT(ncclWaitSignalDesc_t, opCnt); AT(ncclWaitSignalDesc_t, peer);
  AT(ncclWaitSignalDesc_t, sigIdx); AT(ncclWaitSignalDesc_t, ctx); V(sizeof(ncclParamHandle_t));
  ncclConfig_t newest = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  V(info.version); V(newest.size); V(newest.version); V(newest.graphUsageMode); V(newest.graphStreamOrdering);
#endif
  V(NCCL_MAJOR); V(NCCL_VERSION(2, 8, 3)); V(NCCL_VERSION(2, 28, 9));
  V(NCCL_UNIQUE_ID_BYTES); V(sizeof(ncclUniqueId)); V(sizeof(ncclComm_t));
  V(sizeof(ncclRedOp_t));
  V(ncclSuccess); V(ncclUnhandledCudaError); V(ncclSystemError); V(ncclInternalError); V(ncclInvalidArgument);
  V(ncclInvalidUsage); V(ncclRemoteError); V(ncclInProgress);
  V(NCCL_CONFIG_UNDEF_INT); V((size_t)NCCL_CONFIG_UNDEF_PTR); V(NCCL_SPLIT_NOCOLOR); V(NCCL_UNDEF_FLOAT);
  V(ncclSum); V(ncclProd); V(ncclMax); V(ncclMin); V(ncclAvg); V(ncclNumOps); V(ncclMaxRedOp);
  V(ncclInt8); V(ncclChar); V(ncclUint8); V(ncclInt32); V(ncclInt); V(ncclUint32); V(ncclInt64); V(ncclUint64);
  V(ncclFloat16); V(ncclHalf); V(ncclFloat32); V(ncclFloat); V(ncclFloat64); V(ncclDouble); V(ncclBfloat16);
  V(ncclFloat8e4m3); V(ncclFloat8e5m2); V(ncclNumTypes);
  V(ncclScalarDevice); V(ncclScalarHostImmediate);
  FIELD(size); FIELD(magic); FIELD(version); FIELD(blocking); FIELD(cgaClusterSize); FIELD(minCTAs); FIELD(maxCTAs);
  FIELD(netName); FIELD(splitShare); FIELD(trafficClass); FIELD(commName); FIELD(collnetEnable); FIELD(CTAPolicy);
  FIELD(shrinkShare); FIELD(nvlsCTAs); FIELD(nChannelsPerNetPeer); FIELD(nvlinkCentricSched);
  V(NCCL_WIN_DEFAULT); V(NCCL_WIN_COLL_SYMMETRIC); V(NCCL_WIN_REQUIRED_ALIGNMENT);
  V(NCCL_CTA_POLICY_DEFAULT); V(NCCL_CTA_POLICY_EFFICIENCY); V(NCCL_CTA_POLICY_ZERO);
  V(NCCL_SHRINK_DEFAULT); V(NCCL_SHRINK_ABORT); V(NCCL_REVOKE_DEFAULT);
  V(sizeof(ncclSimInfo_t)); V(sizeof(ncclWindow_t));
  AT(ncclSimInfo_t, size); AT(ncclSimInfo_t, magic); AT(ncclSimInfo_t, version); AT(ncclSimInfo_t, estimatedTime);
  ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
  V(sim.size); V(sim.magic); V(sim.estimatedTime);
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  V(c.magic); V(c.blocking); V(c.splitShare); V(c.nvlinkCentricSched); V((size_t)c.netName);
  return 0;
}
C
cat > "$work/program.c" <<'C'
#include <nccl.h>
#include <stdio.h>
#include <string.h>
ncclResult_t railCommWait(ncclComm_t comm); /* cudaStreamSynchronize's part */
int main(void) {
  ncclComm_t comm[2];
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int devices[2] = {0, 1}, version = 0, count = 0;
  float a[2][100], b[2][100];
  if (ncclGetVersion(&version) || version < NCCL_VERSION_CODE) return 1;
  if (ncclCommInitAll(comm, 2, devices)) return 2;
  for (int c = 0; c < 2; c++)
    for (int i = 0; i < 100; i++) a[c][i] = (float)(i + c);
  if (ncclGroupStart()) return 3;
  for (int c = 0; c < 2; c++)
    if (ncclAllReduce(a[c], b[c], 100, ncclFloat, ncclAvg, comm[c], NULL)) return 4;
  if (ncclGroupEnd()) return 5;
  for (int c = 0; c < 2; c++) {
    if (railCommWait(comm[c]) || ncclCommCount(comm[c], &count) || count != 2) return 6;
    for (int i = 0; i < 100; i++)
      if (b[c][i] != (float)i + 0.5f) return 7;
    if (ncclCommDestroy(comm[c])) return 8;
  }
  if (ncclGetUniqueId(&id) || ncclCommInitRankConfig(&comm[0], 1, id, 0, &config)) return 9;
  ncclResult_t state = ncclInProgress;
  if (ncclCommGetAsyncError(comm[0], &state) || state != ncclSuccess) return 10;
  if (strcmp(ncclGetErrorString(ncclSuccess), "no error") != 0) return 11;
  return ncclCommDestroy(comm[0]) ? 12 : 0;
}
C

cc=${CC:-cc}
$cc -std=gnu11 -DTHEIRS $old -I"$include" -I"$cuda" "$work/values.c" -o "$work/theirs" &&
  "$work/theirs" > "$work/theirs.txt" &&
  $cc -std=gnu11 $old -I"$here/include" "$work/values.c" -o "$work/ours" && "$work/ours" > "$work/ours.txt" &&
  diff "$work/theirs.txt" "$work/ours.txt" | sed 's/^/# /' && cmp -s "$work/theirs.txt" "$work/ours.txt" &&
  [ "$(wc -l < "$work/ours.txt")" -gt 60 ]
report $? values_and_layouts_are_equal

$cc -std=gnu11 -I"$include" -I"$cuda" "$work/program.c" -L"$build/lib" -lrailyard \
  -Wl,-rpath,"$(cd "$build/lib" && pwd)" -o "$work/program"
report $? a_program_for_nccl_links
NCCL_SOCKET_IFNAME=lo timeout 60 "$work/program"
rc=$?
[ $rc = 0 ] || echo "# it ended with $rc"
report $rc a_program_for_nccl_runs

# Names that their headers define, and those of ours that begin like them: the same ones.
defined() { sed -nE 's/^# *define +(NCCL_[A-Z_]+).*/\1/p' "$1" | grep -vx NCCL_H_ | sort -u; }
defined "$include/nccl.h" > "$work/theirs.txt"
defined "$here/include/rail/railyard.h" |
  grep -vxE 'NCCL_SIM_INFO_MAGIC|NCCL_COMM_PROPERTIES_INITIALIZER' > "$work/ours.txt"
if [ -n "$old" ]; then
  comm -12 "$work/theirs.txt" "$work/ours.txt" > "$work/both.txt"
  mv "$work/both.txt" "$work/ours.txt"
fi
diff "$work/theirs.txt" "$work/ours.txt" > "$work/log"
rc=$?
sed 's/^/# /' "$work/log"
report $rc macros_are_the_same

# Every function of our header has in theirs the same prototype: declared side by side they must be compatible.
# ncclResetDebugInitInternal alone is in the library and in no header.
returns='ncclResult_t|ncclTeam_t|int|void|const char \*'
sed -nE "s#^($returns) ?(nccl[A-Za-z0-9]+)\(.*#\2#p" "$here/include/rail/railyard.h" |
  grep -vx ncclResetDebugInitInternal | sort -u > "$work/names"
missing=$(while read -r f; do
  grep -qhE "[^a-zA-Z]$f *\(" "$include/nccl.h" "$include"/nccl_device/*.h || echo "$f"
done < "$work/names")
[ -n "$old" ] && missing= # those that came later
[ -z "$missing" ] || echo "# not in their headers:" $missing
[ -z "$missing" ] && [ "$(wc -l < "$work/names")" -gt 50 ]
report $? no_function_of_our_own_under_their_names

# C++, because their device header is: extern "C" still tells functions of one name apart by their types.
prototypes() { # of calls that their headers have
  local names
  names=$(cat "$include/nccl.h" "$include"/nccl_device/*.h | grep -oE 'nccl[A-Z][A-Za-z0-9]*' | sort -u | tr '\n' ' ')
  awk -v names="$names" '
    BEGIN { n = split(names, a, " "); for (i = 1; i <= n; i++) known[a[i]] = 1 }
    /^(ncclResult_t|ncclTeam_t|int|void|const char \*) *p?nccl[A-Z][A-Za-z0-9]*\(/ {
      name = $0; sub(/\(.*/, "", name); sub(/.*[ *]p?/, "", name); on = name in known }
    on { print }
    /;$/ { on = 0 }'
}
compare() { # COMPILER...
  { printf '#define NCCL_OS_LINUX\n#include <nccl.h>\n#include <nccl_device.h>\nextern "C" {\n'
    prototypes < "$here/include/rail/railyard.h"
    echo '}'; } > "$work/both.cc"
  [ "$(grep -c '(' "$work/both.cc")" -gt 100 ] &&
    "$@" -Wno-deprecated-declarations -fsyntax-only -Werror -I"$include" -I"$cuda" "$work/both.cc"
}
cat > "$work/properties.cc" <<'C'
#include <stddef.h>
#include <stdio.h>
#ifdef THEIRS
#include <nccl.h>
#include <nccl_device.h>
#else
#include "rail/railyard.h"
#endif
#define T ncclCommProperties_t
#define AT(f) printf("%s at %zu, %zu bytes\n", #f, offsetof(T, f), sizeof(((T *)0)->f))
int main() {
  AT(size); AT(magic); AT(version); AT(rank); AT(nRanks); AT(cudaDev); AT(nvmlDev); AT(deviceApiSupport);
  AT(multimemSupport); AT(ginType); AT(nLsaTeams); AT(hostRmaSupport); AT(railedGinType);
  printf("%zu %d %d %d %d %zu\n", sizeof(ncclCommProperties_t), NCCL_GIN_TYPE_NONE, NCCL_GIN_TYPE_PROXY,
         NCCL_GIN_TYPE_GDAKI, NCCL_GIN_TYPE_GPI, sizeof(ncclMultimemHandle_t));
  return 0;
}
C
if [ -n "$old" ] || ! command -v g++ > /dev/null; then
  echo "ok $((n += 1)) - properties_have_one_layout # SKIP no header of 2.30, or no g++"
else
  g++ -std=gnu++17 -DTHEIRS -I"$include" -I"$cuda" "$work/properties.cc" -o "$work/theirs" &&
    "$work/theirs" > "$work/theirs.txt" &&
    g++ -std=gnu++17 -I"$here/include" "$work/properties.cc" -o "$work/ours" && "$work/ours" > "$work/ours.txt" &&
    diff "$work/theirs.txt" "$work/ours.txt" | sed 's/^/# /' && cmp -s "$work/theirs.txt" "$work/ours.txt"
  report $? properties_have_one_layout
fi

if command -v g++ > /dev/null; then
  compare g++ -std=gnu++17
  report $? prototypes_are_compatible
  sed -i 's/int nBarriers, ncclLsa/long nBarriers, ncclLsa/' "$work/both.cc"
  ! g++ -std=gnu++17 -Wno-deprecated-declarations -fsyntax-only -I"$include" -I"$cuda" "$work/both.cc" 2> "$work/log"
  report $? another_prototype_would_be_noticed
else
  echo "ok $((n += 1)) - prototypes_are_compatible # SKIP no g++"
fi

echo "1..$n"
exit $failed
