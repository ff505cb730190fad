/* SPDX-License-Identifier: Apache-2.0
 *
 * Which libraries the plugin needs and whether they are there. The dynamic loader itself is asked, as ldd
 * asks it: it knows search paths, caches and versions, and runs no constructor. libelf adds who needs what.
 */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/inspect/inspect.h"

#define ANSWER_MAX (1u << 20)

extern char **environ;

/* ---- asking ---- */

/* The loader that this program was started by. */
static int own_loader(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_INTERP)
      snprintf(path, PATH_MAX, "%s", (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
  return 1; /* the program itself comes first */
}

/* This process' environment, and that the loader is to resolve all symbols, list libraries and what is missing, and
 * end. */
static char **loader_environment(void) {
  static char trace[] = "LD_TRACE_LOADED_OBJECTS=1", now[] = "LD_BIND_NOW=1", warn[] = "LD_WARN=yes";
  char *const settings[] = {trace, now, warn};
  size_t n = 0, kept = 0;
  while (environ[n]) n++;
  char **env = calloc(n + RAIL_COUNT_OF(settings) + 1, sizeof *env);
  if (!env) return NULL;
  for (size_t i = 0; i < RAIL_COUNT_OF(settings); i++) env[kept++] = settings[i]; /* the first of a name counts */
  for (size_t i = 0; i < n; i++) env[kept++] = environ[i];
  return env;
}

static pid_t start(const char *loader, const char *path, int out) {
  char *argv[] = {(char *)loader, (char *)path, NULL};
  posix_spawn_file_actions_t actions;
  pid_t pid = -1;
  char **env = loader_environment();
  if (!env || posix_spawn_file_actions_init(&actions) != 0) {
    free(env);
    return -1;
  }
  int r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  if (r == 0) r = posix_spawn_file_actions_adddup2(&actions, out, 1);
  if (r == 0) r = posix_spawn_file_actions_adddup2(&actions, out, 2);
  if (r == 0) r = posix_spawn(&pid, loader, &actions, NULL, argv, env);
  posix_spawn_file_actions_destroy(&actions);
  free(env);
  errno = r;
  return r == 0 ? pid : -1;
}

/* All that comes from fd until its end, as a string; NULL: not before the deadline, or too much. */
static char *read_answer(int fd, uint64_t deadline) {
  size_t have = 0, cap = 0;
  char *text = NULL;
  for (;;) {
    uint64_t now = rail_now_ns();
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (now >= deadline || have + 1 >= ANSWER_MAX) break;
    if (poll(&p, 1, (int)RAIL_MIN((deadline - now) / 1000000 + 1, 1000)) <= 0) continue;
    if (have + 4096 > cap) {
      char *more = realloc(text, cap += 8192);
      if (!more) break;
      text = more;
    }
    ssize_t n = read(fd, text + have, cap - have - 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      text[have] = 0;
      return text;
    }
    have += (size_t)n;
  }
  free(text);
  return NULL;
}

static char *ask(const char *path, uint64_t limit_ms, struct kit_deps *deps) {
  int fds[2];
  dl_iterate_phdr(own_loader, deps->loader);
  if (!deps->loader[0] || pipe2(fds, O_CLOEXEC) != 0) {
    snprintf(deps->why, sizeof deps->why, deps->loader[0] ? "no pipe" : "this program has no dynamic loader");
    return NULL;
  }
  pid_t pid = start(deps->loader, path, fds[1]);
  close(fds[1]);
  if (pid < 0) {
    snprintf(deps->why, sizeof deps->why, "cannot start %.200s: %s", deps->loader, strerror(errno));
    close(fds[0]);
    return NULL;
  }
  char *text = read_answer(fds[0], rail_now_ns() + limit_ms * 1000000);
  if (!text) {
    snprintf(deps->why, sizeof deps->why, "%.200s has not answered in %.1f s", deps->loader, (double)limit_ms / 1000);
    kill(pid, SIGKILL);
  }
  close(fds[0]);
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
  }
  return text;
}

/* ---- its answer ---- */

static void add_dep(struct kit_deps *deps, const char *name, const char *path) {
  for (size_t i = 0; i < deps->n; i++)
    if (strcmp(deps->items[i].name, name) == 0) return;
  deps->items = kit_more(deps->items, &deps->n, &deps->cap, sizeof *deps->items);
  struct kit_dep *d = &deps->items[deps->n - 1];
  snprintf(d->name, sizeof d->name, "%s", name);
  snprintf(d->path, sizeof d->path, "%s", path);
}

