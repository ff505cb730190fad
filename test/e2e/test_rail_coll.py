#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 400
# TEST-SAN: none
# TEST-CHECK: "all collectives over the socket plugin"
# TEST-READS: build/bin/rail-coll build/lib/librailyard.so build/lib/libnccl-net-socket.so test/e2e/coll.py
"""rail-coll as a user meets it: options, every collective, its JSON, wrong results and dying ranks."""
import glob
import json
import os
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from coll import BUILD, COLL, ROOT, SOCKET, Skip, coll, environment, expect, main, results

COLLECTIVES = "all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter".split()
REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
IN_PLACE = set(COLLECTIVES) - {"sendrecv", "alltoall"}
TYPES = "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2".split()
OPS = "sum prod max min avg mulsum".split()


def bad_arguments():
    for args, said in [
        ((), ("a collective is missing", *COLLECTIVES)),
        (("all_reduse",), ("no such collective", "'all_reduse'", *COLLECTIVES)),
        (("all_reduce", "all_gather"), ("more than one collective", "all_gather")),
        (("all_reduce", "-b", "12Q"), ("--minbytes", "12Q", "64K")),
        (("all_reduce", "-b", "-1"), ("--minbytes", "-1")),
        (("all_reduce", "-b", "99999999999999999999"), ("--minbytes",)),
        (("all_reduce", "-b", "1M", "-e", "1K"), ("--maxbytes", "1024", "1048576")),
        (("all_reduce", "-b", "0"), ("--minbytes",)),
        (("all_reduce", "-f", "1"), ("--stepfactor", "'1'", "from 2")),
        (("all_reduce", "-n", "x"), ("--iters", "'x'")),
        (("all_reduce", "-d", "floot"), ("--datatype", "floot", "bfloat16")),
        (("all_reduce", "-o", "sum,plus"), ("--op", "plus", "mulsum")),
        (("all_reduce", "-r", "0"), ("--ranks", "from 1 to 1024")),
        (("all_reduce", "--data", "any"), ("--data", "exact or random")),
        (("all_reduce", "-z", "2"), ("--blocking", "0 to 1")),
        (("all_reduce", "--nonsense"), ("no such option", "--nonsense")),
        (("all_reduce", "-Q"), ("no such option", "-Q")),
        (("all_reduce", "-n"), ("a value is missing", "-n")),
        (("all_reduce", "--in-place=1"), ("takes no value",)),
        (("alltoall", "--in-place"), ("no in-place form", "alltoall")),
        (("broadcast", "-r", "2", "--root", "2"), ("--root", "2 ranks")),
        (("all_reduce", "-r", "2", "-e", "8T"), ("MiB", "available")),
    ]:
        expect(coll(*args), 2, *said)


def a_launcher_with_wrong_values_is_an_error():
    for rank, said in (("5", "RANK=5, but WORLD_SIZE=2: ranks are 0 to 1"), ("abc", "RANK=abc")):
        expect(coll("all_reduce", "-e", "8", RANK=rank, WORLD_SIZE="2"), 3, said)


def a_wrong_address_is_refused_before_there_are_ranks():
    began = time.monotonic()
    done = coll("all_reduce", "-r", "3", "-e", "8", NCCL_COMM_ID="foo")
    expect(done, 3, "foo", "host:port")
    assert done.stderr.count("rail-coll: ") == 1 and time.monotonic() - began < 8, done.stderr


def help_names_every_option():
    done = coll("--help")
    expect(done, 0)
    for option in ("-b, -e, -i, -f, -n, -m, -w, -c, -o, -d, -a, -z, -R, -r, -t, -g, -T, -J, -p, -G, --seed, "
                   "--offset, --root, --plugin, --memory, --device, "
                   " --net-only, --in-place, --out-of-place, --data, --params, --params-markdown, "
                   "--tuning").split(", "):
        assert option in done.stdout, f"{option} is not in --help"
    for name in COLLECTIVES:
        assert name in done.stdout


def parameters_are_printed():
    for option in ("--params", "-p", "--params-markdown"):
        done = coll(option)
        expect(done, 0)
        assert "NCCL_" in done.stdout and "RAIL_" in done.stdout, done.stdout


