/* SPDX-License-Identifier: Apache-2.0
 * --netns and --side-env, which several subcommands have. */
#ifndef RAIL_KIT_TOOL_PLACES_H
#define RAIL_KIT_TOOL_PLACES_H

#include "kit/kit_places.h"
#include "tools/common/options.h"

int rk_set_netns(const struct tool_value *v);
int rk_set_side_env(const struct tool_value *v);

#define RK_PLACES_OPTIONS(TYPE, FIELD)                                                                                 \
  {"netns", 0, "A,B", "network namespaces of the even and the odd sides", TOOL_CALL, offsetof(TYPE, FIELD),            \
   .set = rk_set_netns},                                                                                               \
  {"side-env", 0, "SET", "0:NAME=VALUE, 1:NAME=VALUE: a variable of the even or odd sides; may be repeated",           \
   TOOL_CALL, offsetof(TYPE, FIELD), .set = rk_set_side_env}

bool rk_has_places(const struct kit_places *places);

#endif
