#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 120
"""The parts of make gpu-test where there is no GPU: with librailyard in NCCL's place, over a driver without a GPU,
and with programs that print what nccl-tests print. What gpu_coll and rail-coll check, the launcher of ranks, the
small MPI, NCCL's log, the table of skips."""
import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
GPU = HERE.parent / "gpu"
sys.path[:0] = [str(HERE), str(GPU)]
import device  # noqa: E402
import mps  # noqa: E402
import nccl_tests  # noqa: E402
import places  # noqa: E402
import real_nccl  # noqa: E402
import speed  # noqa: E402
import suite  # noqa: E402
from coll import BUILD, Skip, main, run  # noqa: E402
from steps import CUT, FAILED, MISSED, OK, SKIPPED, Runner, Step  # noqa: E402
from steps import Failed as StepFailed  # noqa: E402

ROOM = pathlib.Path(tempfile.mkdtemp(prefix="rail-test-gpu."))
COLL = BUILD / "test" / "gpu" / "gpu_coll"
RANKS = GPU / "ranks.py"
FAKE = BUILD / "test" / "libfakegpu.so"


class Emulated(places.Machine):
    """librailyard in NCCL's place, and nothing real."""

    def env(self, *folders, **more):
        return {k: v for k, v in super().env(*folders, **more).items() if k != "TEST_REAL_GPU"}


def machine():
    if not FAKE.exists():
        raise Skip("no C++17 compiler here, so there is no driver without a GPU")
    m = Emulated(BUILD)
    m.nccl = m.railyard
    return m


def runner(name):
    return Runner(ROOM / name, 100, say=lambda text: None)


def check(step, result, *words):
    assert step.result == result, f"{step.name}: {step.result}: {step.note}"
    for word in words:
        assert word in step.note, f"{step.name}: its note lacks \"{word}\": {step.note}"


def write(name, text, mode=0o755):
    path = ROOM / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


# ---- gpu_coll ----

def gpu_coll(*options, **env):
    m = machine()
    return run([COLL, "--library", m.railyard, "--iters", 1, "--maxbytes", 40000, *options],
               **{k.lstrip("+"): v for k, v in m.env(**env).items()})


def every_result():
    for n in (1, 3):
        done = gpu_coll("--ranks", n, "--factor", 64)
        assert done.returncode == 0 and "\nnot ok" not in done.stdout, done.stdout + done.stderr
        assert done.stdout.count("\nok ") == 13 and "\n1..13" in done.stdout, done.stdout


def wrong_bytes():
    """A plugin that damages messages: gpu_coll, which gets the bytes through it, must see it."""
    broken = BUILD / "test" / "broken" / "libnccl-net-broken-corrupt_byte.so"
    done = gpu_coll("--hosts", "--only", "all_gather", NCCL_NET_PLUGIN=broken)
    assert done.returncode == 1 and "not ok 3 - all_gather of uint8" in done.stdout, done.stdout + done.stderr


def rank_dies():
    """A library that is none: every rank says so, and nobody waits."""
    begin = time.monotonic()
    done = run([COLL, "--library", str(write("nothing.so", ""))], **machine().env())
    assert done.returncode == 1 and "nothing.so" in done.stdout and "not ok 13" in done.stdout, done.stdout
    assert time.monotonic() - begin < 20, "it took its time"


# ---- rail-coll ----

