/* SPDX-License-Identifier: Apache-2.0
 * The table of libfabric's functions, filled from the installed library. */
#include "plugin/ofi/ofi_fabric.h"

#include <dlfcn.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ofi/ofi_param.h"

struct ofi_fabric_api ofi_fabric;

/* Function pointers as data, as POSIX has dlsym do it. */
#define FIELD(field, version_of, is_needed)                                   \
  { .name = "fi_" #field, .version = version_of, .needed = is_needed, \
    .offset = offsetof(struct ofi_fabric_api, field) }

/* The version is the one whose structures the headers describe (API 1.17); newer libraries keep it beside their own. In
 * a library without versions (a wrapper) the plain name is looked up. */
static const struct symbol {
  const char *name, *version;
  bool needed;
  size_t offset;
} symbols[] = {
  FIELD(getinfo, "FABRIC_1.3", true),
  FIELD(freeinfo, "FABRIC_1.3", true),
  FIELD(dupinfo, "FABRIC_1.3", true),
  FIELD(fabric, "FABRIC_1.1", true),
  FIELD(version, "FABRIC_1.0", true),
  FIELD(strerror, "FABRIC_1.0", true),
  FIELD(tostr, "FABRIC_1.0", true),
  FIELD(getparams, "FABRIC_1.0", false),
  FIELD(freeparams, "FABRIC_1.0", false),
};

static void *find(void *library, const struct symbol *s) {
  void *found = dlvsym(library, s->name, s->version);
  return found ? found : dlsym(library, s->name);
}

/* False, after one line, if the library lacks what it must have. */
static bool fill(void *library, const char *path) {
  for (size_t i = 0; i < RAIL_COUNT_OF(symbols); i++) {
    void *found = find(library, &symbols[i]);
    if (!found && symbols[i].needed) {
      RAIL_WARN("RailOFI: %s has no %s, so there are no devices: it is no libfabric, or one that is too old", path,
                symbols[i].name);
      return false;
    }
    memcpy((char *)&ofi_fabric + symbols[i].offset, &found, sizeof found);
  }
  uint32_t version = ofi_fabric.version();
  if (FI_VERSION_GE(version, OFI_API_VERSION)) return true;
  RAIL_WARN("RailOFI: %s is libfabric %u.%u, so there are no devices: %u.%u or newer is needed", path,
            FI_MAJOR(version), FI_MINOR(version), FI_MAJOR(OFI_API_VERSION), FI_MINOR(OFI_API_VERSION));
  return false;
}

const char *ofi_fabric_strerror(int err) { return ofi_fabric.strerror(err < 0 ? -err : err); }

bool ofi_fabric_open(void) {
  static bool tried, good;
  if (tried) return good;
  tried = true;
  const char *named = ofi_params.library && *ofi_params.library ? ofi_params.library : NULL;
  const char *path = named ? named : "libfabric.so.1";
  /* Never unloaded: its providers keep threads and hooks of the memory allocator. */
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library && named)
    RAIL_WARN("RailOFI: RAIL_OFI_LIBRARY=%s cannot be opened, so there are no devices: %s", path, dlerror());
  else if (!library)
    RAIL_WARN("RailOFI: there is no libfabric.so.1, so there are no devices: install libfabric1 (libfabric), or set "
              "RAIL_OFI_LIBRARY to its path (%s)", dlerror());
  good = library && fill(library, path);
  return good;
}
