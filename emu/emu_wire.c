/* SPDX-License-Identifier: Apache-2.0
 *
 * Links to other processes, and the rings of packets between them. A ring is a page of counters and its bytes, in the
 * file of the process that sends (emu_segment.h). One that is not used any more becomes a hole in the file. Its place
 * is not used again, so a peer that still looks at it finds zeros.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "emu/emu_fault.h"
#include "emu/emu_segment.h"

#define RING_MAGIC 0x676e69722d756d65u
#define MAX_RING_BYTES (16u << 20)
#define RECORD 16u        /* packets begin at multiples of it */
#define RESERVE (32u << 10) /* of a ring, at once, as it is filled for the first time */
#define BURST (64u << 10) /* bytes taken from one ring before the next has its turn */
#define LAST_READ_MS 1000

struct ring {
  uint64_t magic, size; /* of data: a power of two */
  _Atomic uint64_t tail __attribute__((aligned(64)));
  /* Of the ring in the other direction: what may be overwritten, and up to where all answers have been sent. */
  _Atomic uint64_t consumed __attribute__((aligned(64)));
  _Atomic uint64_t answered;
  char data[] __attribute__((aligned(EMU_PAGE)));
};

struct emu_link {
  LIST_ENTRY(emu_link) link;
  uint32_t slot;
  unsigned int users; /* QPs */
  bool is_self, is_senders; /* is_senders: made because the peer sends, maybe datagrams; it stays */
  uint64_t incarnation;
  struct emu_segment *peer;
  /* packets to the peer */
  struct ring *out;
  uint64_t out_at, out_size; /* in the own file */
  uint64_t tail, published, consumed, reserved; /* reserved: of the ring's bytes those that have memory */
  /* packets from the peer */
  const struct ring *in;
  uint64_t in_at, in_size, head, head_published; /* in_at: in the peer's file */
  uint64_t answered; /* the requests before that have their answers */
  bool broken; /* its packets make no sense: they are no longer read */
};

static LIST_HEAD(, emu_link) links = LIST_HEAD_INITIALIZER(links);

static size_t ring_bytes(uint64_t size) { return sizeof(struct ring) + size; }

/* ---- bytes ---------------------------------------------------------------- */

/* In address order, as a device's writes are; by whole aligned words what is short. x86 promises no order to others
 * within a string move; 130 million looks at one (AMD EPYC) saw none that was not in order. Not by memcpy, which
 * sanitizers know: this is no thread of the program. */
__attribute__((no_sanitize("thread", "address", "undefined"))) void emu_move(void *to, const void *from, size_t size) {
  volatile char *d = to;
  const volatile char *s = from;
#if defined(__x86_64__)
  if (size >= 1024) {
    void *di = to;
    const void *si = from;
    __asm__ volatile("rep movsb" : "+D"(di), "+S"(si), "+c"(size) : : "memory");
    return;
  }
#endif
  if (((uintptr_t)d | (uintptr_t)s) % sizeof(uint64_t) == 0)
    for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t), d += sizeof(uint64_t), s += sizeof(uint64_t))
      *(volatile uint64_t *)(volatile void *)d = *(const volatile uint64_t *)(const volatile void *)s;
  for (; size; size--) *d++ = *s++;
}

/* ---- links ---------------------------------------------------------------- */

static void unmap_link(struct emu_link *l) {
  if (l->out) munmap(l->out, ring_bytes(l->out_size));
  if (l->in && !l->is_self) munmap((void *)(uintptr_t)l->in, ring_bytes(l->in_size));
  if (l->peer && !l->is_self) emu_segment_unmap(l->peer);
  LIST_REMOVE(l, link);
  free(l);
}

int emu_wire_open(void) { return emu_segment_open(); }

void emu_wire_forget(void) {
  for (struct emu_link *l; (l = LIST_FIRST(&links)) != NULL;) unmap_link(l);
  emu_segment_close(false);
}

uint32_t emu_wire_slot(void) { return emu_own.slot; }
_Atomic uint32_t *emu_wire_doorbell(void) { return &emu_own.segment->doorbell; }
void emu_wire_sleeping(bool sleeping) { atomic_store(&emu_own.segment->sleeping, sleeping); }

