/* SPDX-License-Identifier: Apache-2.0
 * From lists of choices to cells. */
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"

/* The lanes of the side that has most. */
static uint64_t most_lanes(const struct kit_bench_cell *c) {
  uint64_t most = 1;
  for (int s = 0; s < (int)c->sides; s++) {
    uint64_t n = 0;
    for (int r = 0; r < (int)c->sides; r++) n += (uint64_t)kit_bench_edge(c, s, r) + kit_bench_edge(c, r, s);
    most = RAIL_MAX(most, n * c->comms);
  }
  return most;
}

uint64_t kit_bench_bytes(const struct kit_bench_cell *c) { return c->size * most_lanes(c) * c->window; }

/* The largest window that leaves a side below `bytes` of buffers, if that can be; whole groups it must hold. */
static uint32_t window_for(const struct kit_bench_cell *cell, uint64_t bytes) {
  struct kit_bench_cell c = *cell;
  while (c.window > c.group && kit_bench_bytes(&c) > bytes) c.window = RAIL_ROUND_UP(c.window / 2, c.group);
  return c.window;
}

/* ---- presets ---- */

struct preset {
  bool kinds[KIT_BENCH_KINDS];
  bool all_patterns;
  struct kit_bench_numbers sizes, comms, windows, groups;
};

#define K << 10
#define M << 20
#define NUMBERS(...) {.at = {__VA_ARGS__}, .n = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)}

static const struct preset presets[] = {
    [KIT_BENCH_USUAL] = {.kinds = {[KIT_BENCH_BW] = true, [KIT_BENCH_LATENCY] = true, [KIT_BENCH_CONNECT] = true},
                         .sizes = NUMBERS(8, 4 K, 64 K, 1 M, 4 M, 64 M), .comms = NUMBERS(1, 4),
                         .windows = NUMBERS(8), .groups = NUMBERS(1)},
    [KIT_BENCH_QUICK] = {.kinds = {[KIT_BENCH_BW] = true, [KIT_BENCH_LATENCY] = true, [KIT_BENCH_CONNECT] = true},
                         .sizes = NUMBERS(8, 4 K, 64 K, 4 M), .comms = NUMBERS(1), .windows = NUMBERS(8),
                         .groups = NUMBERS(1)},
    [KIT_BENCH_SWEEP] = {.kinds = {true, true, true, true}, .all_patterns = true,
                         .sizes = NUMBERS(8, 512, 4 K, 64 K, 1 M, 16 M), .comms = NUMBERS(1, 4),
                         .windows = NUMBERS(8, 32), .groups = NUMBERS(1)},
};

static void numbers_or(struct kit_bench_numbers *numbers, const struct kit_bench_numbers *otherwise) {
  if (numbers->n == 0) *numbers = *otherwise;
}

static bool any(const bool *chosen, size_t n) { return memchr(chosen, 1, n) != NULL; }

void kit_bench_choose_rest(struct kit_bench_choices *c, enum kit_bench_preset preset) {
  static const struct kit_bench_numbers four = NUMBERS(4), zero = NUMBERS(0);
  const struct preset *p = &presets[preset];
  if (!any(c->kinds, sizeof c->kinds)) memcpy(c->kinds, p->kinds, sizeof c->kinds);
  if (!any(c->patterns, sizeof c->patterns))
    for (int i = 0; i <= KIT_BENCH_ALL; i++) c->patterns[i] = i == KIT_BENCH_PAIR || p->all_patterns;
  numbers_or(&c->sizes, &p->sizes);
  numbers_or(&c->comms, &p->comms);
  numbers_or(&c->windows, &p->windows);
  numbers_or(&c->groups, &p->groups);
  numbers_or(&c->sides, &four);
  numbers_or(&c->sleeps, &zero);
}

/* ---- cells ---- */

struct list {
  struct kit_bench_cell *cells;
  size_t n, room;
  bool full; /* no memory */
};

/* What a kind has no use for is set to one value, so that it does not multiply its cells. */
static struct kit_bench_cell in_its_kind(const struct kit_bench_cell *cell) {
  struct kit_bench_cell c = *cell;
  if (c.kind == KIT_BENCH_LATENCY || c.pattern <= KIT_BENCH_BIDIR) c.sides = 2;
  if (c.kind == KIT_BENCH_LATENCY) {
    c.pattern = KIT_BENCH_PAIR;
    c.comms = c.group = 1;
    c.window = 2;
  } else if (c.kind == KIT_BENCH_CONNECT) {
    c.size = c.sleep_us = 0;
    c.spin = false;
    c.window = c.group = 1;
  }
  return c;
}

static void add(struct list *list, const struct kit_bench_choices *choices, const struct kit_bench_cell *cell) {
  struct kit_bench_cell c = in_its_kind(cell);
  c.window = RAIL_MAX(RAIL_ROUND_UP(c.window, c.group), c.group);
  c.window = window_for(&c, choices->buffers);
  for (size_t i = 0; i < list->n; i++)
    if (kit_bench_same_cell(&list->cells[i], &c)) return;
  if (list->n == list->room) {
    size_t room = 2 * list->room + 16;
    struct kit_bench_cell *more = realloc(list->cells, room * sizeof *more);
    if (!more) {
      list->full = true;
      return;
    }
    list->cells = more;
    list->room = room;
  }
  list->cells[list->n++] = c;
}

#define EACH(i, numbers) for (unsigned int i = 0; i < (numbers).n; i++)

/* Sizes outside, so that a table is read by size. */
static void add_kind(struct list *list, const struct kit_bench_choices *ch, struct kit_bench_cell cell) {
  EACH(z, ch->sizes) EACH(s, ch->sides) EACH(c, ch->comms) EACH(g, ch->groups) EACH(w, ch->windows)
  EACH(i, ch->sleeps) {
    cell.size = ch->sizes.at[z];
    cell.sides = (uint32_t)ch->sides.at[s];
    cell.comms = (uint32_t)ch->comms.at[c];
    cell.group = (uint32_t)ch->groups.at[g];
    cell.window = (uint32_t)ch->windows.at[w];
    cell.sleep_us = ch->spin ? 0 : (uint32_t)ch->sleeps.at[i];
    cell.spin = ch->spin;
    add(list, ch, &cell);
  }
}

bool kit_bench_make_cells(const struct kit_bench_choices *choices, struct kit_bench_cell **cells, size_t *ncells) {
  struct list list = {0};
  for (int kind = 0; kind < KIT_BENCH_KINDS; kind++) {
    for (int pattern = 0; pattern <= KIT_BENCH_ALL; pattern++) {
      struct kit_bench_cell cell = {.kind = (enum kit_bench_kind)kind, .pattern = (enum kit_bench_pattern)pattern,
                                    .memory = choices->memory};
      if (choices->kinds[kind] && choices->patterns[pattern]) add_kind(&list, choices, cell);
    }
  }
  *cells = list.cells;
  *ncells = list.n;
  return !list.full;
}
