#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: asan
"""rail-kit inspect: each fault is found and named, a crash or a hang is a result, and good plugins have no error."""
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from coll import BUILD, ROOT, SOCKET, Skip, coll, expect, main, run

# Crashes and leaks are planted here: no report of the sanitizer's.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0:handle_abort=0:detect_leaks=0"

KIT = str(BUILD / "bin" / "rail-kit")
CC = os.environ.get("CC", "gcc")


def fixture(name):
    return str(BUILD / "test" / f"libnetfix_{name}.so")


def inspect(file, *args, **changes):
    """The report."""
    done = run([KIT, "inspect", file, "--json", "-", *args], **changes)
    if done.returncode == 3 and "is the machine busy?" in done.stderr:  # it did not get to the call that hangs
        done = run([KIT, "inspect", file, "--json", "-", *args, "--limit", "10"], **changes)
    assert done.returncode in (0, 1), f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["errors"] else 0), done
    return report


def ids(report, *grades):
    return {f["id"] for f in report["findings"] if f["grade"] in (grades or ("error", "warning", "note"))}


def has_elf(report):
    if not report["file"]["elf_read"]:
        raise Skip(f"no libelf: {report['file']['elf_error']}")


def our_plugin_is_fine_in_all_versions():
    report = inspect(SOCKET, LD_LIBRARY_PATH=str(BUILD / "lib"), NCCL_SOCKET_IFNAME="lo")
    assert report["errors"] == 0 and report["warnings"] == 0, report["findings"]
    assert [v["version"] for v in report["versions"]] == [12, 11, 10, 9, 8, 7, 6]
    for v in report["versions"]:
        assert v["name"] == "RailSocket" and v["start"]["init"] == 0 and v["start"]["finalize"] == 0, v
        assert [d["name"] for d in v["devices"]] == ["lo"], v
    assert inspect("socket")["file"]["path"] == SOCKET
    assert sum("device 0 is lo" in line for line in report["said"]) == 1, report["said"]  # of one version
    text = run([KIT, "inspect", SOCKET]).stdout
    assert "2.30            v12     socket" in text and "\n0 errors, " in text, text
    assert "(NCCL_DEBUG=INFO), as v12\n" in text and "device 0 is " in text, text


def a_destructor_may_end_threads():
    ofi = BUILD / "lib/libnccl-net-ofi.so"
    if not ofi.exists():
        raise Skip("the ofi plugin is not built")
    report = inspect(str(ofi), LD_LIBRARY_PATH=str(BUILD / "lib"), NCCL_SOCKET_IFNAME="lo")
    started = {v["version"]: v["start"] for v in report["versions"]}
    assert started[9]["threads"] > 0, started[9]
    assert started[9]["threads_left"] == 0 and "finalize.threads" not in ids(report), report["findings"]


def parameters_are_printed():
    for name, some in (("socket", "NCCL_SOCKET_IFNAME"), ("ib", "NCCL_IB_TIMEOUT"), ("ofi", "RAIL_OFI_PROVIDER"),
                       ("template", "RAIL_"), ("railtrace", "RAIL_TRACE_FILE")):
        done = run([KIT, "inspect", str(BUILD / "lib" / f"libnccl-net-{name}.so"), "--params"])
        lines = [line for line in done.stdout.splitlines() if line.startswith(some)]
        assert done.returncode == 0 and lines, done
    assert "0..31" in run([KIT, "inspect", "ib", "-p"]).stdout
    done = run([KIT, "inspect", fixture("v12"), "--params"])
    assert done.returncode == 3 and "only Railyard's plugins export" in done.stderr, done


def every_release_takes_its_version():
    wanted = {"2.13": 6, "2.18": 6, "2.19": 7, "2.20": 8, "2.23": 8, "2.24": 9, "2.25": 9, "2.26": 10, "2.27.3": 10,
              "2.28.7-2.28.9": 11, "2.29.7": 11, "2.30": 12}
    took = {r["nccl"]: r["takes"] for r in inspect(SOCKET)["releases"]}
    assert {k: took[k] for k in wanted} == wanted, took
    for version, first in ((6, 0), (9, 11), (12, 20)):
        releases = inspect(fixture(f"v{version}"))["releases"]
        takes = [r["takes"] for r in releases]
        assert takes == [None] * first + [version] * (len(takes) - first), (version, takes)


