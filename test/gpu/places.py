# SPDX-License-Identifier: Apache-2.0
"""Where CUDA, NCCL, PyTorch and the GPU are on this machine; None, or a reason, for what is not there."""
import dataclasses
import functools
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from steps import kill_session

NO_DEVICE, PROBE_LIMIT = 77, 30  # gpu_coll's status when CUDA says that there is none; seconds
LOADER_PATH = os.environ.get("LD_LIBRARY_PATH", "").split(":")
DRIVER_FOLDERS = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
                  "/usr/lib/aarch64-linux-gnu", "/usr/lib/wsl/lib"]
TOOL_FOLDERS = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/lib/wsl/lib:/sbin:/usr/sbin"


def output(command, limit=20):
    """What a command prints; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def tool(name):
    return shutil.which(name) or shutil.which(name, path=TOOL_FOLDERS)


@functools.lru_cache(maxsize=None)
def loader_cache():
    """Library name → file, as the loader has it in its cache."""
    text = output([tool("ldconfig") or "ldconfig", "-p"])
    return dict(reversed(re.findall(r"^\s+(\S+) \(.*\) => (\S+)$", text, re.M)))


# ---- Python ----

@functools.lru_cache(maxsize=None)
def pythons():
    """Interpreters that may have packages, and their folders: (interpreter, [folder…])."""
    ask = "import sys; print('\\n'.join(sys.path))"
    candidates = [os.environ.get("PYTHON"), shutil.which("python3"), shutil.which("python"), sys.executable,
                  *sorted(glob.glob("/opt/*/bin/python3") + glob.glob("/opt/*/.venv/bin/python3") +
                          glob.glob("/opt/*/venv/bin/python3"))]
    found = {}
    for python in candidates:
        if python and python not in found and os.access(python, os.X_OK):
            found[python] = output([python, "-c", ask]).split()
    return list(found.items())


def torch_python():
    """An interpreter that has torch; its version is not known before it is asked, which takes seconds."""
    for python, folders in pythons():
        if any(os.path.isfile(f"{folder}/torch/__init__.py") for folder in folders):
            return python
    return None


def wheels(name):
    """Folders that NVIDIA's packages unpack to."""
    looked = [f"{folder}/nvidia/{name}" for _, folders in pythons() for folder in folders]
    return [found for place in looked for found in sorted(glob.glob(place))]


# ---- CUDA and NCCL ----

def cuda_home():
    nvcc = tool("nvcc")
    beside = nvcc and os.path.dirname(os.path.dirname(nvcc))
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), beside, "/usr/local/cuda"):
        if root and os.path.exists(f"{root}/bin/nvcc"):
            return os.path.realpath(root)
    return None


def sanitizer():
    return tool("compute-sanitizer") or first([f"{cuda_home()}/bin/compute-sanitizer"])


def first(paths):
    return next((p for p in paths if os.path.exists(p)), None)


def nccl_roots():
    return [r for r in (os.environ.get("NCCL_HOME"), *wheels("nccl"), cuda_home(), "/usr/local", "/usr") if r]


