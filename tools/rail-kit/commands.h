/* SPDX-License-Identifier: Apache-2.0
 *
 * The subcommands of rail-kit, and the options that several of them share. A subcommand gets argv[0] = its own name and
 * returns an exit status: TOOL_EXIT_OK fine, TOOL_EXIT_RESULT the plugin failed, TOOL_EXIT_USAGE bad arguments,
 * TOOL_EXIT_FAILED the kit itself could not run.
 */
#ifndef RAIL_KIT_COMMANDS_H
#define RAIL_KIT_COMMANDS_H

#include <stdbool.h>

#include "kit/kit_group.h"
#include "kit/kit_link.h"
#include "rail/net.h"
#include "tools/common/options.h"

#define RK_NAME "rail-kit"
#define RK_EXIT_STATUS "exit status: 0 fine, 1 the plugin failed, 2 bad arguments, 3 the kit itself could not run"

int rk_inspect(int argc, char **argv);
int rk_conform(int argc, char **argv);
int rk_bench(int argc, char **argv);
int rk_fault(int argc, char **argv);
int rk_nccl(int argc, char **argv);
int rk_replay(int argc, char **argv);
int rk_trace(int argc, char **argv);

/* ---- --fuse ---- */

int rk_set_fuse(const struct tool_value *v);

/* FIELD is a struct rail_net_vprops_v12. */
#define RK_FUSE_OPTION(TYPE, FIELD)                                                                                    \
  {"fuse", 0, "LIST", "the device that makeVDevice makes of these, as 0,1, instead of --device; v9 and later",         \
   TOOL_CALL, offsetof(TYPE, FIELD), .set = rk_set_fuse}

/* ---- --verbs ---- */

int rk_set_verbs(const struct tool_value *v);

#define RK_VERBS_OPTION                                                                                                \
  {"verbs", 0, "WHICH", "emu: a plugin over verbs runs on the emulated device, whatever hardware there is",            \
   TOOL_CALL, .set = rk_set_verbs}

/* ---- --listen and --connect ---- */

struct rk_hosts {
  const char *listen, *connect;
  uint64_t wait_ms; /* for the other host; 0: as long as it takes to listen, 30 s to connect, 60 s to a launcher's */
  bool alone;
};

#define RK_HOSTS_OPTIONS(TYPE, FIELD)                                                                                  \
  {"listen", 0, "WHERE", "two hosts: wait on [ADDRESS:]PORT for the other one, which leads", TOOL_TEXT,                \
   offsetof(TYPE, FIELD.listen), .allowed = "a port, or address:port"},                                                \
      {"connect", 0, "WHERE", "two hosts: lead, with the rail-kit that listens on HOST[:PORT]", TOOL_TEXT,             \
       offsetof(TYPE, FIELD.connect), .allowed = "host or host:port"},                                                 \
      {"wait", 0, "SECONDS", "for the other host, at most", TOOL_SECONDS, offsetof(TYPE, FIELD.wait_ms), .min = 1,     \
       .max = 86400, .preset = "30; --listen: no limit"},                                                              \
      {"alone", 0, NULL, "one host, whatever a launcher's environment says", TOOL_FLAG,                                \
       .at = offsetof(TYPE, FIELD.alone)}

/* One host: 0 with *link NULL. The leader: 0 with *link. The follower: has served until the leader was done; 1 with
 * *status for the program to end with. Without the options a launcher's environment (mpirun, srun) decides. -1:
 * reported on stderr, exit 3. */
int rk_hosts_open(const struct rk_hosts *hosts, const char *plugin, struct kit_link **link, int *status);

/* ---- --netns, --side-env and --bind ---- */

int rk_set_netns(const struct tool_value *v);
int rk_set_side_env(const struct tool_value *v);
int rk_set_bind(const struct tool_value *v);

#define RK_PLACEMENT_OPTIONS(TYPE, FIELD)                                                                     \
  {"netns",                                                                                                   \
   0,                                                                                                         \
   "A,B",                                                                                                     \
   "network namespaces of the even and the odd sides",                                                        \
   TOOL_CALL,                                                                                                 \
   offsetof(TYPE, FIELD),                                                                                     \
   .set = rk_set_netns},                                                                                      \
  {                                                                                                           \
    "side-env", 0, "SET", "0:NAME=VALUE, 1:NAME=VALUE: a variable of the even or odd sides; may be repeated", \
        TOOL_CALL, offsetof(TYPE, FIELD), .set = rk_set_side_env                                              \
  }

bool rk_has_placement(const struct kit_placement *placement);

#endif