def bent(how, *expected, errors=None, **more):
    limit = ["--limit", "2"] if how.endswith("_hang") else []
    report = inspect(fixture("bent"), *limit, NETFIX_BENT=how, **more)
    missing = set(expected) - ids(report)
    assert not missing, f"{how}: {missing} not found, but {report['findings']}"
    if errors is not None:
        assert report["errors"] == errors, f"{how}: {report['errors']} errors, expected {errors}: {report['findings']}"
    return report


def straight_has_no_error():
    report = bent("", errors=0)
    assert ids(report, "warning") == {"file.name"}, report["findings"]


def what_a_process_does_is_a_result():
    for how, expected, call, words in (
            ("load_exit", "load.end", "load", "exit status 7"),
            ("load_exit_127", "load.end", "load", "exit status 127 in dlopen"),
            ("load_crash", "load.end", "load", "SIGABRT in dlopen"),
            ("load_hang", "load.end", "load", "still in dlopen"), ("init_crash", "start.end", "v12", "SIGSEGV in init"),
            ("init_exit", "start.end", "v12", "exit status 9 in init"),
            ("init_hang", "start.end", "v12", "still in init"),
            ("devices_hang", "start.end", "v12", "still in devices"),
            ("props_crash", "start.end", "v12", "SIGABRT in getProperties"),
            ("finalize_crash", "start.end", "v12", "SIGABRT in finalize")):
        report = bent(how, expected)
        end = report["load"]["end"] if call == "load" else report["versions"][0]["end"]
        if how == "init_crash" and "asan" in str(BUILD):
            words = "in init"  # the sanitizer turns the signal into an exit
        assert words in end, f"{how}: {end}"


def calls_that_fail_are_findings():
    for how, expected in (
            ("load_slow", "load.slow"), ("load_thread", "load.threads"), ("load_file", "load.files"),
            ("init_fail", "init.failed"), ("devices_fail", "devices.failed"), ("devices_none", "devices.none"),
            ("devices_unwritten", "devices.unwritten"), ("devices_changes", "devices.changes"),
            ("finalize_fail", "finalize.failed"), ("thread_left", "finalize.threads"), ("props_fail", "props.failed")):
        bent(how, expected)
    assert bent("init_log")["logged"] == ["no rail here"]
    said = bent("init_info")["said"]
    assert said == [f"rail {i} of 400 is here" for i in range(300)], (len(said), said[:2], said[-2:])
    report = bent("fuse_no_pci", "devices.fused_without_pci", errors=1)
    assert report["versions"][0]["start"]["makeVDevice_without_pci"] == 0, report["versions"][0]["start"]


PROPERTIES = {
    "name_null": ("props.name", "error"), "name_wild": ("props.name", "error"),
    "name_same": ("props.same_name", "error"),
    "name_shared": ("props.shared_string", "error"), "pci_no_slash": ("props.pci_path_slash", "error"),
    "pci_missing": ("props.pci_path_missing", "warning"), "pci_other": ("props.pci_path_other", "note"),
    "pci_wild": ("props.pci_path", "error"), "speed": ("props.speed", "warning"),
    "speed_zero": ("props.speed", "warning"),
    "latency": ("props.latency_fraction", "note"), "latency_negative": ("props.latency", "warning"),
    "guid": ("props.same_guid", "warning"), "max_comms": ("props.max_comms", "warning"),
    "max_recvs": ("props.max_recvs", "error"), "ptr_host": ("props.ptr_host", "error"),
    "ptr_bits": ("props.ptr_bits", "warning"), "device_type": ("props.device_type", "error"),
    "p2p_zero": ("props.max_p2p_bytes", "error"), "p2p_huge": ("props.max_p2p_bytes", "error"),
    "vprops_count": ("props.vprops_count", "error"), "vprops_self": ("props.vprops_self", "warning"),
    "vprops_index": ("props.vprops_index", "error"), "planes": ("props.planes", "note"),
    "rails": ("props.rails", "warning"), "change": ("props.change", "warning"),
    "unwritten": ("props.unwritten", "error"),
    "unwritten_text": ("props.unwritten", "error"), "overrun": ("props.overrun", "error"),
}


