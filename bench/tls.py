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
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def gcm():
    """GB/s of one core; the best of three, since others only take away from it."""
    best = 0.0
    for _ in range(3):
        done = subprocess.run(["openssl", "speed", "-evp", "aes-128-gcm", "-bytes", "16384", "-seconds", "1"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        best = max(best, float(re.search(r"([\d.]+)k\s*$", done.stdout).group(1)) * 1000 / 1e9)
    return best


def bench(build, options, key):
    plugin = str(build / "lib/libnccl-net-socket.so")
    command = [str(build / "bin/rail-kit"), "bench", f"clear={plugin}", f"tls={plugin}", "--tcp", "--kind", "bw",
               "--size", options.sizes, "--comms", options.comms, "--rounds", str(options.rounds), "--seconds", "0.5",
               "--env", "tls:RAIL_SOCKET_TLS=psk", "--env", f"tls:RAIL_SOCKET_AUTH_FILE={key}", "--quiet",
               "--json", "-"]
    done = subprocess.run(command, env=os.environ | {"NCCL_SOCKET_IFNAME": "lo"}, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout)


def best(cell, column, figure, choose):
    """Of all rounds: what others do to one only makes it worse."""
    result = next(r for r in cell["results"] if r["column"] == column)
    return choose(r[figure] for r in result["rounds"] if r["verdict"] == "ok")


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
    print("size comms | GB/s: TCP clear tls together ratio | CPU s/GB: TCP clear tls together ratio")
    for cell in run["cells"]:
        speed = {c: best(cell, c, "gb_s", max) for c in ("tcp", "clear", "tls")}
        cpu = {c: best(cell, c, "cpu_s_per_gb", min) for c in ("tcp", "clear", "tls")}
        together, cpu_together = 1 / (1 / speed["tcp"] + 1 / cipher), cpu["tcp"] + 2 / cipher
        print(f"{cell['size']:>8} {cell['comms']} | {speed['tcp']:.2f} {speed['clear']:.2f} {speed['tls']:.2f} "
              f"{together:.2f} {speed['tls'] / together:.2f} | {cpu['tcp']:.2f} {cpu['clear']:.2f} {cpu['tls']:.2f} "
              f"{cpu_together:.2f} {cpu_together / cpu['tls']:.2f}")


if __name__ == "__main__":
    sys.exit(main())
