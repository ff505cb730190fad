/* SPDX-License-Identifier: Apache-2.0
 * Complaints that every call shares. */
#include "plugin/railtrace/tr_call.h"

static const char *kind_name(unsigned int kind) {
  return kind == TR_LISTEN ? "listening comm" : kind == TR_SEND ? "send comm" : "receive comm";
}

struct tr_comm *tr_comm_complain(void *handle, unsigned int kinds, const char *call) {
  struct tr_comm *c;
  enum tr_found found = tr_comm_find(handle, &c);
  if (found == TR_UNKNOWN)
    (void)tr_broken(RAIL_RULE_COMM_UNKNOWN, NULL, 0, (uintptr_t)handle, 0, "%s on %p", call, handle);
  else if (found == TR_STALE)
    (void)tr_broken(RAIL_RULE_COMM_CLOSED, NULL, 0, (uintptr_t)handle, 0, "%s on %p", call, handle);
  else
    (void)tr_broken(RAIL_RULE_COMM_KIND, c, 0, atomic_load(&c->kind), kinds, "%s on a %s", call,
                    kind_name(atomic_load(&c->kind)));
  return NULL;
}

rail_result_t tr_bad_result(int result, const struct tr_comm *comm, const char *call) {
  (void)tr_broken(RAIL_RULE_RESULT, comm, 0, (uint64_t)(int64_t)result, 0, "%s returned %d", call, result);
  return RAIL_INTERNAL_ERROR;
}
