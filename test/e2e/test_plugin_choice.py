#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: asan
"""A plugin that was named and cannot be used is an error of each tool, never a run over another plugin.

NCCL_NET_PLUGIN in the environment keeps NCCL's rule: the next one is used, with a warning.
"""
import glob
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# One plugin crashes, which is no report of the sanitizer's.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0"
from coll import BUILD, SOCKET, coll, main, run

KIT = BUILD / "bin" / "rail-kit"
TRACE = BUILD / "lib" / "libnccl-net-railtrace.so"
SMALL = ("all_reduce", "-r", 2, "-b", 8, "-e", 64, "-n", 1, "-w", 0)
scratch = tempfile.TemporaryDirectory()


def plugins():
    """(path, what the error says) of plugins that cannot be used."""
    text = pathlib.Path(scratch.name) / "libnccl-net-text.so"
    text.write_text("no library\n")
    yield "/nonexistent/libnccl-net-x.so", "No such file"
    yield text, "file too short"
    yield BUILD / "test/libnetfix_empty.so", "no ncclNetPlugin_v6..v12"
    yield BUILD / "test/libnetfix_nodev.so", "no device"
    yield BUILD / "test/libnetfix_badinit.so", "init"


def check(done, status, said):
    output = done.stdout + done.stderr
    assert done.returncode == status, f"{done.args} ended with {done.returncode}, expected {status}\n{output}"
    assert said in output, f"{done.args} does not say {said!r}\n{output}"
    assert "libnccl-net-socket.so" not in output, f"{done.args} uses another plugin\n{output}"


def rail_coll():
    for plugin, said in plugins():
        for more in ((), ("--net-only",), ("--json", "-")):
            done = coll(*SMALL, "--plugin", plugin, *more)
            check(done, 3, said)
            lines = done.stderr.splitlines()
            assert not done.stdout and len(lines) == 1, done
            assert lines[0].startswith(f"rail-coll: --plugin {plugin} cannot be used: "), lines


def rail_coll_of_a_plugin_that_is_not_asked_for():
    done = coll(*SMALL, "--net-only", "--plugin", SOCKET, NCCL_NET="RailIB")
    assert done.returncode == 3 and "its name is RailSocket, but RailIB is asked for" in done.stderr, done
    done = coll(*SMALL, "--plugin", "socket,ib")
    assert done.returncode == 2 and "'socket,ib'" in done.stderr and "one name or path" in done.stderr, done


def rail_coll_of_a_plugin_that_crashes():
    done = coll(*SMALL, "--plugin", BUILD / "test/libnetfix_bent.so", NETFIX_BENT="init_crash")
    assert done.returncode == 3 and "cannot be used" in done.stderr, done


def rail_coll_whose_ranks_need_no_network():
    """It would say nothing of the plugin."""
    for how in (("-r", 2), ("-g", 2), ("-t", 2), ("-r", 1)):
        done = coll("all_reduce", "-b", 8, "-e", 64, "-n", 1, *how, "--plugin", SOCKET)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        assert f"--plugin {SOCKET} is not used" in done.stderr and "--net-only" in done.stderr, done
        assert "#wrong" not in done.stdout, done


def rail_coll_over_the_plugin():
    done = coll(*SMALL, "--net-only", "--plugin", SOCKET)
    assert done.returncode == 0 and f"Network plugin of all ranks: {SOCKET}" in done.stdout, done


def the_recording_wrapper():
    """It is the wrapped plugin that counts; and trying it leaves no recording."""
    for plugin, _ in plugins():
        done = coll(*SMALL, "--net-only", "--plugin", TRACE, RAIL_TRACE_PLUGIN=plugin, RAIL_TRACE_FILE="none")
        assert done.returncode == 3 and "cannot be used" in done.stderr and "#wrong" not in done.stdout, done
    name = f"{scratch.name}/%p.railtrace"
    done = coll(*SMALL, "--net-only", "--plugin", TRACE, RAIL_TRACE_PLUGIN=SOCKET, RAIL_TRACE_FILE=name)
    assert done.returncode == 0 and len(glob.glob(f"{scratch.name}/*.railtrace")) == 2, done


def the_environment_keeps_nccls_rule():
    for plugin, said in plugins():
        done = coll(*SMALL, NCCL_SHM_DISABLE=1, NCCL_NET_PLUGIN=plugin)
        assert done.returncode == 0 and f"Network plugin of all ranks: {SOCKET}" in done.stdout, done
        assert f"WARN NCCL_NET_PLUGIN={plugin}: none of it works, using {SOCKET} instead" in done.stderr, done
        assert said in done.stderr, done
        done = coll(*SMALL, NCCL_SHM_DISABLE=1, NCCL_NET_PLUGIN=plugin, RAIL_NET_FALLBACK=0)
        check(done, 3, said)
        assert "no network plugin works" in done.stderr, done


def conform():
    for plugin, said in plugins():
        check(run([KIT, "conform", plugin, "--only", "lifecycle"]), 3 if "nonexistent" in str(plugin) else 1, said)


def fault():
    for plugin, said in plugins():
        check(run([KIT, "fault", plugin]), 3 if "nonexistent" in str(plugin) else 1, said)


def bench():
    for plugin, said in plugins():
        done = run([KIT, "bench", plugin, "--kind", "bw", "--size", 8, "--comms", 1, "--rounds", 1])
        check(done, 3 if "nonexistent" in str(plugin) else 1, said)
    done = run([KIT, "bench", SOCKET, "--device", 7, "--kind", "bw", "--size", 8, "--comms", 1, "--rounds", 1])
    assert done.returncode == 1 and "there is no device 7" in done.stdout, done


def inspect():
    """It says what NCCL makes of a file. A plugin may lack its hardware: that is a warning, and a status of 0."""
    for plugin, said in plugins():
        status = 3 if "nonexistent" in str(plugin) else 0 if "nodev" in str(plugin) else 1
        words = {"no device": "0 devices", "init": "init returned",
                 "no ncclNetPlugin_v6..v12": "no ncclNetPlugin_v6 to _v12"}
        check(run([KIT, "inspect", plugin]), status, words.get(said, said))


def replay():
    name = f"{scratch.name}/replay.%p.railtrace"
    done = coll(*SMALL, "--net-only", "--plugin", TRACE, RAIL_TRACE_PLUGIN=SOCKET, RAIL_TRACE_FILE=name)
    assert done.returncode == 0, done
    files = glob.glob(f"{scratch.name}/replay.*.railtrace")
    for plugin, said in plugins():
        done = run([KIT, "replay", *files, "--plugin", plugin])
        assert done.returncode in (1, 3) and said in done.stdout + done.stderr, done


main([(case.__name__.replace("_", " "), case) for case in (
    rail_coll, rail_coll_of_a_plugin_that_is_not_asked_for, rail_coll_of_a_plugin_that_crashes,
    rail_coll_whose_ranks_need_no_network, rail_coll_over_the_plugin, the_recording_wrapper,
    the_environment_keeps_nccls_rule, conform, fault, bench, inspect, replay)])
