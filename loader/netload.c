/* SPDX-License-Identifier: Apache-2.0
 * Finding a plugin's file, opening it, and closing it again. */
#include "loader/netload.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/install_dirs.h"
#include "loader/netload_impl.h"

static struct rail_net_life *lives;
static pthread_mutex_t lives_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- one life per plugin ---------------------------------------------- */

static struct rail_net_life *life_get(const void *vtable) {
  pthread_mutex_lock(&lives_lock);
  struct rail_net_life *life = lives;
  while (life && life->vtable != vtable) life = life->next;
  if (!life && (life = calloc(1, sizeof *life)) != NULL) {
    life->vtable = vtable;
    life->next = lives;
    lives = life;
  }
  if (life) life->loads++;
  pthread_mutex_unlock(&lives_lock);
  return life;
}

/* The last user's dlclose may unmap the plugin: what is loaded at this address
 * next is another one, so the record goes with it. */
static void life_put(struct rail_net_life *life) {
  pthread_mutex_lock(&lives_lock);
  if (--life->loads == 0) {
    struct rail_net_life **at = &lives;
    while (*at != life) at = &(*at)->next;
    *at = life->next;
    free(life);
  }
  pthread_mutex_unlock(&lives_lock);
}

rail_result_t rail_net_init_once(struct rail_net *net, const struct rail_net_init *args,
                                 rail_result_t (*first_init)(struct rail_net *net, const struct rail_net_init *args)) {
  rail_result_t result = RAIL_OK;
  pthread_mutex_lock(&lives_lock);
  if (!net->life->initialised) {
    result = first_init(net, args);
    net->life->initialised = result == RAIL_OK;
  }
  pthread_mutex_unlock(&lives_lock);
  return result;
}

/* ---- files ------------------------------------------------------------ */

struct why {
  char *text;
  size_t cap, used;
};

RAIL_PRINTF(2, 3) static void why_add(struct why *why, const char *fmt, ...) {
  va_list ap;
  if (why->used + 1 >= why->cap) return;
  if (why->used) {
    int n = snprintf(why->text + why->used, why->cap - why->used, "; ");
    why->used = RAIL_MIN(why->used + (size_t)n, why->cap - 1);
  }
  va_start(ap, fmt);
  int n = vsnprintf(why->text + why->used, why->cap - why->used, fmt, ap);
  va_end(ap);
  if (n > 0) why->used = RAIL_MIN(why->used + (size_t)n, why->cap - 1);
}

static void *try_open(const char *file, struct why *why) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library) return library;
  const char *error = dlerror(); /* mostly begins with the file's name */
  if (error && strncmp(error, file, strlen(file)) == 0) why_add(why, "%s", error);
  else why_add(why, "%s: %s", file, error ? error : "unknown error");
  return NULL;
}

static bool is_library_name(const char *name) {
  size_t len = strlen(name);
  return len >= 6 && strncmp(name, "lib", 3) == 0 && strcmp(name + len - 3, ".so") == 0;
}