def rail_coll():
    """The step of the suite, over the driver without a GPU: what is right is, and what is damaged is not."""
    m, r = machine(), runner("rail-coll")
    m.no_gpu = "none"
    runs = [("all_reduce", "-r", 2, "--memory", "device", "-b", 64, "-e", 4096, "-f", 64, "-n", 1)]
    damage = {"LD_PRELOAD": BUILD / "test" / "libcorrupt.so", "CORRUPT_KIND": "result", "CORRUPT_RANK": 1,
              "CORRUPT_COUNT": 16}
    r.do(Step("2", "right", body=device.rail_coll(m, *runs), env=m.env()))
    r.do(Step("2", "damaged", body=device.rail_coll(m, *runs), env=m.env(**damage)))
    r.do(Step("2", "no option", body=device.rail_coll(m, ("all_reduce", "--nonsense")), env=m.env()))
    check(r.steps[0], OK, "1 runs")
    check(r.steps[1], FAILED, "rail-coll all_reduce -r 2", "status 1")
    check(r.steps[2], FAILED, "status 2", "--nonsense")
    # One run that fails does not end the others, nor take their figures.
    m.no_gpu = ""
    memory = ("--memory", "device", "-b", 64, "-e", 64, "-n", 1)
    image = r.out / "fakegpu.image"
    r.do(Step("2", "some", body=device.rail_coll(
        m, ("all_reduce", "--nonsense"), ("all_reduce", "-r", 2, *memory), ("all_reduce", "-r", 2, "-G", 2, *memory),
        ("sendrecv", "-r", 2, *memory)), env={**m.env(), "RAIL_CUDA_LIB": FAKE, "RAIL_CUDA_KERNELS": image}))
    check(r.steps[3], FAILED, "rail-coll all_reduce --nonsense: status 2")
    assert "-r 2" not in r.steps[3].note, r.steps[3].note
    figures = r.steps[3].figures
    assert sorted(figures) == [f"{name}, 64 B" for name in ("all_reduce -r 2 -G 2", "all_reduce -r 2",
                                                            "sendrecv -r 2")], figures


# ---- launcher and MPI ----

def launcher():
    script = write("rank.sh", "#!/bin/bash\necho \"rank $RANK of $WORLD_SIZE on $NCCL_HOSTID\"\n"
                   "[[ $1 != fail || $RANK != 1 ]] || exit 7\n[[ $1 != fail ]] || exec sleep 100\n")
    done = run([sys.executable, RANKS, "-n", 3, "--hosts", "--", script])
    hosts = {line.split(" on ")[1] for line in done.stdout.splitlines()}
    assert done.returncode == 0 and len(hosts) == 3 and "rank 2 of 3" in done.stdout, done.stdout + done.stderr
    begin = time.monotonic()
    done = run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(GPU)!r}); import ranks; ranks.GRACE = 0.3;"
                f"sys.argv = ['ranks', '-n', '2', '--', {str(script)!r}, 'fail']; ranks.main()"])
    assert done.returncode == 7 and time.monotonic() - begin < 20, f"{done.returncode}\n{done.stdout}{done.stderr}"


MPI_PROGRAM = r"""
#include <stdio.h>
#include "mpi.h"
#define CHECK(c) do { if (!(c)) { printf("line %d\n", __LINE__); return 1; } } while (0)
int main(int argc, char **argv) {
  int rank, n, part_rank, one, all[3] = {0}, least;
  double got[6], mine[2];
  MPI_Comm part;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  MPI_Comm_split(MPI_COMM_WORLD, 5, rank, &part);
  MPI_Comm_rank(part, &part_rank);
  CHECK(n == 3 && part_rank == rank);
  for (int round = 0; round < 200; round++) {
    one = rank == 1 ? 70 + round : 0;
    MPI_Bcast(&one, 1, MPI_INT, 1, part);
    CHECK(one == 70 + round);
    all[rank] = rank + round;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, sizeof(int), MPI_BYTE, MPI_COMM_WORLD);
    CHECK(all[0] == round && all[1] == 1 + round && all[2] == 2 + round);
    long sum = rank + 1;
    long long most = rank * round;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_LONG, MPI_SUM, part);
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_LONG_LONG, MPI_MAX, part);
    MPI_Allreduce(&rank, &least, 1, MPI_INT, MPI_MIN, part);
    CHECK(sum == 6 && most == 2 * round && least == 0);
    mine[0] = rank + 0.5, mine[1] = -rank;
    MPI_Gather(mine, 2, MPI_DOUBLE, got, 2, MPI_DOUBLE, 0, part);
    CHECK(rank != 0 || (got[0] == 0.5 && got[2] == 1.5 && got[5] == -2));
    MPI_Barrier(part);
  }
  MPI_Comm_free(&part);
  MPI_Finalize();
  puts("well");
  return 0;
}
"""


def small_mpi():
    program = ROOM / "mpi"
    write("mpi.c", MPI_PROGRAM)
    run([os.environ.get("CC", "gcc").split()[0], "-D_GNU_SOURCE", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror",
         f"-I{GPU}/mpi", ROOM / "mpi.c", GPU / "mpi" / "mpi.c", "-o", program])
    done = run([sys.executable, RANKS, "-n", 3, "--", program], limit=60)
    assert done.returncode == 0 and done.stdout.count("well") == 3, done.stdout + done.stderr
    alone = run([program])
    assert alone.returncode == 3 and "ranks.py" in alone.stderr, alone.stderr


