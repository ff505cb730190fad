/* SPDX-License-Identifier: Apache-2.0
 *
 * What the emulated libibverbs.so.1 offers beside libibverbs' interface: to tests in the same process, by dlsym, and to
 * the emulated librdmacm.so.1.
 */
#ifndef RAIL_EMU_H
#define RAIL_EMU_H

#include <stdint.h>

struct ibv_qp;

/* Statements of docs/emu.md; 0, or -1 after a line on stderr. Any thread. */
int rail_emu_command(const char *text);
/* How many objects this process has: context pd mr cq srq qp. locked: bytes of the pages of its memory regions. */
long rail_emu_live(const char *kind);
/* How often a call that faults can name was made, post_send …; and poll_cq. */
long rail_emu_calls(const char *call);
/* The devices' clock in ns: what timers have waited for has passed there, too, where it is virtual. */
uint64_t rail_emu_now(void);
/* What was posted and has not arrived does so now, as far as it stays within this process. */
void rail_emu_quiesce(void);

/* For the emulated librdmacm.so.1: what is to become of an event of its connection manager. */
enum rail_emu_cm { RAIL_EMU_CM_NONE, RAIL_EMU_CM_LOST, RAIL_EMU_CM_LATE, RAIL_EMU_CM_REJECT };
enum rail_emu_cm rail_emu_cm_fault(const char *event, long *us); /* us: how late */
/* How long it waits for an answer, unless a statement says otherwise. */
long rail_emu_cm_answer_ms(long otherwise);
/* A queue pair of this process by its number; NULL: there is none. */
struct ibv_qp *rail_emu_qp(unsigned int number);

#endif
