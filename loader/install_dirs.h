/* SPDX-License-Identifier: Apache-2.0
 *
 * Where installed files lie, seen from the folder of the programs. make install links programs with paths of its own
 * where BINDIR, LIBDIR and DATADIR are not each other's neighbours (config/package.mk).
 */
#ifndef RAIL_INSTALL_DIRS_H
#define RAIL_INSTALL_DIRS_H

#include <limits.h>
#include <stdbool.h>

extern const char rail_lib_from_bin[];  /* plugins, the runtime, the folder railyard of private ones: "../lib" */
extern const char rail_data_from_bin[]; /* the folder railyard of scripts: "../share" */

/* The path of a file, given from this program's folder: "../lib/x.so". It need not be there. False: the path is not
 * known, or too long. */
bool rail_path_from_bin(char path[PATH_MAX], const char *file);

#endif
