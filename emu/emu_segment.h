/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of a process, in RAIL_EMU_DIR (/dev/shm), named by its slot, which is a part of its QPs' numbers:
 *
 *   page 0        all that others write: the doorbell, a futex the process' thread waits on; who has made a ring;
 *                 whether the process has ended
 *   page 1 ...    who it is; whether its thread sleeps; where its ring to each other slot begins
 *   from 64 KiB   rings (emu_wire.c)
 *
 * A lock on the file (fcntl), which ends with the process however it ends, tells whether the process lives. The next
 * process that starts removes files that nobody has locked.
 */
#ifndef EMU_SEGMENT_H
#define EMU_SEGMENT_H

#include "emu/emu.h"

enum { EMU_PAGE = 4096, EMU_RINGS_AT = 65536 };

struct emu_ring_entry {
  _Atomic uint64_t offset, incarnation; /* of the receiver whose ring it is; 0: there is none */
};

struct emu_segment {
  _Atomic uint32_t doorbell, new_rings; /* new_rings: how often a bit below was set */
  _Atomic uint32_t has_ended; /* the file has lost its name: another process may take the slot */
  _Atomic uint32_t senders[EMU_SLOTS / 32]; /* who has made a ring to this process; it may have no ring to them yet */
  char rest[EMU_PAGE - (3 + EMU_SLOTS / 32) * sizeof(uint32_t)];
  uint64_t magic, incarnation; /* incarnation: random, never 0 */
  int64_t pid;
  _Atomic uint32_t sleeping;
  struct emu_ring_entry rings[EMU_SLOTS] __attribute__((aligned(64)));
};
_Static_assert(sizeof(struct emu_segment) <= EMU_RINGS_AT, "rings begin behind it");

/* That of this process. */
extern struct emu_own {
  struct emu_segment *segment; /* NULL: none yet */
  int fd;
  uint32_t slot;
  uint64_t end; /* of the file */
} emu_own;

int emu_segment_open(void); /* 0 or errno */
/* Memory for that part of the own file; 0 or errno. A page that is touched where the file system is full is SIGBUS. */
int emu_segment_reserve(uint64_t offset, uint64_t size);
void emu_segment_unlink(void); /* the name goes, the memory stays */
void emu_segment_close(bool remove);
/* Of the process that lives in a slot: page 0 may be written, the rest read. NULL: there is none. fd, unless NULL,
 * becomes its descriptor, which the caller closes. Not for the own slot: closing it would give up the lock. */
struct emu_segment *emu_segment_map(uint32_t slot, int *fd);
void emu_segment_unmap(struct emu_segment *segment);

#endif
