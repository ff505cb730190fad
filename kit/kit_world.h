/* SPDX-License-Identifier: Apache-2.0
 *
 * A world: some processes (sides) that do one job together, on this host or
 * on two. The parent starts them, carries their words, watches their time,
 * and learns how each of them ended. It never loads a plugin.
 *
 * Not thread-safe: a world belongs to the thread that runs it.
 */
#ifndef RAIL_KIT_WORLD_H
#define RAIL_KIT_WORLD_H

#include <stddef.h>
#include <sys/types.h>

#include "kit/kit_job.h"

enum kit_end {
  KIT_END_FINE,
  KIT_END_SKIPPED,
  KIT_END_FAILED, /* the role said so */
  KIT_END_CRASH,  /* a signal, or an exit nobody expected */
  KIT_END_HANG,   /* killed at the limit */
  KIT_END_LOST,   /* only ended because another side did */
  KIT_END_ERROR,  /* the kit's own: it could not be started, the other host is gone */
};
const char *kit_end_text(enum kit_end end); /* "fine", "skipped", "failed", "crashed", "hung", "lost", "not run" */
#define KIT_HOST_LOST "the connection to the other host is lost" /* the text of such a KIT_END_ERROR */

struct kit_side_end {
  enum kit_end end;
  char text[1024]; /* why, for people; for a crash or a hang also in which call of the plugin, and for how long */
  char call[32];   /* that call, "" outside the plugin */
  int signal;
};

/* What a side says while it runs. */
enum kit_word_kind { KIT_WORD_NOTE, KIT_WORD_METRIC, KIT_WORD_LOG, KIT_WORD_ROLE };
struct kit_word {
  enum kit_word_kind kind;
  int rank;
  const char *text;  /* NOTE: the note; LOG: a warning that the plugin logged; METRIC: its name */
  double value;      /* METRIC */
  const char *unit;  /* METRIC */
  const void *data;  /* ROLE: what kit_tell was given */
  size_t size;
};

/* How a side is started, where it differs from its parent. Applies to sides on this host only. */
struct kit_setup {
  const char *netns;      /* a named network namespace to enter; NULL: none */
  const char *preload;    /* for LD_PRELOAD; NULL: none */
  const char *const *env; /* NAME=value …, NULL at the end; NULL: none */
  const char *const *place_env; /* the same, set after `env` (kit_places.h) */
};

struct kit_world;

struct kit_world_how {
  struct kit_job job;                     /* rank, nsides, hosts are filled in */
  int nsides;
  struct kit_setup setup[KIT_MAX_SIDES];
  void (*on_word)(struct kit_world *world, const struct kit_word *word, void *arg); /* may be NULL */
  void (*on_tick)(struct kit_world *world, void *arg); /* about every 10 ms; may be NULL */
  void *arg;
};

struct kit_outcome {
  enum kit_end end;  /* of the whole: the gravest, not counting LOST; an expected death counts as fine */
  int rank;          /* of the side that this comes from */
  struct kit_side_end sides[KIT_MAX_SIDES];
  double seconds;
};

/* The connection to the other host's rail-kit; NULL where all sides are here. */
struct kit_link;

/* Runs a world to its end. With a link the second half of the ranks is on the other host. Always returns; the outcome
 * says what happened. No process of it is left on this host. */
void kit_world_run(struct kit_link *link, const struct kit_world_how *how, struct kit_outcome *outcome);
/* The follower's part: runs its half of whatever the leader asks for, with `plugin`, until the leader is done. 0, or 3
 * when what it asks for makes no sense. */
int kit_world_serve(struct kit_link *link, const char *plugin);

/* Inside on_word, on_tick: */
/* The call of the plugin (enum kit_call) in which a side on this host is, and for how long. */
unsigned kit_world_call(const struct kit_world *world, int rank, double *seconds);
void kit_world_stop(struct kit_world *world); /* all sides are killed; counts as lost */

#endif
