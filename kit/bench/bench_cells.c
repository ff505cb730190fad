/* SPDX-License-Identifier: Apache-2.0
 * Cells: their words, and which ones there are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"

const char *const kit_bench_kind_words[] = {[KIT_BENCH_BW] = "bw", [KIT_BENCH_LATENCY] = "lat",
                                            [KIT_BENCH_JITTER] = "jitter", [KIT_BENCH_CONNECT] = "connect", NULL};
const char *const kit_bench_pattern_words[] = {[KIT_BENCH_PAIR] = "pair", [KIT_BENCH_BIDIR] = "bidir",
                                               [KIT_BENCH_RING] = "ring", [KIT_BENCH_INCAST] = "incast",
                                               [KIT_BENCH_ALL] = "all", NULL};
const char *const kit_bench_memory_words[] = {[KIT_BENCH_HOST] = "host", [KIT_BENCH_CUDA] = "cuda", NULL};
const char *const kit_bench_verdict_words[] = {
    [KIT_BENCH_OK] = "ok", [KIT_BENCH_WRONG] = "wrong", [KIT_BENCH_FAILED] = "failed", [KIT_BENCH_STUCK] = "stuck",
    [KIT_BENCH_CRASHED] = "crashed", [KIT_BENCH_SKIPPED] = "skipped", [KIT_BENCH_ERROR] = "not run", NULL};

const struct kit_bench_metric_info kit_bench_metrics[KIT_BENCH_METRICS] = {
    [KIT_BENCH_GB_S] = {"gb_s", "GB/s", 1, true},
    [KIT_BENCH_MESSAGES_S] = {"messages_s", "messages/s", 1, true},
    [KIT_BENCH_HALF_MIN] = {"half_min_us", "min us", -1, false},
    [KIT_BENCH_HALF_P50] = {"half_p50_us", "p50 us", -1, true},
    [KIT_BENCH_HALF_P90] = {"half_p90_us", "p90 us", -1, false},
    [KIT_BENCH_HALF_P99] = {"half_p99_us", "p99 us", -1, true},
    [KIT_BENCH_HALF_P999] = {"half_p999_us", "p99.9 us", -1, false},
    [KIT_BENCH_GAP_P50] = {"gap_p50_us", "p50 us", 0, false},
    [KIT_BENCH_GAP_P99] = {"gap_p99_us", "gap p99 us", -1, true},
    [KIT_BENCH_GAP_P999] = {"gap_p999_us", "p99.9 us", -1, false},
    [KIT_BENCH_GAP_MAX] = {"gap_max_us", "max us", -1, false},
    [KIT_BENCH_JITTER_US] = {"jitter_us", "jitter us", -1, false},
    [KIT_BENCH_CONNECTS_S] = {"connects_s", "connects/s", 1, true},
    [KIT_BENCH_CONNECT_P50] = {"connect_p50_us", "p50 us", -1, true},
    [KIT_BENCH_CONNECT_P99] = {"connect_p99_us", "p99 us", -1, false},
    [KIT_BENCH_CLOSE_US] = {"close_us", "close us", -1, false},
    [KIT_BENCH_FDS_LEFT] = {"fds_left", "fds left", 0, false},
    [KIT_BENCH_THREADS_LEFT] = {"threads_left", "threads left", 0, false},
    [KIT_BENCH_CPU_GB] = {"cpu_s_per_gb", "CPU s/GB", -1, true},
    [KIT_BENCH_SWITCHES] = {"switches_per_1000", "switches/1000", 0, false},
    [KIT_BENCH_INSTRUCTIONS] = {"instructions_per_message", "instr/msg", 0, false},
};

const char *kit_bench_size_text(uint64_t bytes, char *text, size_t size) {
  static const char units[] = "GMK";
  for (unsigned int i = 0; units[i]; i++) {
    unsigned int shift = 30 - 10 * i;
    if (bytes < 1ull << shift || bytes & ((1ull << shift) - 1)) continue;
    snprintf(text, size, "%llu%c", (unsigned long long)(bytes >> shift), units[i]);
    return text;
  }
  snprintf(text, size, "%llu", (unsigned long long)bytes);
  return text;
}

const char *kit_bench_cell_text(const struct kit_bench_cell *c, char *text, size_t size) {
  char bytes[32];
  int n = snprintf(text, size, "%s %s of %u", kit_bench_kind_words[c->kind], kit_bench_pattern_words[c->pattern],
                   c->sides);
  if (c->kind != KIT_BENCH_CONNECT)
    n += snprintf(text + n, size - (size_t)n, ", size %s", kit_bench_size_text(c->size, bytes, sizeof bytes));
  n += snprintf(text + n, size - (size_t)n, ", comms %u", c->comms);
  if (c->kind != KIT_BENCH_CONNECT) n += snprintf(text + n, size - (size_t)n, ", window %u", c->window);
  if (c->group > 1) n += snprintf(text + n, size - (size_t)n, ", group %u", c->group);
  if (c->sleep_us) n += snprintf(text + n, size - (size_t)n, ", sleep %u", c->sleep_us);
  if (c->spin) n += snprintf(text + n, size - (size_t)n, ", spin");
  if (c->one_buffer) n += snprintf(text + n, size - (size_t)n, ", one buffer");
  if (c->memory == KIT_BENCH_CUDA) snprintf(text + n, size - (size_t)n, ", memory cuda");
  return text;
}

/* A ping-pong goes to and fro, whatever the pattern. */
bool kit_bench_edge(const struct kit_bench_cell *c, int from, int to) {
  enum kit_bench_pattern pattern = c->kind == KIT_BENCH_LATENCY ? KIT_BENCH_BIDIR : c->pattern;
  if (from == to) return false;
  switch (pattern) {
    case KIT_BENCH_PAIR: return from == 0 && to == 1;
    case KIT_BENCH_BIDIR: return from + to == 1;
    case KIT_BENCH_RING: return to == (from + 1) % (int)c->sides;
    case KIT_BENCH_INCAST: return to == 0;
    case KIT_BENCH_ALL: return true;
  }
  return false;
}

