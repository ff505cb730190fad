/* SPDX-License-Identifier: Apache-2.0
 * The timer that wakes the watch thread: one for all endpoints of the process. Any thread may call. */
#ifndef OFI_TIMER_H
#define OFI_TIMER_H

#define OFI_FIRST_MS 2 /* from when something is outstanding to the watch thread's first look */

/* Its descriptor, for the watch thread; -1 with errno. */
int ofi_timer_open(void);
void ofi_timer_close(void);
/* It fires within so many: sets it unless it does already. One system call in some milliseconds. */
void ofi_timer_set(long ms);
/* It has fired, and may be set again. */
void ofi_timer_read(void);

#endif
