/* SPDX-License-Identifier: Apache-2.0
 * The plan of a stream of messages, and a flow: the state machine of one end that sends or receives and checks them. */
#include "kit/kit_traffic.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "kit/kit_call_trace.h"
#include "kit/kit_ensure.h"

enum { SHIFTS = 8192, CANARY = 64, CANARY_BYTE = 0xc5, SCRIBBLE = 0x3d };

static uint64_t mix64(uint64_t x) { return kit_rng_next(&(struct kit_rng){x}); }

static uint64_t draw(const struct kit_traffic_plan *plan, uint32_t conn, uint64_t message, uint64_t what) {
  return mix64(mix64(plan->seed ^ what) ^ ((uint64_t)conn << 40) ^ message);
}

bool kit_traffic_prepare(struct kit_traffic_plan *plan) {
  plan->text_size = (plan->max + SHIFTS * 8 + 4095) / 4096 * 4096;
  plan->text = mmap(NULL, plan->text_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (plan->text == MAP_FAILED) {
    plan->text = NULL;
    fprintf(stderr, "traffic: no memory for %zu bytes\n", plan->text_size);
    return false;
  }
  uint64_t base = mix64(plan->seed);
  for (size_t i = 0; i < plan->text_size / 8; i++) {
    uint64_t word = mix64(base + i);
    memcpy(plan->text + i * 8, &word, 8);
  }
  return true;
}

void kit_traffic_release(struct kit_traffic_plan *plan) {
  if (plan->text) munmap(plan->text, plan->text_size);
  plan->text = NULL;
}

static size_t traffic_size(const struct kit_traffic_plan *plan, uint32_t conn, uint64_t message) {
  uint64_t r = draw(plan, conn, message, 1), max = plan->max;
  switch (plan->mix) {
  case KIT_TRAFFIC_FIXED: return max;
  case KIT_TRAFFIC_SMALL: return r % (max < 4096 ? max + 1 : 4097);
  case KIT_TRAFFIC_LARGE: return max / 2 + r % (max - max / 2 + 1);
  case KIT_TRAFFIC_MIXED: break;
  }
  unsigned bits = 0;
  while (bits < 62 && (1ull << bits) < max) bits++;
  if (r % 16 == 0) return 0;
  if (r % 16 == 1) return max;
  uint64_t size = (r >> 16) & ((1ull << ((r >> 8) % (bits + 1))) * 2 - 1); /* every magnitude is as likely */
  return size > max ? size % (max + 1) : size;
}

static const uint8_t *content(const struct kit_traffic_plan *plan, uint32_t conn, uint64_t message) {
  return plan->text + draw(plan, conn, message, 2) % SHIFTS * 8;
}

/* What an END message looks like: no planned message of that number does. */
static size_t end_size(const struct kit_traffic_plan *plan, uint32_t conn, uint64_t message) {
  return traffic_size(plan, conn, message) == 3 ? 4 : 3;
}
static const uint8_t end_text[4] = {'E', 'N', 'D', '!'};

/* From a message to the next multiple of the block, at most plan->group, at random. */
static int group_of(const struct kit_flow *f, uint64_t first) {
  int room = KIT_TRAFFIC_BLOCK - (int)(first % KIT_TRAFFIC_BLOCK);
  int n = 1 + (int)(draw(f->plan, f->conn, first, 3) % (uint64_t)f->plan->group);
  return n < room ? n : room;
}

rail_result_t kit_flow_open(struct kit_flow *f, const struct kit_traffic_plan *plan, struct rail_net *net, void *comm,
                            bool sends, uint32_t conn) {
  *f = (struct kit_flow){.plan = plan, .net = net, .comm = comm, .sends = sends, .conn = conn, .end = UINT64_MAX};
  int each = sends ? 1 : plan->group;
  f->stride = (plan->max + 2 * CANARY + 127) / 128 * 128;
  f->memory_size = f->stride * (size_t)(plan->window * each);
  f->slots = calloc((size_t)plan->window, sizeof *f->slots);
  f->memory = mmap(NULL, f->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (f->memory == MAP_FAILED) f->memory = NULL;
  if (!f->slots || !f->memory) {
    kit_flow_free(f);
    return RAIL_SYSTEM_ERROR;
  }
  for (int i = 0; i < plan->window; i++) f->slots[i].data = f->memory + f->stride * (size_t)(i * each);
  f->head_ns = rail_now_ns();
  bool text = sends && plan->direct;
  kit_call_begin(KIT_CALL_REG_MR);
  rail_result_t r = rail_net_reg_mr(net, comm, text ? plan->text : f->memory,
                                    text ? plan->text_size : f->memory_size, RAIL_PTR_HOST, &f->mh);
  kit_call_end();
  return r;
}

static void fail(struct kit_flow *f, rail_result_t error, const char *call) {
  if (f->error != RAIL_OK) return;
  f->error = error;
  f->error_call = call;
}

__attribute__((format(printf, 3, 4))) static void wrong(struct kit_flow *f, uint64_t message, const char *fmt, ...) {
  va_list ap;
  if (f->wrong++ > 0) return;
  int n = snprintf(f->why, sizeof f->why, "message %llu: ", (unsigned long long)message);
  va_start(ap, fmt);
  vsnprintf(f->why + n, sizeof f->why - (size_t)n, fmt, ap);
  va_end(ap);
}

/* ---- sending ---- */

static bool post_send(struct kit_flow *f, struct kit_traffic_slot *s) {
  const struct kit_traffic_plan *plan = f->plan;
  bool end = f->next >= f->end;
  if (end && f->next > (f->end | (KIT_TRAFFIC_BLOCK - 1))) return false;
  size_t size = end ? end_size(plan, f->conn, f->next) : traffic_size(plan, f->conn, f->next);
  const uint8_t *from = end ? end_text : content(plan, f->conn, f->next);
  uint8_t *data = s->data;
  if (!plan->direct || end) {
    if (!s->filled || s->first != f->next) memcpy(data, from, size);
    s->filled = true;
    s->first = f->next;
  } else {
    data = (uint8_t *)(uintptr_t)from;
  }
  s->request = NULL;
  /* An END lies outside the text's registration; a plugin of host memory takes NULL as well. */
  kit_call_begin(KIT_CALL_ISEND);
  rail_result_t r = rail_net_isend(f->net, f->comm, data, size, (int)(f->next % KIT_TRAFFIC_BLOCK),
                                   plan->direct && end ? NULL : f->mh, &s->request);
  kit_call_end();
  if (r != RAIL_OK) fail(f, r, "isend");
  if (r != RAIL_OK || !s->request) return false;
  s->filled = false;
  s->first = f->next++;
  s->n = 1;
  return true;
}

static void sent(struct kit_flow *f, struct kit_traffic_slot *s, const int *sizes) {
  bool end = s->first >= f->end;
  size_t size = end ? end_size(f->plan, f->conn, s->first) : traffic_size(f->plan, f->conn, s->first);
  if (sizes[0] != (int)size) wrong(f, s->first, "a send of %zu bytes was reported as %d", size, sizes[0]);
  /* The buffer is the caller's again: what still needs it sends this. */
  if (!f->plan->direct) memset(s->data, SCRIBBLE, size);
  if (end) return;
  f->bytes += size;
  f->messages++;
}

/* ---- receiving ---- */

static bool post_recv(struct kit_flow *f, struct kit_traffic_slot *s) {
  void *data[KIT_TRAFFIC_BLOCK], *mhs[KIT_TRAFFIC_BLOCK];
  size_t sizes[KIT_TRAFFIC_BLOCK];
  int tags[KIT_TRAFFIC_BLOCK];
  if (f->end != UINT64_MAX && f->next > (f->end | (KIT_TRAFFIC_BLOCK - 1))) return false;
  int n = group_of(f, f->next);
  for (int i = 0; i < n; i++) { /* last message first: tags decide, not the place in the group */
    uint64_t message = f->next + (uint64_t)(n - 1 - i);
    size_t size = traffic_size(f->plan, f->conn, message);
    data[i] = s->data + f->stride * (size_t)i;
    sizes[i] = draw(f->plan, f->conn, message, 4) % 4 == 0 && size >= 4 ? size : f->plan->max + CANARY;
    tags[i] = (int)(message % KIT_TRAFFIC_BLOCK);
    mhs[i] = f->mh;
    if (!s->filled || s->first != f->next) memset((uint8_t *)data[i] + size, CANARY_BYTE, CANARY);
  }
  s->filled = true;
  s->first = f->next;
  s->request = NULL;
  kit_call_begin(KIT_CALL_IRECV);
  rail_result_t r = rail_net_irecv(f->net, f->comm, n, data, sizes, tags, mhs, &s->request);
  kit_call_end();
  if (r != RAIL_OK) fail(f, r, "irecv");
  if (r != RAIL_OK || !s->request) return false;
  s->filled = false;
  s->first = f->next;
  s->n = n;
  f->next += (uint64_t)n;
  return true;
}

static void check(struct kit_flow *f, uint64_t message, const uint8_t *data, int got) {
  size_t size = traffic_size(f->plan, f->conn, message), end = end_size(f->plan, f->conn, message);
  if (got == (int)end && memcmp(data, end_text, end) == 0) {
    if (message < f->end) f->end = message;
    return;
  }
  f->messages++;
  if (got != (int)size) {
    wrong(f, message, "%d bytes arrived of %zu", got, size);
    return;
  }
  f->bytes += size;
  const uint8_t *expected = content(f->plan, f->conn, message);
  if (memcmp(data, expected, size) != 0) {
    size_t at = 0;
    while (data[at] == expected[at]) at++;
    size_t last = size - 1;
    while (data[last] == expected[last]) last--;
    wrong(f, message, "of %zu bytes the first wrong is %zu (%02x, expected %02x), the last %zu", size, at, data[at],
          expected[at], last);
    return;
  }
  for (size_t i = 0; i < CANARY; i++)
    if (data[size + i] != CANARY_BYTE) {
      wrong(f, message, "of %zu bytes: byte %zu, beyond its end, was written", size, size + i);
      return;
    }
}

static void received(struct kit_flow *f, struct kit_traffic_slot *s, const int *sizes) {
  for (int i = s->n - 1; i >= 0; i--) /* in the order of sending */
    check(f, s->first + (uint64_t)(s->n - 1 - i), s->data + f->stride * (size_t)i, sizes[i]);
}

/* ---- both ---- */

static rail_result_t test_call(struct kit_flow *f, void *request, int *done, int *sizes) {
  kit_call_begin(KIT_CALL_TEST);
  rail_result_t r = rail_net_test(f->net, request, done, sizes);
  kit_call_end();
  return r;
}

static bool test_slot(struct kit_flow *f, struct kit_traffic_slot *s) {
  int done = 0x5a5a5a5a, sizes[KIT_TRAFFIC_BLOCK];
  rail_result_t r = test_call(f, s->request, &done, sizes);
  if (r != RAIL_OK) { /* others may be complete all the same, and are asked */
    fail(f, r, "test");
    return false;
  }
  if (done != 0 && done != 1) wrong(f, s->first, "test left *done at %#x", (unsigned)done);
  if (done != 1) return false;
  s->request = NULL;
  if (f->sends) sent(f, s, sizes);
  else received(f, s, sizes);
  return true;
}

static void moved(struct kit_flow *f) {
  uint64_t now = rail_now_ns(), head = f->next;
  for (int i = 0; i < f->plan->window; i++)
    if (f->slots[i].request && f->slots[i].first < head) head = f->slots[i].first;
  if (head == f->head) return;
  if (now - f->head_ns > f->pause_ns) {
    f->pause_ns = now - f->head_ns;
    f->pause_end_ns = now;
  }
  f->head = head;
  f->head_ns = now;
}

/* All that matters is done: for a sender what it posted, for a receiver what comes up to the END's block. */
static bool complete(const struct kit_flow *f) {
  if (f->end == UINT64_MAX) return false;
  uint64_t last = f->end | (KIT_TRAFFIC_BLOCK - 1);
  if (f->next <= last) return false;
  for (int i = 0; i < f->plan->window; i++)
    if (f->slots[i].request && f->slots[i].first <= last) return false;
  return true;
}

static struct kit_traffic_slot *oldest(struct kit_flow *f) {
  struct kit_traffic_slot *found = NULL;
  for (int i = 0; i < f->plan->window; i++) {
    struct kit_traffic_slot *s = &f->slots[i];
    if (s->request && (!found || s->first < found->first)) found = s;
  }
  return found;
}

static int test_all(struct kit_flow *f) {
  int finished = 0, window = f->plan->window;
  if (f->plan->oldest_only) {
    for (struct kit_traffic_slot *s; (s = oldest(f)) && test_slot(f, s);) finished++;
    return finished;
  }
  f->newest_first = !f->newest_first;
  for (int i = 0; i < window; i++) {
    struct kit_traffic_slot *s = &f->slots[f->newest_first ? window - 1 - i : i];
    if (s->request && test_slot(f, s)) finished++;
  }
  return finished;
}

static void post_all(struct kit_flow *f) {
  for (int i = 0; i < f->plan->window && !f->hold; i++) {
    if (f->slots[i].request) continue;
    if (!(f->sends ? post_send(f, &f->slots[i]) : post_recv(f, &f->slots[i]))) break;
  }
}

int kit_flow_step(struct kit_flow *f) {
  if (f->error != RAIL_OK || f->finished) return 0;
  int finished = test_all(f);
  if (f->error == RAIL_OK && !complete(f)) post_all(f);
  /* The call that met the error may have completed others before, which had been asked already. */
  if (f->error != RAIL_OK) finished += test_all(f);
  if (finished > 0) moved(f);
  if (complete(f)) { /* receives beyond the END fail when the sender is gone: no one waits for them */
    f->finished = true;
    f->error = RAIL_OK;
  }
  return finished;
}

void kit_flow_end(struct kit_flow *f) {
  if (!f->sends || f->end != UINT64_MAX) return;
  f->end = f->next;
  for (int i = 0; i < f->plan->window; i++) f->slots[i].filled = false; /* what was about to go is an END now */
}

void kit_flow_test_after_error(struct kit_flow *f) {
  for (int i = 0; i < f->plan->window; i++) {
    int done = 0, sizes[KIT_TRAFFIC_BLOCK];
    if (!f->slots[i].request) continue;
    rail_result_t r = test_call(f, f->slots[i].request, &done, sizes);
    if (r == RAIL_OK && done) f->slots[i].request = NULL;
  }
}

rail_result_t kit_flow_dereg(struct kit_flow *f) {
  kit_call_begin(KIT_CALL_DEREG_MR);
  rail_result_t r = f->mh ? rail_net_dereg_mr(f->net, f->comm, f->mh) : RAIL_OK;
  kit_call_end();
  f->mh = NULL;
  return r;
}

void kit_flow_scribble(struct kit_flow *f) {
  size_t n = f->memory_size;
  if (f->plan->direct && f->sends) memset(f->plan->text, SCRIBBLE, f->plan->text_size);
  else memset(f->memory, SCRIBBLE, n);
}

bool kit_flow_untouched(const struct kit_flow *f) {
  for (size_t i = 0; i + 8 <= f->memory_size; i += 8) {
    uint64_t word;
    memcpy(&word, f->memory + i, 8);
    if (word != 0x0101010101010101ull * SCRIBBLE) return false;
  }
  return true;
}

void kit_flow_free(struct kit_flow *f) {
  if (f->memory) munmap(f->memory, f->memory_size);
  free(f->slots);
  f->memory = NULL;
  f->slots = NULL;
}
