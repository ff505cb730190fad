#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every planted defect of test/preload/defectnet.c is found by `rail-kit nccl`, by the line that names it; without a
defect that plugin passes.

As a module: the table and how to try a row. As a program: writes the table with what the kit says, see --help. NCCL's
libraries come from --nccl, or from RAIL_TEST_NCCL.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from proof import BUILD, ROOT, cell  # noqa: E402

HONEST = "none"
SIMPLE = ("--only", "all_reduce.ring.Simple")
GDR = ("--gdr", "on", *SIMPLE)
ALONE = ("--gdr", "on", "--ranks", "4", "--only", "alltoall")
GROUPS = (*ALONE, "--ranks-per-host", "2")
SHRINKING = ("--gdr", "on", "--ranks", "4", "--only", "alltoallv", "--ranks-per-host", "2", "--sizes", "8,1M,4M")
REPEATED = ("--only", "comm.repeated", "--repeat", "6")
USUAL = ("--types", "float", "--redops", "sum")
LIMITS = {True: "60", False: "90"}  # seconds: of a case that hangs, of others; NCCL itself needs some before it
# Releases of NCCL: what the plugin's calls return is dropped; tables without finalize; init once a process.
ERRORS_DROPPED, NO_FINALIZE, ONE_INIT = r"2\.2[67]\.", r"2\.2[4-7]\.", r"2\.2[67]\."
NO_GROUPS = r"2\.2[4-6]\."  # the kit skips what needs groups of receives (docs/nccl.md)
HIDDEN = r"bytes from rank \d are not visible yet"


@dataclasses.dataclass
class Defect:
    what: str
    options: tuple
    status: str  # of the case
    line: str    # a pattern: what `seen` says
    unseen: tuple = ()  # options with which the case passes
    is_error: bool = False  # a call returns one
    lost_in: str = ""   # a pattern: releases of NCCL under which it does no harm


