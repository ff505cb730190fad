/* SPDX-License-Identifier: Apache-2.0
 *
 * Every RAIL_* environment variable of the product, of all modules. A plugin
 * and the runtime live in one process and each sees the other's variables, so
 * neither may call them unknown.
 *
 * A line is a name, or a module's prefix ending in '*'. A name under a prefix is
 * known unless a module of this process has a table with names under that
 * prefix: then one that the table lacks is reported.
 */
#ifndef RAIL_PARAM_NAMES_H
#define RAIL_PARAM_NAMES_H

#include <stddef.h>

extern const char *const rail_param_names[];
extern const size_t rail_param_names_count;

#endif