def each_bad_property_is_named():
    for how, (expected, grade) in PROPERTIES.items():
        report = bent(how)
        assert expected in ids(report, grade), f"{how}: no {grade} {expected} in {report['findings']}"
        said = [f for f in report["findings"] if f["id"] == expected and f["grade"] == grade]
        assert all(f["what"].startswith("device ") and f["versions"] == [12] for f in said), said
        assert all(f["why"] and f["source"] for f in said), said


def only_values_that_count_can_change():
    assert "props.change" in ids(bent("change_of_fused")), "devs[1] of two differs by call"
    assert "props.change" not in ids(bent("change_of_nothing", errors=0)), "padding, and devs[1] of one"


def pci_paths_end_within_16_bytes():
    """15 characters and the NUL are what NCCL has room for."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "bus" / "pci").mkdir(parents=True)
        for name, expected in (("0000:3b:00.0", None), ("0000:3b:00.0abc", "props.pci_path_bdf"),
                               ("0000:3b:00.0abcd", "props.pci_path_long")):
            (root / name).mkdir()
            (root / name / "subsystem").symlink_to(root / "bus" / "pci")
            found = ids(bent("pci_made", NETFIX_PCI_PATH=str(root / name)), "error")
            assert {i for i in found if i.startswith("props.pci")} == ({expected} if expected else set()), (name, found)


def one_device_is_enough():
    devices = inspect(fixture("bent"), "--device", "1")["versions"][0]["devices"]
    assert [d["device"] for d in devices] == [1], devices
    report = inspect(fixture("bent"), "-d", "0", "-d", "7")
    assert "devices.no_such" in ids(report, "warning"), report["findings"]
    assert len(report["versions"][0]["devices"]) == 1, report["versions"]


def null_slots_are_told_apart():
    report = inspect(fixture("noclose"))
    said = [f["what"] for f in report["findings"] if f["id"] == "slot.null"]
    assert said == ["NULL: closeSend, closeRecv, closeListen"], said
    assert "no closeSend" in report["versions"][0]["skipped"], report["versions"]
    report = inspect(fixture("late"))
    assert "slot.filled_by_init" in ids(report, "note") and not ids(report, "error"), report["findings"]
    assert [v["start"]["ndev"] for v in report["versions"]] == [1, 1], report["versions"]
    report = inspect(fixture("bare"))
    assert "slot.null_finalize" in ids(report, "error") and "slot.optional" in ids(report, "note"), report["findings"]
    report = inspect(fixture("badinit"))
    assert {"init.failed_crashes", "init.failed"} <= ids(report), report["findings"]
    report = inspect(fixture("empty"))
    assert ids(report, "error") == {"table.none"} and not report["versions"], report["findings"]


def odd_tables_are_described():
    report = inspect(fixture("odd"))
    has_elf(report)
    for name, words in (
            ("table.function", "ncclNetPlugin_v6 is a function"),
            ("table.too_small", "ncclNetPlugin_v7 has 24 bytes; v7 has 19"),
            ("table.zeroed", "ncclNetPlugin_v8 lies in .bss"), ("slot.data", "init points to data of libnetfix_odd.so"),
            ("name.built_in", "'Socket'"), ("table.hidden", "ncclNetPlugin_v10"), ("table.type_name", "ncclNet_v11"),
            ("slot.wild", "devices"), ("name.wild", "no memory"), ("table.old", "v5")):
        said = [f["what"] for f in report["findings"] if f["id"] == name]
        assert any(words in what for what in said), f"{name}: {said} lacks {words!r}"
    others = [f["what"] for f in report["findings"] if f["id"] == "other.table"]
    assert len(others) == 3 and all(any(w in o for o in others) for w in ("Tuner", "Gin", "CollNet")), others
    assert "null" in {v for t in report["versions"] for v in t["slots"].values()}


@contextlib.contextmanager
def built(name, *sources, flags=()):
    """A library of fixtures (texts of C), as a compiler here makes it."""
    with tempfile.TemporaryDirectory() as top:
        files = []
        for number, text in enumerate(sources):
            files.append(pathlib.Path(top) / f"{number}.c")
            files[-1].write_text(text)
        library = os.path.join(os.path.realpath(top), name)
        include = [f"-I{ROOT}", f"-I{ROOT}/include"]
        subprocess.run([CC, "-shared", "-fPIC", *include, *flags, "-o", library, *files], check=True)
        yield library


def source(version, **defines):
    lines = [f"#define FIXTURE_{key} {value}\n" for key, value in {"VERSION": version, **defines}.items()]
    return "".join(lines) + '#include "test/preload/net_fixture.h"\n'


def versions_are_compared():
    with built("libnccl-net-two.so", source(12), source(11, NAME='"Other"', SPEED=100000),
               flags=["-Wl,-z,muldefs"]) as library:
        report = inspect(library)
    said = {f["id"]: f for f in report["findings"]}
    assert said["name.differs"]["what"] == "v12 is named 'Fixture' but v11 'Other'", said
    assert said["props.versions"]["what"].endswith("speed is not what v12 says"), said["props.versions"]
    assert said["props.versions"]["versions"] == [11], said["props.versions"]


def gpu_memory_needs_its_slots():
    with built("libnccl-net-gpu.so", source(12, NO_OPTIONAL="", POINTERS=7)) as library:
        report = inspect(library)
    assert "slot.null_iflush" in ids(report, "error"), report["findings"]
    assert "props.ptr_dmabuf" in ids(report, "warning"), report["findings"]


def what_the_linker_was_told_shows():
    flags = ["-Wl,-z,execstack,-z,nodelete,--disable-new-dtags,-rpath,/none"]
    wanted = {"file.executable_stack", "file.no_delete", "file.rpath"}
    if os.uname().machine == "x86_64":  # elsewhere such code cannot be made by a switch
        flags += ["-Wl,-z,notext", "-fno-pic", "-mcmodel=large"]
        wanted.add("file.text_relocations")
    with built("libnccl-net-flags.so", source(12), flags=flags) as library:
        report = inspect(library)
    has_elf(report)
    assert wanted <= ids(report) and report["file"]["rpath"] == "/none", report["findings"]


def defects_of_the_reference_show():
    """Of the defects that test/broken plants, those that do not need a connection."""
    folder = BUILD / "test" / "broken"
    assert inspect(str(folder / "libnccl-net-ref.so"), NCCL_SOCKET_IFNAME="lo")["errors"] == 0
    for defect, expected in (
            ("thread_outlives", "finalize.threads"), ("name_moves", "props.moves"), ("props_hole", "props.unwritten"),
            ("props_devices", "props.vprops_count"), ("pci_path_name", "props.pci_path_slash"),
            ("device_type", "props.device_type"), ("guid_random", "props.versions"),
            ("devices_grow", "devices.changes"), ("v8_props_shifted", "props.versions")):
        report = inspect(str(folder / f"libnccl-net-broken-{defect}.so"), NCCL_SOCKET_IFNAME="lo")
        assert expected in ids(report), f"{defect}: no {expected} in {report['findings']}"
    report = inspect(str(folder / "libnccl-net-broken-fuse_no_pci.so"), NCCL_SOCKET_IFNAME="^nosuchinterface")
    if len(report["versions"][0]["devices"]) < 2:
        raise Skip("one interface only")
    assert "devices.fused_without_pci" in ids(report, "error"), report["findings"]


def missing_libraries_are_named():
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(top)
        (top / "far.c").write_text("int far(void); int far(void) { return 1; }\n")
        (top / "near.c").write_text("int far(void); int near(void); int near(void) { return far(); }\n")
        (top / "plugin.c").write_text("int near(void); int nobody(void); int used(void); "
                                      "int used(void) { return near() + nobody(); }\n")
        def link(out, source, *more):
            subprocess.run([CC, "-shared", "-fPIC", "-o", top / out, top / source, f"-L{top}", *more], check=True)
        link("libfar.so", "far.c")
        link("libnear.so", "near.c", "-lfar")
        link("libnccl-net-lost.so", "plugin.c", "-lnear", "-Wl,-rpath,$ORIGIN")
        (top / "libfar.so").unlink()
        report = inspect(str(top / "libnccl-net-lost.so"))
    libraries = {item["name"]: item for item in report["libraries"]}
    assert libraries["libnear.so"]["path"] and not libraries["libfar.so"]["path"], libraries
    said = [f["what"] for f in report["findings"]]
    assert any("nobody" in what for what in said), said
    assert any("dlopen: libfar.so" in what for what in said), said
    has_elf(report)
    assert report["file"]["runpath"] == "$ORIGIN", report["file"]
    assert "libfar.so is not found; libnear.so needs it" in said, said


def damaged_files_are_results():
    good = pathlib.Path(fixture("v12")).read_bytes()
    with tempfile.TemporaryDirectory() as top:
        file = os.path.join(top, "libnccl-net-damaged.so")
        for seed in range(24):
            chance = random.Random(seed)
            bad = bytearray(good)
            for _ in range(chance.choice((1, 2, 5, 20))):
                first, last = chance.choice(((0, 64), (64, 700), (700, 3000), (len(bad) - 3000, len(bad))))
                bad[chance.randrange(first, last)] = chance.randrange(256)
            pathlib.Path(file).write_bytes(bad[:chance.randrange(len(bad))] if seed % 6 == 5 else bad)
            inspect(file)  # exit status 0 or 1, and a whole report


def without_libelf_the_rest_is_said():
    with built("libelf.so.1", "int nothing;\n") as library:
        report = inspect(SOCKET, LD_LIBRARY_PATH=os.path.dirname(library))
    said = [f for f in report["findings"] if f["id"] == "file.unread"]
    assert len(said) == 1 and said[0]["grade"] == "warning" and "libelf" in said[0]["what"], said
    assert [v["version"] for v in report["versions"]] == [12, 11, 10, 9, 8, 7, 6] and report["libraries"], report


def file_names_decide_how_it_is_found():
    def ways(file, release, **changes):
        report = inspect(file, **changes)
        values = next(r for r in report["releases"] if r["nccl"] == release)["NCCL_NET_PLUGIN"]
        return [w["value"] for w in values], report

    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(os.path.realpath(top))
        def named(name):
            (top / name).parent.mkdir(exist_ok=True, parents=True)
            (top / name).symlink_to(fixture("bent"))
            return str(top / name)
        short = named("libnccl-net-bent.so")
        assert ways(short, "2.13")[0] == ["bent"]
        assert ways(short, "2.27.3")[0] == ["bent", "libnccl-net-bent.so"]
        assert ways(short, "2.30")[0] == ["bent", "libnccl-net-bent.so", short]
        assert ways(named("libnccl-net.so"), "2.30")[0][0] is None
        assert ways(named("odd.so"), "2.13")[0] == []
        # "st" begins STATIC_PLUGIN: only the releases that do not look for that take it
        trap = named("libnccl-net-St.so")
        assert ways(trap, "2.21")[0][0] == "St" and ways(trap, "2.22")[0][0] != "St", ways(trap, "2.22")
        assert ways(trap, "2.27.3")[0][0] == "St"
        values, report = ways(trap, "2.30")
        assert "St" not in values and trap in values and "file.static" in ids(report, "error"), report["findings"]
        values, report = ways(named("with,comma/libnccl-net-x.so"), "2.30")
        assert values == ["x", "libnccl-net-x.so"] and "file.comma" in ids(report, "warning"), values
        values, report = ways(named("d" * 200 + "/" + "e" * 60 + "/libnccl-net-x.so"), "2.30")
        assert values == ["x", "libnccl-net-x.so"] and "file.long" in ids(report, "warning"), values


def the_loader_agrees_with_the_rules():
    """loader/netload goes by the newest NCCL's rules: where they say that a value leads to the file, it loads it."""
    for v in inspect(SOCKET)["releases"][-1]["NCCL_NET_PLUGIN"]:
        done = coll("all_reduce", "-r", "2", "-b", "8", "-e", "8", "--net-only", "--plugin", v["value"],
                    LD_LIBRARY_PATH=str(BUILD / "lib"), NCCL_DEBUG="INFO")
        assert done.returncode == 0 and "libnccl-net-socket.so, interface v12" in done.stdout + done.stderr, done
    # and where they say that none does, it must not
    with tempfile.TemporaryDirectory() as top:
        top = pathlib.Path(os.path.realpath(top))
        for folder in ("with,comma", "d" * 200 + "/" + "e" * 60):
            (top / folder).mkdir(parents=True)
            (top / folder / "libnccl-net-x.so").symlink_to(SOCKET)
            path = str(top / folder / "libnccl-net-x.so")
            assert path not in [w["value"] for w in inspect(path)["releases"][-1]["NCCL_NET_PLUGIN"]], path
            done = coll("all_reduce", "-r", "2", "-b", "8", "-e", "8", "--net-only", "--plugin", path,
                        NCCL_NET="RailSocket")
            assert "libnccl-net-x.so, interface" not in done.stdout + done.stderr, done


