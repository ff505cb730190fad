/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * Random traffic over the ofi plugin's data path: messages inside control messages, by writes and by tagged sends,
 * alone and in groups of random tags, sends that come before their buffers, tests in any order, over every kind of
 * provider. Receives are numbered from 256 before the wrap, so each of these crosses it. Each message's bytes and
 * what lies around its buffer are checked. RAIL_TEST_SEED repeats.
 */
#include "test/unit/ofi_rig.h"

#define TAGS 5
#define SLOT (24 * 1024) /* one buffer and the guard behind it */
#define MOST (20 * 1024)
#define GUARD 0xee
#define BUFFERS (OFI_MAX_RECVS * OFI_MAX_GROUP)

struct group { void *request; int n; int tags[8]; uint32_t number[8]; size_t capacity[8]; };
struct sent { void *request; size_t size; };

static struct {
  struct rig rig;
  struct kit_rng rng;
  uint8_t *out, *in; /* out: a slot per send; in: a slot per buffer */
  void *mh_out, *mh_in;
  struct group groups[OFI_MAX_RECVS];
  struct sent sends[BUFFERS];
  uint32_t posted[TAGS], begun[TAGS]; /* buffers, and sends, of each tag */
  unsigned int finished;
} w;

static uint32_t below(uint32_t n) { return kit_rng_below(&w.rng, n); }

/* Size and bytes of the k-th message of a tag: both sides know. */
static uint64_t mix(int tag, uint32_t k) { return ((uint64_t)tag << 32 | k) * 0x9e3779b97f4a7c15u >> 13; }
static size_t size_of(int tag, uint32_t k) {
  static const size_t most[] = {1, 9, 129, 300, 2049, 5000, MOST, 2};
  uint64_t x = mix(tag, k);
  return (size_t)(x >> 3) % most[x & 7];
}
static uint8_t byte_of(int tag, uint32_t k, size_t i) { return (uint8_t)(mix(tag, k) + i * 7 + (i >> 8)); }

static void post_group(void) {
  void *data[8], *mhs[8];
  const struct ofi_recv_comm *rc = w.rig.rc;
  size_t row = rc->next_seq % OFI_MAX_RECVS;
  struct group *g = &w.groups[row];
  if (g->request) return;
  g->n = below(2) ? 1 : 1 + (int)below(8);
  for (int i = 0; i < g->n; i++) {
    uint8_t *slot = w.in + (row * 8 + (size_t)i) * SLOT;
    g->tags[i] = (int)below(TAGS);
    g->number[i] = w.posted[g->tags[i]]++;
    g->capacity[i] = size_of(g->tags[i], g->number[i]) + (below(2) ? 0 : below(1000));
    memset(slot, GUARD, g->capacity[i] + 64);
    data[i] = slot;
    mhs[i] = w.mh_in;
  }
  CHECK_OK(net->irecv(w.rig.rc, g->n, data, g->capacity, g->tags, mhs, NULL, &g->request));
  if (!g->request) /* no room: later another */
    for (int i = 0; i < g->n; i++) w.posted[g->tags[i]]--;
}

/* A few may be sent ahead of their buffers: they go on credit, or are "not now". */
static void begin_send(void) {
  int tag = (int)below(TAGS);
  unsigned int slot = below(BUFFERS);
  struct sent *s = &w.sends[slot];
  uint32_t k = w.begun[tag];
  uint8_t *data = w.out + (size_t)slot * SLOT;
  if (s->request || k > w.posted[tag] + 3) return;
  s->size = size_of(tag, k);
  for (size_t i = 0; i < s->size; i++) data[i] = byte_of(tag, k, i);
  CHECK_MSG(net->isend(w.rig.sc, data, s->size, tag, w.mh_out, NULL, &s->request) == RAIL_OK, "%s", log_lines);
  if (s->request) w.begun[tag]++;
}

