/* SPDX-License-Identifier: Apache-2.0
 * The options that several subcommands share. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit/kit_group.h"
#include "loader/install_dirs.h"
#include "tools/rail-kit/commands.h"

/* ---- --fuse ---- */

enum { LARGEST = 1023 }; /* as --device has it */

static const int most = sizeof((struct rail_net_vprops_v12 *)0)->devs / sizeof(int);

static bool read_list(const char *at, struct rail_net_vprops_v12 *fuse) {
  for (;; at++) {
    char word[8];
    uint64_t dev;
    size_t n = strcspn(at, ",");
    if (fuse->ndevs == most || n >= sizeof word) return false;
    memcpy(word, at, n);
    word[n] = 0;
    if (!tool_parse_u64(word, false, &dev) || dev > LARGEST) return false;
    fuse->devs[fuse->ndevs++] = (int)dev;
    at += n;
    if (!*at) return fuse->ndevs > 1;
  }
}

int rk_set_fuse(const struct tool_value *v) {
  struct rail_net_vprops_v12 fuse = {0};
  if (!read_list(v->text, &fuse)) return tool_bad(v, "2 to %d device numbers (0 to %d) with commas", most, LARGEST);
  memcpy((char *)v->into + v->option->at, &fuse, sizeof fuse);
  return 0;
}

/* ---- --verbs ---- */

/* For the processes that load the plugin, which are all made by exec. It may open the library by this name, or by the
 * variable that NCCL and our plugin read. */
int rk_set_verbs(const struct tool_value *v) {
  static const char *const folders[] = {"emu", "railyard/emu"}; /* in a build tree; installed */
  char file[PATH_MAX / 2], path[PATH_MAX], real[PATH_MAX], paths[2 * PATH_MAX];
  bool found = false;
  const char *others = getenv("LD_LIBRARY_PATH");
  if (strcmp(v->text, "emu") != 0) return tool_bad(v, "emu");
  for (size_t i = 0; i < sizeof folders / sizeof *folders && !found; i++) {
    snprintf(file, sizeof file, "%s/%s/libibverbs.so.1", rail_lib_from_bin, folders[i]);
    found = rail_path_from_bin(path, file) && realpath(path, real);
  }
  if (!found) {
    fprintf(stderr, RK_NAME ": --verbs emu: %s is not there, seen from this program's folder; it is built "
            "and installed where libibverbs-dev is\n", file);
    return -1;
  }
  setenv("NCCL_IBVERBS_LIB", real, 1);
  *strrchr(real, '/') = 0;
  snprintf(paths, sizeof paths, "%s%s%s", real, others && *others ? ":" : "", others ? others : "");
  setenv("LD_LIBRARY_PATH", paths, 1);
  return 0;
}

/* ---- --listen and --connect ---- */

enum { LAUNCHED_S = 60 }; /* for the other rank of a launcher */

static int follow(struct kit_link *link, const char *plugin, int *status) {
  const char *why = kit_group_serve(link, plugin);
  *status = why ? TOOL_EXIT_FAILED : TOOL_EXIT_OK;
  kit_link_close(link);
  fprintf(stderr, RK_NAME ": %s\n", why ? why : "the other host has ended; the report is there");
  return 1;
}

/* A launcher of two ranks makes two hosts. Its environment may also be that of a batch script, which runs once. */
static bool finds_launcher(struct kit_launch *launch) {
  if (!kit_link_launched(launch) || launch->size == 1) return false;
  if (launch->size != 2) {
    fprintf(stderr, RK_NAME ": %s is set, but the ranks are %d, not 2: this one runs without the others\n",
            launch->name, launch->size);
    return false;
  }
  fprintf(stderr, RK_NAME ": %s=%d of 2 ranks makes this one of two hosts, for which it waits; --alone does not\n",
          launch->name, launch->rank);
  return true;
}

int rk_hosts_open(const struct rk_hosts *hosts, const char *plugin, struct kit_link **link, int *status) {
  const char *listen = hosts->listen, *connect = hosts->connect;
  bool leads = connect != NULL;
  unsigned seconds = (unsigned)(hosts->wait_ms / 1000);
  struct kit_launch launch;
  char why[400] = "";
  *link = NULL;
  *status = TOOL_EXIT_FAILED;
  if (listen && connect) {
    fprintf(stderr, RK_NAME ": --listen and --connect: one host listens, the other connects\n");
    *status = TOOL_EXIT_USAGE;
    return -1;
  }
  if (!listen && !connect) {
    if (hosts->alone || !finds_launcher(&launch)) return 0;
    leads = launch.rank == 0; /* its output is what launchers show first, and the address that they give is its own */
    if (leads) listen = launch.where;
    else connect = launch.where;
    if (!seconds) seconds = LAUNCHED_S;
  }
  *link = listen ? kit_link_listen(listen, seconds, why, sizeof why)
                 : kit_link_connect(connect, seconds, why, sizeof why);
  if (!*link) {
    fprintf(stderr, RK_NAME ": %s\n", why);
    return -1;
  }
  return leads ? 0 : follow(*link, plugin, status);
}

/* ---- --netns, --side-env and --bind ---- */

static struct kit_placement *placement_of(const struct tool_value *v) {
  return (void *)((char *)v->into + v->option->at);
}

static bool take(char *to, size_t size, const char *from, size_t n) {
  if (n == 0 || n >= size) return false;
  memcpy(to, from, n);
  to[n] = 0;
  return true;
}

int rk_set_netns(const struct tool_value *v) {
  struct kit_location *at = placement_of(v)->at;
  size_t n = strcspn(v->text, ","), room = sizeof at[0].netns;
  const char *second = v->text + n + (v->text[n] != 0);
  if (take(at[0].netns, room, v->text, n) && take(at[1].netns, room, second, strlen(second)) && !strpbrk(second, ",/"))
    return 0;
  return tool_bad(v, "two names with a comma");
}

int rk_set_side_env(const struct tool_value *v) {
  const char *text = v->text, *equals = strchr(text, '=');
  bool fine = (text[0] == '0' || text[0] == '1') && text[1] == ':' && equals && equals > text + 2;
  struct kit_location *place = &placement_of(v)->at[fine ? text[0] - '0' : 0];
  if (!fine || place->nenv == KIT_LOCATION_ENV)
    return tool_bad(v, "0:NAME=VALUE or 1:NAME=VALUE, %d of each", KIT_LOCATION_ENV);
  place->env[place->nenv++] = text + 2;
  return 0;
}

/* Only what this process may use itself. */
int rk_set_bind(const struct tool_value *v) {
  struct kit_location *at = placement_of(v)->at;
  cpu_set_t allowed;
  char end;
  bool fine = sscanf(v->text, "%d,%d%c", &at[0].cpu, &at[1].cpu, &end) == 2 &&
              sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  for (int i = 0; fine && i < 2; i++)
    fine = at[i].cpu >= 0 && at[i].cpu < CPU_SETSIZE && CPU_ISSET(at[i].cpu, &allowed);
  at[0].bound = at[1].bound = fine;
  return fine ? 0 : tool_bad(v, "two processors that this process may use, with a comma");
}

bool rk_has_placement(const struct kit_placement *placement) {
  return placement->at[0].bound || placement->at[0].netns[0] || placement->at[0].nenv > 0 || placement->at[1].nenv > 0;
}
