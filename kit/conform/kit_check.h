/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract as numbered checks. check_AREA.c holds one area's functions and
 * its table; kit_checks.c lists the tables; kit_conform.c runs them.
 *
 * A check's function runs in one or two processes (sides). It opens the
 * plugin (kit_net_open), does what NCCL might do, and fails by ENSURE. It may
 * leave everything open when it fails: the process ends.
 */
#ifndef RAIL_KIT_CHECK_H
#define RAIL_KIT_CHECK_H

#include "kit/kit_mem.h"
#include "kit/kit_net.h"
#include "kit/kit_report.h"
#include "kit/kit_side.h"

enum kit_mode {
  KIT_ONE, /* one process has both ends of every connection, as one proxy thread would */
  KIT_TWO, /* side 0 sends, side 1 receives; the same function runs on both */
};

struct kit_check {
  const char *id;     /* "4.2": the contract's item, and the place within it */
  const char *name;   /* "connect.no_call_waits" */
  enum kit_level level;
  enum kit_mode mode;
  unsigned limit_s;   /* 0: 20 s */
  unsigned versions;  /* a set of KIT_V(n); 0: all */
  bool alone;         /* measures: nothing else runs meanwhile */
  const char *what;   /* one sentence: what the plugin must do */
  const char *source; /* where NCCL relies on it: "src/transport/net.cc:1414" and so on, of 2.30.7 unless it says */
  void (*run)(struct kit_side *side);
};

#define KIT_V(n) (1u << (n))
#define KIT_SINCE(n) (0x1fffu & ~(KIT_V(n) - 1u)) /* version n and later, up to 12 */

/* A table ends with an entry whose id is NULL. A new area: its table here and in kit_checks.c's list. */
extern const struct kit_check kit_checks_lifecycle[], kit_checks_properties[], kit_checks_listen[],
    kit_checks_strangers[], kit_checks_connect[], kit_checks_handles[], kit_checks_nobody[], kit_checks_requests[],
    kit_checks_sizes[], kit_checks_order[], kit_checks_grouped[], kit_checks_optional[], kit_checks_flush[],
    kit_checks_tear[], kit_checks_mr[], kit_checks_dereg[], kit_checks_close[], kit_checks_death[],
    kit_checks_threads[], kit_checks_forks[], kit_checks_wakeups[], kit_checks_attrs[], kit_checks_leaks[],
    kit_checks_cost[];
extern const struct kit_check *const kit_check_tables[]; /* all of them, in the contract's order; NULL at the end */

/* ---- what checks share (kit_meetings.c) ---- */

/* A connection across the world, whatever the mode: KIT_ONE gives both ends here; KIT_TWO gives p->send on side 0 and
 * p->recv on side 1, the other stays NULL. Handles travel through the side's channel. */
void kit_join(struct kit_side *side, struct kit_net *n, struct kit_pair *p);
/* Closes what there is here. */
void kit_part(struct kit_side *side, struct kit_pair *p);
/* Is this side the one that sends, receives? Both in KIT_ONE. */
bool kit_sends(const struct kit_side *side);
bool kit_receives(const struct kit_side *side);

#endif
