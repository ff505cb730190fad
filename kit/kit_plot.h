/* SPDX-License-Identifier: Apache-2.0
 * Plots of what the kit has measured or read, drawn by kit/plot.py with matplotlib. */
#ifndef RAIL_KIT_PLOT_H
#define RAIL_KIT_PLOT_H

#include <stdbool.h>
#include <stdio.h>

/* Has the figure drawn that `write` writes as JSON (plot.py documents it). `target` ends with .svg or .png.
 * The script lies in share/railyard where the kit is installed, or in its build tree's source. False: reported on
 * stderr. */
bool kit_plot(bool (*write)(FILE *f, const void *arg), const void *arg, const char *target);
/* May a plot have that name? */
bool kit_plot_can_write(const char *target);

#endif
