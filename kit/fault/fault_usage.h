/* SPDX-License-Identifier: Apache-2.0
 * What a process has taken of the system, to be compared with what is left of it. */
#ifndef RAIL_KIT_FAULT_USAGE_H
#define RAIL_KIT_FAULT_USAGE_H

#include "kit/fault/fault_plan.h"
#include "kit/kit_tcp.h"

/* Before the first count: a process' first thread brings one of a sanitizer's own. */
void kit_usage_first_thread(void);
struct kit_usage kit_usage_now(void);
/* The same, once threads that are about to end have ended (1 s at most). */
struct kit_usage kit_usage_settled(const struct kit_usage *before);

/* Notes which descriptors are open now; says which are open that were not then: "TCP port 4711, anon_inode:[eventfd]".
 * A socket is named by its own port, which one that was accepted has of its listener. */
void kit_fds_note(void);
void kit_fds_new(char *text, size_t size);

/* A file below /dev/shm that this process has mapped; "": none. */
void kit_shm_mapped(char *name, size_t size);

/* For so long has the calling thread waited for a core; 0 where the kernel does not count it. */
int64_t kit_run_delay_ns(void);

/* Seconds of CPU of all threads but the calling one. */
double kit_cpu_of_others(void);

#endif
