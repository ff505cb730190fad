/* SPDX-License-Identifier: Apache-2.0
 * --listen and --connect, which several subcommands have. */
#ifndef RAIL_KIT_HOSTS_H
#define RAIL_KIT_HOSTS_H

#include <stdbool.h>

#include "kit/kit_link.h"
#include "tools/common/options.h"

struct rk_hosts {
  const char *listen, *connect;
  uint64_t wait_ms; /* for the other host; 0: as long as it takes to listen, 30 s to connect */
};

#define RK_HOSTS_OPTIONS(TYPE, FIELD)                                                                                  \
  {"listen", 0, "WHERE", "two hosts: wait on [ADDRESS:]PORT for the other one, which leads", TOOL_TEXT,                \
   offsetof(TYPE, FIELD.listen), .allowed = "a port, or address:port"},                                                \
      {"connect", 0, "WHERE", "two hosts: lead, with the rail-kit that listens on HOST[:PORT]", TOOL_TEXT,             \
       offsetof(TYPE, FIELD.connect), .allowed = "host or host:port"},                                                 \
      {"wait", 0, "SECONDS", "for the other host, at most", TOOL_SECONDS, offsetof(TYPE, FIELD.wait_ms), .min = 1,     \
       .max = 86400, .preset = "30; --listen: no limit"}

/* One host: 0 with *link NULL. The leader: 0 with *link. The follower: has served until the leader was done; 1 with
 * *status for the program to end with. Without the options a launcher's environment (mpirun, srun) decides. -1: told
 * on stderr, exit 3. */
int rk_hosts_open(const struct rk_hosts *hosts, const char *plugin, struct kit_link **link, int *status);

#endif
