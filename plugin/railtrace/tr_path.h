/* SPDX-License-Identifier: Apache-2.0
 * The file's name. */
#ifndef TR_PATH_H
#define TR_PATH_H

#define TR_PATH_MAX 4096

/* Makes the file that `pattern` names (%h host, %p process, %% a percent sign); one that exists is kept, and ".2", ".3"
 * … are tried. Returns its descriptor, or -1 after a line in the log. */
int tr_path_create(const char *pattern, char path[TR_PATH_MAX]);

#endif
