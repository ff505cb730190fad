# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous call returns, and the threads that complete what nobody waits for."""
import collections
import os
import threading
import time
import weakref

import torch
from torch._C._distributed_c10d import Work as _Work

from .library import RailyardError, check_process, seconds_of

POLL = 0.0001  # s between two looks at a communicator with operations that somebody has a future of
TICK = 0.1     # s between two looks at the deadlines
KEPT = 64      # works without a reference of Python's, which C++ callers may have


class Work(_Work):
    """One operation. `run` is what completes it, until then: the group, or the pair of a send or receive. `outputs` is
    what result() and the future give. `keep` are the other tensors that the library reads or writes until the operation
    is complete. `finish` places the results, where they arrive in another shape than the caller's. `seconds`: its
    limit, if it is not that of `run`."""

    def __init__(self, run, name, outputs, keep=(), finish=None, seconds=None):
        super().__init__()
        self.run, self.name, self.outputs, self.keep, self.finish = run, name, list(outputs), keep, finish
        self.done, self.error, self.future = False, None, None
        self.asked = False  # somebody has the future or polls: the limit counts, though nobody waits
        self.told = None    # set when the future has its result, and its callbacks have run
        self.began, self.seconds = time.monotonic(), seconds or run.seconds

    def complete(self, error):
        """Called when the library is done with the tensors, or by a Pair that gave up: its thread holds its own
        reference until then."""
        finish, self.finish, self.keep = self.finish, None, ()
        try:
            if error is None and finish:
                with torch.inference_mode():  # in which results of any mode may be written, by any thread
                    finish()
        except Exception as e:
            error = RailyardError(f"railyard: {self.name}: the results cannot be placed: {e}")
        with state.lock:
            self.error, self.done, self.run = error, True, None
            if self.future is not None:
                state.teller.add(self)

    def tell(self):
        """Gives the future its result, and so runs its callbacks."""
        future = self.future
        future.work = None
        if self.error is None:
            future.set_result(self.result())
        else:
            future.set_exception(RailyardError(*self.error.args))
        self.told.set()

    def _unfinished(self):
        """What completes it; None: it is complete."""
        run = self.run
        if run is not None:
            check_process(run.process)
        return run

    def wait(self, timeout=None):
        seconds = (seconds_of(timeout) if timeout else 0) or self.seconds
        run = self._unfinished()
        if run is not None:
            run.wait(self, seconds)
        if self.told is not None and not state.teller.is_current():
            self.told.wait(seconds)
        if self.error is not None:
            raise RailyardError(*self.error.args)  # one that is raised holds frames, and they the tensors
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        run = self._unfinished()
        if run is not None:
            self.asked = True
            run.poll()
        return self.done

    def is_success(self):
        return self.done and self.error is None

    def exception(self):
        return self.error

    def result(self):
        return [t() if isinstance(t, weakref.ref) else t for t in self.outputs]

    def get_future(self):
        with state.lock:
            if self.future is None:
                self.asked, self.told, self.future = True, threading.Event(), Future(self)
                if self.done:
                    self.tell()
                else:
                    state.teller.begin()
                    state.watcher.look_soon()
            return self.future

    def __del__(self):
        """Python's half goes when Python has no reference, and C++ may still ask its own half for it. So some are kept,
        without the tensors: such a caller has them itself."""
        self.outputs, self.future = [weakref.ref(t) for t in self.result()], None
        kept.append(self)


class Future(torch.futures.Future):
    """Who waits for it runs the operation, as who waits for the work does: a callback does not wait for the thread that
    it runs in."""

    def __init__(self, work):
        super().__init__()
        self.work = work  # until it is told

    def wait(self):
        work = self.work
        if work is None:
            return super().wait()
        work.wait()
        return work.result()


class Teller:
    """A thread of the process that gives futures their results, one after the other, and so runs callers' callbacks,
    with no lock held. While a callback takes long, or waits for another future, another thread goes on."""

    def __init__(self, lock):
        self.changed = threading.Condition(lock)
        self.works = collections.deque()
        self.thread = None  # the one that goes on
        self.since = None   # since when it runs a callback
        self.local = threading.local()

    def add(self, work):
        with self.changed:
            self.works.append(work)
            self.changed.notify()

    def begin(self):
        """Called for each future: a process that ends may not begin threads."""
        with self.changed:
            if self.thread is None:
                self._start()

    def is_current(self):
        """Is this thread one of the teller's?"""
        return getattr(self.local, "tells", False)

    def check(self, now):
        """The watcher's."""
        with self.changed:
            if self.works and self.since is not None and now > self.since + TICK:
                try:
                    self._start()
                except RuntimeError:  # no thread can be had; the next look tries again
                    pass

    def _start(self):
        thread = threading.Thread(target=self._run, name="railyard-future", daemon=True)
        thread.start()
        self.thread, self.since = thread, None

    def _run(self):
        self.local.tells = True
        while True:
            with self.changed:
                if self.thread is not threading.current_thread():
                    return
                self.since = None
                while not self.works:
                    self.changed.wait()
                work = self.works.popleft()
                self.since = time.monotonic()
            work.tell()
            del work


class Watcher:
    """A thread of the process: completes operations that have a future, and ends those that take too long. It runs no
    code of the caller's."""

    def __init__(self):
        self.groups = weakref.WeakSet()
        self.soon = threading.Event()
        self.lock = threading.Lock()
        self.thread = None

    def add(self, group):
        with self.lock:
            self.groups.add(group)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="railyard-watch", daemon=True)
                self.thread.start()

    def look_soon(self):
        self.soon.set()

    def is_current(self):
        return self.thread is threading.current_thread()

    def _look(self, check):
        """Holds no reference to a group afterwards. True: look again soon."""
        with self.lock:
            groups = list(self.groups)
        if check:
            now = time.monotonic()
            state.teller.check(now)
            for group in groups:
                group.check_deadline(now)
        return any([group.poll_futures() for group in groups])

    def _run(self):
        next_tick = 0.0
        while True:
            now = time.monotonic()
            check = now >= next_tick
            if check:
                next_tick = now + TICK
            if self._look(check):
                time.sleep(POLL)
                continue
            self.soon.clear()
            self.soon.wait(TICK)


class State:
    """What a forked process has anew: threads do not come with it, and locks as they were."""

    def __init__(self):
        self.lock = threading.RLock()  # of completing works and telling their futures
        self.teller, self.watcher = Teller(self.lock), Watcher()


kept = collections.deque(maxlen=KEPT)
state = State()
os.register_at_fork(after_in_child=state.__init__)