static void add_undefined(struct kit_deps *deps, const char *symbol, const char *in) {
  deps->undefined = kit_more(deps->undefined, &deps->nundefined, &deps->cap_undefined, sizeof *deps->undefined);
  struct kit_undefined *u = &deps->undefined[deps->nundefined - 1];
  snprintf(u->symbol, sizeof u->symbol, "%s", symbol);
  snprintf(u->in, sizeof u->in, "%s", in);
}

/* "...: version `GLIBC_2.99' not found (required by FILE)" */
static bool take_version(char *line, struct kit_deps *deps) {
  char *version = strstr(line, "version `"), *by = strstr(line, "(required by ");
  if (!version || !by || !strstr(line, "not found")) return false;
  version += strlen("version `");
  version[strcspn(version, "'")] = 0;
  by += strlen("(required by ");
  by[strcspn(by, ")")] = 0;
  add_undefined(deps, version, by);
  return true;
}

/* "undefined symbol: NAME\t(FILE)", with ", version V" behind the name at times */
static bool take_undefined(char *line, struct kit_deps *deps) {
  char *name = strstr(line, "undefined symbol: "), *in = strrchr(line, '(');
  if (!name) return false;
  name += strlen("undefined symbol: ");
  if (in) in[strcspn(in, ")")] = 0;
  name[strcspn(name, "\t(")] = 0;
  add_undefined(deps, name, in ? in + 1 : "");
  return true;
}

/* "NAME => PATH (0x...)", "NAME => not found", "PATH (0x...)" */
static bool take_library(char *line, struct kit_deps *deps) {
  while (*line == '\t' || *line == ' ') line++;
  char *arrow = strstr(line, " => "), *address = strstr(line, " (0x");
  if (address) *address = 0;
  if (arrow) {
    *arrow = 0;
    add_dep(deps, line, strcmp(arrow + 4, "not found") == 0 ? "" : arrow + 4);
    return true;
  }
  if (!address) return false;
  const char *slash = strrchr(line, '/');
  if (slash) add_dep(deps, slash + 1, line); /* else linux-vdso, which is no file */
  return true;
}

static void take_line(char *line, struct kit_deps *deps) {
  if (!*line || take_version(line, deps) || take_undefined(line, deps) || take_library(line, deps)) return;
  if (strstr(line, "statically linked")) return; /* so it calls a library that needs no other */
  if (!deps->why[0]) snprintf(deps->why, sizeof deps->why, "%s", line + strspn(line, "\t "));
}

static bool needs(const struct kit_elf *elf, const char *name) {
  for (size_t i = 0; i < elf->nneeded; i++)
    if (strcmp(elf->needed[i], name) == 0) return true;
  return false;
}

/* The first in the loader's order that needs each: breadth first, so the one nearest to the plugin. */
static void find_needers(const char *path, const struct kit_elf *elf, struct kit_deps *deps) {
  for (size_t i = 0; i < deps->n; i++)
    if (needs(elf, deps->items[i].name)) snprintf(deps->items[i].needed_by, PATH_MAX, "%s", path);
  for (size_t by = 0; by < deps->n; by++) {
    struct kit_elf other;
    if (!deps->items[by].path[0]) continue;
    kit_elf_read(deps->items[by].path, &other);
    for (size_t i = 0; i < deps->n; i++)
      if (!deps->items[i].needed_by[0] && needs(&other, deps->items[i].name))
        snprintf(deps->items[i].needed_by, PATH_MAX, "%s", deps->items[by].path);
    kit_elf_free(&other);
  }
}

void kit_deps_resolve(const char *path, const struct kit_elf *elf, uint64_t limit_ms, struct kit_deps *deps) {
  memset(deps, 0, sizeof *deps);
  char *text = ask(path, limit_ms, deps), *rest = NULL;
  if (!text) return;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) take_line(line, deps);
  free(text);
  deps->asked = deps->n > 0 || !deps->why[0];
  find_needers(path, elf, deps);
}

void kit_deps_free(struct kit_deps *deps) {
  free(deps->items);
  free(deps->undefined);
}
