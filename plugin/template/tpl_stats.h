/* SPDX-License-Identifier: Apache-2.0
 * Counters, which rail-stat shows while the process runs. Any thread. */
#ifndef TPL_STATS_H
#define TPL_STATS_H

#include "common/base/sock.h"
#include "common/obs/stats.h"

enum tpl_comm_counter { TPL_SENT_BYTES, TPL_RECEIVED_BYTES, TPL_MESSAGES, TPL_COMM_COUNTERS };
enum tpl_device_counter { TPL_CONNECTS, TPL_ACCEPTS, TPL_REFUSED, TPL_DROPPED, TPL_ERRORS, TPL_DEVICE_COUNTERS };

/* One each per context. */
rail_result_t tpl_stats_open(void);
void tpl_stats_close(void);

/* A comm's record; NULL when memory is out: then nothing is counted. */
uint64_t *tpl_stats_comm(const char *side, const char *device, const union rail_addr *peer);
void tpl_stats_drop(uint64_t *record);
void tpl_stats_count(const char *device, enum tpl_device_counter counter);

#endif
