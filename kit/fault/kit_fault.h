/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults as numbered scenarios: what happens to a pair of processes with
 * running transfers, and what is asked of the plugin then.
 * fault_scenarios.c lists them, kit_fault.c runs them, fault_verdict.c
 * decides what was wrong.
 *
 * Whatever happens, these are MUSTs: no crash, no call that does not return, no
 * wrong byte, and closing works. SHOULD: nothing is left behind, and no call
 * takes a second. A scenario's own level is that of its sentence.
 */
#ifndef RAIL_KIT_FAULT_H
#define RAIL_KIT_FAULT_H

#include "kit/fault/fault_net.h"
#include "kit/fault/fault_plan.h"
#include "kit/kit_group.h"
#include "kit/kit_link.h"
#include "kit/kit_process.h"
#include "kit/kit_report.h"

enum {
  KIT_NEEDS_NETNS = 1,   /* two network namespaces */
  KIT_NEEDS_SHAPE = 2,   /* tc's tbf */
  KIT_NEEDS_DELAY = 4,   /* tc's netem */
  KIT_NEEDS_PRELOAD = 8, /* librail-fault.so */
};

struct kit_scenario {
  const char *id, *name;
  enum kit_level level;
  unsigned needs;
  unsigned weight;  /* how often --rounds draws it; 0: never */
  const char *what; /* one sentence: what the plugin must do */
  struct kit_fault_plan plan; /* what is 0 is drawn, or not there */
};
extern const struct kit_scenario kit_scenarios[]; /* ends with a NULL id */

#define KIT_FAULT_PATIENCE_MS 5000
#define KIT_FAULT_STOP_MS 3000

struct kit_fault {
  const char *plugin;
  int version; /* of the vtable; 0: the newest */
  int dev;
  struct rail_net_vprops_v12 fuse; /* devices to make one of, which is used; ndevs 0: none */
  const char *only, *skip, *skip_file, *levels; /* as conform's */
  uint64_t seed; /* 0: from the clock */
  int repeat;
  int rounds;    /* 0: each scenario once; else so many, drawn at random */
  int calls;     /* of the failing kinds: how many are made to fail, one a run */
  uint64_t patience_ms; /* until a death must be noticed */
  uint64_t stop_ms;     /* how long a process is stopped, a link cut, that need not be survived */
  bool verbose;
  const char *json, *junit;
  struct kit_placement placement;
  struct kit_fault_port links[2]; /* what link.* is done to; without a name: namespaces and links made for it */
  const char *links_text;         /* as on the command line; NULL */
  struct kit_link *link;
  const char *connect;
};

/* Returns the program's exit status. */
int kit_fault_run(const struct kit_fault *how);
int kit_fault_list(const struct kit_fault *how, FILE *f, bool json);
/* For kit_process_main. */
void kit_fault_process(struct kit_process *self);

/* ---- between the files of the parent ---- */

/* One process group, and what its processes reported. */
struct kit_trial {
  const struct kit_scenario *scenario;
  struct kit_fault_plan plan;
  struct kit_outcome outcome;
  struct kit_fault_record record[2];
  bool has_record[2];
  struct kit_result *result; /* gets notes, figures, warnings */
  char warning[2][300];      /* the last */
  const char *about;         /* begins the text of a finding: "call 7 of 120 (connect)"; NULL */
};

/* Adds its findings to the result: the gravest decides its level, its text has them all. */
void kit_fault_check(struct kit_trial *trial);
/* Which errors came, when, at what cost, as notes and figures. */
void kit_fault_describe(const struct kit_trial *trial);

#endif