def nccl_library():
    """NCCL's own libnccl.so.2: of NCCL_HOME, the Python packages, the toolkit, the system."""
    found = [f"{root}/{folder}/libnccl.so.2" for root in nccl_roots()
             for folder in ("lib", "lib64", "build/lib", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")]
    found.append(loader_cache().get("libnccl.so.2", ""))
    return first(p for p in found if "railyard" not in os.path.realpath(p))


def nccl_include():
    header = first(f"{root}/{folder}/nccl.h" for root in nccl_roots() for folder in ("include", "build/include"))
    return header and os.path.dirname(header)


# ---- the GPU ----

def driver_folder():
    """The folder of libcuda.so.1 if the loader would not find it by itself, "" if it does; None: there is none."""
    if "libcuda.so.1" in loader_cache() or first(f"{d}/libcuda.so.1" for d in LOADER_PATH if d):
        return ""
    found = first(f"{d}/libcuda.so.1" for d in DRIVER_FOLDERS)
    return found and os.path.dirname(found)


def smi(query):
    """One value of the first GPU that CUDA may use, as nvidia-smi says; "" if it says nothing."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    program = tool("nvidia-smi")
    words = [program, *(["-i", device] if device else []), f"--query-gpu={query}", "--format=csv,noheader"]
    return output(words).split("\n")[0].strip() if program else ""


def why_not_shared():
    """Ranks of several processes need the GPU at once: "" or why they cannot have it."""
    mode = smi("compute_mode")
    if mode == "Prohibited":
        return "the GPU's compute mode is Prohibited"
    pipe = pathlib.Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if mode == "Exclusive_Process" and not (pipe / "control").exists():
        return "the GPU's compute mode is Exclusive_Process and no MPS daemon runs, so processes cannot share it"
    return ""


@dataclasses.dataclass
class Machine:
    """What the parts of the suite need to know."""
    build: pathlib.Path
    driver: str = ""      # a folder for the loader's path, or ""
    no_gpu: str = ""      # why there is none
    broken: tuple = ()    # there is one, and its probe failed: (what happened, its output)
    not_shared: str = ""  # why several processes cannot have it
    nccl: str = ""        # NCCL's own library, or ""
    mps: str = ""         # the folder of a running MPS daemon's pipes, or ""

    def program(self, name):
        """A program of the build, or "" if it was not built."""
        path = self.build / "test" / name
        return str(path) if path.exists() else ""

    def plugin(self, name="socket"):
        return str(self.build / "lib" / f"libnccl-net-{name}.so")

    @property
    def railyard(self):
        return str(self.build / "lib" / "nccl" / "libnccl.so.2")

    def env(self, *folders, **more):
        """Variables of a step on the GPU; folders come first where libraries are looked for."""
        # Streams of one process' ranks must not share a queue of the hardware: one would wait behind another's kernel.
        path = ":".join(f for f in (*folders, self.driver) if f)
        return {**({"+LD_LIBRARY_PATH": path} if path else {}), "RAIL_BUILD": self.build, "NCCL_SOCKET_IFNAME": "lo",
                "TEST_REAL_GPU": 1, "CUDA_DEVICE_MAX_CONNECTIONS": 32, **more}

    def env_ranks(self, *folders, **more):
        """Those of a step whose processes use the GPU at once. Perhaps MPS has one stock of queues for all: of four
        processes that asked for 32 some were refused their contexts (docs/results/2026-11-27-gpu.md)."""
        mps = {"CUDA_MPS_PIPE_DIRECTORY": self.mps, "CUDA_DEVICE_MAX_CONNECTIONS": 16} if self.mps else {}
        return {**self.env(*folders, **more), **mps}

    @property
    def no_ranks(self):
        """Why several processes cannot use the GPU."""
        return self.no_gpu or self.not_shared


def card_files():
    """The files of the GPUs that this machine, or container, has."""
    return sorted(glob.glob("/dev/nvidia[0-9]*"))


def hold_open(paths):
    """The first that can be opened, or None. While somebody has it open, the driver keeps the card initialised: else,
    without persistence mode, each step would begin with seconds of that. No setting is changed."""
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def card_there():
    return bool(card_files() or re.search(r"^GPU \d+:", output([tool("nvidia-smi") or "nvidia-smi", "-L"]), re.M))


def probe(command, env):
    """Exit status, or None: it did not end; and output. Not waited for beyond that: it may hang in the driver."""
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        except OSError as e:
            return -1, str(e)
        try:
            status = process.wait(PROBE_LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        kill_session(process)
        out.seek(0)
        return status, out.read().decode(errors="replace")


def look(build):
    m = Machine(build)
    m.nccl = nccl_library() or ""
    found = driver_folder()
    if found is None and not card_there():
        m.no_gpu = "no NVIDIA GPU here (there is no libcuda.so.1)"
        return m
    m.driver = found or ""
    env = {**os.environ, "TEST_REAL_GPU": "1"}
    env["LD_LIBRARY_PATH"] = ":".join(d for d in [m.driver, *LOADER_PATH] if d)
    status, text = probe([str(build / "test/gpu/gpu_coll"), "--probe"], env)
    if status == NO_DEVICE or status != 0 and not card_there():
        m.no_gpu = f"the GPU cannot be used: {text.strip()}"
    elif status != 0:  # a fault of ours or of the driver's: never taken for "no GPU"; the steps say what works
        what = f"no end within {PROBE_LIMIT} s" if status is None else f"ended with status {status}"
        m.broken = (what, text)
    if not m.no_gpu:
        m.not_shared = why_not_shared()
    return m
