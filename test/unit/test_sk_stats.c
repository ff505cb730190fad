/* SPDX-License-Identifier: Apache-2.0
 * The socket plugin's counters: labels, who keeps the page, one record per device. */
#include <unistd.h>

#include "kit/kit_stats.h"
#include "plugin/socket/sk_stats.h"
#include "test/harness/tap.h"

static char why[256];

static struct kit_stats_view *look(void) {
  char file[64];
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.RailSocket", (int)getpid());
  return kit_stats_read(RAIL_STATS_DIR, file, why, sizeof why);
}

static union rail_addr peer;
static const uint8_t id[16] = {0x1a, 0x2b, 0x3c, 0x4d, 0xff};

TEST(records_and_labels) {
  CHECK_OK(rail_addr_parse("[fe80::1]:4711", &peer));
  CHECK_OK(sk_stats_open());
  uint64_t *comm = sk_stats_comm("send", "eth0,eth1", &peer, id);
  uint64_t *stream = sk_stats_stream("send", "eth1", &peer, id, 3);
  uint64_t *device = sk_stats_device("eth1");
  CHECK(comm && stream && device);
  CHECK(sk_stats_device("eth1") == device && sk_stats_device("eth0") != device);
  rail_stats_set(&comm[SK_COMM_PROGRESS_TIME], 9);
  rail_stats_add(&stream[SK_STREAM_BYTES], 5);
  rail_stats_add(&stream[SK_STREAM_BYTES], 2);
  sk_stats_gauge(&device[SK_DEVICE_COMMS], 2);
  sk_stats_gauge(&device[SK_DEVICE_COMMS], -1);

  struct kit_stats_view *v = look();
  CHECK_MSG(v, "%s", why);
  CHECK_INT(v->ngroups, SK_STATS_GROUPS);
  const struct kit_stats_view_group *g = &v->groups[SK_STATS_COMM];
  CHECK_STR(g->counters[SK_COMM_PROGRESS_TIME].name, "progress_time");
  CHECK_INT(g->counters[SK_COMM_PROGRESS_TIME].kind, RAIL_STATS_TIME);
  CHECK_STR(g->records[0].label, "side=send,device=eth0_eth1,peer=[fe80::1]:4711,comm=1a2b3c4d");
  CHECK_INT(g->records[0].values[SK_COMM_PROGRESS_TIME], 9);
  g = &v->groups[SK_STATS_STREAM];
  CHECK_STR(g->records[0].label, "side=send,device=eth1,peer=[fe80::1]:4711,comm=1a2b3c4d,stream=3");
  CHECK_INT(g->records[0].values[SK_STREAM_BYTES], 7);
  g = &v->groups[SK_STATS_DEVICE];
  CHECK_INT(g->nrecords, 2);
  CHECK_STR(g->records[0].label, "device=eth1");
  CHECK_INT(g->records[0].values[SK_DEVICE_COMMS], 1);
  kit_stats_view_free(v);
  sk_stats_drop(SK_STATS_COMM, comm);
  sk_stats_drop(SK_STATS_STREAM, stream);
  sk_stats_drop(SK_STATS_STREAM, NULL);
  sk_stats_close();
  CHECK(!look());
}

TEST(page_stays_for_the_last_user) {
  CHECK_OK(sk_stats_open());
  CHECK_OK(sk_stats_open());
  uint64_t *comm = sk_stats_comm("receive", "lo", &peer, id);
  uint64_t *device = sk_stats_device("lo");
  sk_stats_close();
  sk_stats_close();
  rail_stats_add(&comm[SK_COMM_MESSAGES], 1); /* a comm that nobody has closed yet */
  rail_stats_add_shared(&device[SK_DEVICE_CONNECTS], 1);
  CHECK_OK(sk_stats_open()); /* and a new context: the same page */
  CHECK(sk_stats_device("lo") == device);
  struct kit_stats_view *v = look();
  CHECK_MSG(v, "%s", why);
  CHECK_INT(v->groups[SK_STATS_COMM].nrecords, 1);
  kit_stats_view_free(v);
  sk_stats_close();
  v = look();
  CHECK_MSG(v, "%s", why);
  kit_stats_view_free(v);
  sk_stats_drop(SK_STATS_COMM, comm);
  CHECK(!look());
}

TEST(nothing_without_open) {
  CHECK(sk_stats_comm("send", "lo", &peer, id) == NULL);
  CHECK(sk_stats_device("lo") == NULL);
}

/* The names are what Prometheus takes, and the reader too. */
TEST(table_is_readable) {
  CHECK_OK(sk_stats_open());
  struct kit_stats_view *v = look();
  CHECK_MSG(v, "%s", why);
  for (uint32_t i = 0; i < v->ngroups; i++)
    for (uint32_t k = 0; k < v->groups[i].ncounters; k++) {
      const struct kit_stats_view_counter *c = &v->groups[i].counters[k];
      CHECK_MSG(c->doc[0] && c->doc[strlen(c->doc) - 1] == '.', "%s: %s", c->name, c->doc); /* not cut */
    }
  kit_stats_view_free(v);
  sk_stats_close();
}

TEST_MAIN(TEST_CASE(records_and_labels), TEST_CASE(page_stays_for_the_last_user), TEST_CASE(nothing_without_open),
          TEST_CASE(table_is_readable))
