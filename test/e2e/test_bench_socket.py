#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: none
"""bench-socket at its smallest: its files hold what was measured, and damage never passes for a figure."""
import json
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import BUILD, ROOT, SOCKET, expect, main, run

sys.path.insert(0, str(ROOT / "bench"))
from congestion import Congestion
from program import Failed

KIT = BUILD / "bin" / "rail-kit"
NULL = BUILD / "test" / "libnullnet.so"
CONGESTION = BUILD / "test" / "libcongestion.so"
CONTROLS = [name for name in ("cubic", "reno", "bbr") if Congestion.allowed(name)]


def bench(folder, *args):
    """Exit status aside: what the JSON and the Markdown say."""
    done = run([sys.executable, ROOT / "bench/transports.py", "socket", "--build", BUILD, "--out", folder, "--wait", 0,
                "--rounds", 1, "--seconds", 0.02, "--warmup", 0.01, "--cc", CONTROLS[0], *args])
    found = pathlib.Path(folder, "socket.json")
    assert found.exists(), f"no JSON:\n{done.stdout}{done.stderr}"
    return done, json.loads(found.read_text()), pathlib.Path(folder, "socket.md").read_text()


def cell(*args, **env):
    """One cell, once: what its only round gave."""
    done = run([KIT, "bench", *args, "--kind", "bw", "--comms", 2, "--rounds", 1, "--warmup", 0.01, "--seconds", 0.02,
                "--quiet", "--json", "-"], **env)
    expect(done, 0)
    return json.loads(done.stdout)["cells"][0]["results"][0]["rounds"][0]


def in_folder(case):
    def wrapped():
        folder = tempfile.mkdtemp()
        try:
            case(folder)
        finally:
            shutil.rmtree(folder)
    return wrapped


@in_folder
def two_columns(folder):
    done, found, text = bench(folder, "--only", "railyard,tcp", "--sizes", "8,64K", "--comms", 2, "--rounds", 2)
    expect(done, 0)
    runs = found["runs"]
    assert {r["cc"] for r in runs} == {CONTROLS[0]}
    assert not found["about"]["unverified"] and not found["faults"], found
    for column in ("railyard", "tcp"):
        mine = [r for r in runs if r["column"] == column]
        kinds = sorted((r["kind"], r["size"], r["comms"], r["window"], r["idle_us"]) for r in mine)
        bw = [("bw", size, 2, 8, idle) for size in (8, 65536) for idle in (0, 20)]
        rest = [("bw", 8, 2, 32, 0), ("lat", 8, 1, 2, 0), ("lat", 65536, 1, 2, 0)]
        assert kinds == sorted(2 * (bw + rest)), kinds
        for r in mine:
            assert r["verdict"] == "ok" and r["messages"] > 0, r
            if r["kind"] == "lat":
                assert 0 < r["half_us"]["min"] <= r["half_us"]["p50"] <= r["half_us"]["p99"], r
            else:
                assert abs(r["gb_s"] - r["messages"] * r["size"] / r["seconds"] / 1e9) < 1e-3 + 0.01 * r["gb_s"], r
                assert r["cpu_s_per_gb"] >= 0 and r["seconds"] >= 0.02, r
    assert {r["wire"] for r in runs} == {"RailSocket", "TCP"}
    for words in ("Bandwidth, GB/s", "Half round trip", "caller sleeps 20 us", "ours/it", CONTROLS[0]):
        assert words in text, f"{words} is not in\n{text}"
    assert any(line.startswith(("reached", "missed")) for line in found["targets"]), found["targets"]


@in_folder
def a_peers_wrong_byte_is_shown(folder):
    done, found, text = bench(folder, "--only", "tcp,bad", "--plugin", f"bad={NULL}", "--env", "bad:NULLNET_WRONG=100",
                              "--env", "bad:NULLNET_SIZE=8", "--sizes", "8,4K", "--comms", 1, "--metrics", "bw")
    expect(done, 0)
    verdicts = {(r["column"], r["size"], r["window"]): r["verdict"] for r in found["runs"]}
    assert verdicts == {("tcp", 8, 8): "ok", ("tcp", 8, 32): "ok", ("tcp", 4096, 8): "ok", ("bad", 8, 8): "wrong",
                        ("bad", 8, 32): "wrong", ("bad", 4096, 8): "ok"}, verdicts
    assert "wrong 1/1" in text and "message 100 of connection 0" in text, text
    assert found["about"]["unverified"] == ["bad"], found["about"]  # it has no sockets


@in_folder
def our_wrong_byte_fails_the_run(folder):
    done, found, _ = bench(folder, "--only", "railyard", "--ours", NULL, "--env", "railyard:NULLNET_WRONG=100",
                           "--env", "railyard:NULLNET_SIZE=8", "--sizes", "8", "--comms", 1, "--metrics", "bw")
    expect(done, 1)
    assert [r["verdict"] for r in found["runs"]] == ["wrong", "wrong"]


@in_folder
def congestion_control_is_given_and_proved(folder):
    for name in CONTROLS:
        report = pathlib.Path(folder, name)
        for how in ("--tcp", SOCKET):
            env = Congestion(name, CONGESTION).environment(report)
            assert cell(how, "--size", 4096, **env)["verdict"] == "ok"
            assert Congestion(name, CONGESTION).verify(report, "run") >= 2
            try:
                Congestion("none", CONGESTION).verify(report, "run")
            except Failed as why:
                assert name in str(why)
            else:
                raise AssertionError("another congestion control was not noticed")
            report.unlink()


def bad_arguments():
    script = [sys.executable, ROOT / "bench/transports.py", "socket", "--build", BUILD]
    for args, said in ((("--only", "nobody"), "nobody"), (("--env", "tcp"), "--env"),
                       (("--sizes", "4"), "sizes from 8"), (("--sizes", "x"), "--sizes"), (("--cc", "none"), "--cc"),
                       (("--metrics", "bw,x"), "--metrics")):
        expect(run([*script, *args]), 2, said)


main([("two columns, their figures and files", two_columns),
      ("a peer's wrong byte is shown", a_peers_wrong_byte_is_shown),
      ("a wrong byte of ours fails the run", our_wrong_byte_fails_the_run),
      ("congestion control is given and proved", congestion_control_is_given_and_proved),
      ("bad arguments", bad_arguments)])
