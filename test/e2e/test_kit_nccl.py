#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 600
# TEST-READS: build/bin/rail-kit build/lib/ghost/libcuda.so.1 build/lib/ghost/libcudart.so.13
# TEST-READS: build/lib/libnccl-net-socket.so build/lib/libnccl-net-ib.so build/lib/emu/libibverbs.so.1 test/e2e/coll.py
# TEST-READS: build/lib/libnccl-net-railtrace.so
"""rail-kit nccl: which files it refuses; with RAIL_TEST_NCCL=libnccl.so.2, what it finds in plugins under NCCL."""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from coll import BUILD, SOCKET, Skip, main, run

KIT = str(BUILD / "bin" / "rail-kit")
TRACE = str(BUILD / "lib" / "libnccl-net-railtrace.so")
NCCL = os.environ.get("RAIL_TEST_NCCL")
INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"


NOTHING = "int ncclGetVersion(int *v);\nint ncclGetVersion(int *v) { *v = 1; return 0; }\n"
# As NCCL makes shared memory, and logs it; the names are written to a file of the test's, too.
MAKES_SHARED_MEMORY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void make(void) {
  char path[] = "/dev/shm/nccl-XXXXXX";
  FILE *log = fopen(getenv("NCCL_DEBUG_FILE"), "a"), *names = fopen(getenv("NAMES"), "a");
  close(mkstemp(path));
  fprintf(log, "host:1:2 [0] NCCL INFO Allocated 4096 bytes of shared memory in %s\n", path);
  fprintf(log, "host:1:2 [0] NCCL INFO Allocated 4096 bytes of shared memory in %s\n", getenv("OTHER"));
  fprintf(names, "%s\n", path);
  fclose(log);
  fclose(names);
}
"""

# Says which network NCCL is told to use.
SAYS_NETWORK = r"""
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void say(void) {
  FILE *said = fopen(getenv("SAID"), "a");
  fprintf(said, "%s %s\n", getenv("NCCL_NET_PLUGIN"), getenv("NCCL_NET"));
  fclose(said);
}
"""

# A plugin around another one whose table is there when CUDA's driver is, by the name that aws-ofi-nccl opens.
NEEDS_CUDA = r"""
#include <dlfcn.h>
#include <stdlib.h>
#include "rail/net.h"
struct rail_net_v12 ncclNetPlugin_v12;
__attribute__((constructor)) static void make(void) {
  const struct rail_net_v12 *inner = dlsym(dlopen(getenv("INNER"), RTLD_NOW), "ncclNetPlugin_v12");
  if (dlopen("libcuda.so", RTLD_NOW)) ncclNetPlugin_v12 = *inner;
}
"""


def library(folder, soname, *linked, code=NOTHING):
    """A shared library of that soname, linked with those."""
    path = f"{folder}/lib.so"
    source = f"{folder}/x.c"
    with open(source, "w") as f:
        f.write(code)
    compiler = os.environ.get("CC", "gcc").split()[0]
    subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", source, *linked, "-o", path],
                   check=True)
    return path


def refuses(path, *words):
    done = run([KIT, "nccl", SOCKET, "--nccl", path])
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    if "without libelf" in done.stderr:
        raise Skip("this rail-kit was built without libelf")
    assert all(word in done.stderr for word in words), done.stderr


def what_is_no_nccl_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        refuses(f"{folder}/none", "none")
        with open(f"{folder}/text", "w") as f:
            f.write("no library")
        refuses(f"{folder}/text", "text")
        refuses(library(folder, "libother.so"), "is not NCCL", "libother.so")


def a_static_runtime_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        refuses(library(folder, "libnccl.so.2"), "linked in statically", "CUDARTLIB=cudart")


def the_line_that_repeats_a_case_repeats_it():
    """Over a library that is NCCL by its name only: what fails says how it is run again, and that does the same."""
    with tempfile.TemporaryDirectory() as folder:
        nccl = library(folder, "libnccl.so.2", "-Wl,--no-as-needed", str(BUILD / "lib/ghost/libcudart.so.13"))
        chosen = ["--ranks", "4", "--gpus-per-process", "2", "--ranks-per-host", "2", "--channels", "1",
                  "--limit", "20", "--sizes", "8,2K", "--types", "float,int8", "--redops", "sum,max",
                  "--only", "all_reduce.ring.LL", "--oob", "--gdr", "on"]
        done = run([KIT, "nccl", SOCKET, "--nccl", nccl, *chosen, "--json", "-"])
        if "without libelf" in done.stderr:
            raise Skip("this rail-kit was built without libelf")
        assert done.returncode == 1, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        first = json.loads(done.stdout)["results"]
        words = shlex.split(first[0]["again"])
        for option in ("--ranks 4", "--gpus-per-process 2", "--ranks-per-host 2", "--channels 1", "--limit 20",
                       "--sizes 8,2048", "--types float,int8", "--redops sum,max", "--only all_reduce.ring.LL",
                       "--oob", "--gdr on"):
            assert option in " ".join(words), (option, words)
        done = run([KIT, *words[1:], "--json", "-"])
        again = json.loads(done.stdout)["results"]
        assert [(r["name"], r["status"], r["again"]) for r in again] == \
            [(r["name"], r["status"], r["again"]) for r in first], (first, again)


def shared_memory_that_is_left_is_removed():
    """What NCCL's log says that it made under NCCL's names; nothing else, whatever a line says."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="other-") as other:
        nccl = library(folder, "libnccl.so.2", "-Wl,--no-as-needed", str(BUILD / "lib/ghost/libcudart.so.13"),
                       code=MAKES_SHARED_MEMORY)
        done = run([KIT, "nccl", SOCKET, "--nccl", nccl, "--only", "all_reduce.ring.LL"],
                   NAMES=f"{folder}/names", OTHER=other.name)
        if "without libelf" in done.stderr:
            raise Skip("this rail-kit was built without libelf")
        names = pathlib.Path(f"{folder}/names").read_text().split()
        left = [name for name in names if os.path.exists(name)]
        for name in left:
            os.unlink(name)
        assert len(names) == 2 and not left and os.path.exists(other.name), (names, left, done)


