#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many instructions a GPU's thread needs to move 16 bytes, counted in the machine code of the kernels.

No GPU is needed, but cuobjdump: CUDA's toolkit has it, and where that is cut down, Triton's package. The loops of
core/device/rd_bulk.cuh are found by what is in them: 8 loads of 16 bytes for each source, and the type's arithmetic."""
import argparse
import collections
import os
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
from program import Failed, execute
from report import markdown_table

PACKS = 8  # of a turn: RD_BULK

# What only the loops of a type have, and at least how many in a turn; the first that is found counts.
TYPES = [("f8e4m3", r"F2FP\S*\.E4M3", 1), ("f8e5m2", r"F2FP\S*\.E5M2", 1), ("double", r"D(ADD|MUL|FMA)\b", 8),
         ("bfloat16", r"H(ADD|MUL|FMA)2\S*BF16", 8), ("half", r"H(ADD|MUL|FMA)2", 8), ("float", r"F(ADD|MUL)2?\b", 8),
         ("int8", r"LOP3", 64), ("int64", r"(IADD3|IMAD)\.(X|64)|IADD\.64", 16),
         ("int32", r"IADD3?|IMAD\.IADD|VIADD", 24), ("any", r"", 0)]
ARITHMETIC = r"(H(ADD|MUL|FMA)2|D(ADD|MUL|FMA)|F(ADD|MUL)2?)\b"

Loop = collections.namedtuple("Loop", "type what length loads stores")


def tool(given):
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    triton = [p / "triton/backends/nvidia/bin" for p in map(pathlib.Path, sys.path) if p.is_dir()]
    found = given or shutil.which("cuobjdump", path=os.pathsep.join(
        [os.environ.get("PATH", ""), str(toolkit), *map(str, triton)]))
    if not found:
        raise Failed("no cuobjdump: it comes with CUDA's toolkit or with Triton; name it with --cuobjdump")
    return found


def functions(listing):
    """{name: {address: instruction}}"""
    found, here = {}, {}
    for line in listing.splitlines():
        if m := re.search(r"Function : (\S+)", line):
            here = found.setdefault(m.group(1), {})
        elif m := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?(.*?)\s*;", line):
            here[int(m.group(1), 16)] = m.group(2)
    return found


def count(pattern, body):
    return sum(1 for i in body if re.match(pattern, i))


def loop_of(body):
    """What the loop is one of ours for; None if it is not."""
    loads, stores = count(r"LDG\S*\.128", body), count(r"STG\S*\.128", body)
    if loads not in (PACKS, 2 * PACKS) or stores != 2 * PACKS:
        return None
    kind = next(name for name, pattern, least in TYPES if not pattern or count(pattern, body) >= least)
    words = {"double": 2, "f8e4m3": 8, "f8e5m2": 8}.get(kind, 4) * PACKS
    if loads == PACKS:
        what = "copy" if kind == "any" else "scaled copy"
    else:
        what = "scaled sum" if count(ARITHMETIC, body) >= 2 * words else "sum"
    return Loop(kind, what, len(body), loads, stores)


def loops(code):
    """Those of a function: from where a branch goes back to, to the branch."""
    found = []
    for at in sorted(code):
        m = re.match(r"BRA\S* (?:U?P\w+, )?(0x[0-9a-f]+)", code[at])
        if m and int(m.group(1), 16) < at:
            body = [i for a, i in code.items() if int(m.group(1), 16) <= a <= at]
            found.append(loop_of(body))
    return [loop for loop in found if loop]


def resources(text, arch):
    """{kernel: registers, stack} of the architecture."""
    part = re.search(rf"arch = {arch}\n.*?(?=\nFatbin|\Z)", text, re.S)
    return re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", part.group(0) if part else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--cuobjdump", help="the program, where it is not found")
    args = parser.parse_args()
    program, kernels = tool(args.cuobjdump), args.build / "device/core/device/rd_kernels.o"
    if not kernels.exists():
        raise Failed(f"{kernels} is not there: build where nvcc is (make {kernels})")
    code = functions(execute([program, "-arch", args.arch, "-sass", str(kernels)], {}))
    rows = sorted({(i.what, i.type, f"{i.length / PACKS:.1f}", f"{i.loads / PACKS:.0f}", f"{i.stores / PACKS:.0f}")
                   for name in code for i in loops(code[name])})
    if not rows:
        raise Failed(f"no loop of {args.arch} is known: has core/device/rd_bulk.cuh changed?")
    print(markdown_table(["loop", "type", f"instructions per 16 B, {args.arch}", "loads", "stores"], rows))
    for name, registers, stack in resources(execute([program, "-res-usage", str(kernels)], {}), args.arch):
        print(f"{name}: {registers} registers, {stack} bytes of stack, {len(code.get(name, ()))} instructions")
    print(f"{kernels.name}: {kernels.stat().st_size} bytes")


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        sys.exit(f"device_instructions: {e}")