def tuning(**env):
    """(function, ranks, transport) → rows of (bytes, algorithm, protocol, channels, where measured)"""
    done = coll("--tuning", **env)
    expect(done, 0)
    found = {}
    for line in done.stdout.splitlines()[1:]:
        if line.startswith("#"):
            continue
        function, ranks, transport, *row = line.split(maxsplit=7)
        found.setdefault((function, ranks, transport), []).append(tuple(row))
    assert len(found) == 6 * 3 * 2, found
    return found, done.stderr


def the_tuning_table_is_printed():
    found, said = tuning()
    small, where = found["AllReduce", "2", "SHM"][0][4], found["AllReduce", "2", "SHM"][1][4]
    assert (ROOT / "docs" / "results" / small).is_file() and (ROOT / "docs" / "results" / where).is_file(), found
    assert found["AllReduce", "2", "SHM"] == [("4096", "Small", "-", "1", small),
                                              ("65536", "Exchange", "Simple", "1", where),
                                              ("any", "Ring", "Simple", "1", where)], found
    trees = found["AllReduce", "more", "NET"][0][4]
    assert (ROOT / "docs" / "results" / trees).is_file(), trees
    assert found["AllReduce", "more", "NET"] == [("32768", "Tree", "Simple", "1", trees),
                                                 ("any", "Ring", "Simple", "1", trees)], found
    pair = found["AllReduce", "2", "NET"][0][4]
    assert (ROOT / "docs" / "results" / pair).is_file(), pair
    assert found["AllReduce", "2", "NET"] == [("131072", "Exchange", "Simple", "1", pair),
                                              ("any", "Ring", "Simple", "1", pair)], found
    exchange = found["AllReduce", "2^k", "NET"][0][4]
    assert (ROOT / "docs" / "results" / exchange).is_file(), exchange
    assert found["AllReduce", "2^k", "NET"] == [("65536", "Exchange", "Simple", "1", exchange),
                                                ("any", "Ring", "Simple", "1", exchange)], found
    assert [row[:2] for row in found["AllReduce", "more", "SHM"]] == [("4096", "Small"), ("any", "Ring")], found
    assert [row[:2] for row in found["ReduceScatter", "more", "SHM"]] == [("1365", "Small"), ("any", "Ring")], found
    assert found["SendRecv", "2", "NET"] == [("any", "-", "Simple", "1", "-")] and not said, (found, said)
    found, said = tuning(NCCL_ALGO="tree;allreduce:^ring", NCCL_PROTO="^LL", RAIL_NCHANNELS="2")
    assert found["AllReduce", "2", "NET"] == [("any", "Exchange", "Simple", "2", pair)], found
    assert found["Reduce", "2", "SHM"] == [("any", "none", "none", "2", "-")], found
    assert not said, said
    found, said = tuning(NCCL_ALGO="ring;allreduce:tree")
    for ranks in ("2", "more"):
        assert found["AllReduce", ranks, "SHM"] == [("any", "Tree", "Simple", "1", where)], found
    assert found["Reduce", "more", "NET"] == [("any", "Ring", "Simple", "1", "-")] and not said, (found, said)
    found, _ = tuning(RAIL_SMALL_MAX="64")
    assert [row[:2] for row in found["AllReduce", "more", "SHM"]] == [
        ("64", "Small"), ("2048", "Tree"), ("any", "Ring")], found
    found, _ = tuning(RAIL_SMALL_MAX="0", RAIL_LL_MAX="1K", RAIL_EXCHANGE_MAX="64")
    assert [row[:3] for row in found["AllReduce", "2", "SHM"]] == [
        ("64", "Exchange", "LL"), ("1024", "Ring", "LL"), ("any", "Ring", "Simple")], found
    assert [row[:3] for row in found["AllGather", "more", "SHM"]] == [
        ("1024", "Ring", "LL"), ("any", "Ring", "Simple")], found


def an_algorithm_of_one_collective_only():
    for algo in "Tree", "allgather:tree;allreduce:tree":
        expect(coll("all_reduce", "-r", "2", "-e", "64", "-n", "2", NCCL_ALGO=algo), 0)
    expect(coll("all_gather", "-r", "2", "-e", "64", "-n", "2", NCCL_ALGO="Tree"), 3, "AllGather", "NCCL_ALGO")


