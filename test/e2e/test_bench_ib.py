#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: none
"""bench-ib without RDMA: a perftest that moves nothing, and the socket plugin as ours. What the programs say is what
its files hold, what is to be reached is judged by it, and a program that fails is told. In the lab it runs for real."""
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import BUILD, ROOT, SOCKET, Skip, expect, main, run

sys.path.insert(0, str(ROOT / "bench"))
import machine
from instructions import read_profile
from verbs import Cell, Perftest

PERFTEST = BUILD / "test/e2e/fake_perftest"


def bench(rate, lat, *args):
    """(what ran, JSON, Markdown)"""
    folder = tempfile.mkdtemp()
    try:
        for name in ("ib_write_bw", "ib_send_bw", "ib_write_lat"):
            pathlib.Path(folder, name).symlink_to(PERFTEST.resolve())
        done = run([sys.executable, ROOT / "bench/transports.py", "ib",
                    "--build", BUILD, "--out", folder, "--wait", 0, "--dev",
                    "left,right", "--ours", SOCKET, "--rounds", 1, "--seconds", 0.02, "--warmup", 0.01, *args],
                   PATH=f"{folder}:{os.environ['PATH']}", FAKE_RATE=rate, FAKE_LATENCY=lat)
        files = [pathlib.Path(folder, name) for name in ("ib.json", "ib.md")]
        assert files[0].exists(), done.stdout + done.stderr
        return done, json.loads(files[0].read_text()), files[1].read_text()
    finally:
        shutil.rmtree(folder)


def figures_and_targets():
    done, found, text = bench(4, 1e6, "--sizes", "8,64K")  # reached by whatever moves, on a busy machine too
    expect(done, 0)
    runs = {(r["column"], r["kind"], r["size"], r["qps"]): r for r in found["runs"]}
    # ours, write_bw alone and beside a poller, send_bw polled and by events, write_lat
    assert len(runs) == len(found["runs"]) == 8 + 4 + 4 + 4 + 4 + 2, sorted(runs)
    assert all(r["verdict"] == "ok" for r in found["runs"])
    assert runs["write_bw", "bw", 8, 4]["messages_s"] == 4
    assert abs(runs["send_bw", "bw", 65536, 1]["gb_s"] - 4 * 65536e-9) < 1e-7
    assert runs["write_lat", "lat", 8, 1]["half_us"] == {"min": 1, "p50": 1e6, "p99": 3}
    assert [line.split()[0] for line in found["targets"]] == ["reached", "reached"], found["targets"]
    assert "sched_yield" in found["about"]["columns"]["write_bw_polled"]["command"]
    assert "-t 8 -Q 1" in found["about"]["columns"]["write_bw"]["command"]
    commands = {key: column["command"].split() for key, column in found["about"]["columns"].items()}
    assert all(("-e" in words) == key.endswith("_events") for key, words in commands.items() if "_bw" in key), commands
    assert "0:NCCL_IB_HCA==left" in found["about"]["columns"]["railyard"]["command"]
    assert "Half round trip" in text and "ib_write_bw" in text


def missed():
    _, found, _ = bench(1e9, 1e-3, "--sizes", "8,64K", "--qps", 1, "--only", "railyard,write_bw,write_lat")
    assert [line.split()[0] for line in found["targets"]] == ["missed", "missed"], found["targets"]


def bound_to_cores():
    cores = machine.cores()
    if len(cores) < 2:
        raise Skip("one core")
    done, found, text = bench(1e9, 1e-3, "--bind", "--sizes", 8, "--qps", 1, "--only", "railyard,write_bw,write_lat")
    expect(done, 0)
    about, (sends, receives) = found["about"], cores[:2]
    assert f"--bind {sends},{receives}" in about["columns"]["railyard"]["command"], about
    server, client = about["columns"]["write_bw"]["command"].split("&")
    assert f"taskset -c {receives} ib_write_bw" in server and f"taskset -c {sends} ib_write_bw" in client, about
    assert f"each bound to a core, processors {sends} and {receives}" in text, text


def a_program_that_fails():
    done = run([sys.executable, ROOT / "bench/transports.py", "ib", "--build", BUILD, "--mtu", 9000])
    expect(done, 2, "--mtu 9000")
    folder = tempfile.mkdtemp()
    try:
        done = run([sys.executable, ROOT / "bench/transports.py", "ib",
                    "--build", BUILD, "--out", folder, "--wait", 0, "--dev",
                    "x", "--ours", "/nowhere.so", "--only", "railyard", "--sizes", 8])
        expect(done, 1, "/nowhere.so")
    finally:
        shutil.rmtree(folder)


def parsing():
    cell = Cell("bw", 8, 1, 8, 0, 1)
    assert Perftest.messages_a_second(cell, [8, 1000, 0, 0.12, 0.015664]) == 15664
    assert Perftest.messages_a_second(cell._replace(size=1 << 20), [1 << 20, 60, 0, 62.5, 0.00006]) == 62.5
    assert Perftest.messages_a_second(cell._replace(kind="lat"), [8, 100, 1, 9, 2, 2.5, 0, 3, 4]) == 200000
    profile = ["ob=(1) a", "fn=(1) f", "1 10", "cob=(2) b", "cfn=(2) g", "calls=3 0", "1 50", "+1 4", "cfn=(3) h",
               "calls=1 0", "1 7"]
    edges = read_profile("\n".join(profile))
    assert [tuple(e) for e in edges] == [("a", "b", 50), ("a", "a", 7)], edges


main([("figures, targets and files", figures_and_targets), ("targets that are missed", missed),
      ("programs bound to cores", bound_to_cores),
      ("what cannot work ends with a reason", a_program_that_fails), ("what programs print", parsing)])
