/* SPDX-License-Identifier: Apache-2.0
 *
 * Two network namespaces, one for each side, joined by a pair of veth
 * interfaces that have the same name and addresses found nowhere else; and
 * what can be done to such an interface.
 */
#ifndef RAIL_KIT_FAULT_NET_H
#define RAIL_KIT_FAULT_NET_H

#include <stdbool.h>
#include <stddef.h>

#include "kit/fault/fault_plan.h"

#define KIT_LINK_NAME "railkit0"

struct kit_fault_net {
  char space[2][64]; /* for kit_setup's netns */
  bool made;
  char why[300];     /* there is none: the reason */
  char no_shape[200], no_delay[200]; /* this kernel's word about tbf and netem; "": it has them */
};

/* Makes it, once. False: `why` says why not. */
bool kit_fault_net_open(struct kit_fault_net *net);
/* As it was at first: up, whole, fast. False: it does not come up again. */
bool kit_fault_net_restore(struct kit_fault_net *net);
void kit_fault_net_close(struct kit_fault_net *net);

/* In the namespace of this process, that of side `rank`: does it, or undoes it. */
void kit_fault_link(enum kit_link_act what, int rank, bool on);

#endif
