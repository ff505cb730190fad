/* SPDX-License-Identifier: Apache-2.0
 *
 * The subcommands of rail-kit. Each gets argv[0] = its own name and returns an exit status: TOOL_EXIT_OK fine,
 * TOOL_EXIT_RESULT the plugin failed, TOOL_EXIT_USAGE bad arguments, TOOL_EXIT_FAILED the kit itself could not run.
 */
#ifndef RAIL_KIT_COMMANDS_H
#define RAIL_KIT_COMMANDS_H

#include "tools/common/options.h"

#define RK_NAME "rail-kit"
#define RK_EXIT_STATUS "exit status: 0 fine, 1 the plugin failed, 2 bad arguments, 3 the kit itself could not run"

int rk_inspect(int argc, char **argv);
int rk_conform(int argc, char **argv);
int rk_bench(int argc, char **argv);
int rk_fault(int argc, char **argv);
int rk_replay(int argc, char **argv);
int rk_trace(int argc, char **argv);
int rk_side(int argc, char **argv); /* one process of a world; rail-kit starts it */

#endif