static bool reserve(uint64_t offset, uint64_t size) {
  static bool said;
  int err = emu_segment_reserve(offset, size);
  if (err && !said)
    fprintf(stderr, "rail-emu: no memory for packets, which are lost: %s; check: the size of /dev/shm or of what "
            "RAIL_EMU_DIR names; the statement `ring`\n", strerror(err));
  said |= err != 0;
  return err == 0;
}

/* A new ring in the own file, published for the peer. */
static bool make_out(struct emu_link *l) {
  size_t size = ring_bytes(emu.ring_bytes);
  if (ftruncate(emu_own.fd, (off_t)(emu_own.end + size)) != 0) return false;
  if (!reserve(emu_own.end, sizeof(struct ring))) return false;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, emu_own.fd, (off_t)emu_own.end);
  if (memory == MAP_FAILED) return false;
  l->out = memory;
  l->out->magic = RING_MAGIC;
  l->out->size = l->out_size = emu.ring_bytes;
  l->head_published = l->head;
  atomic_store(&l->out->consumed, l->head);
  atomic_store(&l->out->answered, l->head);
  l->out_at = emu_own.end;
  emu_own.end += size;
  struct emu_ring_entry *e = &emu_own.segment->rings[l->slot];
  atomic_store(&e->incarnation, 0);
  atomic_store(&e->offset, l->out_at);
  atomic_store(&e->incarnation, l->incarnation);
  if (l->is_self) return true;
  atomic_fetch_or(&l->peer->senders[emu_own.slot / 32], 1u << emu_own.slot % 32);
  atomic_fetch_add(&l->peer->new_rings, 1);
  return true;
}

/* The process that is in this slot now, if it is that of the link still; NULL: it is gone. */
static struct emu_segment *map_peer(const struct emu_link *l, int *fd) {
  struct emu_segment *peer = emu_segment_map(l->slot, fd);
  if (!peer || peer->incarnation == l->incarnation) return peer;
  emu_segment_unmap(peer);
  if (fd) close(*fd);
  return NULL;
}

bool emu_link_is_alive(const struct emu_link *l) {
  if (l->is_self) return true;
  struct emu_segment *peer = map_peer(l, NULL);
  if (peer) emu_segment_unmap(peer);
  return peer;
}

static bool has_ended(const struct emu_link *l) {
  return !l->is_self && atomic_load_explicit(&l->peer->has_ended, memory_order_relaxed) && !emu_link_is_alive(l);
}

/* To the process that is in the slot now, as far as that is seen without asking the system; NULL: to none. What others
 * have of the link of a process that has ended they keep. */
static struct emu_link *find_link(uint32_t slot) {
  struct emu_link *l;
  LIST_FOREACH(l, &links, link)
    if (l->slot == slot) break;
  if (!l || !has_ended(l)) return l;
  l->slot = UINT32_MAX;
  return NULL;
}

/* Where the peer's ring to this process begins; 0: there is none. */
static uint64_t ring_from(const struct emu_link *l) {
  const struct emu_ring_entry *e = &l->peer->rings[emu_own.slot];
  if (atomic_load_explicit(&e->incarnation, memory_order_acquire) != emu_own.segment->incarnation) return 0;
  return atomic_load_explicit(&e->offset, memory_order_acquire);
}

