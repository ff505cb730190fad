/* SPDX-License-Identifier: Apache-2.0
 * What railtrace watches: the rules between NCCL and a network plugin, by number, as they stand in files. */
#ifndef RAIL_TRACE_RULES_H
#define RAIL_TRACE_RULES_H

#include "plugin/railtrace/trace_file.h"

/* Append only. */
enum rail_trace_rule {
  RAIL_RULE_NONE,
  /* the plugin's duties */
  RAIL_RULE_RESULT,             /* the number returned is no result */
  RAIL_RULE_REQUEST_UNWRITTEN,  /* success, and *request was not written */
  RAIL_RULE_REQUEST_TWICE,      /* a request that is outstanding was handed out again */
  RAIL_RULE_COMM_UNWRITTEN,     /* success, and *comm was not written */
  RAIL_RULE_COMM_WITH_ERROR,    /* an error, and *comm is not NULL */
  RAIL_RULE_LISTEN_NULL,        /* listen succeeded without a comm */
  RAIL_RULE_MHANDLE_UNWRITTEN,  /* success, and *mhandle was not written */
  RAIL_RULE_DONE_UNWRITTEN,     /* test left *done as it was */
  RAIL_RULE_DONE_VALUE,         /* *done is neither 0 nor 1 */
  RAIL_RULE_SIZE_UNWRITTEN,     /* a finished receive without its size */
  RAIL_RULE_SIZE_BEYOND,        /* a size below 0 or beyond the buffer */
  RAIL_RULE_SIZES_TOO_MANY,     /* sizes written beyond the buffers of the request */
  RAIL_RULE_SLOW_CALL,          /* listen, connect or accept took longer than allowed */
  RAIL_RULE_CLOSE_ERROR,        /* a close failed */
  /* the caller's duties */
  RAIL_RULE_CTX_UNKNOWN,        /* no context, or one that was finalized */
  RAIL_RULE_DEVICE_UNKNOWN,     /* a device number that devices did not offer */
  RAIL_RULE_COMM_UNKNOWN,       /* nothing that was ever handed out */
  RAIL_RULE_COMM_CLOSED,        /* used after its close */
  RAIL_RULE_COMM_KIND,          /* a send on a receive comm and the like */
  RAIL_RULE_TWO_THREADS,        /* two threads in data calls of one comm at once */
  RAIL_RULE_MR_UNKNOWN,         /* memory handle that was never handed out */
  RAIL_RULE_MR_DEREGISTERED,    /* memory handle that was given back */
  RAIL_RULE_MR_OTHER_COMM,      /* registered on another comm */
  RAIL_RULE_MR_RANGE,           /* the buffer is not inside of the registered memory */
  RAIL_RULE_MR_IN_USE,          /* deregistered while a request uses it */
  RAIL_RULE_BUFFER_COUNT,       /* fewer than 1 or more than maxRecvs buffers */
  RAIL_RULE_NULL_DATA,          /* size, but no address */
  RAIL_RULE_TOO_MANY_REQUESTS,  /* more than 32 x maxRecvs outstanding */
  RAIL_RULE_TAG_TWICE,          /* one tag twice in a grouped receive */
  RAIL_RULE_TEST_UNKNOWN,       /* test of what is no request */
  RAIL_RULE_TEST_AFTER_DONE,    /* test of a request that was done */
  RAIL_RULE_CONSUMED_UNKNOWN,   /* irecvConsumed of what is no request of this comm */
  RAIL_RULE_CLOSE_WITH_MR,      /* closed with memory still registered */
  RAIL_RULES
};
_Static_assert((int)RAIL_RULES <= RAIL_TRACE_RULES, "files have room for them");

struct rail_trace_rule_row {
  const char *name; /* "done_unwritten" */
  bool plugin;      /* whose duty */
  const char *text; /* one sentence */
};

/* The row of a rule, or of an unknown one, named "?". */
const struct rail_trace_rule_row *rail_trace_rule(unsigned int rule);

#endif
