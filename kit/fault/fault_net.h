/* SPDX-License-Identifier: Apache-2.0
 *
 * The links that faults happen to: two network namespaces, one for each
 * side, joined by a pair of veth interfaces that have the same name and
 * addresses found nowhere else; or two interfaces that are there, such as
 * those below RDMA devices. And what can be done to such an interface.
 */
#ifndef RAIL_KIT_FAULT_NET_H
#define RAIL_KIT_FAULT_NET_H

#include <stdbool.h>
#include <stddef.h>

#include "kit/fault/fault_plan.h"

#define KIT_LINK_NAME "railkit0"

/* One end. Crosses from the parent to the process and to its fault injector. */
struct kit_fault_port {
  char in[68];   /* "-n NAMESPACE" for ip and tc, or "" */
  char name[16];
  int32_t home;  /* rail-kit's process: `in` counts from its network namespace */
  int32_t mtu;   /* as it was */
  int32_t ours;  /* made for this */
};

struct kit_fault_net {
  char space[2][64]; /* for kit_process_setup's netns; made ones only */
  struct kit_fault_port port[2];
  bool given;        /* `port` names interfaces that are there */
  bool open, made;
  char why[300];     /* there is none: the reason */
  char no_shape[200], no_delay[200]; /* why this kernel lacks tbf, netem; "": it has them */
};

/* "[NAMESPACE:]INTERFACE,[NAMESPACE:]INTERFACE". False: it is not that. */
bool kit_fault_ports_read(const char *text, struct kit_fault_port ports[2]);
/* Makes it, or looks whether what is given is there, once. False: `why` has the reason not. */
bool kit_fault_net_open(struct kit_fault_net *net);
/* As it was at first: up, whole, fast. False: it does not come up again. */
bool kit_fault_net_restore(struct kit_fault_net *net);
void kit_fault_net_close(struct kit_fault_net *net);

/* How a port crosses to its side: among the job's arguments. The second fails the process when there is none. */
void kit_fault_port_put(const struct kit_fault_port *port, int rank, struct kit_job *job);
struct kit_fault_port kit_fault_port_get(const struct kit_job *job, int rank);

/* Does it to the port of side `rank`, or undoes it. This process is in rail-kit's network namespace afterwards. */
void kit_fault_link(enum kit_link_act what, int rank, const struct kit_fault_port *port, bool on);

#endif