/* The peer has made a ring, for the first time, or anew after it gave up its former one. */
static void map_in(struct emu_link *l, uint64_t offset) {
  struct stat st;
  struct ring *ring = MAP_FAILED;
  uint64_t size = 0;
  int fd = -1;
  struct emu_segment *peer = map_peer(l, &fd);
  if (peer) emu_segment_unmap(peer);
  if (l->in) munmap((void *)(uintptr_t)l->in, ring_bytes(l->in_size));
  l->in = NULL;
  l->in_at = offset;
  l->head = l->head_published = 0;
  l->broken = false;
  if (!peer) return;
  if (offset % EMU_PAGE == 0 && offset >= EMU_RINGS_AT && fstat(fd, &st) == 0 && offset <= (uint64_t)st.st_size &&
      (uint64_t)st.st_size - offset >= EMU_PAGE)
    ring = mmap(NULL, EMU_PAGE, PROT_READ, MAP_SHARED, fd, (off_t)offset);
  if (ring != MAP_FAILED) {
    size = ring->size;
    bool good = ring->magic == RING_MAGIC && size >= BURST && size <= MAX_RING_BYTES && (size & (size - 1)) == 0 &&
                (uint64_t)st.st_size - offset >= ring_bytes(size);
    munmap(ring, EMU_PAGE);
    ring = good ? mmap(NULL, ring_bytes(size), PROT_READ, MAP_SHARED, fd, (off_t)offset) : MAP_FAILED;
  }
  close(fd);
  if (ring == MAP_FAILED) return;
  l->in = ring;
  l->in_size = size;
}

/* Its QPs are gone, and the peer has read what they sent, or will not. */
static void remove_unused(void) {
  struct emu_link *l, *next;
  for (l = LIST_FIRST(&links); l; l = next) {
    next = LIST_NEXT(l, link);
    bool unread = l->in && !l->is_self && atomic_load(&l->in->consumed) != l->tail;
    if (l->users || ((unread || l->is_senders) && emu_link_is_alive(l))) continue;
    if (l->slot < EMU_SLOTS) atomic_store(&emu_own.segment->rings[l->slot].incarnation, 0);
    (void)fallocate(emu_own.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)l->out_at,
                    (off_t)ring_bytes(l->out_size));
    unmap_link(l);
  }
}

static struct emu_link *new_link(uint32_t slot, bool is_senders) {
  struct emu_link *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->slot = slot;
  LIST_INSERT_HEAD(&links, l, link);
  l->is_self = slot == emu_own.slot;
  l->peer = l->is_self ? emu_own.segment : emu_segment_map(slot, NULL);
  if (l->peer) l->incarnation = l->peer->incarnation;
  l->is_senders = is_senders;
  /* What is in the peer's ring already was for QPs that are no more, unless it is for any. */
  if (l->peer && !l->is_self && ring_from(l)) map_in(l, ring_from(l));
  if (l->in && !is_senders) l->head = atomic_load(&l->in->tail);
  if (!l->peer || !make_out(l)) {
    unmap_link(l);
    return NULL;
  }
  if (l->is_self) {
    l->in = l->out;
    l->in_size = l->out_size;
  }
  return l;
}

/* What was sent arrives, though the sender ends: a peer that lives and has not even found the ring yet gets time. */
static void let_peers_read(void) {
  const struct timespec tick = {.tv_nsec = 1000000};
  for (int ms = 0; ms < LAST_READ_MS; ms++) {
    bool unread = false;
    struct emu_link *l;
    LIST_FOREACH(l, &links, link) {
      if (l->is_self || l->broken || !ring_from(l)) continue;
      if (ring_from(l) != l->in_at) map_in(l, ring_from(l));
      unread |= l->in && atomic_load(&l->in->consumed) != l->tail && emu_link_is_alive(l);
    }
    if (!unread) return;
    nanosleep(&tick, NULL);
  }
}

void emu_wire_close(void) {
  if (!emu_own.segment) return;
  emu_wire_flush();
  let_peers_read();
  for (struct emu_link *l; (l = LIST_FIRST(&links)) != NULL;) unmap_link(l);
  emu_segment_close(true);
}

void emu_wire_exit(void) {
  if (!emu_own.segment) return;
  emu_wire_flush();
  let_peers_read();
  emu_segment_unlink();
}

struct emu_link *emu_link_get(uint32_t slot) {
  if (!emu_own.segment || slot >= EMU_SLOTS) return NULL;
  struct emu_link *l = find_link(slot);
  if (!l) {
    remove_unused();
    l = new_link(slot, false);
  }
  if (l) l->users++;
  return l;
}

