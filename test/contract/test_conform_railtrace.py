#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over the recording wrapper, in front of the reference plugin: what it breaks is its own.

TEST-LIMIT: 240
TEST-SAN: asan tsan
TEST-CHECK: --newest
TEST-READS: build/bin/rail-kit build/lib/libnccl-net-railtrace.so build/test/broken/libnccl-net-ref.so
TEST-READS: test/contract/conformance.py test/e2e/coll.py
"""
import sys

sys.dont_write_bytecode = True
from conformance import BRIEF, BUILD, MEASURES, ONCE, VERSIONS, cases, report  # noqa: E402

RAILTRACE = BUILD / "lib/libnccl-net-railtrace.so"
SETTINGS = {"RAIL_TRACE_PLUGIN": str(BUILD / "test/broken/libnccl-net-ref.so"), "RAIL_TRACE_FILE": "/dev/null"}

if __name__ == "__main__":
    sys.exit(report(cases(RAILTRACE, [(VERSIONS[0], ["--skip", ONCE if BRIEF else MEASURES])], SETTINGS)))
