/* SPDX-License-Identifier: Apache-2.0
 * The tables of libibverbs' and librdmacm's functions, filled from the installed libraries. */
#include "plugin/ib/ib_verbs.h"

#include <dlfcn.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

struct ib_verbs ib_verbs;
struct ib_rdmacm ib_rdmacm;

/* ---- what is looked up ------------------------------------------------------ */

/* The version is the one whose structures the headers describe; older versions of a name take other structures. In a
 * library without versions (a wrapper) the plain name is looked up. */
struct symbol {
  const char *name, *version;
  bool needed;
  size_t offset; /* in the table. Function pointers as data, as POSIX has dlsym do it */
};

#define FIELD(field, version_of, is_needed)                                    \
  { .name = "ibv_" #field, .version = version_of, .needed = is_needed, \
    .offset = offsetof(struct ib_verbs, field) }

static const struct symbol verbs_symbols[] = {
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
  FIELD(create_comp_channel, "IBVERBS_1.0", false),
  FIELD(destroy_comp_channel, "IBVERBS_1.0", false),
  FIELD(get_cq_event, "IBVERBS_1.1", false),
  FIELD(ack_cq_events, "IBVERBS_1.1", false),
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

#define CM_FIELD(field, version_of)                                     \
  { .name = "rdma_" #field, .version = version_of, .needed = true, \
    .offset = offsetof(struct ib_rdmacm, field) }

static const struct symbol rdmacm_symbols[] = {
  CM_FIELD(create_event_channel, "RDMACM_1.0"),
  CM_FIELD(destroy_event_channel, "RDMACM_1.0"),
  CM_FIELD(create_id, "RDMACM_1.0"),
  CM_FIELD(destroy_id, "RDMACM_1.0"),
  CM_FIELD(set_option, "RDMACM_1.0"),
  CM_FIELD(bind_addr, "RDMACM_1.0"),
  CM_FIELD(listen, "RDMACM_1.0"),
  CM_FIELD(get_src_port, "RDMACM_1.0"),
  CM_FIELD(resolve_addr, "RDMACM_1.0"),
  CM_FIELD(resolve_route, "RDMACM_1.0"),
  CM_FIELD(connect, "RDMACM_1.0"),
  CM_FIELD(establish, "RDMACM_1.2"),
  CM_FIELD(accept, "RDMACM_1.0"),
  CM_FIELD(reject, "RDMACM_1.0"),
  CM_FIELD(init_qp_attr, "RDMACM_1.2"),
  CM_FIELD(get_cm_event, "RDMACM_1.0"),
  CM_FIELD(ack_cm_event, "RDMACM_1.0"),
  CM_FIELD(event_str, "RDMACM_1.0"),
};

/* ---- a library --------------------------------------------------------------- */

struct library {
  const char *usual[2], *param;
  const char *devices; /* which there are not without it: goes on from "devices" */
  const char *packages;
  const struct symbol *symbols;
  size_t nsymbols;
};

static void *find(void *library, const struct symbol *s) {
  void *found = s->version ? dlvsym(library, s->name, s->version) : NULL;
  return found ? found : dlsym(library, s->name);
}

/* False, after one line, if the library lacks what it must have. */
static bool fill(void *library, const char *path, const struct library *of, void *table) {
  for (size_t i = 0; i < of->nsymbols; i++) {
    void *found = find(library, &of->symbols[i]);
    if (!found && of->symbols[i].needed) {
      RAIL_WARN("RailIB: %s has no %s, so there are no devices%s: it is no %s, or one that is too old", path,
                of->symbols[i].name, of->devices, of->usual[1]);
      return false;
    }
    memcpy((char *)table + of->symbols[i].offset, &found, sizeof found);
  }
  return true;
}

/* Never unloaded: providers keep thread-local data and fork handlers. */
static void *open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

/* What its parameter names, else the first of its usual names that is there. False after one line. */
static bool open_and_fill(const struct library *of, const char *named, void *table) {
  const char *path = named;
  void *library = NULL;
  if (named && *named) {
    library = open_library(named);
    if (!library)
      RAIL_WARN("RailIB: %s=%s cannot be opened, so there are no devices%s: %s", of->param, named, of->devices,
                dlerror());
  } else {
    for (size_t i = 0; i < RAIL_COUNT_OF(of->usual) && !library; i++) library = open_library(path = of->usual[i]);
    if (!library)
      RAIL_WARN("RailIB: there is no %s, so there are no devices%s: install %s (rdma-core), or set %s to its path",
                of->usual[0], of->devices, of->packages, of->param);
  }
  return library && fill(library, path, of, table);
}

bool ib_verbs_open(void) {
  static const struct library verbs = {
    .usual = {"libibverbs.so.1", "libibverbs.so"}, .param = "NCCL_IBVERBS_LIB", .devices = "",
    .packages = "libibverbs1 and ibverbs-providers", .symbols = verbs_symbols,
    .nsymbols = RAIL_COUNT_OF(verbs_symbols)};
  static bool tried, good;
  if (!tried) good = open_and_fill(&verbs, ib_params.ibverbs_lib, &ib_verbs);
  tried = true;
  return good;
}

bool ib_rdmacm_open(void) {
  static const struct library rdmacm = {
    .usual = {"librdmacm.so.1", "librdmacm.so"}, .param = "RAIL_IB_RDMACM_LIB",
    .devices = " that connect by the RDMA CM (RAIL_IB_CM=rdmacm, and all of iWARP)", .packages = "librdmacm1",
    .symbols = rdmacm_symbols, .nsymbols = RAIL_COUNT_OF(rdmacm_symbols)};
  static bool tried, good;
  if (!tried) good = open_and_fill(&rdmacm, ib_params.rdmacm_lib, &ib_rdmacm);
  tried = true;
  return good;
}
