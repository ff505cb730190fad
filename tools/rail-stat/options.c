/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line. One table gives each option's letter, name, argument and
 * help; a bad argument is named with its value and what is allowed.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-stat/stat.h"

enum option_id {
  O_ONCE, O_PROMETHEUS, O_JSON, O_LIST, O_CLEAN, O_PID, O_STREAMS, O_INTERVAL, O_DIR, O_VERSION, O_HELP, O_COUNT
};

struct option_row {
  const char *name;
  char letter; /* 0: none */
  const char *arg;
  const char *help;
  enum rs_mode mode; /* RS_DEFAULT: not an option that says what to do */
};

static const struct option_row rows[O_COUNT] = {
    [O_ONCE] = {"once", '1', NULL, "print one table, with the rates of one interval, and end", RS_ONCE},
    [O_PROMETHEUS] = {"prometheus", 'm', NULL, "print all counters in Prometheus' text format", RS_PROMETHEUS},
    [O_JSON] = {"json", 'J', NULL, "print all counters as JSON; times are nanoseconds of CLOCK_MONOTONIC", RS_JSON},
    [O_LIST] = {"list", 'l', NULL, "list the pages: live, dead, unreadable and why", RS_LIST},
    [O_CLEAN] = {"clean", 0, NULL, "remove the pages of processes that are dead", RS_CLEAN},
    [O_PID] = {"pid", 'p', "PID", "only this process; may be given several times", RS_DEFAULT},
    [O_STREAMS] = {"streams", 's', NULL, "show each stream of the connections too", RS_DEFAULT},
    [O_INTERVAL] = {"interval", 'i', "SECONDS", "time between two looks, 0.05 to 3600 (1)", RS_DEFAULT},
    [O_DIR] = {"dir", 0, "DIR",
               "where the pages lie (" RAIL_STATS_DIR "); for a container: /proc/PID/root" RAIL_STATS_DIR, RS_DEFAULT},
    [O_VERSION] = {"version", 'V', NULL, "print the version and end", RS_DEFAULT},
    [O_HELP] = {"help", 'h', NULL, "this text", RS_DEFAULT},
};

static void help(void) {
  printf("usage: " RS_NAME " [option...]\n\n"
         "Shows the counters of all processes on this machine that use Railyard's plugins. On a\n"
         "terminal the view is live, busiest connections first: q ends it, s shows the streams.\n"
         "Otherwise it prints one table, as with --once.\n\noptions (default):\n");
  for (int i = 0; i < O_COUNT; i++) {
    char left[64], letter[8] = "    ";
    if (rows[i].letter) snprintf(letter, sizeof letter, "-%c, ", rows[i].letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, rows[i].name, rows[i].arg ? " " : "",
             rows[i].arg ? rows[i].arg : "");
    printf("  %-24s %s\n", left, rows[i].help);
  }
  printf("\nexit status: 0 done, 1 no page of the given --pid, 2 bad arguments, 3 reading or writing failed\n");
}

static int bad(enum option_id id, const char *value, const char *allowed) {
  fprintf(stderr, RS_NAME ": --%s: '%s' is not allowed; it takes %s\n", rows[id].name, value, allowed);
  return -1;
}

static int usage_error(const char *what, const char *value) {
  fprintf(stderr, RS_NAME ": %s '%s'; see " RS_NAME " --help\n", what, value);
  return -1;
}

static int add_pid(const char *text, struct rs_options *o) {
  char *end;
  errno = 0;
  long long pid = strtoll(text, &end, 10);
  if (text[0] < '1' || text[0] > '9' || errno || *end || pid > INT32_MAX)
    return bad(O_PID, text, "a process number, 1 to 2147483647");
  if (o->npids == RS_MAX_PIDS) return bad(O_PID, text, "at most 64 processes");
  o->pids[o->npids++] = pid;
  return 0;
}

static int set_interval(const char *text, struct rs_options *o) {
  char *end;
  errno = 0;
  double seconds = strtod(text, &end);
  if (text[0] < '0' || text[0] > '9' || errno || *end || !(seconds >= 0.05 && seconds <= 3600))
    return bad(O_INTERVAL, text, "seconds from 0.05 to 3600");
  o->interval_ms = (uint64_t)(seconds * 1000);
  return 0;
}

static int apply(enum option_id id, const char *value, struct rs_options *o) {
  if (rows[id].mode != RS_DEFAULT) {
    if (o->mode != RS_DEFAULT && o->mode != rows[id].mode) {
      fprintf(stderr, RS_NAME ": --%s: only one of --once, --prometheus, --json, --list and --clean is allowed\n",
              rows[id].name);
      return -1;
    }
    o->mode = rows[id].mode;
    return 0;
  }
  switch (id) {
    case O_PID: return add_pid(value, o);
    case O_INTERVAL: return set_interval(value, o);
    case O_STREAMS: o->streams = true; return 0;
    case O_DIR:
      if (*value == 0) return bad(id, value, "a directory");
      o->dir = value;
      return 0;
    case O_VERSION: printf(RS_NAME " " RS_VERSION "\n"); return 1;
    case O_HELP: help(); return 1;
    default: return -1;
  }
}

int rs_options_parse(int argc, char **argv, struct rs_options *o) {
  struct option longs[O_COUNT + 1] = {{NULL, 0, NULL, 0}};
  char letters[3 + 2 * O_COUNT] = ":", *l = letters + 1;
  *o = (struct rs_options){.interval_ms = 1000, .dir = RAIL_STATS_DIR};
  for (int i = 0; i < O_COUNT; i++) {
    longs[i] = (struct option){rows[i].name, rows[i].arg ? required_argument : no_argument, NULL, 256 + i};
    if (rows[i].letter) *l++ = rows[i].letter;
    if (rows[i].letter && rows[i].arg) *l++ = ':';
  }
  *l = 0;
  opterr = 0;
  for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    char letter[3] = {'-', (char)optopt, 0};
    if (c == '?' && optopt >= 256) return usage_error("takes no value:", argv[optind - 1]);
    if (c == '?') return usage_error("no such option:", optopt ? letter : argv[optind - 1]);
    if (c == ':') return usage_error("a value is missing after", argv[optind - 1]);
    int id = c - 256;
    for (int i = 0; c < 256 && i < O_COUNT; i++)
      if (rows[i].letter == c) id = i;
    int r = apply((enum option_id)id, optarg, o);
    if (r != 0) return r;
  }
  if (optind < argc) return usage_error("takes options only, not", argv[optind]);
  if (o->mode == RS_CLEAN && o->npids) return usage_error("not with --clean, which looks at all processes:", "--pid");
  return 0;
}