static void test_send(void) {
  unsigned int slot = below(BUFFERS);
  struct sent *s = &w.sends[slot];
  int size = -1;
  if (!s->request || !rig_done(s->request, &size)) return;
  CHECK_INT(size, s->size);
  memset(w.out + (size_t)slot * SLOT, 0x11, s->size); /* the caller's again: what is not read yet is lost */
  s->request = NULL;
}

static void check_buffer(const struct group *g, int i, size_t size) {
  const uint8_t *slot = w.in + ((size_t)(g - w.groups) * 8 + (size_t)i) * SLOT;
  int tag = g->tags[i];
  uint32_t k = g->number[i];
  CHECK_MSG(size == size_of(tag, k), "message %u of tag %d has %zu bytes, expected %zu", k, tag, size, size_of(tag, k));
  for (size_t b = 0; b < size; b++)
    CHECK_MSG(slot[b] == byte_of(tag, k, b), "message %u of tag %d, %zu bytes: byte %zu is wrong", k, tag, size, b);
  for (size_t b = size; b < g->capacity[i] + 64; b++)
    CHECK_MSG(slot[b] == GUARD, "message %u of tag %d, %zu bytes: byte %zu behind it was written", k, tag, size, b);
}

static void test_group(void) {
  struct group *g = &w.groups[below(OFI_MAX_RECVS)];
  int sizes[8] = {0};
  if (!g->request || !rig_done(g->request, sizes)) return;
  for (int i = 0; i < g->n; i++) check_buffer(g, i, (size_t)sizes[i]);
  g->request = NULL;
  w.finished += (unsigned int)g->n;
}

static void step(void) {
  switch (below(8)) {
    case 0: post_group(); break;
    case 1:
    case 2:
    case 3: begin_send(); break;
    case 4:
    case 5: test_send(); break;
    default: test_group();
  }
}

/* The next message of a tag, if there is room for it. Where a provider has room for few receives, a buffer is granted
 * when those before it are done: no tag may be insisted on. */
static void send_next(int tag) {
  struct sent *s = w.sends;
  while (s < w.sends + BUFFERS && s->request) s++;
  if (s == w.sends + BUFFERS) return;
  uint8_t *data = w.out + (size_t)(s - w.sends) * SLOT;
  s->size = size_of(tag, w.begun[tag]);
  for (size_t i = 0; i < s->size; i++) data[i] = byte_of(tag, w.begun[tag], i);
  CHECK_MSG(net->isend(w.rig.sc, data, s->size, tag, w.mh_out, NULL, &s->request) == RAIL_OK, "%s", log_lines);
  if (s->request) w.begun[tag]++;
}

static bool is_left(void) {
  for (int i = 0; i < TAGS; i++)
    if (w.begun[i] < w.posted[i]) return true;
  for (int i = 0; i < BUFFERS; i++)
    if (w.sends[i].request) return true;
  for (int i = 0; i < OFI_MAX_RECVS; i++)
    if (w.groups[i].request) return true;
  return false;
}

/* What is posted and not sent is sent, and all is tested. */
static void drain(void) {
  RIG_UNTIL(!is_left(), {
    for (int tag = 0; tag < TAGS; tag++)
      if (w.begun[tag] < w.posted[tag]) send_next(tag);
    for (int i = 0; i < BUFFERS / 4; i++) test_send();
    for (int i = 0; i < OFI_MAX_RECVS; i++) test_group();
    rig_poll(w.rig.sc);
    rig_poll(w.rig.rc);
  });
}

