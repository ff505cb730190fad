#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: none
# TEST-LIMIT: 600
"""bench-ofi without libfabric: its programs are scripts, and the socket plugin is ours. What the programs say is what
its files hold, what is to be reached is judged by it, and what cannot be driven is told. Last, our plugin for real."""
import glob
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
from congestion import Congestion
from ofi import Cell, Fabtests, Pingpong

CONTROL = next(name for name in ("cubic", "reno") if Congestion.allowed(name))
# What libfabric's programs do, as far as the benchmark knows: they listen or connect, and print their figures. A
# message takes US, the first ones of fi_pingpong BEGIN microseconds more.
PROGRAM = """#!/usr/bin/env python3
import os, socket, sys
argv, name = sys.argv[1:], os.path.basename(sys.argv[0])
value = lambda option: argv[argv.index(option) + 1]
if argv == ["--version"]:
    sys.exit(print("libfabric: 9.9.9"))
if "SEEN" in os.environ:
    with open(os.environ["SEEN"], "a") as f:
        print(name, argv[-1] == "127.0.0.1", *os.sched_getaffinity(0), file=f)
provider, core = value("-p"), value("-p").split(";")[0]
if os.environ["FI_PROVIDER"] != core or core == "tcp" and os.environ["FI_TCP_IFACE"] != "lo":
    sys.exit("which provider?")
if name == "fi_info":
    offered = {"tcp": "tcp;ofi_rxm", "tcp;ofi_rxm": "tcp;ofi_rxm", "shm": "shm"}
    sys.exit(print("provider: " + offered[provider]) if provider in offered else "fi_getinfo: -61")
if provider == "tcp":
    sys.exit("not the exact provider")
oob = [int(word[3:]) for word in argv if word.startswith("-E=")]
if argv[-1] == "127.0.0.1":
    socket.create_connection(("127.0.0.1", oob[0] if oob else int(value("-P")))).close()
    size, n = int(value("-S")), int(value("-I"))
    us = US if oob else US + BEGIN / (2 * n)
    if oob:
        print("- { xfer_size: %d, MB/sec: %f, usec/xfer: %f, Mxfers/sec: 0 }" % (size, size / us, us))
    else:
        print("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec")
        print("%-8s1k      =1k      1k          0.01s%10.2f%11.2f       0.00" % (size, size / us, us))
else:
    with socket.create_server(("127.0.0.1", oob[0] if oob else int(value("-B")))) as s:
        s.accept()[0].recv(1)
"""


def bench(us, *args, ours=SOCKET, programs=("fi_pingpong", "fi_rdm_tagged_bw", "fi_rdm_tagged_pingpong"),
          under=()):
    """(what ran, JSON, Markdown); the last two are None where there are no files."""
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        for name in ("fi_info", *programs):
            path = folder / name
            path.write_text(PROGRAM.replace("US", str(us)).replace("BEGIN", "4000"))
            path.chmod(0o755)
        done = run([*under, sys.executable, ROOT / "bench/transports.py", "ofi", "--build", BUILD, "--out", folder,
                    "--wait", 0, *(["--ours", ours] if ours else []), "--rounds", 1, "--seconds", 0.02,
                    "--warmup", 0.01, "--cc", CONTROL, *args], limit=500, PATH=f"{folder}:{os.environ['PATH']}")
        files = [folder / "ofi.json", folder / "ofi.md"]
        if not files[0].exists():
            return done, None, None
        return done, json.loads(files[0].read_text()), files[1].read_text()
    finally:
        shutil.rmtree(folder)


ALL = "railyard,fi_pingpong,rdm_tagged_bw,rdm_tagged_pingpong"


def figures_and_targets():
    done, found, text = bench(2e6, "--sizes", "8,64K", "--comms", 1, "--only", ALL)
    expect(done, 0)
    compared = [r for r in found["runs"] if r["one_buffer"] or r["kind"] == "lat"]
    runs = {(r["over"], r["column"], r["kind"], r["size"], r["window"]): r for r in compared}
    groups = [f"tcp;ofi_rxm, {CONTROL}", "shm"]
    # of each group ours, fi_pingpong, rdm_tagged_bw, rdm_tagged_pingpong; ours with a buffer for each message, too
    assert len(runs) == len(compared) == len(found["runs"]) - 2 * 4 == 2 * (6 + 2 + 4 + 2), sorted(runs)
    assert all(r["verdict"] == "ok" for r in found["runs"]), found["faults"]
    for group in groups:
        assert abs(runs[group, "rdm_tagged_bw", "bw", 65536, 32]["gb_s"] - 65536 / 2e6 * 1e-3) < 1e-9
        assert abs(runs[group, "rdm_tagged_bw", "bw", 8, 8]["messages_s"] - 0.5) < 1e-9
        assert runs[group, "rdm_tagged_pingpong", "lat", 8, 2]["half_us"] == {"mean": 2e6}
        assert abs(runs[group, "fi_pingpong", "lat", 8, 2]["half_us"]["mean"] - 2e6) < 1
        ours = runs[group, "railyard", "lat", 8, 2]["half_us"]
        assert 0 < ours["min"] <= ours["mean"] and 0 < ours["p50"], ours
    words = ["reached", "reached", "not", "not"]
    assert [line.split()[0] for line in found["targets"]] == 2 * words, found["targets"]
    about = found["about"]
    assert about["groups"] == groups and about["libfabric"] == "9.9.9" and not about["unverified"], about
    assert "-p 'tcp;ofi_rxm' -e rdm -m tagged" in about["columns"]["fi_pingpong"]["command"], about
    assert "FI_TCP_IFACE=lo" in about["columns"]["rdm_tagged_bw"]["command"], about
    for words in ("## shm", "Bandwidth, GB/s", "Half round trip", "ours/it", "libfabric 9.9.9"):
        assert words in text, f"{words} is not in\n{text}"


