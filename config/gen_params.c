/* SPDX-License-Identifier: Apache-2.0
 * Prints docs/parameters.md from the parameter tables of every module. */
#include <stdio.h>

#include "common/base/param.h"
#include "common/obs/stats.h"
#include "plugin/ib/ib_param.h"
#include "plugin/railtrace/tr_param.h"
#include "plugin/socket/sk_param.h"
#include "rail/railyard.h"

static const char intro[] =
    "# Parameters\n\n"
    "Generated from the tables in the sources by `make docs`. Set in the environment, read once per process.\n"
    "Names that begin with NCCL_ mean what they mean in NCCL. A value that cannot be used is warned about with\n"
    "what is allowed, and the default is taken; an unknown name that begins with RAIL_ is warned about with the\n"
    "nearest known one.\n";

int main(void) {
  printf("%s\n## Runtime (librailyard.so)\n\n", intro);
  fflush(stdout);
  railParamPrint(1);
  printf("\n## Socket plugin (libnccl-net-socket.so)\n\n");
  rail_param_print(stdout, &sk_param_table, 1);
  printf("\n## Verbs plugin (libnccl-net-ib.so)\n\n");
  rail_param_print(stdout, &ib_param_table, 1);
  printf("\n## Recording wrapper (libnccl-net-railtrace.so)\n\n");
  rail_param_print(stdout, &tr_param_table, 1);
  printf("\n## Runtime and plugins\n\n");
  rail_param_print(stdout, &rail_stats_param_table, 1);
  return 0;
}
