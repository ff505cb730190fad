/* SPDX-License-Identifier: Apache-2.0
 *
 * The plugin's own counters as a second witness beside NCCL's log: what it says it received, and what must have gone
 * between hosts. Of each transfer the receiver counts, which may be a little after a kernel has the data.
 */
#ifndef RAIL_KIT_NCCL_COUNTERS_H
#define RAIL_KIT_NCCL_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

struct kit_process;

/* The report's figures. They are not there when the plugin of a process has no counters. */
#define KIT_NCCL_RECEIVED "received_by_the_plugin"
#define KIT_NCCL_BETWEEN_HOSTS "sent_between_hosts"

/* What the plugins of this process say that their open connections have received. False: they do not say it. */
bool kit_nccl_received(uint64_t *bytes);
/* Called by all processes of a case: reports the sum, beside the bytes that all hosts had to send each other. */
void kit_nccl_report_counters(struct kit_process *self, uint64_t between_hosts);

#endif
