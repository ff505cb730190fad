/* SPDX-License-Identifier: Apache-2.0
 *
 * Where installed files lie, seen from the folder of the programs. make install links programs with paths of its own
 * where BINDIR, LIBDIR and DATADIR are not each other's neighbours (config/package.mk).
 */
#ifndef RAIL_INSTALL_DIRS_H
#define RAIL_INSTALL_DIRS_H

extern const char rail_lib_from_bin[];  /* plugins, the runtime, the folder railyard of private ones: "../lib" */
extern const char rail_data_from_bin[]; /* the folder railyard of scripts: "../share" */

#endif
