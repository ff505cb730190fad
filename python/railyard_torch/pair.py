# SPDX-License-Identifier: Apache-2.0
"""Sends from one rank to another with one tag.

Gloo's sends and receives wait for nothing but each other, whatever their order. A communicator runs its operations in
their order, so each (source, target, tag) has one of its own, made when it is first used, and a thread that waits in
it.
"""
import queue
import threading
import time

from .library import SUCCESS, UINT8, RailyardError, error_text, lib, new_comm
from .work import Work


class Pair:
    def __init__(self, group, source, target, tag):
        self.name = (f"railyard: rank {group.me} of {group.n}: messages from rank {source} to rank {target} with tag "
                     f"{tag}")
        self.store, self.seconds, self.sends = group.store, group.seconds, group.me == source
        self.key = f"railyard/{source}/{target}/{tag}"
        self.lock = self.changed = threading.Condition()
        self.queue = queue.SimpleQueue()
        self.comm, self.error, self.thread, self.ended = None, None, None, False

    def begin(self, name, tensor):
        work = Work(self, name, [tensor])
        with self.lock:
            if self.error is not None:
                raise self.error
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="railyard-pair", daemon=True)
                self.thread.start()
        self.queue.put(work)
        return work

    def poll(self):
        pass

    def wait(self, work, seconds):
        with self.changed:
            if self.changed.wait_for(lambda: work.done, seconds):
                return
            self.error = self.error or RailyardError(f"{self.name}: {work.name} is not complete after {seconds:.1f} "
                                                     "s: the other rank has not called it, or is stopped")
            work.complete(self.error)
            if self.comm is not None:
                lib.ncclCommRevoke(self.comm, 0)

    def _move(self, work):
        t, peer = work.tensors[0], 1 if self.sends else 0
        if self.comm is None:
            comm = new_comm(self.store, self.key, 0 if self.sends else 1, 2, self.seconds, self.name)
            with self.lock:
                self.comm = comm
        call = lib.ncclSend if self.sends else lib.ncclRecv
        result = call(t.data_ptr(), t.numel() * t.element_size(), UINT8, peer, self.comm, None)
        result = result or lib.railCommWait(self.comm)
        if result != SUCCESS:
            raise RailyardError(f"{self.name}: {work.name}: {error_text(result, self.comm)}")

    def _run(self):
        while True:
            work = self.queue.get()
            if work is None:
                break
            try:
                if self.error is None:
                    self._move(work)
            except RailyardError as e:
                self.error = self.error or e
            with self.changed:
                if not work.done:
                    work.complete(self.error)
                self.changed.notify_all()
        if self.comm is not None:
            (lib.ncclCommDestroy if self.error is None else lib.ncclCommAbort)(self.comm)

    def end(self):
        """Lets what is under way end, within the group's time."""
        if self.thread is None or self.ended:
            return
        self.ended = True
        self.queue.put(None)
        deadline = time.monotonic() + (self.seconds if self.error is None else 0)
        while self.thread.is_alive() and time.monotonic() < deadline and threading.current_thread() is not self.thread:
            self.thread.join(0.1)
