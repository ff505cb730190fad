/* SPDX-License-Identifier: Apache-2.0
 * TEST-HELPER
 * Counts what a plugin would count, until its input ends: something for rail-stat to show. Says "ready" when the page
 * is there. Arguments: the page's name, and how many connections. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/obs/stats.h"

static const struct rail_stats_counter comm_counters[] = {
  {"sent_bytes", RAIL_STATS_COUNTER, "Bytes sent."},
  {"received_bytes", RAIL_STATS_COUNTER, "Bytes received."},
  {"messages", RAIL_STATS_COUNTER, "Messages; a \\ and\na \"line\"."},
  {"outstanding", RAIL_STATS_GAUGE, "Requests outstanding."},
  {"stalls", RAIL_STATS_COUNTER, "Stalls."},
  {"progress_time", RAIL_STATS_TIME, "Last progress."},
};
static const struct rail_stats_counter stream_counters[] = {
  {"bytes", RAIL_STATS_COUNTER, "Bytes."},
  {"alive", RAIL_STATS_GAUGE, "Up."},
};
static const struct rail_stats_counter odd_counters[] = {
  {"things_total", RAIL_STATS_COUNTER, "Has its suffix already."},
  {"seen", RAIL_STATS_TIME, "Never."},
};
static const struct rail_stats_group groups[] = {
  {"comm", comm_counters, 6, 8}, {"stream", stream_counters, 2, 8}, {"odd", odd_counters, 2, 8}};

int main(int argc, char **argv) {
  uint64_t *comms[64];
  int n = argc > 2 ? atoi(argv[2]) : 2;
  struct rail_stats *s = argc > 1 ? rail_stats_open(argv[1], groups, 3) : NULL;
  if (!s || n < 1 || n > 64) return 1;
  for (int i = 0; i < n; i++) {
    comms[i] = rail_stats_take(s, 0, "side=send,peer=10.0.0.%d:4711", i + 1);
    if (!comms[i]) return 1;
    rail_stats_set(&comms[i][3], (uint64_t)i);
  }
  uint64_t *stream = rail_stats_take(s, 1, "stream=0");
  uint64_t *odd = rail_stats_take(s, 2, "pid=1,9bad-key=back\\slash,quote=\"q\",quote=again,__x=\nline,alone");
  if (!stream || !odd) return 1;
  odd[0] = UINT64_MAX;
  struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
  for (bool said = false; poll(&in, 1, 1) == 0; said = true) { /* a later connection moves more */
    for (int i = 0; i < n; i++) {
      rail_stats_add(&comms[i][0], 1000u * (uint64_t)(i + 1));
      rail_stats_add(&comms[i][2], 1);
      rail_stats_set(&comms[i][5], rail_now_ns());
    }
    rail_stats_add(&stream[0], 500);
    if (!said) printf("ready\n");
    fflush(stdout);
  }
  for (int i = 0; i < n; i++) rail_stats_drop(s, 0, comms[i]);
  rail_stats_drop(s, 1, stream);
  rail_stats_drop(s, 2, odd);
  rail_stats_close(s);
  return 0;
}
