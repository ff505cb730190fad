# SPDX-License-Identifier: Apache-2.0
"""What the scripts that run rail-coll share: TAP output, running with a limit, reading the JSON."""
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RAIL_BUILD", ROOT / "build")).resolve()
COLL = str(BUILD / "bin" / "rail-coll")
SOCKET = str(BUILD / "lib" / "libnccl-net-socket.so")
# Only loopback: ranks that share a machine are meant to talk to each other here. No file of the user's sets anything.
LOCAL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_CONF_FILE": "/dev/null"}


class Skip(Exception):
    """The case cannot run here; the text says why."""


def environment(**changes):
    """This process' environment without a launcher's and the library's variables, with the changes."""
    drop = ("NCCL_", "RAIL_", "SLURM_", "OMPI_", "PMIX_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop) and k not in names}
    # The runner finds stray processes by this one.
    if "RAIL_TEST_MARK" in os.environ:
        env["RAIL_TEST_MARK"] = os.environ["RAIL_TEST_MARK"]
    return env | LOCAL | {k: str(v) for k, v in changes.items()}


def free_port():
    """Free, as the one after it, and below the ports that the kernel gives to connections, as torchrun's own 29500 is:
    one of those may be taken, or in TIME_WAIT for a minute, before the job has it."""
    while True:
        port = random.randrange(20000, 29999)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def run(command, limit=100, **changes):
    """Runs to the end; a hang is a failure of the case."""
    command = [str(word) for word in command]
    process = subprocess.Popen(command, env=environment(**changes), text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {limit} s: {' '.join(command)}\n{out}{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def coll(*args, **changes):
    return run([COLL, *args], **changes)


def results(*args, **changes):
    """The JSON of a run that must succeed."""
    done = coll(*args, "--json", "-", **changes)
    assert done.returncode == 0, f"{' '.join(done.args)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def launch_ranks(jobs, limit):
    """Ranks of one communicator, as (argv, env) each; all must succeed, with every element right. Rank 0's JSON."""
    ranks = []
    try:
        for argv, env in jobs:
            argv = [str(word) for word in argv]
            ranks.append(subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        ended = [rank.communicate(timeout=limit) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.communicate()
    failed = [f"rank {rank} ended with {ranks[rank].returncode}:\n{out}{err}" for rank, (out, err) in enumerate(ended)
              if ranks[rank].returncode != 0]
    assert not failed, "".join(failed)  # of all: one may only say that another failed
    result = json.loads(ended[0][0])
    assert len(result["ranks"]) == len(jobs) and result["rows"] and result["summary"]["wrong"] == 0, result["summary"]
    return result


def expect(done, status, *texts):
    """The exit status, and pieces of the error output."""
    said = f"{' '.join(done.args)}\n{done.stdout}{done.stderr}"
    assert done.returncode == status, f"exit status {done.returncode}, expected {status}: {said}"
    for text in texts:
        assert text in done.stderr, f"{text!r} is not in the error output of {said}"


def report(cases):
    """Prints (name, what is wrong or "") pairs as they come; a name may end with "# SKIP reason". The exit status."""
    failed = number = 0
    for number, (name, wrong) in enumerate(cases, 1):
        failed += bool(wrong)
        print("".join(f"# {line}\n" for line in wrong.splitlines()) if wrong else "", end="")
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}", flush=True)
    print(f"1..{number}")
    return 1 if failed else 0


def main(cases):
    """Runs (name, function) pairs; names on the command line choose."""
    chosen = [c for c in cases if len(sys.argv) < 2 or c[0] in sys.argv[1:]]
    failed = 0
    for number, (name, case) in enumerate(chosen, 1):
        try:
            case()
        except Skip as reason:
            print(f"ok {number} - {name} # SKIP {reason}", flush=True)
        except Exception as problem:
            failed += 1
            text = str(problem) if isinstance(problem, AssertionError) and str(problem) else traceback.format_exc()
            print("".join(f"# {line}\n" for line in text.splitlines()) + f"not ok {number} - {name}", flush=True)
        else:
            print(f"ok {number} - {name}", flush=True)
    print(f"1..{len(chosen)}")
    sys.exit(1 if failed else 0)
