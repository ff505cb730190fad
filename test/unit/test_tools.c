/* SPDX-License-Identifier: Apache-2.0
 * Proves: what a job's exit status says when its ranks end in different ways; rail-stat's rates between two snapshots.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "test/harness/tap.h"
#include "tools/common/fork.h"
#include "tools/rail-stat/stat.h"

/* ---- jobs ---- */

/* Rank r ends with statuses[r], one after the other. */
static int end_with(const struct tool_rank *rank, void *arg) {
  const int *statuses = arg;
  usleep((useconds_t)rank->rank * 50000);
  return statuses[rank->rank];
}

TEST(the_worst_end_of_a_rank_is_the_jobs) {
  static const struct { int statuses[3], want; } cases[] = {
      {{TOOL_EXIT_OK, TOOL_EXIT_OK, TOOL_EXIT_OK}, TOOL_EXIT_OK},
      {{TOOL_EXIT_OK, TOOL_EXIT_RESULT, TOOL_EXIT_OK}, TOOL_EXIT_RESULT},
      {{TOOL_EXIT_RESULT, TOOL_EXIT_FAILED, TOOL_EXIT_OK}, TOOL_EXIT_FAILED},
      {{TOOL_EXIT_FAILED, TOOL_EXIT_RESULT, TOOL_EXIT_OK}, TOOL_EXIT_FAILED},
      {{TOOL_EXIT_OK, TOOL_EXIT_OK, TOOL_EXIT_USAGE}, TOOL_EXIT_USAGE},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(cases); i++)
    CHECK_INT(tool_fork_job("test_tools", 3, 0, 5, end_with, (void *)(uintptr_t)cases[i].statuses), cases[i].want);
}

/* ---- rates ---- */

#define VIEW_BYTES (sizeof(struct kit_stats_view) + sizeof(struct kit_stats_view_group))

/* A page with one group of one counter, whose record at place 3 has this life and value. */
struct page {
  struct rs_page page;
  struct rs_snapshot shot;
  struct kit_stats_view_counter counter;
  struct kit_stats_view_record record;
  uint64_t value;
  union { struct kit_stats_view view; char bytes[VIEW_BYTES]; } u;
};

static void make_page(struct page *p, uint64_t read_ns, uint64_t life, uint64_t value) {
  memset(p, 0, sizeof *p);
  strcpy(p->page.file, "rail-stat.77.Some");
  strcpy(p->counter.name, "bytes");
  p->value = value;
  p->record = (struct kit_stats_view_record){.index = 3, .life = life, .values = &p->value};
  p->u.view.opened_ns = 5;
  p->u.view.read_ns = read_ns;
  p->u.view.ngroups = 1;
  p->u.view.groups[0] = (struct kit_stats_view_group){
      .ncounters = 1, .nrecords = 1, .counters = &p->counter, .records = &p->record};
  p->page.view = &p->u.view;
  p->shot = (struct rs_snapshot){.pages = &p->page, .n = 1};
}

static double rate(struct page *before, struct page *now) {
  return rs_rate(before ? &before->shot : NULL, &now->page, 0, &now->record, 0);
}

TEST(rates_are_of_one_record) {
  static struct page before, now;
  make_page(&before, 1000000000, 8, 500);
  make_page(&now, 3000000000, 8, 2500);
  CHECK(rate(&before, &now) == 1000);
  CHECK(rate(NULL, &now) < 0); /* the first shot */
  now.record.life = 9;         /* another record has its place: it began at 0 */
  CHECK(rate(&before, &now) == 1250);
  now.record.life = 8;
  now.record.index = 4;
  CHECK(rate(&before, &now) == 1250);
  now.record.index = 3;
  now.value = 100; /* counted anew */
  CHECK(rate(&before, &now) == 0);
  now.value = 2500;
  now.u.view.opened_ns = 6; /* another page of that name */
  CHECK(rate(&before, &now) < 0);
  now.u.view.opened_ns = 5;
  now.u.view.read_ns = before.u.view.read_ns;
  CHECK(rate(&before, &now) < 0); /* no time has passed */
}

TEST_MAIN(TEST_CASE(the_worst_end_of_a_rank_is_the_jobs), TEST_CASE(rates_are_of_one_record))
