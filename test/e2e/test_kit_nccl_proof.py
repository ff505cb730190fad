#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 600
# TEST-SAN: none
# TEST-READS: build/bin/rail-kit build/lib/ghost/libcuda.so.1 build/lib/libnccl-net-socket.so build/test/libdefectnet.so
# TEST-READS: test/broken/nccl_proof.py test/broken/proof.py test/preload/defectnet.c docs/results/kit-nccl-proof.md
"""rail-kit nccl finds each planted defect of test/preload/defectnet.c by the line that names it, and finds none in that
plugin without a defect: with RAIL_TEST_NCCL=libnccl.so.2. Without one, that plugin and the table of its defects."""
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "broken"))
import nccl_proof  # noqa: E402
from coll import report  # noqa: E402

NCCL = os.environ.get("RAIL_TEST_NCCL")


def conforms():
    """What rail-kit conform finds wrong with the plugin when it is honest; "" if nothing."""
    plugin = str(nccl_proof.BUILD / "test/libdefectnet.so")
    env = dict(os.environ, DEFECTNET_INNER=str(nccl_proof.BUILD / "lib/libnccl-net-socket.so"))
    done = subprocess.run([str(nccl_proof.BUILD / "bin/rail-kit"), "conform", plugin, "--level", "must",
                           "--only", "requests,order,grouped,sizes", "--skip", "*gigabyte*"],
                          text=True, capture_output=True, env=env)
    return "" if done.returncode == 0 else done.stdout[-3000:] + done.stderr[-1000:]


def cases():
    untried = nccl_proof.planted() ^ set(nccl_proof.DEFECTS)
    yield "every planted defect is tried", untried and f"not in both lists: {', '.join(sorted(untried))}"
    text = (nccl_proof.ROOT / "docs/results/kit-nccl-proof.md").read_text()
    absent = [name for name in nccl_proof.DEFECTS if f"| `{name}` |" not in text]
    yield "the document has every defect", absent and f"run make kit-nccl-proof: {', '.join(absent)}"
    yield "without a defect the plugin conforms", conforms()
    if not NCCL:
        yield ("every defect is found # SKIP RAIL_TEST_NCCL names no libnccl.so.2 with a dynamic CUDA runtime "
               "(docs/nccl.md)"), ""
        return
    for name, options, result in nccl_proof.try_all(NCCL):
        plugin = "the plugin without a defect" if name == nccl_proof.HONEST else name
        what = "passes" if nccl_proof.passes(name, options) else "is found"
        yield f"{plugin} {what} by {' '.join(options)}", nccl_proof.missed(name, options, result)


if __name__ == "__main__":
    sys.exit(report(cases()))
