#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over the socket plugin, through every version of the vtable; under a sanitizer the newest only.
An older version's vtable is common/abi_vN.c: arguments and results in another shape, and nothing that keeps time or
threads. Checks of what happens between calls, or that mostly wait, are run through the newest only: NEWEST_ONLY.

TEST-LIMIT: 420
TEST-SAN: asan tsan
TEST-CHECK: --newest
TEST-READS: build/bin/rail-kit build/lib/libnccl-net-socket.so test/contract/conformance.py test/e2e/coll.py
"""
import sys

sys.dont_write_bytecode = True
from conformance import BRIEF, BUILD, MEASURES, NEWEST_ONLY, ONCE, SANITIZED, VERSIONS, cases, report  # noqa: E402

SOCKET = BUILD / "lib/libnccl-net-socket.so"
NEWEST = ["--skip", ONCE] if BRIEF else ["--skip", MEASURES] if SANITIZED else []

if __name__ == "__main__":
    sys.exit(report(cases(SOCKET, [(v, ["--skip", NEWEST_ONLY] if i else NEWEST) for i, v in enumerate(VERSIONS)])))