def a_plugin_that_needs_cuda_finds_it():
    """In the process that asks it for its name, too, where there is no NCCL."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        nccl = library(folder, "libnccl.so.2", "-Wl,--no-as-needed", str(BUILD / "lib/ghost/libcudart.so.13"))
        plugin = library(other, "libnccl-net.so", f"-I{INCLUDE}", code=NEEDS_CUDA)
        done = run([KIT, "nccl", plugin, "--nccl", nccl, "--only", "all_reduce.ring.LL", "--json", "-"], INNER=SOCKET)
        if "without libelf" in done.stderr:
            raise Skip("this rail-kit was built without libelf")
        results = json.loads(done.stdout)["results"]
        assert [r["name"] for r in results] == ["all_reduce.ring.LL"], results


def nccls_own_networks_have_names():
    """builtin:NAME has NCCL use its own network, and no plugin."""
    with tempfile.TemporaryDirectory() as folder:
        nccl = library(folder, "libnccl.so.2", "-Wl,--no-as-needed", str(BUILD / "lib/ghost/libcudart.so.13"),
                       code=SAYS_NETWORK)
        for plugin, network in ("builtin:socket", "Socket"), ("builtin:IB", "IB"):
            said = pathlib.Path(f"{folder}/{network}")
            done = run([KIT, "nccl", plugin, "--nccl", nccl, "--only", "all_reduce.ring.LL", "--json", "-"], SAID=said)
            if "without libelf" in done.stderr:
                raise Skip("this rail-kit was built without libelf")
            assert said.read_text() == f"none {network}\n" * 2, (said.read_text(), done)
            again = json.loads(done.stdout)["results"][0]["again"]
            assert f"rail-kit nccl {plugin} " in again, again


def arguments_are_checked():
    for args, word in ((("nccl",), "a plugin is missing"), (("nccl", SOCKET), "--nccl is missing"),
                       (("nccl", "builtin:TCP", "--nccl", "x"), "builtin:Socket and builtin:IB, not 'builtin:TCP'"),
                       (("nccl", SOCKET, "--nccl", "x", "--types", "flot"), "flot"),
                       (("nccl", SOCKET, "--nccl", "x", "--sizes", "8,x"), "8,x"),
                       (("nccl", SOCKET, "--nccl", "x", "--ranks", "1"), "--ranks"),
                       (("nccl", SOCKET, "--nccl", "x", "--ranks", "4", "--ranks-per-host", "3"), "divisor"),
                       (("nccl", SOCKET, "--nccl", "x", "--ranks", "4", "--ranks-per-host", "4"), "divisor"),
                       (("nccl", SOCKET, "--nccl", "x", "--ranks", "4", "--gpus-per-process", "4"),
                        "--gpus-per-process 4: --ranks is 4"),
                       (("nccl", SOCKET, "--nccl", "x", "--ranks", "6", "--gpus-per-process", "2",
                         "--ranks-per-host", "3"), "multiple")):
        done = run([KIT, *args])
        assert done.returncode == 2 and word in done.stderr, (args, done)
    listed = run([KIT, "nccl", "--list", "--only", "all_reduce,*.LL128"]).stdout.split()
    assert {"all_reduce.tree.Simple", "reduce.ring.LL128"} <= set(listed) and "broadcast.ring.LL" not in listed, listed


def need_nccl():
    if not NCCL:
        raise Skip("RAIL_TEST_NCCL names no libnccl.so.2 with a dynamic CUDA runtime (docs/nccl.md)")


def kit(plugin, *args, status=0, **changes):
    done = run([KIT, "nccl", plugin, "--nccl", NCCL, "--json", "-", *args], limit=300, **changes)
    assert done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout)


def figure(result, name):
    return next(f["value"] for f in result["figures"] if f["name"] == name)


def our_plugin_carries_every_collective():
    need_nccl()
    report = kit(SOCKET, "--skip", "comm.*,fault.*", "--sizes", "8,1000,256K")
    assert report["summary"]["passed"] + report["summary"]["skipped"] == len(report["results"]) == 23, report["summary"]
    assert report["summary"]["skipped"] < 10, report["summary"]
    for r in report["results"]:
        if r["status"] == "pass":
            assert figure(r, "connections_by_the_plugin") >= 4, r
            assert figure(r, "received_by_the_plugin") >= figure(r, "sent_between_hosts") > 0, r


def a_plugin_without_counters_is_named():
    """NCCL's log alone shows then who carried what, and the report says so."""
    need_nccl()
    options = ["--only", "all_reduce.ring.Simple", "--types", "float", "--redops", "sum"]
    for stats, counted, words in (("1", True, "whose own counters were compared"), ("0", False, "has no counters")):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = run([KIT, "nccl", SOCKET, "--nccl", NCCL, "--json", out.name, *options], limit=300, RAIL_STATS=stats)
            figures = {f["name"] for f in json.load(out)["results"][0]["figures"]}
        assert done.returncode == 0 and words in done.stdout, done
        assert ("received_by_the_plugin" in figures) == ("sent_between_hosts" in figures) == counted, figures