/* Beside the object this code is linked into, and where a program finds its libraries. */
static void *try_open_beside(const char *file, struct why *why) {
  static const char here; /* any address of ours */
  const char *const dirs[] = {"", rail_lib_from_bin};
  char path[PATH_MAX];
  Dl_info info;
  struct link_map *map = NULL;
  if (!dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return NULL;
  /* A program has no name here, and its argv[0] may have come by PATH. */
  char *self = realpath(map->l_name[0] ? map->l_name : "/proc/self/exe", NULL);
  if (!self) return NULL;
  char *slash = strrchr(self, '/');
  void *library = NULL;
  for (size_t i = 0; slash && !library && i < RAIL_COUNT_OF(dirs); i++) {
    slash[1] = 0;
    int n = snprintf(path, sizeof path, "%s%s%s%s", self, dirs[i], i > 0 ? "/" : "", file);
    if (n > 0 && (size_t)n < sizeof path) library = try_open(path, why);
  }
  free(self);
  return library;
}

/* By NCCL's rules (see netload.h). NCCL also takes any prefix of
 * "STATIC_PLUGIN" to mean the program itself; that is left out on purpose. */
static void *open_library(const char *name, struct why *why) {
  char file[PATH_MAX];
  void *library = try_open(name, why);
  if (library || strchr(name, '/')) return library;
  if (is_library_name(name)) {
    snprintf(file, sizeof file, "%s", name);
  } else {
    int n = snprintf(file, sizeof file, "libnccl-net-%s.so", name);
    if (n < 0 || (size_t)n >= sizeof file) return NULL;
    library = try_open(file, why);
  }
  return library ? library : try_open_beside(file, why);
}

static void library_path(void *library, char path[PATH_MAX]) {
  struct link_map *map = NULL;
  const char *name = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "";
  snprintf(path, PATH_MAX, "%s", name);
}

/* One at a time: the loader's own lock orders threads, too, but no tool that looks for races knows that. */
static bool open_plugin(struct rail_net *net, const char *name, struct why *why) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  net->library = open_library(name, why);
  if (net->library) library_path(net->library, net->path);
  pthread_mutex_unlock(&lock);
  return net->library != NULL;
}

/* ---- load, unload ----------------------------------------------------- */

static const void *find_vtable(void *library, int newest, int *version) {
  for (*version = newest; *version >= RAIL_NET_VERSION_MIN; --*version) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", *version);
    const void *vtable = dlsym(library, symbol);
    if (vtable) return vtable;
  }
  return NULL;
}

rail_result_t rail_net_load(const char *name, int max_version, struct rail_net **out, char *why_text,
                            size_t why_size) {
  struct why why = {.text = why_text, .cap = why_size};
  int newest = max_version > 0 && max_version < RAIL_NET_VERSION_MAX ? max_version : RAIL_NET_VERSION_MAX;
  *out = NULL;
  if (why_size) why_text[0] = 0;
  if (!name || !*name) { /* dlopen would take it for the program itself */
    why_add(&why, "empty plugin name");
    return RAIL_BAD_ARGUMENT;
  }
  struct rail_net *net = calloc(1, sizeof *net);
  if (!net) {
    why_add(&why, "out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  if (!open_plugin(net, name, &why)) goto free_net;
  why.used = 0; /* the misses before do not matter any more */
  net->vtable = find_vtable(net->library, newest, &net->version);
  if (!net->vtable) {
    why_add(&why, "%s: no ncclNetPlugin_v%d..v%d in it", net->path, RAIL_NET_VERSION_MIN, newest);
    goto close_library;
  }
  net->complete = !rail_net_slots_fill(&net->slots, net->version, net->vtable);
  const char *missing = rail_net_slots_missing_for_init(net->version, net->vtable);
  if (missing) {
    why_add(&why, "%s: ncclNetPlugin_v%d has no %s", net->path, net->version, missing);
    goto close_library;
  }
  net->life = life_get(net->vtable);
  if (!net->life) {
    why_add(&why, "out of memory");
    goto close_library;
  }
  if (why_size) why_text[0] = 0;
  *out = net;
  return RAIL_OK;

close_library:
  dlclose(net->library);
free_net:
  free(net);
  return RAIL_SYSTEM_ERROR;
}

void rail_net_unload(struct rail_net *net) {
  if (!net) return;
  life_put(net->life);
  dlclose(net->library);
  free(net);
}

int rail_net_version(const struct rail_net *net) { return net->version; }

const char *rail_net_name(const struct rail_net *net) { return net->slots.name; }

const char *rail_net_path(const struct rail_net *net) { return net->path; }

const void *rail_net_vtable(const struct rail_net *net) { return net->vtable; }

const char *rail_net_missing_slot(const struct rail_net *net) { return net->missing; }
