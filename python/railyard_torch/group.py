# SPDX-License-Identifier: Apache-2.0
"""A process group of torch.distributed whose collectives are librailyard's.

A call enqueues the operation and returns; the library runs it in the thread that waits for it, or in one of its own.
Operations of a group run in their order, so waiting for one waits for all before it. A group has one communicator,
which one thread uses at a time: its lock.
"""
import atexit
import collections
import ctypes
import multiprocessing.util
import os
import threading
import time
import weakref

import torch
from torch.distributed import ProcessGroup, ReduceOp

from .library import AVG, MAX, MIN, PROD, SUCCESS, SUM, UINT8, RailyardError, error_text, late_error, lib, new_comm
from .pair import Pair
from .work import POLL, Work, watcher

TYPES = {torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.int64: 4, torch.float16: 6, torch.float32: 7,
         torch.float64: 8, torch.bfloat16: 9}
OPERATORS = [(ReduceOp.SUM, SUM), (ReduceOp.PRODUCT, PROD), (ReduceOp.MAX, MAX), (ReduceOp.MIN, MIN),
             (ReduceOp.AVG, AVG)]
BITWISE = [(ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or), (ReduceOp.BXOR, torch.bitwise_xor)]
KEPT = 16  # works that C++ callers may still ask for their future when they have no reference of Python's


def check(name, tensors, contiguous=True):
    """Everything that is passed to the library is dense, contiguous memory of the host. What is copied first may lie
    anyhow."""
    for t in tensors:
        if t.layout is not torch.strided or t.device.type != "cpu" or contiguous and not t.is_contiguous():
            raise ValueError(f"railyard: {name}: a tensor is {str(t.layout).replace('torch.', '')}, on {t.device}, "
                             f"{'' if t.layout is not torch.strided or t.is_contiguous() else 'not '}contiguous; "
                             "allowed: dense contiguous tensors on cpu")
    return tensors


def one(name, tensors, contiguous=True):
    if len(tensors) != 1:
        raise ValueError(f"railyard: {name}: {len(tensors)} tensors; allowed: one for each rank")
    return check(name, tensors, contiguous)[0]


def size_of(tensor):
    return tensor.numel() * tensor.element_size()


def same(name, tensors, n, like):
    """`n` tensors, each of the type and size of `like`, contiguous or not."""
    if len(tensors) != n or any(t.dtype != like.dtype or t.numel() != like.numel() for t in tensors):
        raise ValueError(f"railyard: {name}: {len(tensors)} tensors of {[tuple(t.shape) for t in tensors]}; allowed: "
                         f"one for each of the {n} ranks, each of {like.numel()} elements of {like.dtype}")
    return check(name, tensors, contiguous=False)


def adjoining(tensors):
    """Do they lie one behind the other, in this order, as pieces of one buffer do?"""
    at = tensors[0].data_ptr()
    for t in tensors:
        if t.data_ptr() != at or not t.is_contiguous():
            return False
        at += size_of(t)
    return True


def apart(tensors):
    """A copy in place of a tensor that was there before: it is reduced once, and every rank reduces as many."""
    seen, result = set(), []
    for t in tensors:
        result.append(t.clone() if t.data_ptr() in seen else t)
        seen.add(t.data_ptr())
    return result


def place(parts, outputs):
    for output, part in zip(outputs, parts):
        output.copy_(part.view(output.shape))


def together(works):
    """The last one for all: the others are complete before it."""
    if not works:
        raise ValueError("railyard: no tensors; allowed: one or more")
    works[-1].outputs = [output for work in works for output in work.outputs]
    return works[-1]


def find(table, op):
    return next((value for key, value in table if op == key), None)


def reduction(name, op, tensor):
    """(type, operator) of the library."""
    operator, kind = find(OPERATORS, op), TYPES.get(tensor.dtype)
    if tensor.dtype is torch.bool and operator in (SUM, PROD, MAX, MIN):  # or, and
        return UINT8, MAX if operator in (SUM, MAX) else MIN
    if operator is None or kind is None:
        raise ValueError(f"railyard: {name}: {op} of {tensor.dtype}; allowed: SUM, AVG, PRODUCT, MIN, MAX of "
                         f"{', '.join(str(t).replace('torch.', '') for t in TYPES)}; and without AVG of bool")
    return kind, operator


