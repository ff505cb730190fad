/* SPDX-License-Identifier: Apache-2.0
 * Files that come with this program. */
#ifndef RAIL_KIT_BESIDE_H
#define RAIL_KIT_BESIDE_H

#include <limits.h>
#include <stdbool.h>

/* The path of a file, given from this program's folder: "../lib/x.so". It need not be there. False: the path is not
 * known, or too long. */
bool kit_beside(char path[PATH_MAX], const char *file);

#endif