struct emu_link *emu_link_keep(struct emu_link *l, uint32_t slot) {
  if (l && l->slot == slot && !has_ended(l)) return l;
  emu_link_put(l);
  return emu_link_get(slot);
}

void emu_link_put(struct emu_link *l) {
  if (!l) return;
  l->users--;
}

/* ---- packets out ---------------------------------------------------------- */

bool emu_link_has_memory(struct emu_link *l) {
  const uint64_t next = l->tail + 2 * (sizeof(struct emu_packet) + EMU_MAX_PACKET + RECORD); /* and a gap at the end */
  if (l->reserved == l->out_size || next <= l->reserved) return true;
  if (!reserve(l->out_at + sizeof(struct ring) + l->reserved, RESERVE)) return false;
  l->reserved += RESERVE;
  return true;
}

struct emu_packet *emu_link_reserve(struct emu_link *l, uint32_t header, uint32_t payload) {
  uint32_t size = (header + payload + RECORD - 1) & ~(RECORD - 1);
  uint64_t at = l->tail & (l->out_size - 1), pad = 0;
  if (l->out_size - at < size) pad = l->out_size - at;
  if (l->tail + pad + size - l->consumed > l->out_size) {
    if (l->in) {
      uint64_t consumed = atomic_load_explicit(&l->in->consumed, memory_order_acquire);
      if (consumed <= l->tail && l->tail - consumed <= l->out_size) l->consumed = consumed;
    }
    if (l->tail + pad + size - l->consumed > l->out_size) return NULL;
  }
  if (pad) {
    struct emu_packet *p = (struct emu_packet *)(void *)(l->out->data + at);
    p->size = (uint32_t)pad;
    p->op = EMU_OP_PAD;
    l->tail += pad;
    at = 0;
  }
  struct emu_packet *p = (struct emu_packet *)(void *)(l->out->data + at);
  p->size = size;
  p->payload = payload;
  return p;
}

