#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What encryption costs: the socket plugin with RAIL_SOCKET_TLS beside itself without, and beside what plain TCP and
AES-128-GCM would take together.

rail-kit bench runs the plugin in clear, encrypted, and plain TCP streams in turn; openssl speed gives AES-128-GCM in
blocks of a record (16 KiB), before and after. "Together" is, as bandwidth, one byte after the other through both,
1 / (1/TCP + 1/GCM), because the two sides work at the same time; as CPU time, TCP's and that of encrypting and
decrypting once. On a machine that others use look at the CPU time.
"""
import argparse
import json
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
from program import Failed, execute
from report import size_name, text_table

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 3600  # seconds for all rounds
FIGURES = ["TCP", "clear", "tls", "together", "of together"]
HEAD = ["size", "comms", "GB/s:", *FIGURES, "CPU s/GB:", *FIGURES]


def gcm():
    """GB/s of one core; the best of three, since others only take away from it."""
    best = 0.0
    for _ in range(3):
        text = execute(["openssl", "speed", "-evp", "aes-128-gcm", "-bytes", "16384", "-seconds", "1"], {})
        best = max(best, float(re.search(r"([\d.]+)k\s*$", text).group(1)) * 1000 / 1e9)
    return best


def bench(build, options, key):
    plugin = str(build / "lib/libnccl-net-socket.so")
    command = [str(build / "bin/rail-kit"), "bench", f"clear={plugin}", f"tls={plugin}", "--tcp", "--kind", "bw",
               "--size", options.sizes, "--comms", options.comms, "--rounds", str(options.rounds), "--seconds", "0.5",
               "--env", "tls:RAIL_SOCKET_TLS=psk", "--env", f"tls:RAIL_SOCKET_AUTH_FILE={key}", "--quiet",
               "--json", "-"]
    return json.loads(execute(command, {"NCCL_SOCKET_IFNAME": "lo"}, LIMIT))


def best(cell, column, figure, choose):
    """Of all rounds: what others do to one only makes it worse."""
    result = next(r for r in cell["results"] if r["column"] == column)
    return choose(r[figure] for r in result["rounds"] if r["verdict"] == "ok")


def row(cell, cipher):
    """One of the table, in the order of HEAD."""
    speed = {c: best(cell, c, "gb_s", max) for c in ("tcp", "clear", "tls")}
    cpu = {c: best(cell, c, "cpu_s_per_gb", min) for c in ("tcp", "clear", "tls")}
    together, cpu_together = 1 / (1 / speed["tcp"] + 1 / cipher), cpu["tcp"] + 2 / cipher
    return [size_name(cell["size"]), str(cell["comms"]),
            "", *map("{:.2f}".format, (*speed.values(), together, speed["tls"] / together)),
            "", *map("{:.2f}".format, (*cpu.values(), cpu_together, cpu_together / cpu["tls"]))]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--sizes", default="64K,1M,4M")
    p.add_argument("--comms", default="1")
    p.add_argument("--rounds", type=int, default=5)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text("a key of sixteen bytes and more\n", encoding="ascii")
        before = gcm()
        run = bench(o.build.resolve(), o, key)
        cipher = max(before, gcm())
    print(f"{run['cpu']}, {run['cores']} cores, others up to {max(run['others_busy']):.1f} of them; "
          f"AES-128-GCM {cipher:.2f} GB/s")
    print("together: 1 / (1/TCP + 1/GCM) GB/s, TCP + 2/GCM CPU s/GB; "
          "of together: tls / together GB/s, together / tls CPU s/GB")
    print(text_table(HEAD, [row(cell, cipher) for cell in run["cells"]]))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"tls: {e}")
