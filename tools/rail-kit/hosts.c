/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/rail-kit/hosts.h"

#include <stdio.h>

#include "kit/kit_world.h"
#include "tools/rail-kit/commands.h"

static int follow(struct kit_link *link, const char *plugin, int *status) {
  *status = kit_world_serve(link, plugin) == 0 ? TOOL_EXIT_OK : TOOL_EXIT_FAILED;
  kit_link_close(link);
  fprintf(stderr, RK_NAME ": the other host has ended; the report is there\n");
  return 1;
}

int rk_hosts_open(const struct rk_hosts *hosts, const char *plugin, struct kit_link **link, int *status) {
  const char *listen = hosts->listen, *connect = hosts->connect;
  bool leads = connect != NULL;
  unsigned seconds = (unsigned)(hosts->wait_ms / 1000);
  char launched[300], why[400] = "";
  *link = NULL;
  *status = TOOL_EXIT_FAILED;
  if (listen && connect) {
    fprintf(stderr, RK_NAME ": --listen and --connect: one host listens, the other connects\n");
    *status = TOOL_EXIT_USAGE;
    return -1;
  }
  if (!listen && !connect) {
    int rank = kit_link_launched(launched, sizeof launched);
    if (rank < 0) return 0;
    leads = rank == 0; /* its output is what launchers show first, and the address that they give is its own */
    if (leads) listen = launched;
    else connect = launched;
  }
  *link = listen ? kit_link_listen(listen, seconds, why, sizeof why)
                 : kit_link_connect(connect, seconds, why, sizeof why);
  if (!*link) {
    fprintf(stderr, RK_NAME ": %s\n", why);
    return -1;
  }
  return leads ? 0 : follow(*link, plugin, status);
}
