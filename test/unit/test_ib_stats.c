/* SPDX-License-Identifier: Apache-2.0
 * The ib plugin's counters: labels, gauges of ports, who keeps the page. */
#include "kit/kit_stats.h"
#include "plugin/ib/ib_comm.h"
#include "test/unit/ib_rig.h"

static char why[256];

static struct kit_stats_view *look(void) {
  char file[64];
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.RailIB", (int)getpid());
  return kit_stats_read(RAIL_STATS_DIR, file, why, sizeof why);
}

static uint64_t value(const struct kit_stats_view *v, unsigned int group, unsigned int record, const char *name) {
  const struct kit_stats_view_group *g = &v->groups[group];
  for (uint32_t i = 0; i < g->ncounters; i++)
    if (strcmp(g->counters[i].name, name) == 0) return g->records[record].values[i];
  CHECK_MSG(false, "no counter %s", name);
  return 0;
}

TEST(records_and_labels) {
  CHECK_OK(ib_stats_open());
  CHECK_OK(ib_stats_open());
  struct ib_comm *sender = rig_comm(true, RIG_COUNTED, 3, NULL), *receiver = rig_comm(false, RIG_COUNTED, 1, NULL);
  CHECK(!sender->stats_private);
  rail_stats_add(&sender->stats[IB_COMM_BYTES], 4096);
  rail_stats_set(&sender->stats[IB_COMM_LAST_PROGRESS], 9);
  rail_stats_add_shared(&ib_port_at(1)->stats[IB_DEVICE_PORT_DOWNS], 2);
  struct kit_stats_view *v = look();
  CHECK_MSG(v, "%s", why);
  CHECK_INT(v->ngroups, 3);
  CHECK_INT(v->groups[0].nrecords, 2);
  CHECK_STR(v->groups[0].records[0].label, "side=send,device=emu0,peer=10.0.0.2:4711,qps=3");
  CHECK_STR(v->groups[0].records[1].label, "side=receive,device=emu0,peer=10.0.0.2:4711,qps=1");
  CHECK_INT(value(v, 0, 0, "bytes"), 4096);
  CHECK_INT(value(v, 0, 0, "progress_time"), 9);
  CHECK_INT(v->groups[0].counters[IB_COMM_LAST_PROGRESS].kind, RAIL_STATS_TIME);
  CHECK_INT(v->groups[1].nrecords, 2); /* of both ports, at once */
  CHECK_STR(v->groups[1].records[0].label, "device=emu0");
  CHECK_STR(v->groups[1].records[1].label, "device=emu1");
  CHECK_INT(value(v, 1, 0, "comms"), 2);
  CHECK_INT(value(v, 1, 0, "qps"), 4);
  CHECK_INT(value(v, 1, 1, "port_downs"), 2);
  CHECK_INT(value(v, 1, 1, "comms"), 0);
  kit_stats_view_free(v);

  ib_comm_destroy(sender);
  ib_stats_close();
  ib_stats_close();
  v = look(); /* the page stays for the comm that is closed late */
  CHECK_MSG(v, "%s", why);
  CHECK_INT(value(v, 1, 0, "comms"), 1);
  CHECK_INT(value(v, 1, 0, "qps"), 1);
  kit_stats_view_free(v);
  ib_comm_destroy(receiver);
  CHECK(!look());
}

/* Nothing is shown, and nothing is missing for those who count. */
TEST(without_a_page) {
  struct ib_comm *comm = rig_comm(true, RIG_COUNTED, 1, NULL);
  CHECK(comm->stats && comm->stats_private);
  rail_stats_add(&comm->stats[IB_COMM_BYTES], 1);
  CHECK(!look());
  ib_comm_destroy(comm);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(without_a_page), TEST_CASE(records_and_labels)};
  rig_use(NULL);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