bool kit_bench_same_cell(const struct kit_bench_cell *a, const struct kit_bench_cell *b) {
  return a->kind == b->kind && a->pattern == b->pattern && a->memory == b->memory && a->sides == b->sides &&
         a->size == b->size && a->comms == b->comms && a->window == b->window && a->group == b->group &&
         a->sleep_us == b->sleep_us && a->spin == b->spin && a->one_buffer == b->one_buffer;
}

/* ---- From lists of choices to cells ---- */

/* The conns of the process that has most. */
static uint64_t most_conns(const struct kit_bench_cell *c) {
  uint64_t most = 1;
  for (int s = 0; s < (int)c->sides; s++) {
    uint64_t n = 0;
    for (int r = 0; r < (int)c->sides; r++) n += (uint64_t)kit_bench_edge(c, s, r) + kit_bench_edge(c, r, s);
    most = RAIL_MAX(most, n * c->comms);
  }
  return most;
}

uint64_t kit_bench_bytes(const struct kit_bench_cell *c) {
  return c->size * most_conns(c) * (c->one_buffer ? 1 : c->window);
}

/* The largest window that leaves a process below `bytes` of buffers, if that can be; whole groups it must hold. */
static uint32_t window_for(const struct kit_bench_cell *cell, uint64_t bytes) {
  struct kit_bench_cell c = *cell;
  while (!c.one_buffer && c.window > c.group && kit_bench_bytes(&c) > bytes)
    c.window = RAIL_ROUND_UP(c.window / 2, c.group);
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

void kit_bench_selection_defaults(struct kit_bench_selection *c, enum kit_bench_preset preset) {
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
    c.spin = c.one_buffer = false;
    c.window = c.group = 1;
  }
  return c;
}

static void add(struct list *list, const struct kit_bench_selection *choices, const struct kit_bench_cell *cell) {
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
static void add_kind(struct list *list, const struct kit_bench_selection *ch, struct kit_bench_cell cell) {
  EACH(z, ch->sizes) EACH(s, ch->sides) EACH(c, ch->comms) EACH(g, ch->groups) EACH(w, ch->windows)
  EACH(i, ch->sleeps) {
    cell.size = ch->sizes.at[z];
    cell.sides = (uint32_t)ch->sides.at[s];
    cell.comms = (uint32_t)ch->comms.at[c];
    cell.group = (uint32_t)ch->groups.at[g];
    cell.window = (uint32_t)ch->windows.at[w];
    cell.sleep_us = ch->spin ? 0 : (uint32_t)ch->sleeps.at[i];
    cell.spin = ch->spin;
    cell.one_buffer = ch->one_buffer;
    add(list, ch, &cell);
  }
}

bool kit_bench_make_cells(const struct kit_bench_selection *choices, struct kit_bench_cell **cells, size_t *ncells) {
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
