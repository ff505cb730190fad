/* SPDX-License-Identifier: Apache-2.0
 * Finding a plugin's file, opening it, and closing it again; which plugin a process uses. */
#include "loader/netload.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/log.h"
#include "loader/install_dirs.h"
#include "loader/netload_impl.h"

static struct rail_net_instance *instances;
static pthread_mutex_t instances_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- one record per plugin and process --------------------------------- */

static struct rail_net_instance *instance_get(const void *vtable) {
  pthread_mutex_lock(&instances_lock);
  struct rail_net_instance *instance = instances;
  while (instance && instance->vtable != vtable) instance = instance->next;
  if (!instance && (instance = calloc(1, sizeof *instance)) != NULL) {
    instance->vtable = vtable;
    pthread_mutex_init(&instance->init_lock, NULL);
    instance->next = instances;
    instances = instance;
  }
  if (instance) instance->loads++;
  pthread_mutex_unlock(&instances_lock);
  return instance;
}

/* The last user's dlclose may unmap the plugin: what is loaded at this address
 * next is another one, so the record goes with it. */
static void instance_put(struct rail_net_instance *instance) {
  pthread_mutex_lock(&instances_lock);
  if (--instance->loads == 0) {
    struct rail_net_instance **at = &instances;
    while (*at != instance) at = &(*at)->next;
    *at = instance->next;
    pthread_mutex_destroy(&instance->init_lock);
    free(instance);
  }
  pthread_mutex_unlock(&instances_lock);
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

/* Beside the object this code is linked into, and where a program finds its libraries, if that is another folder. */
static void *try_open_beside(const char *file, struct why *why) {
  static const char here; /* any address of ours */
  char path[PATH_MAX];
  Dl_info info;
  struct link_map *map = NULL;
  if (!dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) || !map) return NULL;
  /* A program has no name here, and its argv[0] may have come by PATH. */
  char *self = realpath(map->l_name[0] ? map->l_name : "/proc/self/exe", NULL);
  if (!self) return NULL;
  *strrchr(self, '/') = 0;
  int n = snprintf(path, sizeof path, "%s/%s", self, rail_lib_from_bin);
  char *libraries = n > 0 && (size_t)n < sizeof path ? realpath(path, NULL) : NULL;
  const char *const folders[] = {self, libraries && strcmp(self, libraries) != 0 ? libraries : NULL};
  void *library = NULL;
  for (size_t i = 0; !library && i < RAIL_COUNT_OF(folders) && folders[i]; i++) {
    n = snprintf(path, sizeof path, "%s/%s", folders[i], file);
    if (n > 0 && (size_t)n < sizeof path) library = try_open(path, why);
  }
  free(self);
  free(libraries);
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
  net->instance = instance_get(net->vtable);
  if (!net->instance) {
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
  instance_put(net->instance);
  dlclose(net->library);
  free(net);
}

int rail_net_version(const struct rail_net *net) { return net->version; }

const char *rail_net_name(const struct rail_net *net) { return net->slots.name; }

const char *rail_net_path(const struct rail_net *net) { return net->path; }

const void *rail_net_vtable(const struct rail_net *net) { return net->vtable; }

const char *rail_net_missing_slot(const struct rail_net *net) { return net->missing; }

/* ---- which plugin a process uses: NCCL_NET_PLUGIN and NCCL_NET ---- */

#define MAX_NAMES 14        /* NCCL's 16 less its two built-in ones */
#define MAX_NAME 254
#define DEFAULT_FILE "libnccl-net.so"

struct search {
  const struct rail_net_init *args;
  char tried[4096]; /* "socket: reason | other: reason" */
  size_t used;
};

static void note(struct search *s, const char *name, const char *reason) {
  if (s->used + 1 >= sizeof s->tried) return;
  int n = snprintf(s->tried + s->used, sizeof s->tried - s->used, "%s%s: %s", s->used ? " | " : "", name, reason);
  if (n > 0) s->used = RAIL_MIN(s->used + (size_t)n, sizeof s->tried - 1);
}

/* The vtable name that is asked for, or NULL. */
static const char *wanted_name(const struct rail_net_init *args) {
  const char *env = getenv("NCCL_NET");
  return env && *env ? env : args->net_name;
}

/* Initialises net and looks whether it is of use; on failure says why. */
static rail_result_t start(struct rail_net *net, const struct rail_net_init *args, void **ctx, char *why, size_t cap) {
  struct rail_net_props_v12 props = {0};
  int ndev = 0;
  const char *wanted = wanted_name(args);
  if (wanted && strcasecmp(wanted, rail_net_name(net)) != 0) {
    snprintf(why, cap, "its name is %s, but %s is asked for", rail_net_name(net), wanted);
    return RAIL_BAD_USAGE;
  }
  rail_result_t result = rail_net_init(net, args, ctx);
  const char *missing = rail_net_missing_slot(net);
  if (missing) {
    snprintf(why, cap, "ncclNetPlugin_v%d has no %s, also after init", rail_net_version(net), missing);
    return result;
  }
  if (result != RAIL_OK) {
    snprintf(why, cap, "init failed: %s", rail_result_name(result));
    return result;
  }
  result = rail_net_devices(net, &ndev);
  if (result == RAIL_OK && ndev > 0) result = rail_net_properties(net, 0, &props);
  if (result != RAIL_OK) {
    snprintf(why, cap, "devices failed: %s", rail_result_name(result));
  } else if (ndev <= 0) {
    snprintf(why, cap, "no device");
    result = RAIL_BAD_USAGE;
  } else if (props.net_device_type != RAIL_NET_DEVICE_HOST) {
    snprintf(why, cap, "its receives need device code of type %d", props.net_device_type);
    result = RAIL_BAD_USAGE;
  } else {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "network plugin %s: %s, interface v%d, %d device%s", rail_net_name(net),
              rail_net_path(net), rail_net_version(net), ndev, ndev == 1 ? "" : "s");
    return RAIL_OK;
  }
  (void)rail_net_finalize(net, *ctx);
  *ctx = NULL;
  return result;
}