DEFECTS = {
    # GPU memory
    "flush_nothing": Defect("iflush does nothing, and there is no request to wait for", GDR, "fail", HIDDEN),
    "flush_untrue": Defect("iflush's request is done, and nothing was flushed", GDR, "fail", HIDDEN),
    "flush_other_nic": Defect("iflush reads by another NIC than the one that wrote", GDR, "fail", HIDDEN),
    "flush_error": Defect("iflush fails", GDR, "fail", "NCCL result 2", is_error=True),
    "size_zero": Defect("test reports 0 bytes of a receive, and NCCL flushes none", GDR, "fail", HIDDEN),
    # messages
    "done_early": Defect("a receive is done before its bytes are there", SIMPLE, "fail", "wrong elements"),
    "corrupt_byte": Defect("one bit of the fifth message is another", SIMPLE, "fail", "wrong elements"),
    "fewer_bytes": Defect("half of each message is sent", SIMPLE, "fail", "wrong elements"),
    "message_lost": Defect("the fifth send is done, and was not sent", SIMPLE, "hang", "in a collective"),
    "message_twice": Defect("the fifth message is sent twice", SIMPLE, "fail hang", "wrong elements|in nccl|in a coll"),
    "one_request_for_two": Defect("two receives that are under way have one request", SIMPLE, "fail hang crash",
                                  "wrong elements|in nccl|in a collective"),
    # groups of receives
    "group_swapped": Defect("two buffers of a group are exchanged", GROUPS, "fail", "wrong elements", ALONE),
    "group_done_early": Defect("a group is done before its bytes are there", GROUPS, "fail", "wrong elements", ALONE),
    "group_flush_nothing": Defect("iflush of a group flushes nothing", GROUPS, "fail", HIDDEN, ALONE),
    "group_refused": Defect("irecv of a group fails", GROUPS, "fail", "NCCL result 2", ALONE,
                            is_error=True),
    "group_tag_kept": Defect("when a message of a group was its sender's last, its tag stays that of the smaller group",
                             SHRINKING, "fail hang", "in a collective|NCCL result", GROUPS),
    "group_ends_whole": Defect("when a group is smaller than the one before, those under way are done with it",
                               SHRINKING, "fail", "wrong elements", GROUPS),
    # connections
    "connect_never": Defect("connect never has a connection", SIMPLE, "hang", "in a collective"),
    "close_crash": Defect("closeSend crashes", SIMPLE, "crash", "SIGSEGV in ncclCommDestroy"),
    "close_hang": Defect("closeSend does not return", SIMPLE, "hang", "in ncclCommDestroy"),
    # devices
    "device_type": Defect("netDeviceType is 1, which the plugin is not", SIMPLE, "fail", "getDeviceMr"),
    "p2p_bytes_zero": Defect("maxP2pBytes is 0", SIMPLE, "fail", "invalid value for maxP2pBytes 0"),
    "merged_without_path": Defect("makeVDevice makes one device of two without a PCI path", SIMPLE, "fail",
                                  "Could not find (any local path|NET)", lost_in=r"2\.2[4-6]\."),
    "no_devices": Defect("under NCCL there is no device", SIMPLE, "fail",
                         "Failed to initialize any NET plugin|network DefectNet not found"),
    "socket_instead": Defect("the same, and the plugin's name is that of NCCL's own network, which takes its place",
                             SIMPLE, "fail", "NCCL's own network has the plugin's name"),
    "carried_beside": Defect("data goes by files, and only their names by the network", SIMPLE, "fail",
                             r"own counters say that it received only \d+ bytes"),
    # communicators
    "finalize_ends_all": Defect("the first finalize ends the connections of all contexts",
                                ("--only", "comm.two_at_once"), "fail", "NCCL result 2", lost_in=NO_FINALIZE),
    "files_left": Defect("each accept leaves a file descriptor", REPEATED, "fail", r"\d file descriptors are left"),
    "threads_left": Defect("each init leaves a thread", REPEATED, "fail", r"\d threads are left", lost_in=ONE_INIT),
    "memory_left": Defect("each init leaves 100 kB", REPEATED, "fail", r"the heap has grown by \d+ KiB with each",
                          lost_in=ONE_INIT),
    "death_unnoticed": Defect("a connection that is lost is no error", ("--only", "fault.killed"), "hang",
                              "in a collective", lost_in=ERRORS_DROPPED),
}


def planted():
    """The names that the fixture knows."""
    return set(re.findall(r'has\("(\w+)"\)', (ROOT / "test/preload/defectnet.c").read_text()))


def may_hang(name):
    return name != HONEST and "hang" in DEFECTS[name].status


def run(library, name, options):
    """The result of the one case, as the report has it, with NCCL's release; a text when there is no report."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        plugin, inner = BUILD / "test/libdefectnet.so", BUILD / "lib/libnccl-net-socket.so"
        command = [str(BUILD / "bin/rail-kit"), "nccl", str(plugin), "--nccl", str(library), "--quiet",
                   "--json", str(report), "--limit", LIMITS[may_hang(name)], *USUAL, *options]
        env = dict(os.environ, DEFECTNET=name, DEFECTNET_INNER=str(inner))
        if "--gdr" in options:
            env["DEFECTNET_GPU"] = "1"
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=300, env=env)
        if done.returncode > 1 or not report.exists():
            return f"{' '.join(command)}: status {done.returncode}\n{done.stdout}"
        results = json.loads(report.read_text())["results"]
        release = re.search(r"^NCCL ([\d.]+)", done.stdout, re.M)
        return dict(results[0], release=release[1] if release else "?")


def passes(name, options):
    """Is all well with these options?"""
    return name == HONEST or options == DEFECTS[name].unseen


def missed(name, options, result):
    """None when the line is there, or when all is well as it should be."""
    if isinstance(result, str):
        return result
    said = f"{result['status']}: {result['seen']}"
    if passes(name, options):
        return None if result["status"] == "pass" else said
    defect = DEFECTS[name]
    status, line = defect.status, defect.line
    if defect.is_error and re.match(ERRORS_DROPPED, result["release"]):
        status, line = "hang", "in a collective"
    found = result["status"] in status.split() and re.search(line, result["seen"])
    return None if found else f"{said} (expected {status}: {line})"


def rows(library):
    """What to try with that NCCL: each defect that does harm there, where it is seen and where it is not, and the
    plugin without a defect by each set of options."""
    release = pathlib.Path(library).resolve().name.removeprefix("libnccl.so.")
    there = {name: d for name, d in DEFECTS.items() if not (d.lost_in and re.match(d.lost_in, release)) and
             not ("--ranks-per-host" in d.options and re.match(NO_GROUPS, release))}
    yield from ((name, d.options) for name, d in there.items())
    yield from ((name, d.unseen) for name, d in there.items() if d.unseen)
    yield from ((HONEST, options) for options in dict.fromkeys(d.options for d in there.values()))


def try_all(library, jobs=3):
    """(name, options, result) of all rows."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        work = list(rows(library))
        yield from zip(*zip(*work), pool.map(lambda row: run(library, *row), work))


