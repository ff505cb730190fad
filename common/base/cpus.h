/* SPDX-License-Identifier: Apache-2.0
 * Sets of CPUs as text, in the form of sysfs and taskset: "0-3,8". */
#ifndef RAIL_CPUS_H
#define RAIL_CPUS_H

#include <sched.h>
#include <stdbool.h>

#define RAIL_CPUS_TEXT 128

/* False: the text has another form; *cpus is then empty. CPUs that a cpu_set_t has no room for are left out. */
bool rail_cpus_parse(const char *text, cpu_set_t *cpus);

/* "none" for an empty set; what does not fit is "...". */
const char *rail_cpus_text(const cpu_set_t *cpus, char text[RAIL_CPUS_TEXT]);

#endif
