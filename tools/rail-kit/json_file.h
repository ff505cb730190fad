/* SPDX-License-Identifier: Apache-2.0
 * --json FILE of subcommands that print either text or JSON. */
#ifndef RAIL_KIT_JSON_FILE_H
#define RAIL_KIT_JSON_FILE_H

#include <stdio.h>

/* The file, standard output for "-" and for NULL (no JSON); NULL when it cannot be opened, told on stderr. */
FILE *rk_json_open(const char *path);
/* The status to end with: `status`, or TOOL_EXIT_FAILED, told on stderr, when the file did not take all. */
int rk_json_close(FILE *f, const char *path, int status);

#endif
