/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL_ALGO and NCCL_PROTO, as NCCL has them since 2.24:
 *   list | [list;]function:list[;function:list…]      list: [^]word[,word…]
 * The list without a function is for all that are not named.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/plan/rt_tune.h"

struct word {
  const char *name;
  unsigned named, excluded; /* the bits that it stands for in the two kinds of list */
};

struct vocabulary {
  const char *param;
  const struct word *words;
  size_t nwords;
  int funcs; /* the first so many of enum rt_func */
  unsigned all;
  unsigned extra;       /* what may be named on top of that */
  unsigned reduce_only; /* of which AllReduce alone has these */
};

/* NCCL's words that stand for nothing here are words all the same. */
static const struct word algo_words[] = {
    {"Ring", 1u << RT_ALGO_RING, 1u << RT_ALGO_RING},
    {"Exchange", 1u << RT_ALGO_EXCHANGE, 1u << RT_ALGO_EXCHANGE},
    {"Tree", 1u << RT_ALGO_TREE, 1u << RT_ALGO_TREE},
    {.name = "Collnet"},
    {.name = "CollnetDirect"},
    {.name = "CollnetChain"},
    {.name = "NVLS"},
    {.name = "NVLSTree"},
    {.name = "PAT"},
};
/* LL128 needs 128-byte stores, which a host has not; Simple stands in for it there. Its own bit is set only where it
 * is named: then kernels of a GPU speak it instead of Simple. */
static const struct word proto_words[] = {
    {"Simple", 1u << RT_SIMPLE, 1u << RT_SIMPLE},
    {"LL", 1u << RT_LL, 1u << RT_LL},
    {"LL128", 1u << RT_SIMPLE | 1u << RD_LL128, 0},
};

static const struct vocabulary algos = {.param = "NCCL_ALGO",
                                        .words = algo_words,
                                        .nwords = RAIL_COUNT_OF(algo_words),
                                        .funcs = RT_F_SENDRECV,
                                        .all = (1u << RT_NALGO) - 1,
                                        .reduce_only = 1u << RT_ALGO_EXCHANGE | 1u << RT_ALGO_TREE};
static const struct vocabulary protos = {.param = "NCCL_PROTO",
                                         .words = proto_words,
                                         .nwords = RAIL_COUNT_OF(proto_words),
                                         .funcs = RT_NFUNC,
                                         .all = (1u << RT_NPROTO) - 1,
                                         .extra = 1u << RD_LL128};

/* ", "-separated names, as long as they fit. */
static void add_name(char *text, size_t cap, const char *name) {
  size_t at = strlen(text);
  snprintf(text + at, cap - at, "%s%s", at ? ", " : "", name);
}

static void warn_word(const struct vocabulary *v, const char *word, const char *text) {
  char allowed[160] = "";
  for (size_t i = 0; i < v->nwords; i++) add_name(allowed, sizeof allowed, v->words[i].name);
  RAIL_WARN("%s: '%s' in '%s' is none of %s", v->param, word, text, allowed);
}

static unsigned read_list(const struct vocabulary *v, char *list, const char *text) {
  bool exclude = *list == '^';
  unsigned bits = 0;
  char *save = NULL;
  for (char *word = strtok_r(list + exclude, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
    size_t i = 0;
    while (i < v->nwords && strcasecmp(word, v->words[i].name) != 0) i++;
    if (i == v->nwords)
      warn_word(v, word, text);
    else
      bits |= exclude ? v->words[i].excluded : v->words[i].named;
  }
  return exclude ? v->all & ~bits : bits;
}

static int find_func(const struct vocabulary *v, const char *name) {
  for (int f = 0; f < v->funcs; f++)
    if (strcasecmp(name, rt_func_names[f]) == 0) return f;
  return -1;
}

/* "function:list", or a list for all that have none yet. */
static void read_entry(const struct vocabulary *v, char *entry, const char *text, bool first, unsigned bits[RT_NFUNC]) {
  char *colon = strchr(entry, ':');
  if (!colon && !first) {
    RAIL_WARN("%s: '%s' in '%s' has no function; only the first list may do without", v->param, entry, text);
    return;
  }
  if (!colon) {
    unsigned all = read_list(v, entry, text);
    for (int f = 0; f < RT_NFUNC; f++) bits[f] = all;
    return;
  }
  *colon = 0;
  int f = find_func(v, entry);
  if (f >= 0) {
    bits[f] = read_list(v, colon + 1, text);
    return;
  }
  char allowed[160] = "";
  for (int i = 0; i < v->funcs; i++) add_name(allowed, sizeof allowed, rt_func_names[i]);
  RAIL_WARN("%s: '%s' in '%s' is none of %s", v->param, entry, text, allowed);
}

static uint32_t read_wishes(const struct vocabulary *v, const char *text) {
  unsigned bits[RT_NFUNC];
  uint32_t masks = 0;
  char *copy = strdup(text ? text : ""), *save = NULL;
  for (int f = 0; f < RT_NFUNC; f++) bits[f] = v->all;
  if (!copy) RAIL_WARN("%s: out of memory; it is ignored", v->param);
  bool first = true;
  for (char *e = copy ? strtok_r(copy, ";", &save) : NULL; e; e = strtok_r(NULL, ";", &save), first = false)
    read_entry(v, e, text, first, bits);
  free(copy);
  for (int f = 0; f < RT_NFUNC; f++) {
    unsigned usable = (v->all & ~(f == RT_F_ALLREDUCE ? 0 : v->reduce_only)) | v->extra;
    masks |= (uint32_t)(bits[f] & usable) << (unsigned)f * RT_FUNC_MASK_BITS;
  }
  return masks;
}

uint32_t rt_algo_masks(const char *text) { return read_wishes(&algos, text); }
uint32_t rt_proto_masks(const char *text) { return read_wishes(&protos, text); }