# ---- what NCCL says ----

def nccl_log():
    r = runner("log")
    line = "vm:1:2 [0] NCCL INFO "
    fine = [f"{line}Using network {{0}}", f"{line}4 coll channels, 0 collnet channels",
            f"{line}Channel 00/0 : 0[0] -> 1[0] [send] via NET/{{0}}/0"]

    def check_log(name, *ranks, want="RailSocket", channels=4):
        step = Step("log", name)
        step.log = r.logs / f"{name}.log"
        for n, lines in enumerate(ranks):
            (r.logs / f"{name}.nccl.{n}.log").write_text("\n".join(lines) + "\n")
        try:
            return real_nccl.chosen(step, want, channels)
        except StepFailed as e:
            return f"failed: {e}"

    def named(plugin):
        return [text.format(plugin) for text in fine]
    assert check_log("ours", named("RailSocket"), named("RailSocket")) == "NCCL's log: RailSocket, 4 channels"
    assert check_log("one", named("RailSocket")).startswith("failed: 1 of 2")
    assert check_log("other", named("Socket"), named("RailSocket")).startswith("failed: 1 of 2")
    assert check_log("unused", named("RailSocket")[:2], named("RailSocket")).startswith("failed: 1 of 2")
    assert check_log("wrapped", named("RailSocket+trace"), named("RailSocket+trace")).startswith("failed: 0 of 2")
    assert "trace" in check_log("trace", named("RailSocket+trace"), named("RailSocket+trace"), want="RailSocket+trace")
    assert check_log("channels", named("RailSocket"), named("RailSocket"), channels=8).startswith("failed: NCCL made 4")


def recorded_and_replayed():
    m, r = machine(), runner("trace")
    real_nccl.chosen = lambda step, name, channels=0: name  # librailyard logs in its own words
    for step in (real_nccl.record(m), real_nccl.summary(m), real_nccl.replay(m)):
        r.do(step)
    check(r.steps[0], OK, "13 cases", "RailSocket+trace")
    check(r.steps[1], OK, "messages sent", "no findings")
    check(r.steps[2], OK, "all as recorded")
    # A plugin that breaks the contract: the summary says so, though all results were right.
    bad = runner("trace-bad")
    step = real_nccl.record(m)
    step.env["RAIL_TRACE_PLUGIN"] = str(BUILD / "test" / "broken" / "libnccl-net-broken-sizes_overrun.so")
    step.env["NCCL_NET"] = "RailRef+trace"
    bad.do(step)
    bad.do(real_nccl.summary(m))
    check(bad.steps[0], OK)
    check(bad.steps[1], FAILED, "the plugin broke sizes_too_many")


# ---- speed, nccl-tests ----

TURN_SIZES = ["--minbytes", 4096, "--maxbytes", 65536, "--factor", 16, "--iters", 2]


def configure(module, **libraries):
    """Three configurations, each of librailyard or of the library given by the name's last word."""
    def those(m):
        return {name: (libraries.get(name.split()[-1], m.railyard), net, {"NCCL_NET_PLUGIN": m.plugin()})
                for name, net in (("NCCL, Socket", True), ("NCCL, our plugin", True), ("Railyard", False))}
    module.configurations = those


def one_of_them_fails():
    """Its name is said, it is not tried again, the others' figures stay, and what both sides have is compared."""
    m, r = machine(), runner("speed-fails")
    configure(speed, Socket=str(write("no-library.so", "")))
    r.do(Step("speed", speed.IN_TURNS, body=speed.in_turns(m, TURN_SIZES, 2), env=m.env_ranks()))
    check(r.steps[0], FAILED, "NCCL, Socket: status 1", "no-library.so")
    assert "plugin" not in r.steps[0].note and len(r.steps[0].figures) == 4, (r.steps[0].note, r.steps[0].figures)
    assert r.steps[0].log.read_text().count("no-library.so --") == 1, "what failed was tried again"
    both = ("NCCL, Socket", "NCCL, our plugin")
    r.do(Step("speed", "runtime", body=speed.compare(0.0, "Railyard", both, "")))
    r.do(Step("speed", "plugin", body=speed.compare(0.0, "NCCL, our plugin", ("NCCL, Socket",), "")))
    check(r.steps[1], OK, "64 KiB", "no figures of NCCL, Socket")
    check(r.steps[2], SKIPPED, "no figures of both sides")
    steps = {s.name: s for s in speed.steps(m)}
    assert set(speed.COMPARED) < set(steps) and "like for like" in " ".join(steps), list(steps)


