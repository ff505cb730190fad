# SPDX-License-Identifier: Apache-2.0
"""Part 3: NCCL itself, two processes on one GPU that it takes for two hosts, all bytes through our plugin; the same
traffic recorded and replayed; PyTorch's NCCL backend, on NCCL and on librailyard.so."""
import glob
import os
import pathlib
import re

import places
from device import coll
from steps import Failed, Skip, Step, Verdict, last_line, tap, telling

PART = "3 NCCL"
HERE = pathlib.Path(__file__).resolve().parent
# Ranks named as two hosts must not find a faster way than the network after all.
NO_SHORT_CUT = {"NCCL_MNNVL_ENABLE": 0, "NCCL_NVLS_ENABLE": 0}
RAIL = "RailSocket"


def ours(m):
    return {**NO_SHORT_CUT, "NCCL_NET_PLUGIN": m.plugin(), "NCCL_NET": RAIL}


def built_in():
    return {**NO_SHORT_CUT, "NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": 1}


def log_files(step):
    return sorted(glob.glob(f"{step.log.with_suffix('')}.nccl.*.log"))


def logged(step):
    """NCCL's log of each process beside the step's own."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_DEBUG_FILE": f"{step.log.with_suffix('')}.nccl.%p.log"}


def chosen(step, name, channels=0):
    """NCCL may fall back to another network without a word but in its log. What the log says besides."""
    n = 0
    texts = [pathlib.Path(f).read_text(errors="replace") for f in log_files(step)]
    for text in texts:
        n += bool(re.search(rf"(Using network|Assigned NET plugin) {re.escape(name)}(?![\w+])", text)) and \
            bool(re.search(rf"via NET/{re.escape(name)}(?![\w+])", text))
    if n != 2:
        raise Failed(f"{n} of 2 ranks' logs (of {len(texts)} found) say that {name} was chosen and used")
    made = re.search(r"(\d+) coll channels", "".join(texts))
    if channels and made and int(made.group(1)) != channels:
        raise Failed(f"NCCL made {made.group(1)} channels, {channels} were asked for")
    return f"NCCL's log: {name}" + (f", {made.group(1)} channels" if made else "")


def channel_env(n):
    return {"NCCL_MIN_NCHANNELS": n, "NCCL_MAX_NCHANNELS": n}


def with_log(command, name, channels=0):
    """A step's body: the command with NCCL's log, TAP, and the log's word on what was used."""
    def body(runner, step):
        status, text = runner.run(step, command, env=logged(step))
        if status == 77:
            raise Skip(last_line(text))
        if status != 0:
            raise Failed(f"ended with status {status}: {telling(text)}")
        verdict = tap(text)
        return Verdict(f"{verdict.note}; {chosen(step, name, channels)}", verdict.figures)
    return body


def collectives(m, skip):
    sizes = ["--maxbytes", 4 << 20, "--factor", 16, "--iters", 5, "--most-ms", 50]
    for n in (2, 4, 8):
        yield Step(PART, f"collectives, our plugin, {n} channels", limit=45, skip=skip,
                   env=m.env_ranks(**ours(m), **channel_env(n)),
                   body=with_log(coll(m, m.nccl, 2, True, *sizes), RAIL, n))


# ---- recorded and replayed ----

def traces(runner):
    return sorted(glob.glob(str(runner.logs / "*.railtrace")))


def record(m):
    """The wrapper between NCCL and the plugin."""
    name = f"{RAIL}+trace"
    command = coll(m, m.nccl, 2, True, "--maxbytes", 1 << 20, "--factor", 16, "--iters", 2, "--most-ms", 50)

    def body(runner, step):
        # Processes that take turns on a GPU make calls slow.
        step.env.update(RAIL_TRACE_FILE=f"{step.log.with_suffix('')}.%p.railtrace", RAIL_TRACE_SLOW="60s")
        verdict = with_log(command, name)(runner, step)
        if len(traces(runner)) != 2:
            raise Failed(f"{len(traces(runner))} records of 2 processes")
        return verdict
    return Step(PART, "recorded", body=body, limit=45, env=m.env_ranks(
        **{**ours(m), "NCCL_NET_PLUGIN": m.plugin("railtrace"), "NCCL_NET": name}, RAIL_TRACE_PLUGIN=m.plugin()))


def summary(m):
    def body(runner, step):
        status, text = runner.run(step, [m.build / "bin/rail-kit", "trace", "--summary", *traces(runner)])
        if status not in (0, 1):
            raise Failed(f"rail-kit trace ended with status {status}: {telling(text)}")
        broken = {who: sorted(set(re.findall(rf"the {who} broke (.*)", text))) for who in ("plugin", "caller")}
        if broken["plugin"]:
            raise Failed(f"the plugin broke {broken['plugin'][0]}")
        messages = sum(int(n) for n in re.findall(r"^\s+\d+ send\s+(\d+)", text, re.M))
        if not messages:
            raise Failed("the records have no message")
        findings = f"NCCL broke {'; '.join(broken['caller'])}" if status else "no findings"
        return Verdict(f"{messages} messages sent; {findings}")
    return Step(PART, "its summary", body=body, limit=30, needs=("recorded",))


def replay(m):
    def body(runner, step):
        command = [m.build / "bin/rail-kit", "replay", *traces(runner), "--plugin", m.plugin(), "--limit", 40]
        status, text = runner.run(step, command)
        if status != 0:
            raise Failed(f"rail-kit replay ended with status {status}: {telling(text)}")
        same = re.findall(r": (\d+) messages, .*all as recorded$", text, re.M)
        if len(same) != len(traces(runner)):
            raise Failed(f"{len(same)} of {len(traces(runner))} records were replayed: {last_line(text)}")
        return Verdict(f"{sum(map(int, same))} messages, all as recorded")
    return Step(PART, "replayed without NCCL", body=body, limit=45, needs=("recorded",),
                env={"NCCL_SOCKET_IFNAME": "lo"})


# ---- PyTorch ----

def torch_command(python, wanted, hosts):
    return [python, HERE / "ranks.py", "-n", 2, *(["--hosts"] if hosts else []), "--",
            python, HERE / "torch_ranks.py", wanted]


def torch(m):
    python = places.torch_python()
    skip = m.no_ranks or ("" if python else "no PyTorch here")
    for n in (2, 4, 8):
        yield Step(PART, f"PyTorch, our plugin, {n} channels", limit=100, skip=skip,
                   env=m.env_ranks(**ours(m), **channel_env(n)),
                   body=with_log(torch_command(python, "libnccl.so", True), RAIL))
    yield Step(PART, "PyTorch on librailyard.so", torch_command(python, "librailyard.so", False), limit=100, skip=skip,
               env=m.env_ranks(os.path.dirname(m.railyard), LD_PRELOAD="libnccl.so.2", NCCL_NET_PLUGIN=m.plugin(),
                                NCCL_DEBUG="WARN"))


def steps(m):
    skip = m.no_ranks or ("" if m.nccl else "no NCCL here (NCCL_HOME says where one is)")
    yield from collectives(m, skip)
    for step in (record(m), summary(m), replay(m)):
        step.skip = skip
        yield step
    yield from torch(m)

