/* SPDX-License-Identifier: Apache-2.0
 * From the command line to one of the outputs. */
#include <limits.h>
#include <time.h>
#include <unistd.h>

#include "tools/rail-stat/stat.h"

static void sleep_ms(uint64_t ms) {
  struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
  while (nanosleep(&t, &t) != 0) {
  }
}

/* Was everything that was asked for by --pid there? */
static bool has_pids(const struct rs_options *o, const struct rs_snapshot *shot) {
  bool all = true;
  for (int p = 0; p < o->npids; p++) {
    bool found = false;
    for (size_t i = 0; i < shot->n; i++)
      found |= shot->pages[i].view && shot->pages[i].view->pid == o->pids[p] && rs_page_shows(&shot->pages[i]);
    if (!found)
      fprintf(stderr, RS_NAME ": process %lld has no page in %s that is live and readable\n", (long long)o->pids[p],
              o->dir);
    all &= found;
  }
  return all;
}

static int clean(const struct rs_options *o) {
  int failed = 0, removed = rail_stats_clean(o->dir, true, INT_MAX, &failed);
  printf("removed %d page%s of dead processes from %s\n", removed, removed == 1 ? "" : "s", o->dir);
  if (failed) fprintf(stderr, RS_NAME ": %d page%s could not be removed\n", failed, failed == 1 ? "" : "s");
  return failed ? TOOL_EXIT_FAILED : tool_exit_printed(RS_NAME);
}

static int print(const struct rs_options *o) {
  struct rs_snapshot shot, before = {0};
  if (o->mode == RS_ONCE) {
    if (rs_snapshot_take(o, &before) != 0) return TOOL_EXIT_FAILED;
    sleep_ms(o->interval_ms);
  }
  if (rs_snapshot_take(o, &shot) != 0) {
    rs_snapshot_free(&before);
    return TOOL_EXIT_FAILED;
  }
  int status = TOOL_EXIT_OK;
  if (o->mode == RS_LIST) rs_list(stdout, &shot);
  else rs_report_hidden(&shot);
  if (o->mode == RS_ONCE) rs_table(stdout, o, &shot, &before);
  if (o->mode == RS_PROMETHEUS && rs_prometheus(stdout, &shot) != 0) status = TOOL_EXIT_FAILED;
  if (o->mode == RS_JSON) rs_json(stdout, &shot);
  if (status == TOOL_EXIT_OK) status = tool_exit_printed(RS_NAME);
  if (status == TOOL_EXIT_OK && !has_pids(o, &shot)) status = TOOL_EXIT_RESULT;
  rs_snapshot_free(&before);
  rs_snapshot_free(&shot);
  return status;
}

int main(int argc, char **argv) {
  struct rs_options o;
  int parsed = rs_options_parse(argc, argv, &o);
  if (parsed != 0) return parsed > 0 ? tool_exit_printed(RS_NAME) : TOOL_EXIT_USAGE;
  if (o.mode == RS_DEFAULT) o.mode = isatty(STDOUT_FILENO) ? RS_LIVE : RS_ONCE;
  if (o.mode == RS_CLEAN) return clean(&o);
  return o.mode == RS_LIVE ? rs_live(&o) : print(&o);
}
