/* SPDX-License-Identifier: Apache-2.0
 * --fuse, which several subcommands have. */
#ifndef RAIL_KIT_TOOL_FUSE_H
#define RAIL_KIT_TOOL_FUSE_H

#include "rail/net.h"
#include "tools/common/options.h"

int rk_set_fuse(const struct tool_value *v);

/* FIELD is a struct rail_net_vprops_v12. */
#define RK_FUSE_OPTION(TYPE, FIELD)                                                                                    \
  {"fuse", 0, "LIST", "the device that makeVDevice makes of these, as 0,1, instead of --device; v9 and later",         \
   TOOL_CALL, offsetof(TYPE, FIELD), .set = rk_set_fuse}

#endif