static void publish(struct emu_link *l) {
  if (l->published == l->tail) return;
  l->published = l->tail;
  atomic_store(&l->out->tail, l->tail);
  if (!atomic_load(&l->peer->sleeping)) return;
  atomic_fetch_add(&l->peer->doorbell, 1);
  syscall(SYS_futex, &l->peer->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void emu_link_commit(struct emu_link *l, struct emu_packet *p) {
  l->tail += p->size;
  if (l->tail - l->published >= l->out_size / 8) publish(l); /* the peer works on it while more is written */
}

uint64_t emu_link_position(const struct emu_link *l) { return l->tail; }

void emu_wire_flush(void) {
  struct emu_link *l;
  LIST_FOREACH(l, &links, link) publish(l);
}

bool emu_link_is_silent(struct emu_link *l, uint64_t position, uint64_t *answers) {
  if (!l || !emu_link_is_alive(l)) return true;
  if (!l->is_self && (!l->in || ring_from(l) != l->in_at)) return true; /* it has no QP that expects anything */
  if (!*answers) {
    if (atomic_load(&l->in->answered) < position) return false;
    *answers = atomic_load(&l->in->tail); /* they were published before that was */
  }
  return l->broken || l->head >= *answers || *answers > atomic_load(&l->in->tail); /* the last: of a ring given up */
}

/* ---- packets in ----------------------------------------------------------- */

/* The header, copied and checked; false: the peer writes nonsense, and is not read any more. */
static bool read_packet(struct emu_link *l, uint64_t available, struct emu_packet *p) {
  uint64_t at = l->head & (l->in_size - 1);
  const char *record = l->in->data + at;
  uint64_t room = l->in_size - at;
  p->size = *(const volatile uint32_t *)(const void *)record;
  if (p->size < RECORD || p->size % RECORD || p->size > room || p->size > available) return false;
  p->op = ((const volatile struct emu_packet *)(const volatile void *)record)->op;
  if (p->op > EMU_OP_UD) return false;
  if (p->op == EMU_OP_PAD) return true;
  size_t header = p->op == EMU_OP_UD ? sizeof *p : EMU_HEADER;
  if (p->size < header) return false;
  uint32_t size = p->size;
  uint8_t op = p->op;
  emu_move(p, record, header);
  p->size = size;
  p->op = op;
  return p->payload <= EMU_MAX_PACKET && header + p->payload <= size;
}

static void consume(struct emu_link *l) {
  if (l->head_published == l->head) return;
  l->head_published = l->head;
  atomic_store_explicit(&l->out->consumed, l->head, memory_order_release);
}

static bool receive_from(struct emu_link *l, void (*deliver)(const struct emu_packet *packet, const char *payload)) {
  uint64_t offset = l->is_self ? 0 : ring_from(l);
  if (offset && offset != l->in_at) map_in(l, offset);
  if (!l->in) return false;
  uint64_t tail = atomic_load_explicit(&l->in->tail, memory_order_acquire), end = l->head + BURST;
  if (tail == l->head || l->broken) return false;
  if (tail - l->head > l->in_size) {
    l->broken = true;
    return false;
  }
  while (l->head < tail && l->head < end) {
    struct emu_packet packet;
    if (!read_packet(l, tail - l->head, &packet)) {
      fprintf(stderr, "rail-emu: the process of slot %u writes packets that make no sense; they are ignored from here "
              "on\n", l->slot);
      l->broken = true;
      break;
    }
    size_t header = packet.op == EMU_OP_UD ? sizeof packet : EMU_HEADER;
    emu.reading = l->head;
    if (packet.op != EMU_OP_PAD) deliver(&packet, l->in->data + (l->head & (l->in_size - 1)) + header);
    l->head += packet.size;
    if (l->head - l->head_published >= l->in_size / 8) consume(l);
  }
  consume(l);
  return true;
}

static uint32_t rings_seen;

static bool has_new_rings(void) { return emu.ndatagram_qps && atomic_load(&emu_own.segment->new_rings) != rings_seen; }

/* Datagrams come from processes that this one has no link to yet: it gets one to each that has made a ring. */
static void meet_senders(void) {
  rings_seen = atomic_load(&emu_own.segment->new_rings);
  for (uint32_t i = 0; i < EMU_SLOTS / 32; i++) {
    uint32_t bits = atomic_exchange(&emu_own.segment->senders[i], 0);
    for (uint32_t bit = 0; bits; bit++, bits >>= 1)
      if ((bits & 1) && !find_link(i * 32 + bit)) (void)new_link(i * 32 + bit, true);
  }
}

bool emu_wire_receive(void (*deliver)(const struct emu_packet *packet, const char *payload)) {
  struct emu_link *l;
  bool any = false;
  if (!emu_own.segment) return false;
  if (has_new_rings()) meet_senders();
  LIST_FOREACH(l, &links, link) any |= receive_from(l, deliver);
  return any;
}

static void not_answered(const struct emu_qp *qp, uint64_t at) {
  if (qp->ex.qp_base.qp_type == IBV_QPT_RC && qp->link && at < qp->link->answered) qp->link->answered = at;
}

/* Up to the oldest request of a peer that is held back, or whose answer has not left. */
void emu_wire_answered(void (*each_held)(void (*fn)(const struct emu_qp *qp, uint64_t at))) {
  struct emu_link *l;
  struct emu_qp *qp;
  LIST_FOREACH(l, &links, link) l->answered = l->head;
  TAILQ_FOREACH(qp, &emu.run, run)
    if (qp->responses_n) not_answered(qp, qp->responses[qp->responses_first].asked_at);
  each_held(not_answered);
  LIST_FOREACH(l, &links, link)
    if (l->in && l->published == l->tail &&
        atomic_load_explicit(&l->out->answered, memory_order_relaxed) != l->answered)
      atomic_store_explicit(&l->out->answered, l->answered, memory_order_release);
}

bool emu_wire_has_input(void) {
  struct emu_link *l;
  if (has_new_rings()) return true;
  LIST_FOREACH(l, &links, link) {
    uint64_t offset = l->is_self ? 0 : ring_from(l);
    if (offset && offset != l->in_at) return true;
    if (l->in && !l->broken && atomic_load(&l->in->tail) != l->head) return true;
  }
  return false;
}