class ProcessGroupRailyard(ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.me, self.n, self.seconds = rank, size, timeout.total_seconds()
        self.store, self.process = store, os.getpid()
        self.lock = threading.RLock()
        self.comm_lock = threading.Lock()  # the communicator is neither revoked nor freed but under it
        self.pending = collections.deque()  # operations that are not known to be complete, in order
        self.kept = collections.deque(maxlen=KEPT)
        self.error, self.revoked = None, False
        self.waits = None  # (until, seconds, call) while a thread waits in the library; a first call connects
        self.pairs = {}
        self._group_name = self._group_desc = "railyard"
        self.token = torch.zeros(1, dtype=torch.uint8)
        self.comm = new_comm(store, "railyard", rank, range(size), self.seconds, f"railyard: rank {rank} of {size}")
        groups.add(self)
        end_with_process()
        watcher.add(self)

    def getBackendName(self):  # noqa: N802: torch's name
        return "railyard"

    def _get_backend_name(self):
        return "railyard"

    # Torch 2 asks these of a group's backends; this one is group and backend in one.

    def _get_backend(self, device):
        return self

    def _set_group_name(self, name):
        self._group_name = name

    def _set_group_desc(self, desc):
        self._group_desc = desc

    def set_timeout(self, timeout):
        self.seconds = timeout.total_seconds()
        for pair in list(self.pairs.values()):
            pair.seconds = self.seconds

    @property
    def group_name(self):
        return self._group_name

    @property
    def group_desc(self):
        return self._group_desc

    # ---- operations: begun, waited for, completed --------------------------

    def _begin(self, name, call, outputs, keep=(), finish=None):
        """`call` enqueues the operation, which writes the outputs. `keep`: what else the library reads or writes."""
        with self.lock:
            if self.error is not None:
                raise self.error
            if self.comm is None:
                raise RailyardError(f"railyard: {name}: the group was destroyed")
            self.waits = (time.monotonic() + self.seconds, self.seconds, name)
            result = call()
            self.waits = None
            if result != SUCCESS:
                self._fail(result, name)
                raise self.error
            work = Work(self, name, outputs, keep, finish)
            self.pending.append(work)
            self.kept.append(work)
            return work

    def _fail(self, result, name=None):
        """The group is of no more use."""
        if self.error is None:
            what = name or (self.pending[0].name if self.pending else "a call")
            self.error = RailyardError(f"railyard: rank {self.me} of {self.n}: {what}: {error_text(result, self.comm)}")
        self._end_pending()

    def _end_pending(self):
        """Revoked operations end soon; only then the library no longer writes to their tensors."""
        self._revoke()
        lib.railCommWait(self.comm)
        self._complete()

    def _revoke(self):
        with self.comm_lock:
            if self.comm is not None and not self.revoked:
                self.revoked = True
                lib.ncclCommRevoke(self.comm, 0)

    def _complete(self):
        """All that is enqueued has ended."""
        while self.pending:
            self.pending.popleft().complete(self.error)

    def wait(self, work, seconds):
        """Until `work` is complete. The library works in this thread meanwhile."""
        with self.lock:
            if work.done:
                return
            self.waits = (time.monotonic() + seconds, seconds, self.pending[0].name)
            result = lib.railCommWait(self.comm)
            self.waits = None
            if result == SUCCESS:
                self._complete()
            else:
                self._fail(result, work.name)

    def poll(self):
        """False: a thread waits, and will complete what there is."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            done = ctypes.c_int()
            if self.pending and self.comm is not None:
                result = lib.railCommQuery(self.comm, ctypes.byref(done))
                if result != SUCCESS:
                    self._fail(result)
                elif done.value:
                    self._complete()
        finally:
            self.lock.release()
        return True

    def poll_futures(self):
        """The watcher's. True: look again soon."""
        def any_future():
            return any(work.future is not None for work in list(self.pending))
        if not any_future():
            return False
        self.poll()
        return any_future()

    def check_deadline(self, now):
        """The watcher's. Revoking ends the operation, and whoever waits for it learns why."""
        for pair in list(self.pairs.values()):
            pair.check_deadline(now)
        waits = self.waits
        oldest = next((work for work in list(self.pending) if work.future is not None), None)
        if waits is None and oldest is not None:
            waits = (oldest.began + self.seconds, self.seconds, oldest.name)
        if waits is None or now <= waits[0] or self.error is not None:
            return
        self._late(waits[2], waits[1])
        self._revoke()

    def _late(self, name, seconds):
        self.error = late_error(f"railyard: rank {self.me} of {self.n}", name, seconds, "a rank")

    def shutdown(self):
        """Completes what was begun, within the group's time, and gives all back. Collective, where nothing has failed:
        the other ranks' operations with this one end first."""
        if self.process != os.getpid():  # a forked process must not end what is its parent's
            return
        deadline = time.monotonic() + self.seconds
        for pair in list(self.pairs.values()):
            pair.end(deadline)
        with self.lock:
            if self.comm is None:
                return
            self._drain(deadline)
            with self.comm_lock:
                comm, self.comm = self.comm, None
            (lib.ncclCommDestroy if self.error is None else lib.ncclCommAbort)(comm)

    def _drain(self, deadline):
        """Checks the deadline itself: this may run in the watcher's thread, which then checks nobody's."""
        while self.pending:
            self.poll()
            if self.pending and time.monotonic() > deadline:
                self._late(self.pending[0].name, self.seconds)
                self._end_pending()
            time.sleep(POLL)

    def __del__(self):
        if getattr(self, "comm", None) is not None:
            self.shutdown()

    # ---- all to all ranks ---------------------------------------------------

    def allreduce(self, tensors, opts):
        t = one("allreduce", tensors)
        bitwise = find(BITWISE, opts.reduceOp)
        if bitwise:
            return self._bitwise("allreduce", t, bitwise, True)
        kind, operator = reduction("allreduce", opts.reduceOp, t)
        at = t.data_ptr()
        return self._begin("allreduce", lambda: lib.ncclAllReduce(at, at, t.numel(), kind, operator, self.comm, None),
                           tensors)

    def allreduce_coalesced(self, tensors, opts):
        check("allreduce_coalesced", tensors)
        kinds = [reduction("allreduce_coalesced", opts.reduceOp, t) for t in tensors]
        distinct = apart(tensors)

        def enqueue(t, kind, operator):
            return lib.ncclAllReduce(t.data_ptr(), t.data_ptr(), t.numel(), kind, operator, self.comm, None)
        return self._begin("allreduce_coalesced", lambda: self._grouped(
            [(enqueue, t, *kind) for t, kind in zip(distinct, kinds)]), tensors, distinct)

    def _grouped(self, calls):
        """Enqueues calls as one operation."""
        result = lib.ncclGroupStart()
        for call, *arguments in calls:
            result = result or call(*arguments)
        return lib.ncclGroupEnd() or result

    def _bitwise(self, name, t, combine, everywhere):
        """NCCL has no such operators: every rank takes all, and combines them in the order of the ranks."""
        if t.dtype.is_floating_point or t.dtype.is_complex:
            raise ValueError(f"railyard: {name}: a bitwise operator of {t.dtype}; allowed: of integers and bool")
        parts = torch.empty((self.n, t.numel()), dtype=t.dtype)

        def finish():
            if everywhere:
                result = parts[0]
                for part in parts[1:]:
                    result = combine(result, part)
                t.view(-1).copy_(result)
        return self._begin(name, lambda: lib.ncclAllGather(t.data_ptr(), parts.data_ptr(), size_of(t), UINT8, self.comm,
                                                           None), [t], parts, finish)

    def allgather(self, output_tensors, input_tensors, opts=None):
        t = one("allgather", input_tensors, contiguous=False).contiguous()
        outputs = same("allgather", output_tensors[0], self.n, t)
        whole = None if adjoining(outputs) else torch.empty((self.n, t.numel()), dtype=t.dtype)
        to = outputs[0].data_ptr() if whole is None else whole.data_ptr()
        return self._begin("allgather", lambda: lib.ncclAllGather(t.data_ptr(), to, size_of(t), UINT8, self.comm, None),
                           outputs, (t, whole), None if whole is None else lambda: place(whole, outputs))

    def _allgather_base(self, output, t, opts=None):
        check("all_gather_into_tensor", [output, t])
        if output.numel() != self.n * t.numel() or output.dtype != t.dtype:
            raise ValueError(f"railyard: all_gather_into_tensor: {output.numel()} elements of {output.dtype} from "
                             f"{t.numel()} of {t.dtype}; allowed: {self.n} times as many, of one type")
        return self._begin("all_gather_into_tensor", lambda: lib.ncclAllGather(
            t.data_ptr(), output.data_ptr(), size_of(t), UINT8, self.comm, None), [output], t)

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        return together([self.allgather([[outputs[i] for outputs in output_lists]], [t])
                         for i, t in enumerate(input_list)])

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return together([self._allgather_base(output, t) for output, t in zip(outputs, inputs)])

    def _reduce_scatter(self, name, output, inputs, op):
        kind, operator = reduction(name, op, output)
        source = inputs[0].data_ptr() if adjoining(inputs) else None
        whole = None if source else torch.cat([t.reshape(-1) for t in inputs])
        source = source or whole.data_ptr()
        return self._begin(name, lambda: lib.ncclReduceScatter(source, output.data_ptr(), output.numel(), kind,
                                                               operator, self.comm, None), [output],
                           (whole, inputs))

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        output = one("reduce_scatter", output_tensors)
        inputs = same("reduce_scatter", input_tensors[0], self.n, output)
        return self._reduce_scatter("reduce_scatter", output, inputs, opts.reduceOp)

    def _reduce_scatter_base(self, output, t, opts):
        check("reduce_scatter_tensor", [output, t])
        if t.numel() != self.n * output.numel() or output.dtype != t.dtype:
            raise ValueError(f"railyard: reduce_scatter_tensor: {output.numel()} elements of {output.dtype} from "
                             f"{t.numel()} of {t.dtype}; allowed: from {self.n} times as many, of one type")
        return self._reduce_scatter("reduce_scatter_tensor", output, [t], opts.reduceOp)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts):
        return together([self._reduce_scatter_base(output, t, opts) for output, t in zip(outputs, inputs)])

    def alltoall_base(self, output, t, output_sizes, input_sizes, opts=None):
        check("all_to_all_single", [output, t])
        if output.dtype != t.dtype:
            raise ValueError(f"railyard: all_to_all_single: from {t.dtype} to {output.dtype}; allowed: one type")
        pieces = [list(x.split(sizes or x.shape[0] // self.n)) if x.shape[0] else [x] * self.n
                  for x, sizes in ((output, output_sizes), (t, input_sizes))]
        if any(len(p) != self.n for p in pieces):
            raise ValueError(f"railyard: all_to_all_single: {tuple(t.shape)} in pieces {input_sizes or 'of one size'}, "
                             f"{tuple(output.shape)} in {output_sizes or 'those of one size'}; "
                             f"allowed: {self.n} pieces")
        return self._alltoall("all_to_all_single", pieces[0], pieces[1], [output])

    def alltoall(self, outputs, inputs, opts=None):
        for tensors in (outputs, inputs):
            if len(tensors) != self.n:
                raise ValueError(f"railyard: all_to_all: {len(tensors)} tensors; allowed: one for each of {self.n} "
                                 "ranks")
            check("all_to_all", tensors)
        return self._alltoall("all_to_all", outputs, inputs, outputs)

    def _alltoall(self, name, outputs, inputs, result):
        def send(t, peer):
            return lib.ncclSend(t.data_ptr(), size_of(t), UINT8, peer, self.comm, None)

        def receive(t, peer):
            return lib.ncclRecv(t.data_ptr(), size_of(t), UINT8, peer, self.comm, None)
        calls = [(send, t, peer) for peer, t in enumerate(inputs) if t.numel()]
        calls += [(receive, t, peer) for peer, t in enumerate(outputs) if t.numel()]
        return self._begin(name, lambda: self._grouped(calls), result, (outputs, inputs))

    def barrier(self, opts=None):
        at = self.token.data_ptr()
        return self._begin("barrier", lambda: lib.ncclAllReduce(at, at, 1, UINT8, MAX, self.comm, None), [])

    # Torch 2.15's names for them.
    all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
    reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- from or to one rank --------------------------------------------------

    def _rank(self, name, rank):
        if not 0 <= rank < self.n:
            raise ValueError(f"railyard: {name}: rank {rank}; allowed: 0 to {self.n - 1}")
        return rank

    def broadcast(self, tensors, opts):
        t = one("broadcast", tensors)
        at, root = t.data_ptr(), self._rank("broadcast", opts.rootRank)
        return self._begin("broadcast", lambda: lib.ncclBroadcast(at, at, size_of(t), UINT8, root, self.comm, None),
                           tensors)

    def reduce(self, tensors, opts):
        t, root = one("reduce", tensors), self._rank("reduce", opts.rootRank)
        bitwise = find(BITWISE, opts.reduceOp)
        if bitwise:
            return self._bitwise("reduce", t, bitwise, self.me == root)
        kind, operator = reduction("reduce", opts.reduceOp, t)
        at = t.data_ptr()
        return self._begin("reduce", lambda: lib.ncclReduce(at, at, t.numel(), kind, operator, root, self.comm, None),
                           tensors)

    def gather(self, output_tensors, input_tensors, opts):
        t, root = one("gather", input_tensors, contiguous=False).contiguous(), self._rank("gather", opts.rootRank)
        outputs = same("gather", output_tensors[0], self.n, t) if self.me == root else []
        whole = torch.empty((self.n, t.numel()), dtype=t.dtype) if outputs and not adjoining(outputs) else None
        to = None if not outputs else outputs[0].data_ptr() if whole is None else whole.data_ptr()
        return self._begin("gather", lambda: lib.ncclGather(t.data_ptr(), to, size_of(t), UINT8, root, self.comm, None),
                           outputs, (t, whole), None if whole is None else lambda: place(whole, outputs))

    def gather_single(self, output, t, opts):
        parts = []
        if self.me == opts.rootRank:
            check("gather_single", [output])
            if output.numel() != self.n * t.numel():
                raise ValueError(f"railyard: gather_single: {output.numel()} elements from {t.numel()} of each rank; "
                                 f"allowed: {self.n} times as many")
            parts = output.view(self.n, -1).unbind()
        work = self.gather([parts], [t], opts)
        work.outputs = [output] if self.me == opts.rootRank else []
        return work

    def scatter(self, output_tensors, input_tensors, opts):
        output, root = one("scatter", output_tensors), self._rank("scatter", opts.rootRank)
        inputs = same("scatter", input_tensors[0], self.n, output) if self.me == root else []
        whole = torch.cat([t.reshape(-1) for t in inputs]) if inputs and not adjoining(inputs) else None
        source = None if not inputs else inputs[0].data_ptr() if whole is None else whole.data_ptr()
        return self._begin("scatter", lambda: lib.ncclScatter(source, output.data_ptr(), size_of(output), UINT8, root,
                                                              self.comm, None), [output], (whole, inputs))

    # ---- from rank to rank ------------------------------------------------------

    def _pair(self, source, target, tag):
        with self.lock:
            if self.comm is None:
                raise RailyardError("railyard: send, recv: the group was destroyed")
            key = (source, target, tag)
            if key not in self.pairs:
                self.pairs[key] = Pair(self, *key)
            return self.pairs[key]

    def send(self, tensors, target, tag):
        return self._pair(self.me, self._rank("send", target), tag).begin("send", one("send", tensors))

    def recv(self, tensors, source, tag):
        return self._pair(self._rank("recv", source), self.me, tag).begin("recv", one("recv", tensors))

    def recv_anysource(self, tensors, tag):
        raise RailyardError("railyard: recv from any rank is not supported; name the source")


groups = weakref.WeakSet()
ends = set()  # the processes that will call _end when they exit


def end_with_process():
    """A process that multiprocessing forked runs no atexit, and of multiprocessing's finalizers only its own."""
    if os.getpid() not in ends:
        ends.add(os.getpid())
        multiprocessing.util.Finalize(None, _end, exitpriority=0)


@atexit.register
def _end():
    for group in list(groups):
        group.shutdown()