def turns_and_verdicts():
    m, r = machine(), runner("speed")
    configure(speed)
    r.do(Step("speed", speed.IN_TURNS, body=speed.in_turns(m, TURN_SIZES, 2), env=m.env_ranks()))
    check(r.steps[0], OK, "2 rounds, 2 sizes")
    figures = r.steps[0].figures
    assert len(figures) == 6 and all(us > 0 for us in figures.values()), figures
    figures.update({f"{size} {name}": us for size in (4096, 65536) for name, us in (
        ("NCCL, Socket", 30.0), ("NCCL, our plugin", 20.0), ("Railyard", 10.0 if size == 4096 else 25.0))})
    r.do(Step("speed", "runtime", body=speed.compare(1.0, "Railyard", ("NCCL, Socket", "NCCL, our plugin"), "so so")))
    r.do(Step("speed", "plugin", body=speed.compare(1.0, "NCCL, our plugin", ("NCCL, Socket",), "")))
    check(r.steps[1], MISSED, "4 KiB 2.00x", "64 KiB 0.80x", "NOT reached", "so so")
    check(r.steps[2], OK, "1.50x", ": reached")
    text = "ok 1 - a\n" + "".join(f"# figure reduce_copy_{n}{what} {value} GB/s\n"
                                   for n, ratio in ((1, 0.95), (2, 0.85))
                                   for what, value in (("", 4000), ("_copy", 4200), ("_ratio", ratio)))
    verdict = speed.reduce_copy(text, None)
    assert verdict.missed and "2 sources 0.85x" in verdict.note and "NOT" in verdict.note, verdict


TABLE = """# nThread 1 nGpus 1 minBytes 4096 maxBytes 4194304 step: 32(factor) warmup iters: 1 iters: 5
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        4096          1024     float     sum      -1    50.00    0.08    0.08       0    49.00    0.08    0.08       0
     4194304       1048576     float     sum      -1   1000.0    4.19    4.19       {}   1001.0    4.19    4.19       0
"""


def side_by_side():
    m, r = machine(), runner("nccl-tests")
    folder = ROOM / "made"
    script = ("#!/bin/bash\n[[ $NCCL_TESTS_DEVICE == 0 && -n $RANK ]] || exit 4\n[[ $RANK == 0 ]] || exit 0\n"
              "cat <<'E'\n{}E\n")
    write("made/build/all_reduce_perf", script.format(TABLE.format(0)))
    write("made/build/all_gather_perf", script.format(TABLE.format(3)))
    write("made/build/gather_perf", "#!/bin/bash\necho broken; exit 3\n")
    found = {s.name: s for s in nccl_tests.steps(m, str(folder), ROOM / "work")}
    assert list(found) == list(nccl_tests.PROGRAMS), list(found)
    for name in ("all_reduce", "all_gather", "gather"):
        r.do(found[name])
    check(r.steps[0], OK, "4 MiB", "NCCL, our plugin 4.19", "NCCL, Socket 4.19", "Railyard 4.19")
    assert r.steps[0].figures["4194304 Railyard"] == 1000, r.steps[0].figures
    check(r.steps[1], FAILED, "Railyard")
    check(r.steps[2], FAILED, "status 3", "broken")
    # A column that fails leaves the others' figures.
    write("made/build/reduce_perf", script.format(TABLE.format(0)).replace(
        "cat", "case $LD_LIBRARY_PATH in *nothere*) exit 6;; esac; cat"))
    columns = nccl_tests.columns
    nccl_tests.columns = lambda m: {**columns(m), "NCCL, Socket": ("/nothere", True, {})}
    r.do(found["reduce"])
    nccl_tests.columns = columns
    check(r.steps[3], FAILED, "NCCL, Socket: status 6")
    assert {key.split(" ", 1)[1] for key in r.steps[3].figures} == {"NCCL, our plugin", "Railyard"}, r.steps[3].figures
    r.do(next(iter(nccl_tests.steps(m, "", ROOM / "work"))))
    check(r.steps[4], SKIPPED, "NCCL_TESTS")