def missed_and_left_out():
    done, found, text = bench(1e-3, "--sizes", "8,64K", "--comms", 1, "--provider", "shm", "--only", f"{ALL},aws",
                              "--plugin", "aws=/nowhere.so")
    expect(done, 0)
    assert [line.split()[0] for line in found["targets"]] == ["missed", "missed", "not", "not"], found["targets"]
    assert len(found["about"]["left_out"]) == 1 and "aws over shm" in found["about"]["left_out"][0], found["about"]
    assert "left out: aws over shm" in text and "aws" not in found["about"]["columns"], text


def bound_to_cores():
    allowed = sorted(os.sched_getaffinity(0))
    one_core = bench(1, "--bind", "--only", "railyard", "--sizes", 8, under=("taskset", "-c", str(allowed[0])))
    expect(one_core[0], 1, "--bind wants 2 cores")
    assert one_core[1] is None
    cores = machine.cores()
    if len(cores) < 2:
        raise Skip("one core")
    caller, listener = cores[:2]
    with tempfile.TemporaryDirectory() as folder:
        seen = pathlib.Path(folder) / "seen"
        env = [word for name in ALL.split(",")[1:] for word in ("--env", f"{name}:SEEN={seen}")]
        done, found, text = bench(1e-3, "--bind", "--provider", "shm", "--sizes", 8, "--comms", 1, "--only", ALL, *env)
        expect(done, 0)
        lines = {tuple(line.split()) for line in seen.read_text().splitlines()}
    programs = ("fi_pingpong", "fi_rdm_tagged_bw", "fi_rdm_tagged_pingpong")
    assert lines == {(p, str(calls), str(caller if calls else listener)) for p in programs for calls in (True, False)}
    assert f"--bind {caller},{listener}" in found["about"]["columns"]["railyard"]["command"], found["about"]
    assert f"taskset -c {listener} " in found["about"]["columns"]["fi_pingpong"]["command"], found["about"]
    assert f"each bound to a core, processors {caller} and {listener}" in text, text
    assert "not bound to cores" in bench(1e-3, "--provider", "shm", "--sizes", 8, "--only", "railyard")[2]


def what_cannot_work():
    for args, status, said in ((("--provider", "psm9"), 1, "psm9"), (("--fabtests", "/nowhere"), 2, "fi_rdm_tagged_bw"),
                               (("--libfabric", "/nowhere"), 2, "libfabric.so.1"), (("--comms", 0), 2, "--comms"),
                               (("--only", "rdm_bw"), 2, "rdm_bw")):
        expect(bench(1, *args, *(() if "--only" in args else ("--only", "railyard")))[0], status, said)
    done, found, _ = bench(1, "--only", "railyard", "--provider", "shm", ours="/nowhere.so")
    expect(done, 1, "Railyard")
    assert found is None


def parsing():
    cell = Cell("lat", 8, 1, 2, "spin", "tcp", False)
    head = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
    for size, row, us in ((8, "8     1k    =1k    15k   0.02s   0.67   11.93   0.08", 11.93),
                          (8, "8     100k  =100k  1.5m  0.11s  14.55    0.55   1.82", 8 / 14.55),
                          (65536, "64k   1k    =1k    125m  6.01s  21.81 3004.41   0.00", 3004.41)):
        assert Pingpong.microseconds(cell._replace(size=size), f"{head}{row}\n") == us, row
    out = "---\nfi_rdm_tagged_bw -m :\n- { xfer_size: 8, MB/sec: 0.5, usec/xfer: 2501.872070, Mxfers/sec: 0.000400 }\n"
    assert Fabtests.microseconds(cell, out) == 2501.87207


def our_plugin():
    if not glob.glob("/usr/lib/*/libfabric.so.1"):
        raise Skip("no libfabric.so.1 in /usr/lib; Debian: libfabric1")
    done, found, _ = bench(1, "--only", "railyard", "--provider", "tcp", "--sizes", 8, "--metrics", "lat", ours=None)
    expect(done, 0)
    assert found["about"]["chosen"]["tcp;ofi_rxm"][0] == "tcp;ofi_rxm", found["about"]
    assert [(r["wire"], r["verdict"]) for r in found["runs"]] == [("RailOFI", "ok")], found["runs"]


main([("figures, targets and files", figures_and_targets),
      ("targets that are missed, a peer that is left out", missed_and_left_out),
      ("programs bound to cores", bound_to_cores),
      ("what cannot work ends with a reason", what_cannot_work), ("what programs print", parsing),
      ("our plugin over libfabric", our_plugin)])
