#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: none
"""rail-kit bench: every kind of cell measures, plugins alternate, and whatever a plugin does becomes a result."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from coll import BUILD, SOCKET, Skip, environment, expect, main, run

KIT = BUILD / "bin" / "rail-kit"
NULL = BUILD / "test" / "libnullnet.so"
SHORT = ("--rounds", 1, "--warmup", 0.005, "--seconds", 0.02, "--patience", 2)


def bench(*args, status=0, **env):
    done = run([KIT, "bench", *args], **env)
    said = done.stderr or done.stdout
    assert done.returncode == status, f"exit status {done.returncode}, expected {status}: {said[-3000:]}"
    return done


def measure(*args, status=0, **env):
    """What --json says of a short run."""
    return json.loads(bench(*SHORT, *args, "--json", "-", status=status, **env).stdout)


def figures(found):
    """[(cell, column, median of each figure)]; all must have gone well."""
    rows = []
    for cell in found["cells"]:
        for result in cell["results"]:
            assert result["verdict"] == "ok" and result["bad_rounds"] == 0, (cell["kind"], result)
            rows.append((cell, result["column"], {k: v["median"] for k, v in result["figures"].items()}))
    return rows


def in_folder(case):
    def wrapped():
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            case(folder)
        finally:
            shutil.rmtree(folder)
    return wrapped


def patterns_and_kinds():
    found = measure(SOCKET, "--kind", "bw,jitter,connect", "--pattern", "pair,bidir,ring,incast,all", "--sides", 4,
                    "--size", "8,64K", "--comms", 2)
    rows = figures(found)
    assert len(rows) == 5 * (2 + 2 + 1), len(rows)
    for cell, _, f in rows:
        assert cell["sides"] == (2 if cell["pattern"] in ("pair", "bidir") else 4), cell
        if cell["kind"] == "connect":
            assert f["connects_s"] > 0 and 0 < f["connect_p50_us"] <= f["connect_p99_us"], f
            assert f["fds_left"] == 0 and f["threads_left"] == 0, f
        else:
            assert abs(f["gb_s"] - f["messages_s"] * cell["size"] / 1e9) <= 1e-6 * f["gb_s"], (cell, f)
            assert f["cpu_s_per_gb"] > 0 and f["switches_per_1000"] >= 0, f
        if cell["kind"] == "jitter":
            assert 0 < f["gap_p50_us"] <= f["gap_p99_us"] <= f["gap_p999_us"] <= f["gap_max_us"], f


def sixteen_sides():
    (cell, _, f), = figures(measure(SOCKET, "--kind", "bw", "--pattern", "all", "--sides", 16, "--size", "4K",
                                    "--comms", 1, "--seconds", 0.1))
    assert cell["sides"] == 16 and f["messages_s"] > 0


def half_round_trips():
    (_, _, f), = figures(measure(SOCKET, "--kind", "lat", "--size", 8, "--seconds", 0.1))
    order = [f[f"half_{key}_us"] for key in ("min", "p50", "p90", "p99", "p999")]
    assert 0 < order[0] and order == sorted(order), order
    assert abs(f["jitter_us"] - (f["half_p99_us"] - f["half_p50_us"])) < 1e-6, f


def callers_that_spin():
    """They ask again at once; who yields is off the processor some of the time. A connection is made as ever."""
    found = measure(SOCKET, "--kind", "bw,lat,connect", "--size", 8, "--comms", 1, "--spin", "--sleep", "50,100")
    cells = {c["kind"]: c for c, _, _ in figures(found)}
    assert len(cells) == len(found["cells"]) == 3, found["cells"]
    assert {k: (c["spin"], c["sleep_us"]) for k, c in cells.items()} == {
        "bw": (True, 0), "lat": (True, 0), "connect": (False, 0)}, cells


def sides_bound_to_processors():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("one processor")
    argv = [str(KIT), "bench", str(SOCKET), "--kind", "bw", "--size", "4K", "--comms", "1", "--rounds", "1",
            "--seconds", "1.5", "--quiet"]
    for bind, expected in ((["--bind", f"{cpus[1]},{cpus[0]}"], [{cpus[1]}, {cpus[0]}]), ([], [set(cpus)] * 2)):
        program, found = subprocess.Popen(argv + bind, stdout=subprocess.DEVNULL), []
        deadline = time.monotonic() + 30
        while found != expected and program.poll() is None and time.monotonic() < deadline:
            sides = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
            try:
                found = [os.sched_getaffinity(int(pid)) for pid in sides]
            except ProcessLookupError:
                continue  # a side has ended since
        assert program.wait(30) == 0 and found == expected, (bind, found)


def one_buffer():
    """All messages of a window in one: so they fit where else the window would be smaller."""
    found = measure(SOCKET, "--kind", "bw,lat,connect", "--size", "64K", "--comms", 1, "--window", 8, "--one-buffer",
                    "--buffers", "64K")
    cells = {c["kind"]: (c["one_buffer"], c["window"]) for c, _, _ in figures(found)}
    assert cells == {"bw": (True, 8), "lat": (True, 2), "connect": (False, 1)}, cells
    found = measure(SOCKET, "--kind", "bw", "--size", "64K", "--comms", 1, "--window", 8, "--buffers", "64K")
    assert [(c["one_buffer"], c["window"]) for c, _, _ in figures(found)] == [(False, 1)], found["cells"]


def odd_sizes():
    found = measure(SOCKET, "--kind", "bw,lat", "--size", "0,1,7,9,4097", "--comms", 1, "--window", 3)
    seen = {(c["kind"], c["size"]) for c, _, _ in figures(found)}
    assert seen == {(k, s) for k in ("bw", "lat") for s in (0, 1, 7, 9, 4097)}, seen
    none = next(c for c in found["cells"] if c["kind"] == "bw" and c["size"] == 0)
    assert "gb_s" not in none["results"][0]["figures"] and none["results"][0]["figures"]["messages_s"]["median"] > 0


def a_gigabyte():
    free = int(re.search(r"MemAvailable:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) / 2**20
    if free < 5:
        raise Skip(f"two sides with 1 GiB each: only {free:.1f} GiB of memory are free")
    (cell, _, f), = figures(measure(SOCKET, "--kind", "bw", "--size", "1G", "--comms", 1, "--warmup", 0,
                                    "--patience", 20))
    assert cell["window"] == 1 and f["gb_s"] > 0, cell  # 8, had it fitted into --buffers


def what_does_not_fit():
    """… is not tried: the kernel would choose whom to kill."""
    found = measure(SOCKET, "--kind", "bw", "--pattern", "all", "--sides", 16, "--size", "1G", "--comms", 64)
    result = found["cells"][0]["results"][0]
    assert result["verdict"] == "skipped" and "GiB" in result["rounds"][0]["what"], result
    cell = measure(SOCKET, "--kind", "bw", "--size", "1M", "--comms", 1, "--window", 9, "--group", 3, "--buffers",
                   "7M")["cells"][0]
    assert cell["window"] == 6 and cell["results"][0]["verdict"] == "ok", cell


def grouped_receives():
    found = measure(SOCKET, NULL, "--kind", "bw", "--size", "8,4K", "--comms", 1, "--group", "1,3,8", "--window",
                    "8", "--check", 0)
    for cell in found["cells"]:
        verdicts = {r["column"]: r["verdict"] for r in cell["results"]}
        assert verdicts == {"socket": "ok", "nullnet": "ok" if cell["group"] == 1 else "skipped"}, (cell, verdicts)
        assert cell["window"] % cell["group"] == 0, cell
    why = found["cells"][-1]["results"][1]["rounds"][0]["what"]
    assert "maxRecvs" in why and "8" in why, why


def plugins_alternate():
    done = bench(*SHORT, "--rounds", 2, f"a={SOCKET}", f"b={SOCKET}", "--tcp", "--kind", "bw", "--size", "4K,64K",
                 "--comms", 1, "--env", "b:NCCL_NSOCKS_PERTHREAD=1", "--json", "-")
    found, order = json.loads(done.stdout), [line.split("round ")[1].split(":")[0] for line in done.stderr.splitlines()
                                             if line.startswith("[")]
    assert order == [f"{n}/2, {c}" for n, cs in (("1", "ab" "t"), ("2", "tba"))
                     for _ in range(2) for c in (x.replace("t", "tcp") for x in cs)], order
    assert [c["name"] for c in found["columns"]] == ["a", "b", "tcp"], found["columns"]
    assert found["columns"][1]["env"] == ["NCCL_NSOCKS_PERTHREAD=1"] and found["columns"][2]["plugin"] is None
    assert {c["wire"] for c in found["columns"]} == {"RailSocket", "TCP"}
    for cell in found["cells"]:
        first, second = cell["results"][0]["rounds"], cell["results"][1]
        ratios = sorted(r["gb_s"] / f["gb_s"] for r, f in zip(second["rounds"], first))
        assert abs(second["figures"]["gb_s"]["ratio"] - sum(ratios) / 2) < 1e-6, second
        spread = second["figures"]["gb_s"]
        assert spread["least"] <= spread["median"] <= spread["greatest"] and spread["rounds"] == 2, spread
    for words in ("GB/s", "ratio", "plain TCP streams", "+-%"):
        assert words in done.stderr, words


@in_folder
def what_the_json_holds(folder):
    bench(*SHORT, SOCKET, "--kind", "bw", "--size", 64, "--comms", 1, "--json", folder / "x.json")
    found = json.loads((folder / "x.json").read_text())
    assert found["tool"] == "rail-kit bench" and found["schema"] == 1
    for key in ("version", "date", "host", "kernel", "cpu", "load"):
        assert isinstance(found[key], str) and found[key], key
    assert found["cores"] == os.sysconf("SC_NPROCESSORS_ONLN") and found["memory_gib"] > 0
    assert found["command"][:1] == ["bench"] and "64" in found["command"], found["command"]
    assert found["plan"]["seconds"] == 0.02 and found["plan"]["rounds"] == 1 and found["plan"]["hosts"] == 1
    assert len(found["others_busy"]) == 1 and found["columns"][0]["version"] == 12
    once = found["cells"][0]["results"][0]["rounds"][0]
    assert once["verdict"] == "ok" and once["messages"] > 0 and once["seconds"] >= 0.02, once
    counted = "instructions_per_message" in once
    assert counted or "perf_event_open" in found["instructions"], found["instructions"]


def every_vtable_version():
    for version in range(6, 13):
        found = measure(SOCKET, "--abi", version, "--kind", "bw", "--size", "4K", "--comms", 1)
        figures(found)
        assert found["columns"][0]["version"] == version, found["columns"]


def each_trouble_is_a_result():
    """… and the cells after it are measured."""
    for how, verdict, said in (("WRONG", "wrong", "message 40 of connection 0"),
                               ("ERROR", "failed", "test of irecv of message 40 of connection 0"),
                               ("STUCK", "stuck", "nothing moved"), ("HANG", "stuck", "still in test, which"),
                               ("CRASH", "crashed", "SIGABRT in test")):
        for kind in ("bw", "lat"):
            found = measure(NULL, "--kind", kind, "--size", "64,128", "--comms", 1, "--check", 0, "--patience", 1,
                            status=1, **{f"NULLNET_{how}": 40, "NULLNET_SIZE": 64})
            first, second = (c["results"][0] for c in found["cells"])
            what = first["rounds"][0].get("what", "")
            if how == "ERROR":  # either end may come first
                said = "of message 40 of connection 0"
            assert first["verdict"] == verdict and said in what and "side " in what, (how, kind, first)
            assert second["verdict"] == "ok", second


def planted_defects():
    """The reference plugin is measured whole; each of its copies shows its defect."""
    broken = lambda name: BUILD / "test" / "broken" / f"libnccl-net-{name}.so"
    figures(measure(broken("ref"), "--kind", "bw,lat,connect", "--pattern", "pair,ring", "--sides", 3, "--size",
                    "0,64,100K", "--group", "1,3", "--comms", 2))
    for name, verdict, said in (("corrupt_byte", "wrong", "message 49 of"), ("size_truncated", "wrong", "36864 bytes"),
                                ("group_swapped", "wrong", "all bytes checked"), ("close_error", "failed", "close"),
                                ("messages_swapped", "wrong", "message")):
        found = measure(broken(f"broken-{name}"), "--kind", "bw", "--size", "100K", "--group", 3, "--comms", 2,
                        "--seconds", 10, status=1)  # which the defect ends
        result = found["cells"][0]["results"][0]
        assert result["verdict"] == verdict and said in result["rounds"][0]["what"], (name, result)
    for name, figure in (("fd_leak", "fds_left"), ("thread_leak", "threads_left")):
        (_, _, f), = figures(measure(broken(f"broken-{name}"), "--kind", "connect", "--comms", 4, "--connects", 40,
                                      "--seconds", 60))
        assert f[figure] >= 40, (name, f)


def all_bytes_are_checked():
    found = measure(NULL, "--kind", "bw", "--size", 64, "--comms", 1, status=1)  # it moves nothing
    result = found["cells"][0]["results"][0]
    assert result["verdict"] == "wrong" and "all bytes checked" in result["rounds"][0]["what"], result


def what_cannot_be_loaded():
    found = measure(f"bad={__file__}", SOCKET, "--kind", "bw", "--size", 64, "--comms", 1, status=1)
    bad, good = found["cells"][0]["results"]
    assert bad["verdict"] == "failed" and __file__ in bad["rounds"][0]["what"], bad
    assert good["verdict"] == "ok", good


@in_folder
def what_is_not_there(folder):
    """One line, and no process has measured, nor is the file of an earlier run emptied."""
    old = folder / "old.json"
    bench(*SHORT, SOCKET, "--kind", "bw", "--size", 64, "--comms", 1, "--json", old)
    before = old.read_text()
    for args, named in (([SOCKET, "/nonexistent.so"], "/nonexistent.so"), ([SOCKET, "nosuch"], "nosuch"),
                        ([SOCKET, "--plot", folder / "none/x.svg"], "none/x.svg"),
                        (["--compare", old, folder / "new"], "/new"), (["--compare", old, "new"], "new")):
        done = run([KIT, "bench", *SHORT, *args, "--kind", "bw", "--size", 64] +
                   ([] if "--compare" in args else ["--json", old]))
        expect(done, 3, named)
        assert len(done.stderr.splitlines()) == 1 and not done.stdout, done
        assert old.read_text() == before, named
    shutil.copy(old, folder / "other")  # results by another name
    assert "figures compared" in bench("--compare", old, folder / "other").stdout


def a_thousand_connections():
    (_, _, f), = figures(measure(SOCKET, "--kind", "connect", "--comms", 8, "--connects", 1000, "--seconds", 60))
    assert f["fds_left"] == 0 and f["threads_left"] == 0, f


def time_ends_a_cell_of_many_connections():
    (_, _, f), = figures(measure(SOCKET, "--kind", "connect", "--comms", 1, "--connects", 100000000, "--seconds", 0.2))
    assert f["connects_s"] > 0, f


def gpu(plugin, *args, status=0, **env):
    """The verdict and its reason of one cell with GPU memory."""
    result = measure(plugin, "--memory", "cuda", "--kind", "bw", "--size", 64, "--comms", 1, *args, status=status,
                     **env)["cells"][0]["results"][0]
    return result["verdict"], result["rounds"][0].get("what", "")


@in_folder
def gpu_memory(folder):
    """Over a driver library that is none."""
    os.symlink(BUILD / "test" / "libfakecuda.so", folder / "libcuda.so.1")
    fake = {"LD_LIBRARY_PATH": folder, "NULLNET_CUDA": 1}
    assert gpu(NULL, "--check", 0, **fake) == ("ok", "")
    verdict, why = gpu(NULL, status=1, **fake)  # it moves nothing: what is copied back is not what was sent
    assert verdict == "wrong" and "all bytes checked" in why, why
    for plugin, said, env in ((SOCKET, "takes no GPU memory (ptrSupport is 0x1)", fake),
                              (NULL, "CUDA error 100", {**fake, "FAKECUDA_NONE": 1})):
        verdict, why = gpu(plugin, **env)
        assert verdict == "skipped" and said in why, why
    if not shutil.which("nvidia-smi"):
        verdict, why = gpu(NULL, NULLNET_CUDA=1)
        assert verdict == "skipped" and "libcuda.so.1" in why, why


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def two_hosts():
    """Both are this one; each has half of the sides."""
    where = f"127.0.0.1:{free_port()}"
    other = subprocess.Popen([KIT, "bench", SOCKET, "--listen", where, "--wait", "20"], env=environment(),
                             stderr=subprocess.DEVNULL)
    try:
        found = measure(SOCKET, "--tcp", "--connect", where, "--wait", 20, "--kind", "bw,lat,connect", "--pattern",
                        "pair,all", "--size", "4K", "--comms", 2)
        assert other.wait(20) == 0
    finally:
        other.kill()
        other.wait()
    assert found["plan"]["hosts"] == 2 and len(figures(found)) == 2 * 5, found["plan"]


def network_namespaces():
    names = [f"rkb{os.getpid()}{side}" for side in "ab"]
    ip = lambda *words: run(["ip", *words])
    if os.geteuid() != 0 or not shutil.which("ip") or ip("netns", "add", names[0]).returncode != 0:
        raise Skip("network namespaces cannot be made here")
    try:
        expect(ip("netns", "add", names[1]), 0)
        expect(ip("-n", names[0], "link", "add", "rkbveth", "type", "veth", "peer", "rkbveth", "netns", names[1]), 0)
        for number, name in enumerate(names, 1):
            expect(ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "rkbveth"), 0)
            expect(ip("-n", name, "link", "set", "rkbveth", "up"), 0)
        deadline = time.monotonic() + 10
        while any("state UP" not in ip("-n", name, "link", "show", "rkbveth").stdout for name in names):
            assert time.monotonic() < deadline, "the link does not come up"
        rows = figures(measure(SOCKET, "--tcp", "--netns", ",".join(names), "--kind", "bw,lat", "--size", "4K",
                               "--comms", 1, NCCL_SOCKET_IFNAME="rkbveth"))
        assert len(rows) == 4
    finally:
        for name in names:
            ip("netns", "del", name)


@in_folder
def comparing(folder):
    old, new = folder / "old.json", folder / "new.json"
    bench(*SHORT, "--rounds", 2, SOCKET, "--kind", "bw,lat", "--size", 64, "--comms", 1, "--json", old)
    if "libjansson" in run([KIT, "bench", "--compare", old, old]).stderr:
        raise Skip("this build has no libjansson")
    same = bench("--compare", old, old, "--fail-below", 0.99)
    assert "0 better, 0 worse" in same.stdout, same.stdout
    data = json.loads(old.read_text())
    shares = {"least": 0.95, "median": 1, "greatest": 1.05}

    def write(path, factors):
        """As if the rounds had differed by 10 %, and the figures by these factors."""
        changed = json.loads(json.dumps(data))
        for result in (c["results"][0] for c in changed["cells"]):
            for key, f in result["figures"].items():
                f.update({k: f["median"] * share * factors.get(key, 1) for k, share in shares.items()})
        path.write_text(json.dumps(changed))
    write(old, {})
    write(new, {"gb_s": 0.92, "messages_s": 1.2, "half_p50_us": 1.08})
    within = bench("--compare", old, new, "--fail-below", 1)
    assert "1 better, 0 worse" in within.stdout, within.stdout  # all but one within what the rounds differ
    data["cpu"] = "another"
    write(new, {"gb_s": 0.3, "half_p50_us": 5})
    worse = bench("--compare", old, new)
    assert "2 worse" in worse.stdout and worse.stdout.count("WORSE") == 2 and "NOT THE SAME cpu" in worse.stdout, \
        worse.stdout
    bench("--compare", old, new, "--fail-below", 0.5, status=1)
    bench("--compare", old, new, "--fail-below", 0.1)
    data["cells"][0]["results"][0]["verdict"] = "stuck"
    write(new, {})
    stuck = bench("--compare", old, new, "--fail-below", 0.1, status=1).stdout
    assert "was ok, is stuck" in stuck and "1 were ok and are not" in stuck and "below 0.1" not in stuck, stuck
    kept, data["cells"] = data["cells"], data["cells"][:1]
    write(new, {})
    assert "only before: 1, only now: 0" in bench("--compare", old, new).stdout
    for cell in kept:
        cell["size"] = 128
    data["cells"] = kept
    write(new, {})
    expect(run([KIT, "bench", "--compare", old, new, "--fail-below", 0.1]), 3, "no figure")
    again = bench(*SHORT, SOCKET, "--kind", "bw", "--size", 64, "--comms", 1, "--compare", old)
    assert "figures compared" in again.stdout, again.stdout
    (folder / "bad.json").write_text("{")
    for name, said in (("bad.json", "line 1"), ("none.json", "none.json")):
        expect(run([KIT, "bench", "--compare", folder / name, old]), 3, said)
    (folder / "bad.json").write_text('{"tool": "ls"}')
    expect(run([KIT, "bench", "--compare", folder / "bad.json", old]), 3, "not what --json wrote")


@in_folder
def a_picture(folder):
    picture = folder / "x.svg"
    done = run([KIT, "bench", *SHORT, SOCKET, "--tcp", "--kind", "bw,lat,connect", "--size", "64,4K", "--comms", 1,
                "--plot", picture])
    if "python3-matplotlib" in done.stderr:
        expect(done, 3)
        raise Skip("matplotlib is missing")
    expect(done, 0)
    text = picture.read_text()
    assert "<svg" in text and len(text) > 10000


def bad_options():
    for args, said in (((), "a plugin is missing"), (("--size", "8,x"), "8,x"), (("--size", "2G"), "2G"),
                       (("--size", "0-8"), "0-8"), (("--kind", "bw,x"), "bw, lat, jitter, connect"),
                       (("--pattern", "star"), "'star'"), (("--window", 513), "513"), (("--comms", 0), "'0'"),
                       (("--sides", 17), "'17'"), (("--group", 33), "'33'"), (("--memory", "disk"), "'disk'"),
                       (("--seconds", -1), "'-1'"), (("--patience", 0), "'0'"), (("--rounds", 0), "'0'"),
                       (("--env", "socket"), "'socket'"), (("--env", "x:A=B", SOCKET), "x:A=B"),
                       (("--plot", "x.gif"), "x.gif"), (("--netns", "a", SOCKET), "'a'"),
                       (("--bind", "0", SOCKET), "'0'"), (("--bind", "0,9999", SOCKET), "'0,9999'"),
                       ((SOCKET, SOCKET), "socket"),
                       (("--fail-below", 0.5, SOCKET), "--compare"), (("--abi", 5), "'5'"), (("--fish",), "--fish")):
        done = run([KIT, "bench", *args])
        expect(done, 2, said)
        assert len(done.stderr.splitlines()) == 1, done.stderr
    expect(run([KIT, "bench", SOCKET, "--json", "/nonexistent/x"]), 3, "/nonexistent/x")


main([("patterns and kinds", patterns_and_kinds), ("sixteen sides", sixteen_sides),
      ("half round trips", half_round_trips), ("callers that spin", callers_that_spin),
      ("sides bound to processors", sides_bound_to_processors), ("one buffer", one_buffer),
      ("odd sizes", odd_sizes), ("a gigabyte", a_gigabyte),
      ("what does not fit", what_does_not_fit), ("grouped receives", grouped_receives),
      ("plugins alternate", plugins_alternate),
      ("what the JSON holds", what_the_json_holds), ("every vtable version", every_vtable_version),
      ("each trouble is a result of its cell", each_trouble_is_a_result),
      ("planted defects", planted_defects),
      ("all bytes are checked", all_bytes_are_checked), ("what cannot be loaded", what_cannot_be_loaded),
      ("what is not there", what_is_not_there),
      ("a thousand connections leave nothing", a_thousand_connections),
      ("time ends a cell of many connections", time_ends_a_cell_of_many_connections), ("GPU memory", gpu_memory),
      ("two hosts", two_hosts), ("network namespaces", network_namespaces), ("comparing", comparing),
      ("a picture", a_picture), ("bad options", bad_options)])
