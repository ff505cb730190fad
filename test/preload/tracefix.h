/* SPDX-License-Identifier: Apache-2.0
 * What the plugin behind railtrace in test_railtrace does wrong; the test sets `tracefix_fault` in it. */
#ifndef TRACEFIX_H
#define TRACEFIX_H

enum tracefix_fault {
  FIX_NONE,
  FIX_RESULT, FIX_REQUEST_UNWRITTEN, FIX_REQUEST_TWICE, FIX_COMM_UNWRITTEN, FIX_COMM_WITH_ERROR, FIX_LISTEN_NULL,
  FIX_MHANDLE_UNWRITTEN, FIX_DONE_UNWRITTEN, FIX_DONE_VALUE, FIX_SIZE_UNWRITTEN, FIX_SIZE_BEYOND, FIX_SIZE_NEGATIVE,
  FIX_SIZES_TOO_MANY, FIX_SLOW_CALL, FIX_CLOSE_ERROR,
  /* no faults: */
  FIX_IN_PROGRESS, /* connect and accept are in progress */
  FIX_NOT_NOW,     /* isend and irecv cannot start now */
  FIX_NOT_DONE,    /* test finds nothing done */
  FIX_SLEEPS,      /* isend takes 100 ms, for a second thread to come in */
  FIX_MHANDLE_NULL /* memory needs no registration */
};

#define FIX_MAX_RECVS 4

/* What it saw last. */
struct tracefix_seen {
  void *comm, *mhandle, *phandle, *request, *hint;
  int calls, tests, traffic_class, tag, n, consumed, attrs, finalizes;
};

#endif
