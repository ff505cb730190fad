/* SPDX-License-Identifier: Apache-2.0
 * The table of libibverbs' functions, filled from the installed library. */
#include "plugin/ib/ib_verbs.h"

#include <dlfcn.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

struct ib_verbs ib_verbs;

/* Function pointers as data, as POSIX has dlsym do it. */
#define FIELD(field, version_of, is_needed)                                    \
  { .name = "ibv_" #field, .version = version_of, .needed = is_needed, \
    .offset = offsetof(struct ib_verbs, field) }

/* The version is the one whose structures verbs.h describes; older versions of a name take other structures. In a
 * library without versions (a wrapper) the plain name is looked up. */
static const struct symbol {
  const char *name, *version;
  bool needed;
  size_t offset;
} symbols[] = {
  FIELD(get_device_list, "IBVERBS_1.1", true),
  FIELD(free_device_list, "IBVERBS_1.1", true),
  FIELD(get_device_name, "IBVERBS_1.1", true),
  FIELD(open_device, "IBVERBS_1.1", true),
  FIELD(close_device, "IBVERBS_1.1", true),
  FIELD(get_async_event, "IBVERBS_1.1", true),
  FIELD(ack_async_event, "IBVERBS_1.1", true),
  FIELD(query_device, "IBVERBS_1.1", true),
  FIELD(query_port, "IBVERBS_1.1", true),
  FIELD(query_gid, "IBVERBS_1.1", true),
  FIELD(alloc_pd, "IBVERBS_1.1", true),
  FIELD(dealloc_pd, "IBVERBS_1.1", true),
  FIELD(reg_mr, "IBVERBS_1.1", true),
  FIELD(dereg_mr, "IBVERBS_1.1", true),
  FIELD(create_cq, "IBVERBS_1.1", true),
  FIELD(destroy_cq, "IBVERBS_1.1", true),
  FIELD(create_qp, "IBVERBS_1.1", true),
  FIELD(modify_qp, "IBVERBS_1.1", true),
  FIELD(query_qp, "IBVERBS_1.1", true),
  FIELD(destroy_qp, "IBVERBS_1.1", true),
  FIELD(fork_init, "IBVERBS_1.1", true),
  FIELD(reg_mr_iova2, "IBVERBS_1.8", false),
  FIELD(reg_dmabuf_mr, "IBVERBS_1.12", false),
  FIELD(query_ece, "IBVERBS_1.10", false),
  FIELD(set_ece, "IBVERBS_1.10", false),
  {.name = "_ibv_query_gid_table", .version = "IBVERBS_1.11", .offset = offsetof(struct ib_verbs, query_gid_table)},
  FIELD(query_port_speed, NULL, false),
  FIELD(get_sysfs_path, "IBVERBS_1.0", false),
};

static void *find(void *library, const struct symbol *s) {
  void *found = s->version ? dlvsym(library, s->name, s->version) : NULL;
  return found ? found : dlsym(library, s->name);
}

/* False, after one line, if the library lacks what it must have. */
static bool fill(void *library, const char *path) {
  for (size_t i = 0; i < RAIL_COUNT_OF(symbols); i++) {
    void *found = find(library, &symbols[i]);
    if (!found && symbols[i].needed) {
      RAIL_WARN("RailIB: %s has no %s, so there are no devices: it is no libibverbs, or one that is too old", path,
                symbols[i].name);
      return false;
    }
    memcpy((char *)&ib_verbs + symbols[i].offset, &found, sizeof found);
  }
  return true;
}

/* Never unloaded: its providers keep thread-local data and fork handlers. */
static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

bool ib_verbs_open(void) {
  static const char *const usual[] = {"libibverbs.so.1", "libibverbs.so"};
  static bool tried, good;
  if (tried) return good;
  tried = true;
  const char *path = ib_params.ibverbs_lib;
  void *library = NULL;
  if (path && *path) {
    library = open_library(path);
    if (!library)
      RAIL_WARN("RailIB: NCCL_IBVERBS_LIB=%s cannot be opened, so there are no devices: %s", path, dlerror());
  } else {
    for (size_t i = 0; i < RAIL_COUNT_OF(usual) && !library; i++) library = open_library(path = usual[i]);
    if (!library)
      RAIL_WARN("RailIB: there is no libibverbs.so.1, so there are no devices: install libibverbs1 and "
                "ibverbs-providers (rdma-core), or set NCCL_IBVERBS_LIB to its path");
  }
  good = library && fill(library, path);
  return good;
}