# ---- the GPU ----

def probed(script, cards=(), smi=""):
    """What the suite takes a machine for, whose probe is the script."""
    write("probed/test/gpu/gpu_coll", f"#!/bin/bash\n{script}\n")
    saved = {name: getattr(places, name) for name in ("driver_folder", "card_files", "output", "PROBE_LIMIT")}
    places.driver_folder, places.card_files = lambda: "", lambda: list(cards)
    places.output, places.PROBE_LIMIT = lambda command, limit=20: smi if "-L" in command else "", 1
    try:
        return places.look(ROOM / "probed")
    finally:
        for name, value in saved.items():
            setattr(places, name, value)


def what_no_gpu_means():
    """Only the driver's word for it, or a machine without a card; everything else is a failed step with the output."""
    card = ("/dev/nvidia0",)
    m = probed("exit 0", card)
    assert not m.no_gpu and not m.broken, m
    m = probed("echo CUDA sees no device; exit 77", card)
    assert "sees no device" in m.no_gpu and not m.broken, m
    m = probed("echo no library; exit 1")
    assert "no library" in m.no_gpu and not m.broken, m
    for script, smi, *words in (("echo the driver has no cuNew; exit 1", "", "status 1", "has no cuNew"),
                                ("echo soon; kill -SEGV $$", "GPU 0: one (UUID)\n", "status -11", "soon"),
                                ("echo begun; sleep 50", "", "no end within 1 s", "begun")):
        m = probed(script, () if smi else card, smi)
        assert not m.no_gpu and m.broken, m
        r = runner("probed-out")
        for step in device.prepared(m, 0, ROOM / "none"):
            r.do(step)
        check(r.steps[0], FAILED, *words)
        assert words[-1] in (r.out / "all.log").read_text(), "its output is not in the log"


def probe_of_a_driver():
    """gpu_coll's status 77 is kept for CUDA's own word."""
    found = {}
    for name, source in (("none", "int cuInit(unsigned f) { (void)f; return 100; }"),
                         ("odd", "int cuInit(unsigned f) { (void)f; return 999; }")):
        folder = ROOM / f"driver-{name}"
        write(f"driver-{name}/cuda.c", source)
        done = run([os.environ.get("CC", "gcc").split()[0], "-shared", "-fPIC", folder / "cuda.c", "-o",
                    folder / "libcuda.so.1"])
        assert done.returncode == 0, done.stderr
        found[name] = run([COLL, "--probe"], TEST_REAL_GPU=1, LD_LIBRARY_PATH=folder)
    assert found["none"].returncode == 77 and "no device" in found["none"].stdout, found
    assert found["odd"].returncode == 1 and "the driver has no" in found["odd"].stdout, found


def held_open():
    card = write("card", "")
    fd = places.hold_open([str(ROOM / "no-card"), str(card)])
    assert os.readlink(f"/proc/self/fd/{fd}") == str(card) and not os.get_inheritable(fd), fd
    os.close(fd)
    assert places.hold_open([str(ROOM / "no-card")]) is None and places.hold_open([]) is None


def refused_by_the_sanitizer():
    r, m = runner("sanitizer"), Emulated(BUILD)
    for words in ("========= Error: Device not supported. Please refer to the documentation",
                  "# CUDA: operation not supported"):
        tool, real = str(write("checker", f"#!/bin/bash\necho '{words}'\nexit 1\n")), places.sanitizer
        places.sanitizer = lambda tool=tool: tool
        r.do(Step("6", words[:20], body=device.sanitized("memcheck", "program"), env=m.env()))
        places.sanitizer = real
    check(r.steps[0], SKIPPED, "refuses the device")
    check(r.steps[1], FAILED, "operation not supported")


# ---- MPS ----

