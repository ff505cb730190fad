/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels, loaded once per context of this process. Loading code may wait until nothing runs in the context (CUDA's
 * lazy loading says so), and so may unloading. So neither must be necessary while a kernel of one rank waits for that
 * of another.
 */
#ifndef RT_MODULE_H
#define RT_MODULE_H

#include <stdbool.h>

#include "common/base/result.h"

struct rt_module;

/* The context is current. */
rail_result_t rt_module_get(void *context, struct rt_module **out);
/* `alive`: the context is still there, and current. Accepts NULL. */
void rt_module_put(struct rt_module *m, bool alive);

/* The function to launch. */
void *rt_module_kernel(const struct rt_module *m);
/* Are there kernels to load? */
bool rt_module_exists(void);

#endif
