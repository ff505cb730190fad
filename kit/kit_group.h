/* SPDX-License-Identifier: Apache-2.0
 *
 * A process group: processes that do one job together, on this host or on two.
 * The parent starts them, relays their messages, enforces their time limit, and
 * finds out how each of them ended. It never loads a plugin.
 *
 * Not thread-safe: a process group belongs to the thread that runs it.
 */
#ifndef RAIL_KIT_GROUP_H
#define RAIL_KIT_GROUP_H

#include <stddef.h>
#include <sys/types.h>

#include "kit/kit_job.h"

enum kit_end {
  KIT_END_FINE,
  KIT_END_SKIPPED,
  KIT_END_FAILED, /* reported by the role */
  KIT_END_CRASH,  /* a signal, or an unexpected exit */
  KIT_END_HANG,   /* killed at the limit */
  KIT_END_LOST,   /* ended only because another process had */
  KIT_END_ERROR,  /* of the kit itself: it could not be started, the other host is gone */
};
const char *kit_end_text(enum kit_end end); /* "fine", "skipped", "failed", "crashed", "hung", "lost", "not run" */
#define KIT_HOST_LOST "the connection to the other host is lost" /* the text of such a KIT_END_ERROR */

struct kit_process_end {
  enum kit_end end;
  char text[1024]; /* why, for people; for a crash or a hang also in which call of the plugin, and for how long */
  char call[32];   /* that call, "" outside the plugin */
  int signal;
};

/* What a process reports while it runs. */
enum kit_message_kind { KIT_MESSAGE_NOTE, KIT_MESSAGE_METRIC, KIT_MESSAGE_LOG, KIT_MESSAGE_RECORD };
struct kit_message {
  enum kit_message_kind kind;
  int rank;
  const char *text;  /* NOTE: the note; LOG: a warning that the plugin logged; METRIC: its name */
  double value;      /* METRIC */
  const char *unit;  /* METRIC */
  const void *data;  /* RECORD: what kit_send_record was given */
  size_t size;
};

/* How a process is started, where it differs from its parent. Applies to processes on this host only. */
struct kit_process_setup {
  const char *netns;      /* a named network namespace to enter; NULL: none */
  const int *cpu;         /* a processor to run on alone; NULL: on any */
  const char *preload;    /* for LD_PRELOAD; NULL: none */
  const char *const *env; /* NAME=value …, NULL at the end; NULL: none */
  const char *const *place_env; /* the same, set after `env`: of its place */
};

/* Where processes run when all are on this host: even ranks in one place, odd ones in another, each with a network
 * namespace, an environment and a processor of its own. So two ports of one machine, or two namespaces, can act as two
 * hosts. */
#define KIT_LOCATION_ENV 16

struct kit_location {
  char netns[64];                        /* a named network namespace; "": this one */
  const char *env[KIT_LOCATION_ENV + 1]; /* NAME=value; NULL at the end */
  unsigned int nenv;
  bool bound; /* to cpu */
  int cpu;
};

struct kit_placement { struct kit_location at[2]; };

/* Fills in what the process's place decides of its setup. */
void kit_placement_apply(const struct kit_placement *placement, int rank, struct kit_process_setup *setup);
/* The options that say this, at the end of a command line. */
void kit_placement_append(const struct kit_placement *placement, char *text, size_t size);

struct kit_group;

struct kit_group_options {
  struct kit_job job;                     /* rank, nprocesses, hosts are filled in */
  int nprocesses;
  struct kit_process_setup setup[KIT_MAX_PROCESSES];
  void (*on_message)(struct kit_group *group, const struct kit_message *message, void *arg); /* may be NULL */
  void (*on_tick)(struct kit_group *group, void *arg); /* about every 10 ms; may be NULL */
  void *arg;
};

struct kit_outcome {
  enum kit_end end;  /* of the whole: the gravest, not counting LOST; an expected death counts as fine */
  int rank;          /* of the process that this comes from */
  struct kit_process_end sides[KIT_MAX_PROCESSES];
  double seconds;
};

/* The connection to the other host's rail-kit; NULL where all processes are here. */
struct kit_link;

/* Runs a process group to its end. With a link the second half of the ranks is on the other host. Always returns;
 * the outcome says what happened. No process of it is left on this host. */
void kit_group_run(struct kit_link *link, const struct kit_group_options *how, struct kit_outcome *outcome);
/* The follower's part: runs its half of whatever the leader asks for, with `plugin`, until the leader is done. NULL, or
 * why it ended before. */
const char *kit_group_serve(struct kit_link *link, const char *plugin);

/* Inside on_message, on_tick: */
/* The call of the plugin (enum kit_call) in which a process on this host is, and for how long. */
unsigned kit_group_call(const struct kit_group *group, int rank, double *seconds);
void kit_group_stop(struct kit_group *group); /* all processes are killed; counts as lost */

#endif
