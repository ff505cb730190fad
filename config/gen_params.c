/* SPDX-License-Identifier: Apache-2.0
 * Prints docs/parameters.md from the parameter tables of every module. A plugin's is PREFIX_param_table in its
 * PREFIX_param.c; which plugins there are comes from config/rules.mk. */
#include <stdio.h>

#include "common/base/param.h"
#include "common/obs/stats.h"
#include "rail/railyard.h"

#ifndef PLUGIN_TABLES
#define PLUGIN_TABLES
#endif
#define TABLE(name) extern const struct rail_param_table name;
PLUGIN_TABLES
#undef TABLE

#define TABLE(name) &name,
static const struct rail_param_table *const plugin_tables[] = {PLUGIN_TABLES NULL};

static const char intro[] =
    "# Parameters\n\n"
    "Generated from the tables in the sources by `make docs`. Set in the environment, read once per process.\n"
    "Names that begin with NCCL_ mean what they mean in NCCL. A value that cannot be used is warned about with\n"
    "what is allowed, and the default is taken; an unknown name that begins with RAIL_ is warned about with the\n"
    "nearest known one. `rail-coll --params` and `rail-kit inspect PLUGIN --params` print the same.\n";

int main(void) {
  printf("%s\n## Runtime (librailyard.so)\n\n", intro);
  fflush(stdout);
  railParamPrint(1);
  for (const struct rail_param_table *const *table = plugin_tables; *table; table++) {
    printf("\n## %s (libnccl-net-%s.so)\n\n", (*table)->title, (*table)->module);
    rail_param_print(stdout, *table, 1);
  }
  printf("\n## Runtime and plugins\n\n");
  rail_param_print(stdout, &rail_stats_param_table, 1);
  return 0;
}
