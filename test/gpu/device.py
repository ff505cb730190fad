# SPDX-License-Identifier: Apache-2.0
"""Parts 1 and 2: the kernels, and the runtime with buffers on the GPU; without one the same sources in emulation."""
import places
from steps import Failed, Skip, Step, last_line, tap, telling

KERNELS, RUNTIME = "1 kernels", "2 runtime"
NOT_BUILT = "not built: no {} where `make tests` ran"


def sanitized(tool, program):
    def body(runner, step):
        status, text = runner.run(step, [places.sanitizer(), "--tool", tool, "--error-exitcode", "9", program, "--few"])
        if "not supported" in text and status != 0:
            raise Skip(f"compute-sanitizer refuses the device: {last_line(text)}")
        if status == 77:
            raise Skip(last_line(text))
        if status != 0:
            raise Failed(f"ended with status {status}: {telling(text)}")
        return tap(text)
    return body


def kernels(m):
    if m.no_gpu:
        for name in ("reduce", "fifo", "block"):
            program = m.program(f"unit/test_device_{name}")
            yield Step(KERNELS, f"{name}, emulated", [program], env={"RAIL_BUILD": m.build}, limit=60,
                       skip="" if program else NOT_BUILT.format("C++17 compiler"))
    for name in ("kernels", "blocks"):
        program = m.program(f"gpu/{name}")
        skip = m.no_gpu or ("" if program else NOT_BUILT.format("nvcc"))
        yield Step(KERNELS, name, [program], env=m.env(), limit=90, skip=skip)
        for tool in ("memcheck", "racecheck"):
            yield Step(KERNELS, f"{name}, {tool}", body=sanitized(tool, program), env=m.env(), limit=60, needs=(name,),
                       skip=skip or ("" if places.sanitizer() else "no compute-sanitizer here"))


def coll(m, library, ranks, net, *more):
    """gpu_coll's command."""
    return [m.build / "test/gpu/gpu_coll", "--library", library, "--ranks", ranks, "--limit", 25,
            *(["--hosts"] if net else []), *more]


def runtime(m):
    # In emulation a thread stands for each thread of a block: small sizes.
    where, env, sizes = "", m.env_ranks(), ["--maxbytes", 1 << 20, "--factor", 16, "--iters", 5, "--most-ms", 50]
    if m.no_gpu:
        where, env, sizes = ", emulated", {k: v for k, v in m.env().items() if k != "TEST_REAL_GPU"}, [
            "--maxbytes", 1 << 15, "--factor", 64, "--iters", 2, "--most-ms", 50]
    no_fake = m.no_gpu and not m.program("libfakegpu.so") and NOT_BUILT.format("C++17 compiler")
    for name, more in (("calls", {}), ("streams", {}), ("p2p", {}), ("calls", {"NCCL_P2P_DISABLE": "1"})):
        program = m.program(f"e2e/test_device_{name}")
        emulated = m.no_gpu if name == "p2p" or more else ""  # once is enough, and make test has the rest
        yield Step(RUNTIME, f"{name}{'' if not more else ', no P2P'}{where}", [program], env={**env, **more}, limit=100,
                   skip=m.not_shared or emulated or no_fake or ("" if program else NOT_BUILT.format("C++17 compiler")))
    for net in (False, True):
        for ranks in (1, 2, 4):
            if net and ranks == 1:
                continue
            over = "the socket plugin" if net else "its own choice"
            command = coll(m, m.railyard, ranks, net, *sizes)
            yield Step(RUNTIME, f"{ranks} processes over {over}{where}", command, limit=45,
                       env={**env, "NCCL_NET_PLUGIN": m.plugin()}, skip=m.not_shared or no_fake or "")
