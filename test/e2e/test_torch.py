#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 900
# TEST-SAN: none
"""The backend "railyard" of torch.distributed (python/): every collective against its definition, over shared memory
and over the socket plugin, with 1 to 3 ranks; futures, several groups, messages, a training beside Gloo; ranks that
die, stop calling or never come. The system's Python runs the ranks: Debian's python3-torch is for that one."""
import atexit
import functools
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import BUILD, ROOT, Skip, environment, main
from torch_python import PYTHON, needs_torch

RANKS = pathlib.Path(__file__).with_name("torch_ranks.py")
CHECKPOINT = "from torch.distributed.checkpoint import async_save"
POWER_SGD = "from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook"


@functools.cache
def forks():
    process = subprocess.Popen([PYTHON, str(RANKS)], env=environment(OMP_NUM_THREADS=1), text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.communicate)
    return process


def ranks(names, n, limit=500, ends=None, **variables):
    """Runs the ranks, which go through these cases together. Their output; all must end well, or with the status in
    `ends`."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(RAIL_LIBRARY=BUILD / "lib" / "librailyard.so.0", OMP_NUM_THREADS=1,
                          RAIL_BOOTSTRAP_TIMEOUT="240s", **variables)
        job = {"names": names, "n": n, "scratch": f"{folder}/", "limit": limit, "env": env}
        print(json.dumps(job), file=forks().stdin, flush=True)
        statuses = json.loads(forks().stdout.readline())
        said = [[pathlib.Path(folder, f"{rank}.{name}").read_text() for name in ("out", "err")] for rank in range(n)]
    wrong = [f"rank {rank} ended with {status}:\n{''.join(said[rank])}" for rank, status in enumerate(statuses)
             if status != (ends or {}).get(rank, 0)]
    assert not wrong, "".join(wrong)
    return [out for out, _ in said]


def case(names, n, needs="", **more):
    """`needs`: what this Python must be able to run for it."""
    def run():
        needs_torch(needs)
        for rank, out in enumerate(ranks(names, n, **more)):
            for line in out.splitlines():
                print(f"# rank {rank}: {line}")
    return run


def installed_by_pip():
    """From the tree, into a folder; and it is found there."""
    package = (ROOT / "python" / "railyard_torch" / "__init__.py").read_text()
    assert f'__version__ = "{(ROOT / "VERSION").read_text().strip()}"' in package, "not the version of the file VERSION"
    needs_torch()
    pip = [PYTHON, "-m", "pip", "--version"]
    if subprocess.run(pip, capture_output=True).returncode or \
            subprocess.run([PYTHON, "-c", "import setuptools"], capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no pip or no setuptools")
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch, "python")
        subprocess.run(["cp", "-r", str(ROOT / "python"), str(copy)], check=True)
        done = subprocess.run([PYTHON, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index",
                               "--target", f"{scratch}/to", str(copy)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        env = environment(RAIL_LIBRARY=BUILD / "lib" / "librailyard.so.0", PYTHONPATH=f"{scratch}/to")
        done = subprocess.run([PYTHON, "-c", "import railyard_torch as r; print(r.__version__, r.__file__)"], env=env,
                              cwd=scratch, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        version, file = done.stdout.split()
        assert version == (ROOT / "VERSION").read_text().strip() and file.startswith(scratch), done.stdout
        # What torch 2.5 and later do while they are imported must not need the library.
        env = environment(RAIL_LIBRARY="/nonexistent/librailyard.so.0", PYTHONPATH=f"{scratch}/to")
        load = ("import torch, importlib.metadata as m\n"
                "found = [e for e in m.entry_points().select(group='torch.backends') if e.name == 'railyard']\n"
                "found[0].load()()\nassert hasattr(torch.distributed.Backend, 'RAILYARD')")
        done = subprocess.run([PYTHON, "-c", load], env=env, cwd=scratch, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def without_the_library():
    """Only a group needs it."""
    needs_torch()
    init = ("import torch.distributed as d, railyard_torch\n"
            "d.init_process_group('railyard', rank=0, world_size=1, store=d.HashStore())")
    done = subprocess.run([PYTHON, "-c", init], capture_output=True, text=True,
                          env=environment(RAIL_LIBRARY="/nonexistent/librailyard.so.0", PYTHONPATH=ROOT / "python"))
    assert done.returncode == 1 and "RailyardError: railyard: cannot load" in done.stderr and \
        "/nonexistent/librailyard.so.0" in done.stderr and "RAIL_LIBRARY" in done.stderr, done.stderr


main([("one rank", case("reductions,sparse_tensors,movements,not_contiguous,empty_tensors", 1)),
      ("collectives over shared memory", case("reductions,sparse_tensors,movements,not_contiguous,empty_tensors,"
                                              "asynchronous", 3)),
      ("collectives over the socket plugin", case("reductions,movements,asynchronous,bad_arguments", 2,
                                                  NCCL_SHM_DISABLE=1)),
      ("several groups, messages in a ring", case("groups,messages", 3)),
      ("what works give, forms of calls, inference mode", case("results,forms_of_calls,inference_mode", 3)),
      ("callbacks that wait", case("callbacks_that_wait", 2, limit=150)),
      ("compressed training", case("compressed_training", 2, limit=150, needs=POWER_SGD)),
      ("sparse gradients", case("sparse_gradients", 2, limit=150)),
      ("checkpoints", case("checkpoints", 2, limit=150, needs=CHECKPOINT)),
      ("memory, threads and descriptors given back", case("memory_given_back,given_back_when_destroyed", 2)),
      ("a limit without a wait", case("polled_in_vain", 2, limit=200)),
      ("interrupted calls", case("interrupted_calls", 2, limit=200)),
      ("two threads that wait", case("two_threads_that_wait", 2, limit=200)),
      ("used after a fork", case("used_after_a_fork", 2, limit=200)),
      ("destroyed while it works; a thread that fails", case("destroyed_while_working,thread_that_fails", 2)),
      ("destroyed too late", case("destroyed_too_late", 2)),
      ("a forked process that ends", case("forked_process_that_ends", 2)),
      ("messages, the same training as over Gloo", case("messages,training", 2)),
      ("sharded training", case("sharded_training", 2, needs="from torch.distributed.fsdp import fully_shard")),
      ("beside another backend", case("beside_another_backend", 2,
                                      needs="from railyard_torch.group import BackendRailyard")),
      ("a group made again; aborted; a new limit", case("made_again,aborted,new_limit", 2)),
      ("ends by an exception", case("ends_by_an_exception", 2, limit=200, ends={0: 1})),
      ("a rank that does not call", case("rank_that_does_not_call", 3)),
      ("a barrier that names who is late", case("monitored_barriers", 4, limit=200)),
      ("barriers of a group made anew", case("barriers_of_a_group_made_anew", 2)),
      ("a first call that nobody joins", case("first_call_that_nobody_joins", 2)),
      ("a message that never comes", case("message_that_never_comes", 2, limit=150)),
      ("a future that never comes", case("future_that_never_comes", 2)),
      ("a message from a rank that dies", case("message_from_a_rank_that_dies", 3, ends={2: 9})),
      ("a rank that dies", case("rank_that_dies", 3, ends={2: 9})),
      ("a rank that never comes", case("rank_that_never_comes", 3)),
      ("installed by pip", installed_by_pip),
      ("without the library", without_the_library)])
