/* SPDX-License-Identifier: Apache-2.0
 *
 * Any vtable, v6 to v12, taken apart into one structure. Slots that kept their
 * signature over the versions are one pointer; a slot that changed has one
 * pointer per signature, named for the version that brought it, and exactly
 * one of them is set. So each operation of netload_ops.c reads as a history
 * of its slot, newest first.
 */
#ifndef RAIL_NETLOAD_SLOTS_H
#define RAIL_NETLOAD_SLOTS_H

#include "rail/net.h"

struct rail_net_slots {
  const char *name;
  int (*devices)(int *);

  int (*init_v6)(rail_logger_fn);
  int (*init_v10)(rail_logger_fn, rail_profiler_fn);
  int (*init_v11)(void **, uint64_t, struct rail_net_config *, rail_logger_fn, rail_profiler_fn);

  int (*get_properties_v6)(int, struct rail_net_props_v6 *);
  int (*get_properties_v7)(int, struct rail_net_props_v7 *);
  int (*get_properties_v8)(int, struct rail_net_props_v8 *);
  int (*get_properties_v9)(int, struct rail_net_props_v9 *);
  int (*get_properties_v11)(int, struct rail_net_props_v11 *);
  int (*get_properties_v12)(int, struct rail_net_props_v12 *);

  int (*listen_v6)(int, void *, void **);
  int (*listen_v11)(void *, int, void *, void **);

  int (*connect_v6)(int, void *, void **);
  int (*connect_v7)(int, void *, void **, struct rail_net_device_handle **);
  int (*connect_v10)(int, struct rail_net_config *, void *, void **, struct rail_net_device_handle **);
  int (*connect_v11)(void *, int, void *, void **, struct rail_net_device_handle **);

  int (*accept_v6)(void *, void **);
  int (*accept_v7)(void *, void **, struct rail_net_device_handle **);

  int (*reg_mr_v6)(void *, void *, int, int, void **);
  int (*reg_mr_v8)(void *, void *, size_t, int, void **);
  int (*reg_mr_dmabuf)(void *, void *, size_t, int, uint64_t, int, void **); /* may be NULL */
  int (*dereg_mr)(void *, void *);

  int (*isend_v6)(void *, void *, int, int, void *, void **);
  int (*isend_v9)(void *, void *, size_t, int, void *, void **);
  int (*isend_v10)(void *, void *, size_t, int, void *, void *, void **);

  int (*irecv_v6)(void *, int, void **, int *, int *, void **, void **);
  int (*irecv_v9)(void *, int, void **, size_t *, int *, void **, void **);
  int (*irecv_v10)(void *, int, void **, size_t *, int *, void **, void **, void **);

  int (*iflush)(void *, int, void **, int *, void **, void **); /* may be NULL */
  int (*test)(void *, int *, int *);
  int (*close_send)(void *);
  int (*close_recv)(void *);
  int (*close_listen)(void *);

  /* Any of these may be NULL. */
  int (*get_device_mr)(void *, void *, void **);
  int (*irecv_consumed)(void *, int, void *);
  int (*make_vdevice_v9)(int *, struct rail_net_vprops_v9 *);
  int (*make_vdevice_v12)(int *, struct rail_net_vprops_v12 *);
  int (*finalize)(void *);
  int (*set_net_attr)(void *, struct rail_net_attr *);
};

/* What NCCL does with a slot that is NULL. */
enum rail_net_slot_need {
  RAIL_NET_SLOT_NEEDED, /* calls it all the same */
  RAIL_NET_SLOT_AT_END, /* the same, when a communicator ends; rail_net_finalize does without */
  RAIL_NET_SLOT_GPU,    /* calls it all the same, after receives into GPU memory */
  RAIL_NET_SLOT_MAY,    /* looks first, and does without */
};

/* Slots come in one order in every version; later versions have more of them. */
#define RAIL_NET_SLOTS 22
struct rail_net_slot {
  const char *name;
  int since; /* version */
  enum rail_net_slot_need need;
};
extern const struct rail_net_slot rail_net_slot_table[RAIL_NET_SLOTS];
int rail_net_slot_count(int version); /* 0: unknown version. A vtable is so many pointers. */

/* Takes the vtable of `version` apart. NULL, or the name of a slot that must
 * not be NULL and is. Some plugins fill their tables in init (nccl-rdma-sharp
 * does, which learns there which transport it will be), and NCCL bears it: it
 * looks at a slot when it calls it. So this is asked again after init. */
const char *rail_net_slots_fill(struct rail_net_slots *slots, int version, const void *vtable);
/* The same of the slots that are used before init has returned. */
const char *rail_net_slots_missing_for_init(int version, const void *vtable);

#endif
