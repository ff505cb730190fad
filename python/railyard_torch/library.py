# SPDX-License-Identifier: Apache-2.0
"""librailyard by ctypes: the calls that the backend makes, with NCCL's names and values (rail/railyard.h)."""
import ctypes
import os
import re
import threading
import time

SUCCESS, IN_PROGRESS = 0, 7
UINT8 = 1
SUM, PROD, MAX, MIN, AVG = range(5)
UNDEFINED = -2 ** 31  # NCCL_CONFIG_UNDEF_INT
ID_BYTES = 128


class RailyardError(RuntimeError):
    """A collective failed: its communicator is of no more use. The text names the rank and the cause."""


def late_error(who, call, seconds, peer):
    return RailyardError(f"{who}: {call} is not complete after its timeout of {seconds:.1f} s: {peer} has not called "
                         "it, or is stopped")


def seconds_of(timeout):
    """Of a timedelta, or of a number, as torch's own groups take. At most what Python's waits take: with timedelta.max
    callers mean never."""
    seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
    return min(seconds, threading.TIMEOUT_MAX)


def check_process(process):
    if process != os.getpid():
        raise RailyardError(f"railyard: the group was made by process {process}, before it forked process "
                            f"{os.getpid()}; make a group in this one")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.28; what is not named here stays undefined, as NCCL_CONFIG_INITIALIZER has it."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int), ("cgaClusterSize", ctypes.c_int), ("minCTAs", ctypes.c_int),
                ("maxCTAs", ctypes.c_int), ("netName", ctypes.c_char_p), ("splitShare", ctypes.c_int),
                ("trafficClass", ctypes.c_int), ("commName", ctypes.c_char_p), ("collnetEnable", ctypes.c_int),
                ("CTAPolicy", ctypes.c_int), ("shrinkShare", ctypes.c_int), ("nvlsCTAs", ctypes.c_int),
                ("nChannelsPerNetPeer", ctypes.c_int), ("nvlinkCentricSched", ctypes.c_int)]

    def __init__(self, **values):
        undefined = {name: UNDEFINED for name, kind in self._fields_ if kind is ctypes.c_int}
        known = {"size": ctypes.sizeof(Config), "magic": 0xcafebeef, "version": 22809}
        super().__init__(**{**undefined, **known, **values})


def _load():
    """The calls of the library by their names. RAIL_LIBRARY, if it is set, else what the system's loader finds."""
    name = os.environ.get("RAIL_LIBRARY") or "librailyard.so.0"
    try:
        library = ctypes.CDLL(name)
    except OSError as e:
        raise RailyardError(f"railyard: cannot load librailyard: {e}; install it (make install, or the package "
                            "librailyard0), or set RAIL_LIBRARY to its path") from None
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    calls = {
        "ncclGetUniqueId": [pointer],
        "ncclCommInitRankConfig": [pointer, number, UniqueId, number, pointer],
        "ncclCommGetAsyncError": [pointer, pointer],
        "ncclCommDestroy": [pointer],
        "ncclCommAbort": [pointer],
        "ncclCommRevoke": [pointer, number],
        "ncclGroupStart": [],
        "ncclGroupEnd": [],
        "ncclAllReduce": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclBroadcast": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclReduce": [pointer, pointer, size, number, number, number, pointer, pointer],
        "ncclAllGather": [pointer, pointer, size, number, pointer, pointer],
        "ncclReduceScatter": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclGather": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclScatter": [pointer, pointer, size, number, number, pointer, pointer],
        "ncclSend": [pointer, size, number, number, pointer, pointer],
        "ncclRecv": [pointer, size, number, number, pointer, pointer],
        "railCommWait": [pointer],
        "railCommQuery": [pointer, pointer],
        "ncclGetLastError": [pointer],
        "ncclGetErrorString": [number],
    }
    for call, arguments in calls.items():
        function = calls[call] = getattr(library, call)
        function.argtypes = arguments
        function.restype = ctypes.c_char_p if call in ("ncclGetLastError", "ncclGetErrorString") else number
    return calls