def check_rows(name, found, nranks, types, ops, sizes):
    ops = ops if name in REDUCING else ["none"]
    rows = found["rows"]
    assert [(r["type"], r["redop"]) for r in rows] == [(t, o) for t in types for o in ops for _ in range(sizes)]
    assert found["config"]["nranks"] == nranks == len(found["ranks"])
    for row in rows:
        assert row["out_of_place"]["wrong"] == row["out_of_place"]["outside"] == 0, row
        assert (row["in_place"] is not None) == (name in IN_PLACE), row


def collective(name, nranks):
    """All types and operators at sizes that divide by nothing, aligned and not, exact and with rounding."""
    def case():
        common = ("-r", nranks, "-n", 1, "-w", 0, "-d", "all", "-o", "all", "--root", nranks - 1)
        found = results(name, *common, "-b", 1, "-e", 3001, "-i", 1000)
        check_rows(name, found, nranks, TYPES, OPS, 4)
        found = results(name, *common, "-b", 4099, "-e", 4099, "--data", "random", "--offset", 3, "--seed", 7)
        check_rows(name, found, nranks, TYPES, OPS, 1)
    return case


def over_the_plugin():
    for name in COLLECTIVES:
        found = results(name, "-r", 3, "-b", 8, "-e", "256K", "-f", 32, "-n", 2, "--net-only", "--plugin", SOCKET)
        check_rows(name, found, 3, ["float"], ["sum"], 4)
        for rank in found["ranks"]:
            assert rank["net_plugin"].endswith("libnccl-net-socket.so"), rank
            assert "NET" in rank["transports"] and "SHM" not in rank["transports"], rank


def all_roots():
    found = results("broadcast", "-r", 3, "-b", 64, "-e", 64, "-n", 1, "--root", "all")
    assert [row["root"] for row in found["rows"]] == [0, 1, 2]


def threads_and_several_ranks_each():
    for args in (("-t", 4), ("-g", 4), ("-t", 2, "-g", 2), ("-r", 2, "-t", 2), ("-r", 2, "-g", 2)):
        for name in ("all_reduce", "sendrecv", "alltoall"):
            found = results(name, *args, "-b", 4, "-e", "64K", "-f", 16, "-n", 2)
            assert found["config"]["nranks"] == 4


def modes():
    """Aggregation, blocking, registered buffers, only one place, each way to average: still right."""
    for args in (("-m", 5), ("-z", 1), ("-R", 1), ("--in-place",), ("--out-of-place",), ("-a", 0), ("-a", 1),
                 ("-c", 3, "-n", 0)):
        found = results("all_reduce", "-r", 2, "-b", 1024, "-e", 4096, "-n", 2, *args)
        assert found["summary"]["wrong"] == 0
        row = found["rows"][0]
        assert (row["in_place"] is None) == (args[0] == "--out-of-place")
        assert (row["out_of_place"] is None) == (args[0] == "--in-place")


def table_is_that_of_nccl_tests():
    done = coll("all_reduce", "-r", 2, "-b", "1K", "-e", "2K", "-n", 2)
    expect(done, 0)
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row[:5] for row in rows] == [["1024", "256", "float", "sum", "-1"], ["2048", "512", "float", "sum", "-1"]]
    for row in rows:
        assert len(row) == 13 and row[8] == row[12] == "0", row
        size, us, algbw, busbw = int(row[0]), float(row[5]), float(row[6]), float(row[7])
        assert abs(algbw - size / us / 1e3) < 0.02 and abs(busbw - algbw) < 0.02, row  # the factor of 2 ranks is 1
    assert "# Out of bounds values : 0 OK" in done.stdout and "# Avg bus bandwidth    : " in done.stdout
    pids = [line for line in done.stdout.splitlines() if line.startswith("#  Rank ")]
    assert len(pids) == 2 and len({line.split()[6] for line in pids}) == 2, pids


def json_file_holds_what_is_needed():
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"rail-coll-{os.getpid()}.json")
    try:
        expect(coll("all_gather", "-r", 4, "-b", 4096, "-e", 4096, "-n", 3, "-J", path, NCCL_DEBUG="ERROR"), 0)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    assert found["config"]["collective"] == "all_gather" and found["config"]["iters"] == 3
    assert found["environment"]["NCCL_DEBUG"] == "ERROR"
    assert found["version"]["nccl_headers"] == 23007
    (row,) = found["rows"]
    assert row["size"] == 4096 and row["count"] == 256
    side = row["out_of_place"]
    assert abs(side["busbw"] / side["algbw"] - 0.75) < 1e-3, side  # 3 of 4 parts cross a link
    expect(coll("all_reduce", "-e", 8, "-J", "/nonexistent/x.json"), 3, "/nonexistent/x.json", "No such file")