def bad_arguments():
    for words, texts in (((), ("a plugin is missing",)), ((SOCKET, "more"), ("one plugin at a time", "more")),
                         ((SOCKET, "--device", "x"), ("--device", "'x'", "0 to 1023")),
                         ((SOCKET, "--limit", "0"), ("--limit", "0.5 to 3600")),
                         ((SOCKET, "--json"), ("a value is missing", "--json")),
                         ((SOCKET, "--nonsense"), ("no such option", "--nonsense"))):
        expect(run([KIT, "inspect", *words]), 2, *texts)
    expect(run([KIT, "inspect", "/nowhere/lib.so"]), 3, "/nowhere/lib.so", "No such file")
    expect(run([KIT, "inspect", "/etc"]), 3, "is no file")
    expect(run([KIT, "inspect", SOCKET, "--json", "/nowhere/at/all"]), 3, "/nowhere/at/all")
    expect(run([KIT]), 2, "a subcommand is missing", "inspect")
    expect(run([KIT, "inspekt"]), 2, "no such subcommand", "inspekt", "inspect")
    assert "usage: rail-kit inspect PLUGIN" in run([KIT, "help", "inspect"]).stdout
    report = inspect(str(ROOT / "Makefile"))
    assert "load.failed" in ids(report, "error"), report["findings"]


main([(case.__name__.replace("_", " "), case) for case in (
    our_plugin_is_fine_in_all_versions, a_destructor_may_end_threads, parameters_are_printed,
    every_release_takes_its_version, straight_has_no_error,
    what_a_process_does_is_a_result, calls_that_fail_are_findings, each_bad_property_is_named,
    only_values_that_count_can_change,
    pci_paths_end_within_16_bytes, one_device_is_enough,
    versions_are_compared, gpu_memory_needs_its_slots, what_the_linker_was_told_shows, null_slots_are_told_apart,
    odd_tables_are_described, defects_of_the_reference_show, missing_libraries_are_named, damaged_files_are_results,
    without_libelf_the_rest_is_said, file_names_decide_how_it_is_found,
    the_loader_agrees_with_the_rules, bad_arguments)])
