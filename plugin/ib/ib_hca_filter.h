/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL_IB_HCA: `[^][=]name[:port[:rail[:plane]]],...` as pure functions.
 *
 * '^' in front excludes what the list names, '=' after it makes names exact;
 * without it mlx5_1 also means mlx5_10. An empty or absent port means every
 * port; rail and plane are for NCCL's topology search.
 */
#ifndef IB_HCA_FILTER_H
#define IB_HCA_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#define IB_MAX_HCA_ENTRIES 32

struct ib_hca_entry {
  char name[64];
  int port;            /* -1: every one */
  int16_t rail, plane; /* -1: not said */
};

struct ib_hca_filter {
  bool exclude, exact;
  bool named; /* there is a list; if all its entries were bad it names nothing, rather than everything */
  unsigned int count;
  struct ib_hca_entry entries[IB_MAX_HCA_ENTRIES];
};

/* text NULL or empty: everything passes. Each bad entry is named in a warning and left out. */
void ib_hca_filter_parse(const char *text, struct ib_hca_filter *filter);

/* Is this port to be used? Then *rail and *plane are what its entry says, or -1. */
bool ib_hca_filter_passes(const struct ib_hca_filter *filter, const char *name, int port, int16_t *rail,
                          int16_t *plane);

#endif
