/* SPDX-License-Identifier: Apache-2.0
 * Which plugin a process uses: NCCL_NET_PLUGIN and NCCL_NET. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/log.h"
#include "loader/netload.h"

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
    /* NCCL falls back without a word, and its users hunt for days. */
    if (found && names > 0 && env)
      RAIL_WARN("NCCL_NET_PLUGIN=%s: none of it works, using %s instead. Tried: %s", env, rail_net_path(*net), s.tried);
  }
  free(list);
  if (found) return RAIL_OK;
  RAIL_WARN("no network plugin works (NCCL_NET_PLUGIN=%s, NCCL_NET=%s). Tried: %s", env ? env : "(unset)",
            wanted ? wanted : "(unset)", s.used ? s.tried : "nothing");
  return RAIL_BAD_USAGE;
}
