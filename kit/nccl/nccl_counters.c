/* SPDX-License-Identifier: Apache-2.0
 * What the plugin itself counts of the case's data: the pages that rail-stat shows, of this process. */
#include "kit/nccl/nccl_counters.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_process.h"
#include "kit/kit_stats.h"

#define GROUP "comm" /* a record for each connection; either with a counter of what was received, or with its side */
#define RECEIVED "received_bytes"
#define BYTES "bytes"
#define RECEIVER "side=receive,"

/* Which counter says what a record's connection has received; NULL: none of this group. */
static const struct kit_stats_view_counter *find_counter(const struct kit_stats_view_group *group) {
  for (uint32_t c = 0; c < group->ncounters; c++)
    if (strcmp(group->counters[c].name, RECEIVED) == 0 || strcmp(group->counters[c].name, BYTES) == 0)
      return &group->counters[c];
  return NULL;
}

struct sum {
  uint64_t bytes;
  bool says;       /* at least one page */
  bool incomplete; /* a page had no room for a connection */
};

static void add_page(const struct kit_stats_view *page, struct sum *sum) {
  for (const struct kit_stats_view_group *group = page->groups; group < page->groups + page->ngroups; group++) {
    const struct kit_stats_view_counter *counter = strcmp(group->name, GROUP) == 0 ? find_counter(group) : NULL;
    if (!counter) continue;
    sum->says = true;
    sum->incomplete |= group->left_out > 0;
    bool both_ways = strcmp(counter->name, BYTES) == 0;
    for (const struct kit_stats_view_record *r = group->records; r < group->records + group->nrecords; r++)
      if (!both_ways || strncmp(r->label, RECEIVER, strlen(RECEIVER)) == 0)
        sum->bytes += r->values[counter - group->counters];
  }
}

bool kit_nccl_received(uint64_t *bytes) {
  DIR *folder = opendir(RAIL_STATS_DIR);
  struct sum sum = {0};
  for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
    char why[256];
    const char *name;
    int64_t pid;
    if (!rail_stats_file_name(entry->d_name, &pid, &name) || pid != getpid()) continue;
    struct kit_stats_view *page = kit_stats_read(RAIL_STATS_DIR, entry->d_name, why, sizeof why);
    if (page && page->alive != RAIL_STATS_DEAD) add_page(page, &sum);
    kit_stats_view_free(page);
  }
  if (folder) closedir(folder);
  *bytes = sum.bytes;
  return sum.says && !sum.incomplete;
}

#define LATE_MS 5000 /* after the data are there: for a thread of NCCL's that waits for a processor */
#define AGAIN_MS 20

struct total {
  uint64_t bytes, says;
};

/* Of all processes; on rank 0. */
static struct total count_all(struct kit_process *self) {
  struct total sum = {0}, other;
  sum.says = kit_nccl_received(&sum.bytes);
  if (kit_process_rank(self) > 0) kit_send_bytes(self, 0, &sum, sizeof sum);
  for (int from = 1; kit_process_rank(self) == 0 && from < kit_process_count(self); from++) {
    kit_recv_bytes(self, from, &other, sizeof other);
    sum.says &= other.says;
    sum.bytes += other.bytes;
  }
  return sum;
}

/* What rank 0 says to all. */
static bool agree(struct kit_process *self, bool mine) {
  uint8_t say = mine;
  if (kit_process_rank(self) > 0) kit_recv_bytes(self, 0, &say, sizeof say);
  for (int to = 1; kit_process_rank(self) == 0 && to < kit_process_count(self); to++)
    kit_send_bytes(self, to, &say, sizeof say);
  return say != 0;
}

/* By LL and LL128 a kernel finds flags in what the NIC wrote, before the plugin has polled its completion and counted:
 * what is missing may be counted a little later. */
void kit_nccl_report_counters(struct kit_process *self, uint64_t between_hosts) {
  const uint64_t deadline = rail_deadline_in_ms(LATE_MS);
  struct total sum = count_all(self);
  while (agree(self, sum.says && sum.bytes < between_hosts && !rail_deadline_passed(deadline))) {
    usleep(AGAIN_MS * 1000);
    sum = count_all(self);
  }
  if (kit_process_rank(self) > 0 || !sum.says) return;
  kit_metric(self, KIT_NCCL_RECEIVED, (double)sum.bytes, "B");
  kit_metric(self, KIT_NCCL_BETWEEN_HOSTS, (double)between_hosts, "B");
}