# ---- the document ----

def document(by_library):
    releases = [next((r["release"] for _, _, r in results if not isinstance(r, str)), "?") for results in by_library]
    first = by_library[0]
    bad = sum(1 for results in by_library for row in results if missed(*row))
    honest = [name for name, _, _ in first].count(HONEST)
    yield "# Does rail-kit nccl see what it should?"
    yield ""
    yield "Written by `make kit-nccl-proof`. `test/preload/defectnet.c` is a plugin around ours over TCP that breaks"
    yield f"the contract in one of {len(DEFECTS)} ways; with `--gdr on` it takes memory of the emulated GPU. Without a"
    yield f"defect it was run by each of the {honest} sets of options."
    yield ""
    yield f"NCCL {' and '.join(releases)}, {time.strftime('%Y-%m-%d')}: {bad or 'none'} missed or wrongly alarmed."
    yield f"What the kit said is of {releases[0]}."
    yield ""
    yield "NCCL makes groups of receives only of several ranks of a host: the defects of groups pass by"
    yield f"`{' '.join(ALONE)}`, where each rank is one. Groups whose size falls are of unequal messages: those"
    yield f"defects pass by `{' '.join(GROUPS)}`."
    yield ""
    yield "| defect | what the plugin does | options | what the kit said |"
    yield "|---|---|---|---|"
    for name, options, result in first:
        if passes(name, options):
            continue
        said = result if isinstance(result, str) else f"{result['status']}: {result['seen']}"
        yield f"| `{name}` | {cell(DEFECTS[name].what)} | `{' '.join(options)}` | {cell(said)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nccl", metavar="PATH", action="append", help="libnccl.so.2; again for another release")
    parser.add_argument("--write", metavar="FILE", help="write the document; without it all is printed")
    args = parser.parse_args()
    libraries = args.nccl or [p for p in [os.environ.get("RAIL_TEST_NCCL")] if p]
    if not libraries:
        sys.exit("--nccl or RAIL_TEST_NCCL must name a libnccl.so.2 with a dynamic CUDA runtime (docs/nccl.md)")
    by_library = []
    for library in libraries:
        by_library.append([])
        for name, options, result in try_all(library):
            by_library[-1].append((name, options, result))
            why = missed(name, options, result)
            if why or not args.write:
                said = why or f"{result['status']}: {result['seen']}"
                print(f"{'WRONG' if why else 'right'} {name} {' '.join(options)}: {cell(said)}", flush=True)
    if args.write:
        (ROOT / args.write).write_text("\n".join(document(by_library)) + "\n")
    return any(missed(*row) for results in by_library for row in results)


if __name__ == "__main__":
    sys.exit(main())
