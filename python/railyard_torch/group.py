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
import sys
import threading
import time
import weakref

import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d

from . import python_backends
from .calls import Calls
from .library import SUCCESS, RailyardError, check_process, error_text, late_error, lib, new_comm, seconds_of
from .monitored import monitored_barrier
from .work import POLL, Work, state


class Group(Calls):
    """Its operations: begun, waited for, completed; and its end."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.me, self.n, self.seconds = rank, size, seconds_of(timeout)
        self.store, self.process = store, os.getpid()
        self.lock = threading.RLock()
        self.comm_lock = threading.Lock()  # the communicator is neither revoked nor freed but under it
        self.pending = collections.deque()  # operations that are not known to be complete, in order
        self.error, self.revoked = None, False
        self.waits = []  # (until, seconds) of each thread that waits for the library; a first call connects
        self.pairs = {}
        self.token = torch.zeros(1, dtype=torch.uint8)
        # A group that is made anew may have the store of the one before, with its keys.
        self.made = store.add(f"railyard/made/{size}/{rank}", 1)
        self.comm = new_comm(store, "railyard", rank, range(size), self.seconds, f"railyard: rank {rank} of {size}")
        groups.add(self)
        end_with_process()
        state.watcher.add(self)

    def getBackendName(self):  # noqa: N802: torch's name
        return "railyard"

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        monitored_barrier(self, timeout, wait_all_ranks)

    def set_timeout(self, timeout):
        """Of what is begun from now on."""
        self.seconds = seconds_of(timeout)
        for pair in list(self.pairs.values()):
            pair.seconds = self.seconds

    def _begin(self, name, opts, call, outputs, keep=(), finish=None):
        """`call` enqueues the operation, which writes the outputs. `keep`: what else the library reads or writes."""
        seconds = seconds_of(opts.timeout)
        seconds = seconds if seconds > 0 else self.seconds  # torch's mark of no timeout is negative
        check_process(self.process)
        with self.lock:
            if self.error is not None:
                raise RailyardError(*self.error.args)
            if self.comm is None:
                raise RailyardError(f"railyard: {name}: the group was destroyed")
            work = Work(self, name, outputs, keep, finish, seconds)
            self.pending.append(work)  # before the call: a signal's handler may raise when that returns
            result = self._limited(seconds, call)
            if result != SUCCESS:
                self._fail(result, name)
                raise RailyardError(*self.error.args)
            return work

    def _limited(self, seconds, call):
        """Calls the library, in which this thread may wait, until the watcher revokes the communicator."""
        limit = (time.monotonic() + seconds, seconds)
        try:
            self.waits.append(limit)
            return call()
        finally:
            if limit in self.waits:
                self.waits.remove(limit)

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
        def run():
            with self.lock:
                if work.done:
                    return
                result = lib.railCommWait(self.comm)
                if result == SUCCESS:
                    self._complete()
                else:
                    self._fail(result, work.name)
        self._limited(seconds, run)

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
            return any(work.future is not None for work in self.pending.copy())
        if not any_future():
            return False
        self.poll()
        return any_future()

    def check_deadline(self, now):
        """The watcher's. Revoking ends the operation, and whoever waits for it learns why."""
        for pair in list(self.pairs.values()):
            pair.check_deadline(now)
        pending = self.pending.copy()
        if not pending or self.error is not None:
            return
        waits = self.waits.copy()
        # The library does not say which operations are complete while any is not: when the last one's time is over, one
        # is late for certain, and of a work that somebody asks about that is assumed before.
        until, seconds = min(waits or [(work.began + work.seconds, work.seconds) for work in pending
                                       if work.asked or work is pending[-1]])
        if now <= until or not waits and (not self.poll() or not self.pending):
            return
        self._late(pending[0].name, seconds)
        self._revoke()

    def _late(self, name, seconds):
        self.error = late_error(f"railyard: rank {self.me} of {self.n}", name, seconds, "a rank")

    def shutdown(self):
        """Completes what was begun, within the group's time, and gives all back. Collective, where nothing has failed:
        the other ranks' operations with this one end first."""
        self._close(time.monotonic() + self.seconds)

    def abort(self):
        """Ends what was begun, with an error, and gives all back; waits for nobody."""
        if self.process != os.getpid():
            return
        self.error = self.error or RailyardError(f"railyard: rank {self.me} of {self.n}: the group was aborted")
        self._revoke()
        for pair in list(self.pairs.values()):
            pair.abort(self.error)
        self._close(time.monotonic())

    def _close(self, deadline):
        if self.process != os.getpid():  # a forked process must not end what is its parent's
            return
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
            if self.pending and (self.error is not None or time.monotonic() > deadline):
                if self.error is None:
                    self._late(self.pending[0].name, self.seconds)
                self._end_pending()
            time.sleep(POLL)

    def __del__(self):
        if getattr(self, "comm", None) is None:
            return
        if state.watcher.is_current():  # the last one with a reference, which nobody's deadline is to wait for
            threading.Thread(target=self.shutdown).start()
        else:
            self.shutdown()


class ProcessGroupRailyard(Group, c10d.ProcessGroup):
    """What torch.distributed itself calls: group and backend in one. Its works have all that works have."""

    _group_name = _group_desc = "railyard"

    def _get_backend_name(self):
        return "railyard"

    # Torch 2 asks these of a group's backends.

    supports_splitting = False

    @property
    def _device_types(self):
        """What checkpoints, among others, go by. Torch has this list of a group of its own from its backends; while it
        makes a group that has one it begins a record that only its own groups can have."""
        try:
            distributed.get_process_group_ranks(self)
        except (KeyError, ValueError):  # torch does not know it yet, or any more
            return []
        return [torch.device("cpu")]

    def _get_backend(self, device):
        return self

    def _set_group_name(self, name):
        self._group_name = name

    def _set_group_desc(self, desc):
        self._group_desc = desc

    @property
    def group_name(self):
        return self._group_name

    @property
    def group_desc(self):
        return self._group_desc


if python_backends():
    class BackendRailyard(Group, c10d.Backend):
        """One of a group's several backends, which torch's own group calls. The works are torch's, too: they have wait
        and get_future only."""


def create(options):
    """`options.process_group` is torch's group, whose own backend is another one's if it has several."""
    kind = ProcessGroupRailyard if options.process_group._get_backend_name() == "custom" else BackendRailyard
    return kind(options.store, options.group_rank, options.group_size, options.timeout)


groups = weakref.WeakSet()
ends = set()  # the processes that will call _end when they exit


def end_with_process():
    """A process that multiprocessing forked runs no atexit, and of multiprocessing's finalizers only its own."""
    if os.getpid() not in ends:
        ends.add(os.getpid())
        multiprocessing.util.Finalize(None, _end, exitpriority=0)


def failing():
    """Does this process end by an exception? An interactive one has the last one of its session."""
    error = sys.exc_info()[1]  # multiprocessing's finalizers run while it is raised
    if error is not None:
        return not isinstance(error, SystemExit) or error.code not in (None, 0)
    return hasattr(sys, "last_value") and not hasattr(sys, "ps1")


@atexit.register
def _end():
    for group in list(groups):
        if failing():
            group.abort()
        else:
            group.shutdown()