def nccls_own_networks_carry_collectives():
    """They count nothing; one with the emulated device's library where NCCL looks for it."""
    need_nccl()
    verbs = {"LD_LIBRARY_PATH": BUILD / "lib/emu", "NCCL_IB_GID_INDEX": "3", "RAIL_EMU": "device emu0"}
    there = (BUILD / "lib/emu/libibverbs.so").exists()
    for plugin, env in (("builtin:Socket", {}), *([("builtin:IB", verbs)] if there else [])):
        report = kit(plugin, "--only", "all_reduce.ring.*,all_gather.ring.LL,sendrecv", "--types", "float",
                     "--redops", "sum", **env)
        for r in report["results"]:
            assert r["status"] == "pass" and [f["name"] for f in r["figures"]] == ["connections_by_the_plugin"], r
            assert figure(r, "connections_by_the_plugin") >= 4, r


def communicators_are_made_and_lost():
    need_nccl()
    report = kit(SOCKET, "--only", "comm.*,fault.*", "--repeat", "10")
    results = {r["name"]: r for r in report["results"]}
    assert len(results) == 9, report["results"]
    for name, why in ("comm.shrink", "no ncclCommShrink"), ("fault.link_lost", "network namespaces"):
        if results[name]["status"] == "skip":
            assert why in results.pop(name)["seen"], report["results"]
    assert {r["status"] for r in results.values()} == {"pass"}, report["results"]


