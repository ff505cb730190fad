/* SPDX-License-Identifier: Apache-2.0
 *
 * What the emulated libibverbs.so.1 offers beside libibverbs' interface, to tests in the same process: by dlsym.
 */
#ifndef RAIL_EMU_H
#define RAIL_EMU_H

/* Statements of docs/emu.md; 0, or -1 after a line on stderr. Any thread. */
int rail_emu_command(const char *text);
/* How many objects this process has: context pd mr cq srq qp. */
long rail_emu_live(const char *kind);
/* How often a call that faults can name was made: post_send … */
long rail_emu_calls(const char *call);

#endif