class Library:
    """librailyard, loaded when it is first needed: where it cannot be, importing torch must still work."""

    def load(self):
        if "ncclGetUniqueId" not in vars(self):
            vars(self).update(_load())

    def __getattr__(self, name):
        self.load()
        return object.__getattribute__(self, name)


lib = Library()


def error_text(result, comm=None, ranks=None):
    """What the library says of its last error, else what the code means. `ranks`: what the group calls the ranks of the
    communicator, where that differs."""
    said = (lib.ncclGetLastError(comm) or lib.ncclGetErrorString(result) or b"").decode(errors="replace")
    if ranks is None:
        return said
    said = re.sub(rf"\brank (\d+) of {len(ranks)}\b", r"rank \1", said)
    return re.sub(r"\brank (\d+)\b", lambda m: f"rank {ranks[int(m[1])]}" if int(m[1]) < len(ranks) else m[0], said)


def new_comm(store, key, me, ranks, seconds, what, stopped=lambda: False):
    """A communicator of `ranks`, of which this is ranks[me]. They find each other by an id that the first one makes
    when all have come, and puts into the store. Collective. Ends after `seconds` when they do not all come, and names
    who has not; or, if `stopped` says so, soon."""
    deadline = time.monotonic() + seconds
    # A group that is made anew may have the store of the one before, with its keys: each rank counts its turns.
    key = f"{key}/{len(ranks)}"
    turn = store.add(f"{key}/turns/{me}", 1)
    lib.load()
    unique_id = UniqueId()

    def late():
        return stopped() or time.monotonic() > deadline

    if not share_id(store, f"{key}/{turn}", me, len(ranks), late, unique_id, what):
        absent = [rank for i, rank in enumerate(ranks) if store.add(f"{key}/turns/{i}", 0) < turn]
        raise RailyardError(f"{what}: {not_come(absent) or f'rank {ranks[0]} has made no rendezvous'} within "
                            f"{seconds:.0f} s")
    comm, state = ctypes.c_void_p(), ctypes.c_int()
    result = lib.ncclCommInitRankConfig(ctypes.byref(comm), len(ranks), unique_id, me,
                                        ctypes.byref(Config(blocking=0)))
    nap = 0.0001
    while result == IN_PROGRESS and not late():
        time.sleep(nap)
        nap = min(nap * 1.5, 0.01)
        result = lib.ncclCommGetAsyncError(comm, ctypes.byref(state)) or state.value
    if result == SUCCESS:
        return comm
    said = error_text(result, comm, ranks)
    if comm:
        lib.ncclCommAbort(comm)
    if result == IN_PROGRESS:
        said = f"all ranks came, but were not connected to each other within {seconds:.0f} s"
    raise RailyardError(f"{what}: {said}")


def share_id(store, key, me, n, late, unique_id, what):
    """False: not all came in time. The id is made when all are there: the library's own time to connect
    (RAIL_BOOTSTRAP_TIMEOUT) does not count the wait for a late rank."""
    store.add(f"{key}/come", 1)
    if me != 0:
        if not wait_for_count(store, f"{key}/set", 1, late):
            return False
        ctypes.memmove(ctypes.byref(unique_id), bytes.fromhex(store.get(key).decode()), ID_BYTES)
        return True
    if not wait_for_count(store, f"{key}/come", n, late):
        return False
    result = lib.ncclGetUniqueId(ctypes.byref(unique_id))
    if result != SUCCESS:
        raise RailyardError(f"{what}: no rendezvous: {error_text(result)}")
    store.set(key, ctypes.string_at(ctypes.byref(unique_id), ID_BYTES).hex())
    store.add(f"{key}/set", 1)
    return True


def wait_for_count(store, key, count, late):
    """Polls, because a blocking store.wait() would hold the client and stall other threads' requests. False: too
    late."""
    nap = 0.0001
    while store.add(key, 0) < count:
        if late():
            return False
        time.sleep(nap)
        nap = min(nap * 1.5, 0.02)
    return True


def not_come(absent):
    """In words; "" if all have."""
    if len(absent) == 1:
        return f"rank {absent[0]} has not come"
    more = f" and {len(absent) - 8} more" if len(absent) > 8 else ""
    return absent and f"ranks {', '.join(map(str, absent[:8]))}{more} have not come" or ""