def four_ranks_and_the_bootstrap():
    need_nccl()
    kit(SOCKET, "--ranks", "4", "--oob", "--only", "all_reduce.ring.Simple,all_reduce.tree.LL,alltoall",
        "--types", "float", "--redops", "sum")


def ranks_gather_and_scatter_by_pat():
    """Numbers of ranks that are powers of two and that are not: each has connections to ranks at powers of two."""
    need_nccl()
    for ranks, distances in ((2, 1), (3, 2), (5, 3)):
        report = kit(SOCKET, "--ranks", str(ranks), "--only", "*.pat.*", "--sizes", "8,1000,64K,2M", "--types", "float")
        assert len(report["results"]) == 2, report
        for r in report["results"]:
            if r["status"] == "skip":
                assert "built without PAT" in r["seen"], r
                raise Skip(f"{NCCL} was built without PAT")
            assert figure(r, "connections_by_the_plugin") >= 2 * ranks * distances, r
    report = kit(SOCKET, "--ranks", "4", "--ranks-per-host", "2", "--only", "*.pat.*")
    assert all("each rank is a host" in r["seen"] for r in report["results"]), report


def what_is_left_out_has_the_reason():
    """NCCL takes fp8 numbers for reductions on newer GPUs only, old NCCL for all collectives; averages are rounded."""
    need_nccl()
    refuses = "compute capability 9.0, and the emulated GPU has 8.0"
    reduced, copied, sent = kit(SOCKET, "--types", "f8e4m3,f8e5m2", "--sizes", "8",
                                "--only", "all_reduce.ring.LL,all_gather.ring.LL,sendrecv")["results"]
    assert reduced["status"] == "skip" and refuses in reduced["seen"], reduced
    assert copied["status"] == "pass" or copied["status"] == "skip" and refuses in copied["seen"], copied
    assert sent["status"] == "pass", sent
    averaged, = kit(SOCKET, "--ranks", "3", "--types", "float", "--redops", "avg", "--sizes", "8",
                    "--only", "all_reduce.ring.LL")["results"]
    assert averaged["status"] == "skip" and "averages of 3 ranks are rounded" in averaged["seen"], averaged
    averaged, = kit(SOCKET, "--types", "float", "--redops", "avg", "--sizes", "8",
                    "--only", "reduce_scatter.pat.*")["results"]
    assert averaged["status"] == "skip" and "PAT makes no averages" in averaged["seen"], averaged


def emulated_verbs():
    """The ib plugin, and the environment in which it finds an emulated device."""
    verbs, plugin = BUILD / "lib/emu/libibverbs.so.1", BUILD / "lib/libnccl-net-ib.so"
    if not (verbs.exists() and plugin.exists()):
        raise Skip("built without libibverbs")
    return plugin, {"NCCL_IBVERBS_LIB": str(verbs), "RAIL_EMU": "device emu0"}


def several_ranks_are_a_host():
    """What lies between them leaves out the plugin, and all is right."""
    need_nccl()
    options = ["--ranks", "4", "--types", "float", "--redops", "sum", "--sizes", "8,1000,256K"]
    shared = kit(SOCKET, *options, "--ranks-per-host", "2",
                 "--only", "all_reduce.ring.*,*.tree.LL,alltoall*,comm.split")
    alone = kit(SOCKET, *options, "--only", "all_reduce.ring.Simple")
    through = {r["name"]: figure(r, "connections_by_the_plugin") for r in shared["results"]}
    assert through["all_reduce.ring.Simple"] < figure(alone["results"][0], "connections_by_the_plugin"), through


def several_gpus_are_a_process():
    """One thread makes the calls of two ranks; they are one host, and all between the two hosts is the plugin's."""
    need_nccl()
    report = kit(SOCKET, "--ranks", "4", "--gpus-per-process", "2", "--types", "float", "--redops", "sum",
                 "--sizes", "8,1000,256K", "--only", "*.ring.LL,all_reduce.*.Simple,sendrecv,alltoall*,comm.split")
    status = {r["name"]: r["status"] for r in report["results"]}
    assert status.pop("comm.split") == "skip" and set(status.values()) == {"pass"} and len(status) == 10, report
    assert all(figure(r, "connections_by_the_plugin") >= 4 for r in report["results"] if r["status"] == "pass"), report