def mps_daemon():
    words = ROOM / "words"
    tool = write("mps-control", f"#!/bin/bash\necho \"$1 $CUDA_MPS_PIPE_DIRECTORY $(cat)\" >>{words}\n")
    places.tool = lambda name: str(tool) if name == "nvidia-cuda-mps-control" else None
    daemon = mps.Daemon()
    pipes = daemon.pipes
    assert pipes and os.path.isdir(pipes) and not daemon.why, daemon.why
    m = Emulated(BUILD, mps=pipes)
    assert m.env_ranks()["CUDA_MPS_PIPE_DIRECTORY"] == pipes and "CUDA_MPS_PIPE_DIRECTORY" not in m.env()
    daemon.close()
    assert not os.path.exists(pipes), "its folder is left"
    assert words.read_text().split() == ["-d", pipes, pipes, "get_server_list", pipes, "quit"], words.read_text()
    write("mps-control", "#!/bin/bash\necho no rights\nexit 1\n")
    daemon = mps.Daemon()
    assert not daemon.pipes and "no rights" in daemon.why and not daemon.folder, daemon.why


# ---- the whole ----

def order_and_shares():
    """What was never measured comes first, and what may hang leaves the runtime its share."""
    m = Emulated(BUILD)
    everything = suite.wanted(list(suite.all_steps(m, argparse.Namespace(nccl_tests="", out=ROOM))), [])
    found = suite.shared_out(everything, 500)
    parts = list(dict.fromkeys(s.part[0] for s in found))
    assert parts == ["1", "2", "3", "4", "5", "6"] and found[0].name == "calls beside a kernel", [s.name for s in found]
    share = 500 * suite.RUNTIME_SHARE
    assert all(s.reserve == (share if s.part < device.RUNTIME else 0) for s in found), [s.reserve for s in found]
    alone = suite.shared_out(suite.wanted(list(speed.steps(m)), ["like for like"]), 500)
    assert [s.name for s in alone] == [speed.IN_TURNS, "Railyard against NCCL, like for like"], alone
    assert not any(s.reserve for s in alone), alone



def table_of_skips():
    """What make gpu-test calls, for the parts that skip here whether there is a GPU or not."""
    out = ROOM / "whole"
    done = run([sys.executable, GPU / "suite.py", "--build", BUILD, "--out", out, "--only", "4 nccl-tests"], limit=60)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "results.json").read_text())
    assert len(found["steps"]) == 10 and all(s["result"] == SKIPPED and s["note"] for s in found["steps"]), found
    assert found["facts"]["command"] and found["facts"]["date"], found["facts"]
    assert done.stdout.count("0 passed, 0 failed, 0 too slow, 10 skipped") == 1, done.stdout
    listed = run([sys.executable, GPU / "suite.py", "--build", BUILD, "--list"], limit=60).stdout
    for part in ("1 kernels: ", "2 speed: ", "3 NCCL: ", "4 nccl-tests: ", "5 runtime: ", "6 sanitizers: "):
        assert part in listed, listed
    cut = run([sys.executable, GPU / "suite.py", "--build", BUILD, "--out", out, "--budget", 100, "--build-status", 2,
               "--only", "rail-coll, processes, no P2P", "--began", int(time.time()) - 99], limit=60)
    found = json.loads((out / "results.json").read_text())
    assert cut.returncode == 1 and [s["result"] for s in found["steps"]] == [FAILED, CUT], cut.stdout + cut.stderr
    assert "make tests" == found["steps"][0]["name"] and "status 2" in found["steps"][0]["note"], found
    missing = run([sys.executable, GPU / "suite.py", "--build", ROOM], limit=60)
    assert missing.returncode == 2 and "make tests" in missing.stderr, missing.stderr


try:
    main([("gpu_coll finds every result right", every_result), ("gpu_coll sees damaged bytes", wrong_bytes),
          ("gpu_coll without a library", rank_dies), ("rail-coll's step", rail_coll),
          ("ranks and one that fails", launcher),
          ("the small MPI", small_mpi), ("NCCL's log", nccl_log),
          ("recorded, summed up, replayed", recorded_and_replayed),
          ("measured in turns, and the verdicts", turns_and_verdicts), ("one of those fails", one_of_them_fails),
          ("nccl-tests side by side", side_by_side), ("what no GPU means", what_no_gpu_means),
          ("what the probe calls no GPU", probe_of_a_driver), ("the GPU is held open", held_open),
          ("a device that compute-sanitizer refuses", refused_by_the_sanitizer), ("order and shares", order_and_shares),
          ("the table of skips", table_of_skips), ("an MPS daemon of our own", mps_daemon)])
finally:
    shutil.rmtree(ROOM, ignore_errors=True)
