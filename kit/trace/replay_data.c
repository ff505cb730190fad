/* SPDX-License-Identifier: Apache-2.0
 * Memory and contents of messages. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/compiler.h"
#include "kit/kit_mem.h"
#include "kit/trace/replay_run.h"

#define MAX_REPORTED 20 /* differences are reported in full, the rest is counted */
#define TEXT_BYTES (8u << 20) /* a message longer than this repeats it */
#define TEXT_STRIDE 4099      /* odd: neighbours in number differ at every place */

void replay_differs(struct replay *r, uint64_t *counter, const char *fmt, ...) {
  char text[500];
  va_list ap;
  ++*counter;
  if (r->reported++ >= MAX_REPORTED) return;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  kit_note(r->self, "differs: %s%s", text, r->reported == MAX_REPORTED ? "; more are only counted" : "");
}

bool replay_text_make(struct replay *r) {
  r->text = malloc(TEXT_BYTES);
  if (r->text) kit_pattern_fill(r->text, TEXT_BYTES, kit_process_job(r->self)->seed);
  return r->text != NULL;
}

/* The same at both ends: the sending end's file, comm and message. */
static size_t place(const struct replay *r, const struct replay_end *end, uint32_t text) {
  bool sends = end->plan->made_by == RAIL_TRACE_CONNECT;
  uint64_t file = (uint64_t)(sends ? r->plan.own : end->plan->peer_file);
  uint64_t comm = sends ? (uint64_t)(end->plan - r->plan.files[r->plan.own].comms) : end->plan->peer;
  uint64_t x = (file << 40 ^ comm << 20) * 0x9e3779b97f4a7c15ull + (uint64_t)text * TEXT_STRIDE;
  return (size_t)(x % TEXT_BYTES);
}

/* Goes through [0, size) of a message in stretches of the text. */
struct stretch {
  size_t at;
  uint64_t done, size;
};
static size_t stretch_next(struct stretch *s) {
  return (size_t)RAIL_MIN(s->size - s->done, (uint64_t)(TEXT_BYTES - s->at));
}
static void stretch_step(struct stretch *s, size_t n) {
  s->done += n;
  s->at = (s->at + n) % TEXT_BYTES;
}

void replay_fill(struct replay *r, const struct replay_end *end, const struct replay_msg *m, uint8_t *data) {
  uint32_t own = (uint32_t)(m - end->plan->msgs);
  if (!r->check || m->text != own) return; /* it lies over one in flight, whose contents it has */
  struct stretch s = {.at = place(r, end, own), .size = m->size};
  for (size_t n; (n = stretch_next(&s)) > 0; stretch_step(&s, n)) memcpy(data + s.done, r->text + s.at, n);
}

void replay_scrub(struct replay *r, uint8_t *data, uint64_t size) {
  if (r->check && size) memset(data, 0xa5, size);
}

static void check_text(struct replay *r, const struct replay_end *end, const struct replay_msg *m, uint32_t number,
                       const uint8_t *data, uint64_t got) {
  struct stretch s = {.at = place(r, end, m->text), .size = RAIL_MIN(got, m->size)};
  r->result.checked++;
  for (size_t n; (n = stretch_next(&s)) > 0; stretch_step(&s, n)) {
    if (memcmp(data + s.done, r->text + s.at, n) == 0) continue;
    size_t i = 0;
    while (data[s.done + i] == r->text[s.at + i]) i++;
    replay_differs(r, &r->result.wrong_bytes,
                   "comm %" PRIu64 ", message %u of %" PRIu64 " bytes: byte %" PRIu64 " is %#04x, sent was %#04x",
                   end->plan->id, number + 1, m->size, s.done + i, data[s.done + i], r->text[s.at + i]);
    return;
  }
}

void replay_check(struct replay *r, const struct replay_end *end, const struct replay_live *live) {
  const struct replay_call *call = &end->plan->calls[live->call];
  const struct replay_comm *peer = &r->plan.files[end->plan->peer_file].comms[end->plan->peer];
  for (unsigned int i = 0; i < call->n; i++) {
    const struct replay_slot *slot = &end->plan->slots[call->first + i];
    if (slot->msg == REPLAY_NONE) continue;
    const struct replay_msg *m = &peer->msgs[slot->msg];
    uint64_t got = (uint64_t)RAIL_MAX(0, live->sizes[i]);
    r->result.messages++;
    r->result.bytes += got;
    if (live->sizes[i] < 0 || got != m->size)
      replay_differs(r, &r->result.wrong_sizes, "comm %" PRIu64 ", message %u: size %d, sent were %" PRIu64,
                     end->plan->id, slot->msg + 1, live->sizes[i], m->size);
    else if (r->check && m->text != REPLAY_NONE) check_text(r, end, m, slot->msg, live->data[i], got);
  }
}

/* ---- memory ------------------------------------------------------------ */

/* Pages come when they are touched: a file may claim sizes that its messages never use. */
static uint8_t *map_bytes(uint64_t size) {
  if (size > SIZE_MAX / 2) return NULL;
  void *p = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static bool memory_make(struct replay *r, struct replay_memory *m, const struct replay_end *end, uint64_t size) {
  *m = (struct replay_memory){.data = map_bytes(size), .size = size, .end = end};
  if (!m->data) return false;
  if (r->net.vt->reg_mr(end->comm, m->data, size, RAIL_PTR_HOST, &m->mhandle) == RAIL_OK) return true;
  munmap(m->data, size ? size : 1);
  m->data = NULL;
  return false;
}

struct replay_memory *replay_memory_of(struct replay *r, uint64_t id) {
  int64_t at = kit_trace_map_get(&r->memory_by_id, id);
  return at < 0 || !r->memory[at].data ? NULL : &r->memory[at];
}

bool replay_memory_add(struct replay *r, struct replay_end *end, const struct replay_call *call) {
  if (kit_trace_map_get(&r->memory_by_id, call->value) >= 0) return true; /* an id twice: the first counts */
  if (r->nmemory == r->memory_cap) {
    size_t cap = r->memory_cap ? 2 * r->memory_cap : 64;
    struct replay_memory *grown = realloc(r->memory, cap * sizeof *grown);
    if (!grown) return false;
    r->memory = grown;
    r->memory_cap = cap;
  }
  if (!memory_make(r, &r->memory[r->nmemory], end, call->size)) return false;
  return kit_trace_map_put(&r->memory_by_id, call->value, (uint32_t)r->nmemory++);
}

void replay_memory_drop(struct replay *r, struct replay_memory *m) {
  if (!m->data) return;
  (void)r->net.vt->dereg_mr(m->end->comm, m->mhandle);
  munmap(m->data, m->size ? m->size : 1);
  m->data = NULL;
}

uint8_t *replay_buffer(struct replay *r, struct replay_end *end, const struct rail_trace_buf *buf,
                       struct replay_memory *loose, void **mhandle) {
  struct replay_memory *m = buf->mr ? replay_memory_of(r, buf->mr) : NULL;
  if (m && m->end == end && buf->at <= m->size && buf->size <= m->size - buf->at) {
    *mhandle = m->mhandle;
    return m->data + buf->at;
  }
  if (!loose->data && !memory_make(r, loose, end, buf->size)) return NULL;
  *mhandle = loose->mhandle;
  return loose->data;
}