def groups_of_receives(case, *options):
    """The tags of each irecv of the case, 4 ranks, 2 a host: a list for each connection of all processes."""
    need_nccl()
    plugin, emulated = emulated_verbs()
    with tempfile.TemporaryDirectory() as folder:
        report = kit(TRACE, "--gdr", "on", "--ranks", "4", "--ranks-per-host", "2", "--only", case,
                     "--types", "float", *options, RAIL_TRACE_PLUGIN=plugin, RAIL_TRACE_SLOW="60s",
                     RAIL_TRACE_FILE=f"{folder}/%p.railtrace", **emulated)
        if report["results"][0]["status"] == "skip":
            assert "NCCL before 2.27" in report["results"][0]["seen"], report
            raise Skip("this NCCL makes two connections at once where ranks of a host share one")
        assert figure(report["results"][0], "connections_through_another_rank") >= 2, report
        groups = {}
        for file in pathlib.Path(folder).glob("*.railtrace"):
            events = json.loads(run([KIT, "trace", "--json", "-", file]).stdout)[0]["events"]
            assert not [e for e in events if e["call"] == "finding"], events
            for e in events:
                if e["call"] == "irecv" and e.get("made"):
                    groups.setdefault((file, e["comm"]), []).append([b["tag"] for b in e["buffers"]])
        return list(groups.values())


def ranks_of_a_host_receive_in_groups():
    sizes = [len(tags) for groups in groups_of_receives("alltoall") for tags in groups]
    assert max(sizes) == 2 and sizes.count(2) > 10, sizes


def groups_shrink():
    """Some messages end before others that are received with them, now the first of the group and now the last."""
    ended = set()
    for groups in groups_of_receives("alltoallv", "--sizes", "8,1M,4M"):
        for before, now in zip(groups, groups[1:]):
            if len(before) == 2 and len(now) == 1:
                ended.add(before.index(now[0]))
    assert ended == {0, 1}, ended


def writes_to_gpu_memory_need_a_flush():
    """Over an emulated verbs device: all is well, and it is not when the plugin flushes nothing."""
    need_nccl()
    plugin, emulated = emulated_verbs()
    options = ["--gdr", "on", "--types", "float", "--redops", "sum"]
    report = kit(str(plugin), *options, "--only", "all_reduce.*,sendrecv,alltoall", **emulated)
    assert all(figure(r, "received_by_the_plugin") > 0 for r in report["results"]), report["results"]
    report = kit(str(plugin), *options, "--only", "all_reduce.ring.*", status=1, NCCL_GDR_FLUSH_DISABLE="1", **emulated)
    seen = {r["name"].split(".")[2]: r for r in report["results"]}
    assert seen["LL"]["status"] == seen["LL128"]["status"] == "pass", report["results"]
    assert "are not visible yet" in seen["Simple"]["seen"], seen["Simple"]
    report = kit(SOCKET, *options, "--only", "all_reduce.ring.Simple")
    assert report["results"][0]["status"] == "skip" and "host memory only" in report["results"][0]["seen"], report


def another_network_is_noticed():
    """NCCL uses shared memory where it may: right results, and not through the plugin."""
    need_nccl()
    report = kit(SOCKET, "--only", "all_reduce.ring.Simple", "--types", "float", "--redops", "sum", status=1,
                 NCCL_HOSTID="one", NCCL_SHM_DISABLE="0")
    assert "not carried by the plugin" in report["results"][0]["seen"], report["results"][0]


if __name__ == "__main__":
    main([(case.__name__.replace("_", " "), case) for case in (
        what_is_no_nccl_is_refused, a_static_runtime_is_refused, the_line_that_repeats_a_case_repeats_it,
        shared_memory_that_is_left_is_removed, a_plugin_that_needs_cuda_finds_it, nccls_own_networks_have_names,
        arguments_are_checked, our_plugin_carries_every_collective, a_plugin_without_counters_is_named,
        nccls_own_networks_carry_collectives, communicators_are_made_and_lost, four_ranks_and_the_bootstrap,
        ranks_gather_and_scatter_by_pat, what_is_left_out_has_the_reason, several_ranks_are_a_host,
        several_gpus_are_a_process, ranks_of_a_host_receive_in_groups, groups_shrink, writes_to_gpu_memory_need_a_flush,
        another_network_is_noticed)])