def damage_is_found():
    preload = BUILD / "test" / "libcorrupt.so"
    assert preload.exists(), f"{preload} is not built (make tests)"
    args = ("all_reduce", "-r", 4, "-b", 512, "-e", 2048, "-n", 0)
    for kind in ("result", "outside", "input"):
        for rank in (0, 2):
            done = coll(*args, LD_PRELOAD=preload, CORRUPT_KIND=kind, CORRUPT_RANK=rank, CORRUPT_COUNT=256)
            expect(done, 1)
            wrong = [line.split()[8] for line in done.stdout.splitlines() if not line.startswith("#")]
            assert wrong == ["0", "1", "0"], done.stdout  # only the size that was damaged, once
            assert "FAILED" in done.stdout
    expect(coll(*args, LD_PRELOAD=preload, CORRUPT_KIND="none", CORRUPT_RANK=2, CORRUPT_COUNT=256), 0)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def start_long_run(*args):
    """Four ranks that would go on for minutes; returns when the table has begun."""
    process = subprocess.Popen([COLL, "all_reduce", "-r", "4", "-b", "64K", "-e", "64K", "-n", "100000000", *args],
                               env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    for line in process.stdout:
        if "(elements)" in line:
            break
    return process, children(process.pid)


def finish(process, limit):
    started = time.monotonic()
    try:
        _, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"still running {limit} s later") from None
    return time.monotonic() - started, err


def a_killed_rank_ends_the_job():
    for victim in (0, 2):
        process, ranks = start_long_run()
        assert len(ranks) == 4, ranks
        os.kill(ranks[victim], signal.SIGKILL)
        seconds, err = finish(process, 60)
        assert process.returncode == 3, (process.returncode, err)
        assert f"rank {victim} (pid {ranks[victim]}) was killed by signal 9" in err, err
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks), "a rank is left"
        print(f"# rank {victim} killed: all ended after {seconds:.1f} s")


def a_stopped_rank_is_given_up():
    process, ranks = start_long_run("-T", "3")
    os.kill(ranks[1], signal.SIGSTOP)
    _, err = finish(process, 90)
    assert process.returncode == 3, (process.returncode, err)
    assert err.strip(), "no word about why"
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks), "a rank is left"


def ranks_do_not_outlive_the_parent():
    process, ranks = start_long_run()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in ranks):
        assert time.monotonic() < deadline, "ranks go on without their parent"
        time.sleep(0.05)


def with_a_driver_to_link_with_only():
    """Containers for building have it, and programs that are linked with -lcuda load it there."""
    stubs = sorted(glob.glob("/usr/local/cuda*/lib64/stubs/libcuda.so"))
    if not stubs:
        raise Skip("no CUDA toolkit here")
    expect(coll("all_reduce", "-r", "2", "-b", "64K", "-e", "64K", "-n", "2", LD_PRELOAD=stubs[0]), 0)


main([("bad arguments", bad_arguments),
      ("a launcher with wrong values is an error", a_launcher_with_wrong_values_is_an_error),
      ("a wrong address is refused before there are ranks", a_wrong_address_is_refused_before_there_are_ranks),
      ("--help names every option", help_names_every_option),
      ("parameters are printed", parameters_are_printed), ("the tuning table is printed", the_tuning_table_is_printed),
      ("an algorithm of one collective only", an_algorithm_of_one_collective_only)]
     + [(f"{name}, {n} ranks", collective(name, n)) for name in COLLECTIVES for n in (1, 2, 3, 4)]
     + [("all collectives over the socket plugin", over_the_plugin), ("all roots", all_roots),
        ("threads and several ranks each", threads_and_several_ranks_each), ("modes", modes),
        ("the table is that of nccl-tests", table_is_that_of_nccl_tests),
        ("the JSON file holds what is needed", json_file_holds_what_is_needed), ("damage is found", damage_is_found),
        ("a killed rank ends the job", a_killed_rank_ends_the_job),
        ("a stopped rank is given up", a_stopped_rank_is_given_up),
        ("ranks do not outlive the parent", ranks_do_not_outlive_the_parent),
        ("with a driver to link with only", with_a_driver_to_link_with_only)])
