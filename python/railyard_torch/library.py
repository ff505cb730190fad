# SPDX-License-Identifier: Apache-2.0
"""librailyard by ctypes: the calls that the backend makes, with NCCL's names and values (rail/railyard.h)."""
import ctypes
import os
import re
import time

SUCCESS, IN_PROGRESS = 0, 7
UINT8 = 1
SUM, PROD, MAX, MIN, AVG = range(5)
UNDEFINED = -2 ** 31  # NCCL_CONFIG_UNDEF_INT
ID_BYTES = 128


class RailyardError(RuntimeError):
    """A collective failed: its communicator is of no more use. The text names the rank and the cause."""


def late_error(who, call, seconds, peer):
    return RailyardError(f"{who}: {call} is not complete after {seconds:.1f} s: {peer} has not called it, or is "
                         "stopped")


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
    """RAIL_LIBRARY, if it is set, else what the system's loader finds."""
    name = os.environ.get("RAIL_LIBRARY") or "librailyard.so.0"
    try:
        library = ctypes.CDLL(name)
    except OSError as e:
        raise ImportError(f"railyard_torch cannot load librailyard: {e}; install it (make install, or the package "
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
    }
    for call, arguments in calls.items():
        function = getattr(library, call)
        function.argtypes, function.restype = arguments, number
    for call, argument in (("ncclGetLastError", pointer), ("ncclGetErrorString", number)):
        function = getattr(library, call)
        function.argtypes, function.restype = [argument], ctypes.c_char_p
    return library


lib = _load()


def error_text(result, comm=None, ranks=None):
    """What the library says of its last error, else what the code means. `ranks`: what the group calls the ranks of the
    communicator, where that differs."""
    said = (lib.ncclGetLastError(comm) or lib.ncclGetErrorString(result) or b"").decode(errors="replace")
    if ranks is None:
        return said
    said = re.sub(rf"\brank (\d+) of {len(ranks)}\b", r"rank \1", said)
    return re.sub(r"\brank (\d+)\b", lambda m: f"rank {ranks[int(m[1])]}" if int(m[1]) < len(ranks) else m[0], said)


def new_comm(store, key, me, ranks, seconds, what):
    """A communicator of `ranks`, of which this is ranks[me]. They find each other by an id that the first one puts into
    the store. Collective. Ends after `seconds` when they do not all come, and names who has not."""
    deadline = time.monotonic() + seconds
    unique_id = UniqueId()
    store.add(f"{key}/come/{me}", 1)
    if me == 0:
        result = lib.ncclGetUniqueId(ctypes.byref(unique_id))
        if result != SUCCESS:
            raise RailyardError(f"{what}: no rendezvous: {error_text(result)}")
        store.set(key, ctypes.string_at(ctypes.byref(unique_id), ID_BYTES).hex())
        store.add(f"{key}/set", 1)
    elif wait_for_key(store, f"{key}/set", deadline):
        ctypes.memmove(ctypes.byref(unique_id), bytes.fromhex(store.get(key).decode()), ID_BYTES)
    else:
        absent = missing(store, key, ranks) or f"rank {ranks[0]} has made no rendezvous"
        raise RailyardError(f"{what}: {absent} within {seconds:.0f} s")
    comm, state = ctypes.c_void_p(), ctypes.c_int()
    result = lib.ncclCommInitRankConfig(ctypes.byref(comm), len(ranks), unique_id, me,
                                        ctypes.byref(Config(blocking=0)))
    nap = 0.0001
    while result == IN_PROGRESS and time.monotonic() < deadline:
        time.sleep(nap)
        nap = min(nap * 1.5, 0.01)
        result = lib.ncclCommGetAsyncError(comm, ctypes.byref(state)) or state.value
    if result == SUCCESS:
        return comm
    said = error_text(result, comm, ranks)
    if comm:
        lib.ncclCommAbort(comm)
    absent = missing(store, key, ranks)
    if result == IN_PROGRESS:
        said = f"{absent or 'all ranks came, but were not connected to each other'} within {seconds:.0f} s"
    elif absent:
        said += f"; {absent}"
    raise RailyardError(f"{what}: {said}")


def wait_for_key(store, key, deadline):
    """Polls, because a blocking store.wait() would hold the client and stall other threads' requests. False: too
    late."""
    nap = 0.0001
    while store.add(key, 0) == 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(nap)
        nap = min(nap * 1.5, 0.02)
    return True


def missing(store, key, ranks):
    """Who has not come, in words; "" if all have."""
    absent = [rank for i, rank in enumerate(ranks) if store.add(f"{key}/come/{i}", 0) == 0]
    if len(absent) == 1:
        return f"rank {absent[0]} has not come"
    more = f" and {len(absent) - 8} more" if len(absent) > 8 else ""
    return absent and f"ranks {', '.join(map(str, absent[:8]))}{more} have not come" or ""