rail_result_t rail_net_try(const char *name, const struct rail_net_init *args, struct rail_net **net, void **ctx,
                           char *why, size_t why_size) {
  *ctx = NULL;
  RAIL_TRY(rail_net_load(name, 0, net, why, why_size));
  rail_result_t result = start(*net, args, ctx, why, why_size);
  if (result == RAIL_OK) return RAIL_OK;
  rail_net_unload(*net);
  *net = NULL;
  return result;
}

static bool try_name(struct search *s, const char *name, struct rail_net **net, void **ctx) {
  char why[1024];
  if (rail_net_try(name, s->args, net, ctx, why, sizeof why) == RAIL_OK) return true;
  note(s, name, why);
  return false;
}

rail_result_t rail_net_select(const struct rail_net_init *args, const char *fallback, struct rail_net **net,
                              void **ctx) {
  struct search s = {.args = args};
  const char *wanted = wanted_name(args), *env = getenv("NCCL_NET_PLUGIN");
  bool fallback_tried = !fallback, found = false;
  *net = NULL;
  *ctx = NULL;

  char *list = strdup(env ? env : DEFAULT_FILE), *rest = NULL;
  if (!list) return RAIL_SYSTEM_ERROR;
  if (strcasecmp(list, "none") == 0) list[0] = 0;
  int names = 0;
  for (char *name = strtok_r(list, ",", &rest); name && names < MAX_NAMES && !found;
       name = strtok_r(NULL, ",", &rest)) {
    if (strlen(name) > MAX_NAME) {
      note(&s, "(a name)", "longer than 254 characters, ignored");
      continue;
    }
    names++;
    if (fallback && strcmp(name, fallback) == 0) fallback_tried = true;
    found = try_name(&s, name, net, ctx);
  }
  if (!found && !fallback_tried) {
    found = try_name(&s, fallback, net, ctx);
    /* NCCL falls back silently; this line tells the user. */
    if (found && names > 0 && env)
      RAIL_WARN("NCCL_NET_PLUGIN=%s: none of it works, using %s instead. Tried: %s", env, rail_net_path(*net), s.tried);
  }
  free(list);
  if (found) return RAIL_OK;
  RAIL_WARN("no network plugin works (NCCL_NET_PLUGIN=%s, NCCL_NET=%s). Tried: %s", env ? env : "(unset)",
            wanted ? wanted : "(unset)", s.used ? s.tried : "nothing");
  return RAIL_BAD_USAGE;
}
