/* SPDX-License-Identifier: Apache-2.0
 *
 * Every RAIL_* environment variable of the product, whoever reads it. A plugin
 * and the runtime live in one process and each sees the other's variables, so
 * neither may call them unknown.
 *
 * A line is a name, or a module's prefix ending in '*'. A prefix excuses its
 * names only where nobody present knows better: a module whose own table has
 * names under the prefix does complain about those that the table lacks.
 */
#ifndef RAIL_PARAM_NAMES_H
#define RAIL_PARAM_NAMES_H

#include <stddef.h>

extern const char *const rail_param_names[];
extern const size_t rail_param_names_count;

#endif