static void run(const char *offers, int nics_s, int nics_r, int messages, const char *behaviour) {
  unsigned int most = (unsigned int)RAIL_MAX(kit_scaled(messages), 3000);
  memset(&w, 0, sizeof w);
  kit_rng_start(&w.rng);
  rig_start(offers);
  ofi_params.min_part = 4096;
  rig_open(&w.rig, nics_s, nics_r);
  fake_script(behaviour);
  w.out = malloc((size_t)BUFFERS * SLOT);
  w.in = malloc((size_t)BUFFERS * SLOT);
  CHECK(w.out && w.in);
  w.mh_out = rig_reg(w.rig.sc, w.out, (size_t)BUFFERS * SLOT);
  w.mh_in = rig_reg(w.rig.rc, w.in, (size_t)BUFFERS * SLOT);
  uint64_t end = rail_deadline_in_ms(RIG_PATIENCE_MS);
  for (unsigned int before = 0, steps = 1; w.finished < most; steps++) {
    step();
    if (steps % 65536) continue;
    if (w.finished != before) end = rail_deadline_in_ms(RIG_PATIENCE_MS);
    before = w.finished;
    CHECK_MSG(!rail_deadline_passed(end), "stuck: %u of %u messages after %u steps", w.finished, most, steps);
  }
  const struct ofi_recv_comm *rc = w.rig.rc;
  CHECK(OFI_FIRST_SEQ > 0xfffffe00u && rc->next_seq < OFI_FIRST_SEQ); /* the numbers have wrapped */
  drain();
  CHECK_OK(net->dereg_mr(w.rig.sc, w.mh_out));
  CHECK_OK(net->dereg_mr(w.rig.rc, w.mh_in));
  free(w.out);
  free(w.in);
  rig_close(&w.rig);
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
  rig_end();
}

static const char storm[] = "eagain=20 late=10 reorder=40 overtake=40 eager=1000";

TEST(a_hundred_thousand_written) { run("nic=fake0", 1, 1, 100000, "late=2 reorder=10 overtake=20"); }
TEST(a_hundred_thousand_tagged) { run("nic=fake0 no=rma", 1, 1, 100000, "late=2 reorder=10 overtake=20"); }
TEST(written_in_a_storm) { run("nic=fake0", 1, 1, 20000, storm); }
TEST(written_and_injected) { run("nic=fake0 prov=tcp;ofi_rxm inject=4096", 1, 1, 10000, storm); }
TEST(written_without_order) { run("nic=fake0 no=saw", 1, 1, 20000, storm); }
TEST(written_in_pieces) { run("nic=fake0 no=saw,sas", 1, 1, 20000, "torn=1000 overtake=70 late=4"); }
TEST(tagged_in_a_storm) { run("nic=fake0 no=rma", 1, 1, 20000, storm); }
TEST(tagged_without_order) { run("nic=fake0 no=rma,sas", 1, 1, 20000, "overtake=70 late=4"); }
TEST(short_queues) {
  run("nic=fake0 tx_size=8 rx_size=8", 1, 1, 10000, "burst=3");
  run("nic=fake0 no=rma tx_size=4 rx_size=16", 1, 1, 10000, "burst=3");
}
TEST(strict_provider) {
  run("nic=fake0 mode=context2 mr_mode=local,virt_addr,allocated,prov_key,endpoint inject=0 cq_data=0 iov=2", 1, 1,
      10000, "late=5");
  run("nic=fake0 mode=context2 mr_mode=local,allocated inject=0 cq_data=0 iov=1 no=rma", 1, 1, 10000, "late=5");
}
TEST(several_nics) {
  static const char *const kinds[] = {"", "no=saw", "no=rma"};
  for (size_t i = 0; i < RAIL_COUNT_OF(kinds); i++) {
    char offers[128];
    snprintf(offers, sizeof offers, "net=one %s nic=fake0 nic=fake1 nic=fake2", kinds[i]);
    run(offers, 2, 2, 10000, storm);
    run(offers, 3, 2, 10000, "overtake=50");
    run(offers, 1, 3, 10000, "overtake=50 burst=2");
  }
}

RIG_MAIN(TEST_CASE(a_hundred_thousand_written), TEST_CASE(a_hundred_thousand_tagged), TEST_CASE(written_in_a_storm),
         TEST_CASE(written_and_injected),
         TEST_CASE(written_without_order), TEST_CASE(written_in_pieces), TEST_CASE(tagged_in_a_storm),
         TEST_CASE(tagged_without_order), TEST_CASE(short_queues), TEST_CASE(strict_provider), TEST_CASE(several_nics))
