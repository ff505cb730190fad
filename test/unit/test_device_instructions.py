#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# What bench/device_instructions.py takes for a loop, in listings as cuobjdump prints them.
# TEST-SAN: none
# TEST-READS: bench/device_instructions.py
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import device_instructions as counted


def listing(loads, stores, arithmetic, back=True):
    """A function with one loop from 0x20 on."""
    body = ["LDG.E.128 R4, desc[UR4][R2.64]"] * loads + arithmetic
    body += ["STG.E.128 desc[UR4][R2.64], R4"] * (stores - 1) + ["@P0 STG.E.128 desc[UR4][R6.64+0x200], R4"]
    code = ["MOV R1, c[0x0][0x28]", "IADD3 R2, P1, R2, R3, RZ", *body, "@P1 BRA 0x20" if back else "BRA 0x4000"]
    lines = ["\t\tFunction : kernel"]
    for i, text in enumerate(code):
        lines += [f"        /*{16 * i:04x}*/           {text} ;      /* 0x0000000402047981 */", " " * 60 + "/* 0x00 */"]
    return "\n".join(lines)


def check(number, got, want, what):
    if got != want:
        print(f"# {got}, expected {want}")
    print(f"{'ok' if got == want else 'not ok'} {number} - {what}")
    return got == want


def loops(*args, **kwargs):
    return [tuple(i)[:3] for i in counted.loops(counted.functions(listing(*args, **kwargs))["kernel"])]


good = check(1, loops(8, 16, []), [("any", "copy", 25)], "a copy")
good &= check(2, loops(16, 16, ["HADD2 R4, R4, R8"] * 16 + ["HFMA2.MMA R4, R4, 1, 1, R8"] * 16),
              [("half", "sum", 65)], "a sum of halves")
good &= check(3, loops(16, 16, ["HFMA2.BF16_V2 R4, R4, R9, -RZ"] * 64), [("bfloat16", "scaled sum", 97)],
              "a scaled sum")
good &= check(4, loops(16, 16, ["F2FP.F16.E4M3.UNPACK_B R4, R5"] * 128 + ["HADD2 R4, R4, R8"] * 64),
              [("f8e4m3", "sum", 225)], "a sum of fp8")
good &= check(5, loops(8, 16, ["FMUL R4, R4, R9"] * 32), [("float", "scaled copy", 57)], "a scaled copy")
good &= check(6, loops(4, 16, []) + loops(16, 8, []) + loops(16, 16, [], back=False), [], "no loop of ours")
print("1..6")
raise SystemExit(0 if good else 1)
