/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL_ALGO and NCCL_PROTO, as NCCL has them since 2.24:
 *   list | [list;]function:list[;function:list…]      list: [^]word[,word…]
 * The list without a function is for all functions that are not named.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/plan/rt_tune.h"

const char *const rt_func_names[RT_NFUNC] = {"Broadcast",     "Reduce",    "AllGather",
                                             "ReduceScatter", "AllReduce", "SendRecv"};

struct word {
  const char *name;
  unsigned named, excluded; /* its bits in the two kinds of list */
};

struct syntax {
  const char *param;
  const struct word *words;
  size_t nwords;
  int funcs; /* how many of enum rt_func, from the first, can be named */
  unsigned all;
  unsigned extra;          /* bits that are only set by name */
  unsigned allreduce_only; /* bits of `all` that only AllReduce has, */
  unsigned others_only;    /* and that it alone has not */
};

/* NCCL's algorithms that Railyard does not have are accepted and set no bit. */
static const struct word algo_words[] = {
    {"Ring", 1u << RT_ALGO_RING, 1u << RT_ALGO_RING},
    {"Exchange", 1u << RT_ALGO_EXCHANGE, 1u << RT_ALGO_EXCHANGE},
    {"Tree", 1u << RT_ALGO_TREE, 1u << RT_ALGO_TREE},
    {.name = "Collnet"},
    {.name = "CollnetDirect"},
    {.name = "CollnetChain"},
    {.name = "NVLS"},
    {.name = "NVLSTree"},
    {"PAT", 1u << RT_ALGO_PAT, 1u << RT_ALGO_PAT},
};
/* LL128 needs 128-byte stores, which the host does not have: there it means Simple. Its own bit is set only when it
 * is named: then kernels of a GPU use it instead of Simple. */
static const struct word proto_words[] = {
    {"Simple", 1u << RT_SIMPLE, 1u << RT_SIMPLE},
    {"LL", 1u << RT_LL, 1u << RT_LL},
    {"LL128", 1u << RT_SIMPLE | 1u << RD_LL128, 0},
};

static const struct syntax algos = {.param = "NCCL_ALGO",
                                        .words = algo_words,
                                        .nwords = RAIL_COUNT_OF(algo_words),
                                        .funcs = RT_F_SENDRECV,
                                        .all = (1u << RT_NALGO) - 1,
                                        .allreduce_only = 1u << RT_ALGO_EXCHANGE | 1u << RT_ALGO_TREE,
                                        .others_only = 1u << RT_ALGO_PAT};
static const struct syntax protos = {.param = "NCCL_PROTO",
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

static void warn_word(const struct syntax *syn, const char *word, const char *text) {
  char allowed[160] = "";
  for (size_t i = 0; i < syn->nwords; i++) add_name(allowed, sizeof allowed, syn->words[i].name);
  RAIL_WARN("%s: '%s' in '%s' is none of %s", syn->param, word, text, allowed);
}

static unsigned read_list(const struct syntax *syn, char *list, const char *text) {
  bool exclude = *list == '^';
  unsigned bits = 0;
  char *save = NULL;
  for (char *word = strtok_r(list + exclude, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
    size_t i = 0;
    while (i < syn->nwords && strcasecmp(word, syn->words[i].name) != 0) i++;
    if (i == syn->nwords)
      warn_word(syn, word, text);
    else
      bits |= exclude ? syn->words[i].excluded : syn->words[i].named;
  }
  return exclude ? syn->all & ~bits : bits;
}

static int find_func(const struct syntax *syn, const char *name) {
  for (int f = 0; f < syn->funcs; f++)
    if (strcasecmp(name, rt_func_names[f]) == 0) return f;
  return -1;
}

/* "function:list", or a list for all that have none yet. */
static void read_entry(const struct syntax *syn, char *entry, const char *text, bool first, unsigned bits[RT_NFUNC]) {
  char *colon = strchr(entry, ':');
  if (!colon && !first) {
    RAIL_WARN("%s: '%s' in '%s' has no function; only the first list may do without", syn->param, entry, text);
    return;
  }
  if (!colon) {
    unsigned all = read_list(syn, entry, text);
    for (int f = 0; f < RT_NFUNC; f++) bits[f] = all;
    return;
  }
  *colon = 0;
  int f = find_func(syn, entry);
  if (f >= 0) {
    bits[f] = read_list(syn, colon + 1, text);
    return;
  }
  char allowed[160] = "";
  for (int i = 0; i < syn->funcs; i++) add_name(allowed, sizeof allowed, rt_func_names[i]);
  RAIL_WARN("%s: '%s' in '%s' is none of %s", syn->param, entry, text, allowed);
}

static uint32_t parse_masks(const struct syntax *syn, const char *text) {
  unsigned bits[RT_NFUNC];
  uint32_t masks = 0;
  char *copy = strdup(text ? text : ""), *save = NULL;
  for (int f = 0; f < RT_NFUNC; f++) bits[f] = syn->all;
  if (!copy) RAIL_WARN("%s: out of memory; it is ignored", syn->param);
  bool first = true;
  for (char *e = copy ? strtok_r(copy, ";", &save) : NULL; e; e = strtok_r(NULL, ";", &save), first = false)
    read_entry(syn, e, text, first, bits);
  free(copy);
  for (int f = 0; f < RT_NFUNC; f++) {
    unsigned usable = (syn->all & ~(f == RT_F_ALLREDUCE ? syn->others_only : syn->allreduce_only)) | syn->extra;
    masks |= (uint32_t)(bits[f] & usable) << (unsigned)f * RT_FUNC_MASK_BITS;
  }
  return masks;
}

uint32_t rt_algo_masks(const char *text) { return parse_masks(&algos, text); }
uint32_t rt_proto_masks(const char *text) { return parse_masks(&protos, text); }
