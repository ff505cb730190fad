/* SPDX-License-Identifier: Apache-2.0
 *
 * The loss and the return of queue pairs as a model: a sender, a receiver, packets and acknowledgements on their way,
 * and the frames between the two. Every order of events is tried, with up to two losses at any moment and on either
 * side, also of a queue pair that is on its way back; what a count means is decided by the plugin's own function. In
 * each state: no send is done before its bytes are there, no part is counted twice, nothing is written into a buffer
 * that its receive has given back; and nothing waits for ever. Rules that are left out on purpose are found.
 * RAIL_TEST_STEP=1: two losses with two messages, two million states.
 * TEST-LIMIT: 240
 */
#include <stdlib.h>

#include "common/base/compiler.h"
#include "plugin/ib/ib_failover.h"
#include "test/harness/tap.h"

enum { MSGS = 3, QPS = 3, WIRE = 6, FRAMES = 4 * QPS, NONE = 0xff };
/* A sender's QP is never FLUSHED. */
enum { UP, AWAIT_FLUSH, FLUSHED, AWAIT_PEER, DOWN, REBUILDING, VERIFYING };
enum flaw {
  RIGHT, COUNT_TOO_EARLY, NO_WAIT_FOR_RECEIVER, IGNORE_COUNT, ANSWER_WHEN_BUSY, KEEP_COUNT, STALE_COMPLETIONS,
  NEW_OUTLIVES_STOPPED, RETURN_GOES_ON, FLAWS
};
enum { FRAME_STOPPED, FRAME_NEW, FRAME_READY };

/* Bytes only, all of them set: states are compared as bytes. A packet, and an entry, is message x 2, + 1 for a tail. */
struct qp_state {
  uint8_t s, r;                  /* state of the sender's and of the receiver's */
  uint8_t s_peer, r_peer, count; /* STOPPED has come; with this count */
  uint8_t r_answered, s_answered;
  uint8_t s_new, r_new, s_ready, r_ready; /* the peer's frame has come */
  uint8_t r_verified;            /* its first write has completed */
  uint8_t s_tries, r_tries;
  uint8_t nwire, wire[WIRE]; /* posted and not yet at the receiver */
  uint8_t nring, ring[WIRE]; /* posted, and not completed for the sender */
  uint8_t acks;              /* carried out, and the sender does not know yet */
  uint8_t posted_tails, counted;
  uint8_t ncqe, cqe[WIRE]; /* of the receiver, to be polled */
};
struct state {
  struct qp_state qp[QPS];
  uint8_t nto_r, to_r[FRAMES], nto_s, to_s[FRAMES][2]; /* frames: type and QP, count */
  uint8_t receives, sends;   /* receives that were posted, messages that were begun */
  uint8_t part, part_qp;     /* a message whose body is posted and its tail is not; NONE */
  uint8_t body[MSGS], tail[MSGS], counted[MSGS], sent[MSGS]; /* written; carried out; counted; done for the sender */
  uint8_t losses;
};
_Static_assert(_Alignof(struct state) == 1, "no bytes between the members");

static struct {
  enum flaw flaw;
  unsigned int msgs, qps, losses, returns; /* returns: of each QP */
  const char *wrong;
  bool moved;
} model;

static void wrong(const char *what) {
  if (!model.wrong) model.wrong = what;
}

/* ---- states that were seen --------------------------------------------------- */

static struct { struct state *states; size_t n, room, *table, size; } seen;

static size_t hash_of(const struct state *s) {
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < sizeof *s; i++) h = (h ^ ((const uint8_t *)s)[i]) * 1099511628211u;
  return (size_t)(h ^ h >> 29);
}

static void put(size_t index) {
  size_t at = hash_of(&seen.states[index]) % seen.size;
  while (seen.table[at]) at = (at + 1) % seen.size;
  seen.table[at] = index + 1;
}

/* Kept for later if it is new. */
static void reach(const struct state *s) {
  model.moved = true;
  for (size_t at = hash_of(s) % (seen.size ? seen.size : 1); seen.size && seen.table[at]; at = (at + 1) % seen.size)
    if (memcmp(&seen.states[seen.table[at] - 1], s, sizeof *s) == 0) return;
  if (seen.n == seen.room) {
    seen.room = seen.room ? 2 * seen.room : 1 << 14;
    seen.size = 2 * seen.room + 1;
    free(seen.table);
    seen.states = realloc(seen.states, seen.room * sizeof *seen.states);
    seen.table = calloc(seen.size, sizeof *seen.table);
    CHECK(seen.states && seen.table);
    for (size_t i = 0; i < seen.n; i++) put(i);
  }
  seen.states[seen.n] = *s;
  put(seen.n++);
}

/* ---- pieces ------------------------------------------------------------------- */

static uint8_t take_first(uint8_t *n, uint8_t *list) {
  uint8_t first = list[0];
  memmove(list, list + 1, --*n);
  list[*n] = 0;
  return first;
}
static void append(uint8_t *n, uint8_t *list, uint8_t what) {
  CHECK(*n < WIRE);
  list[(*n)++] = what;
}

static unsigned int up(const struct state *s, bool sender) {
  unsigned int n = 0;
  for (unsigned int i = 0; i < model.qps; i++) n += (sender ? s->qp[i].s : s->qp[i].r) == UP;
  return n;
}

static bool busy(const struct state *s) {
  for (int m = 0; m < s->receives; m++)
    if (!s->counted[m]) return true;
  return false;
}

static void sent(struct state *s, uint8_t entry) {
  int m = entry >> 1;
  if (!(entry & 1)) return;
  if (!s->tail[m]) wrong("a send is done and its bytes are not there");
  s->sent[m] = 1;
}

static void post(struct state *s, unsigned int q, uint8_t entry) {
  append(&s->qp[q].nwire, s->qp[q].wire, entry);
  append(&s->qp[q].nring, s->qp[q].ring, entry);
  s->qp[q].posted_tails += entry & 1;
}

/* Message 0 has a body of its own, the others are their tails. */
static bool has_body(int m) { return m == 0; }

/* ---- what may happen: each calls reach for the state after it ------------------- */

static void receiver_posts(struct state s) {
  if (s.receives == model.msgs) return;
  s.receives++;
  reach(&s);
}

static void sender_posts(const struct state *from, unsigned int q) {
  struct state s = *from;
  if (s.part != NONE) { /* the tail follows over the same QP */
    if (s.part_qp != q || s.qp[q].s != UP) return;
    post(&s, q, (uint8_t)(s.part << 1 | 1));
    s.part = s.part_qp = NONE;
  } else {
    if (s.sends == s.receives || s.qp[q].s != UP) return;
    uint8_t m = s.sends++;
    post(&s, q, (uint8_t)(m << 1 | !has_body(m)));
    if (has_body(m)) s.part = m, s.part_qp = (uint8_t)q;
  }
  reach(&s);
}

/* RC: in order. A receiver's QP in ERR may still be handling a packet until it has flushed. */
static void arrives(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (!p->nwire) return;
  uint8_t packet = take_first(&p->nwire, p->wire);
  int m = packet >> 1;
  if (p->r <= AWAIT_FLUSH || p->r == VERIFYING) {
    if (s.counted[m]) wrong("bytes are written into a buffer that was given back");
    if (packet & 1) {
      if (has_body(m) && !s.body[m]) wrong("a tail came before its body");
      s.tail[m] = 1;
      append(&p->ncqe, p->cqe, (uint8_t)m);
    } else {
      s.body[m] = 1;
    }
    p->acks++;
  }
  reach(&s);
}

/* Nothing is retransmitted any more. */
static void is_lost(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (!p->nwire || p->s == UP || p->s == VERIFYING) return;
  memset(p->wire, 0, sizeof p->wire);
  p->nwire = 0;
  reach(&s);
}

static void acknowledged(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (!p->acks || !p->nring || p->s >= DOWN) return;
  p->acks--;
  sent(&s, take_first(&p->nring, p->ring));
  reach(&s);
}

static void receiver_polls(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (!p->ncqe) return;
  uint8_t m = take_first(&p->ncqe, p->cqe);
  if (p->r < AWAIT_PEER || p->r == VERIFYING || model.flaw == COUNT_TOO_EARLY) {
    if (s.counted[m]) wrong("a part is counted twice");
    p->counted++;
    s.counted[m] = 1;
  }
  reach(&s);
}

static void frame_to_r(struct state *s, unsigned int q, int type) {
  s->to_r[s->nto_r++] = (uint8_t)(type << 4 | (int)q);
}
static void frame_to_s(struct state *s, unsigned int q, int type) {
  s->to_s[s->nto_s][0] = (uint8_t)(type << 4 | (int)q);
  s->to_s[s->nto_s++][1] = type == FRAME_STOPPED ? s->qp[q].counted : 0;
}

static void sender_tells(struct state *s, unsigned int q) {
  if (!s->qp[q].s_answered++) frame_to_r(s, q, FRAME_STOPPED);
}
static void receiver_tells(struct state *s, unsigned int q) {
  if (!s->qp[q].r_answered++) frame_to_s(s, q, FRAME_STOPPED);
}

/* One that is being rebuilt has nothing to flush; one that is verified is none of those that are in use. */
static bool lose(struct state *s, uint8_t *side, bool sender, bool by_frame) {
  bool half_made = by_frame && (*side == DOWN || *side == REBUILDING);
  if (!half_made && *side != UP && *side != VERIFYING) return false;
  if (by_frame && *side == DOWN) wrong("STOPPED of a queue pair that is down"); /* the plugin's protocol error */
  if ((*side == UP && up(s, sender) == 1) || (!by_frame && s->losses == model.losses)) return false;
  s->losses += !by_frame;
  *side = half_made ? AWAIT_PEER : AWAIT_FLUSH;
  return true;
}

static void sender_loses(struct state s, unsigned int q, bool by_frame) {
  if (!lose(&s, &s.qp[q].s, true, by_frame)) return;
  if (s.qp[q].s == AWAIT_PEER) sender_tells(&s, q);
  reach(&s);
}
static void receiver_loses(struct state s, unsigned int q, bool by_frame) {
  if (!lose(&s, &s.qp[q].r, false, by_frame)) return;
  if (s.qp[q].r == AWAIT_PEER) receiver_tells(&s, q);
  reach(&s);
}

static void sender_stops(struct state s, unsigned int q) {
  if (s.qp[q].s != AWAIT_FLUSH) return;
  s.qp[q].s = AWAIT_PEER;
  sender_tells(&s, q);
  reach(&s);
}

static void receiver_stops(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (p->r == AWAIT_FLUSH) {
    p->r = FLUSHED;
  } else if (p->r == FLUSHED && (!p->ncqe || model.flaw == COUNT_TOO_EARLY)) {
    p->r = AWAIT_PEER;
    receiver_tells(&s, q);
  } else {
    return;
  }
  reach(&s);
}

/* The watch thread, for a caller that makes no calls. */
static void watch_answers(struct state s, unsigned int q) {
  if (!s.qp[q].r_peer || s.qp[q].r_answered || (busy(&s) && model.flaw != ANSWER_WHEN_BUSY)) return;
  receiver_tells(&s, q);
  reach(&s);
}

static void take_frame(uint8_t head, uint8_t *stopped, uint8_t *new, uint8_t *ready) {
  if (head >> 4 == FRAME_NEW) *new = 1;
  if (head >> 4 == FRAME_READY) *ready = 1;
  if (head >> 4 != FRAME_STOPPED) return;
  if (*stopped) wrong("STOPPED has come twice");
  *stopped = 1;
  if (model.flaw != NEW_OUTLIVES_STOPPED) *new = *ready = 0;
}

static void frame_to_receiver(struct state s) {
  if (!s.nto_r) return;
  uint8_t head = take_first(&s.nto_r, s.to_r);
  struct qp_state *p = &s.qp[head & 0xf];
  take_frame(head, &p->r_peer, &p->r_new, &p->r_ready);
  reach(&s);
}

static void frame_to_sender(struct state s) {
  if (!s.nto_s) return;
  struct qp_state *p = &s.qp[s.to_s[0][0] & 0xf];
  take_frame(s.to_s[0][0], &p->s_peer, &p->s_new, &p->s_ready);
  if (s.to_s[0][0] >> 4 == FRAME_STOPPED) p->count = s.to_s[0][1];
  memmove(s.to_s, s.to_s + 1, sizeof s.to_s - sizeof s.to_s[0]);
  memset(s.to_s[FRAMES - 1], 0, sizeof s.to_s[0]);
  s.nto_s--;
  reach(&s);
}

static void sender_reconciles(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  bool wait = model.flaw != NO_WAIT_FOR_RECEIVER;
  struct ib_posted ring[IB_SEND_DEPTH], done[IB_SEND_DEPTH];
  unsigned int ndone;
  if (p->s != AWAIT_PEER || (wait && !p->s_peer)) return;
  struct ib_qp qp = {.posted = {.entries = ring, .end = p->nring}};
  uint8_t unacked = 0;
  for (unsigned int i = 0; i < p->nring; i++) {
    ring[i] = (struct ib_posted){.send = p->ring[i] >> 1, .tail = p->ring[i] & 1};
    unacked += ring[i].tail;
  }
  atomic_init(&qp.tails, p->posted_tails);
  uint32_t count = wait && model.flaw != IGNORE_COUNT ? p->count : p->posted_tails - unacked;
  if (ib_posted_split(&qp, count, done, &ndone) == IB_COUNT_INVALID) {
    wrong("a count that cannot be");
    return;
  }
  for (unsigned int i = 0; i < ndone; i++) sent(&s, (uint8_t)(done[i].send << 1 | done[i].tail));
  p->s = DOWN;
  p->s_peer = p->s_answered = p->count = p->posted_tails = 0;
  memset(p->ring, 0, sizeof p->ring);
  p->nring = (uint8_t)(qp.posted.end - qp.posted.first);
  for (unsigned int i = 0; i < p->nring; i++) p->ring[i] = (uint8_t)(ring[i].send << 1 | ring[i].tail);
  if (s.part_qp == q) { /* begun over it: begins again */
    s.sends = s.part;
    s.part = s.part_qp = NONE;
  }
  reach(&s);
}

static void receiver_reconciles(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (p->r != AWAIT_PEER || !p->r_peer) return;
  p->r = DOWN, p->r_peer = p->r_answered = p->r_verified = 0;
  if (model.flaw != KEEP_COUNT) p->counted = 0;
  reach(&s);
}

/* A new QP: nothing of the old one is on its way to it, and none of its completions is left to be polled. */
static void sender_rebuilds(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (p->s != DOWN || p->nring || p->s_peer || p->s_tries == model.returns) return;
  p->s = REBUILDING, p->s_tries++;
  memset(p->wire, 0, sizeof p->wire);
  p->nwire = 0, p->acks = model.flaw == STALE_COMPLETIONS ? p->acks : 0;
  frame_to_r(&s, q, FRAME_NEW);
  reach(&s);
}

static void receiver_rebuilds(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (p->r != DOWN || p->r_peer || p->r_tries == model.returns || p->ncqe) return;
  p->r = REBUILDING, p->r_tries++;
  frame_to_s(&s, q, FRAME_NEW);
  reach(&s);
}

/* If the peer has stopped it this try ends, and what comes then is the next one's. */
static void sender_returns(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (p->s_peer && model.flaw != RETURN_GOES_ON) return;
  if (p->s == REBUILDING && p->s_new) {
    p->s = VERIFYING, p->s_new = 0;
    frame_to_r(&s, q, FRAME_READY);
  } else if (p->s == VERIFYING && p->s_ready) {
    p->s = UP, p->s_ready = 0;
  } else {
    return;
  }
  reach(&s);
}

static void receiver_returns(struct state s, unsigned int q) {
  struct qp_state *p = &s.qp[q];
  if (p->r_peer && model.flaw != RETURN_GOES_ON) return;
  if (p->r == REBUILDING && p->r_new) {
    p->r = VERIFYING, p->r_new = p->r_verified = 0;
  } else if (p->r == VERIFYING && p->r_ready) {
    if (p->s == DOWN || p->s == REBUILDING) return; /* no acknowledgement: only a loss ends it */
    p->r_verified = 1, p->r_ready = 0;
  } else if (p->r == VERIFYING && p->r_verified) {
    p->r = UP, p->r_verified = 0;
    frame_to_s(&s, q, FRAME_READY);
  } else {
    return;
  }
  reach(&s);
}

/* Body and tail at once: that a loss comes between them, message 0 has shown. */
static void sender_resends(const struct state *from, unsigned int lost) {
  for (unsigned int q = 0; q < model.qps; q++) {
    struct state s = *from;
    struct qp_state *p = &s.qp[lost];
    if (p->s != DOWN || !p->nring || s.qp[q].s != UP) continue;
    uint8_t entry = take_first(&p->nring, p->ring);
    if (has_body(entry >> 1)) post(&s, q, entry & 0xfe);
    post(&s, q, entry);
    reach(&s);
  }
}

/* ---- all orders ------------------------------------------------------------------ */

static void all_after(const struct state *s) {
  receiver_posts(*s);
  frame_to_receiver(*s);
  frame_to_sender(*s);
  for (unsigned int q = 0; q < model.qps; q++) {
    sender_posts(s, q);
    arrives(*s, q);
    is_lost(*s, q);
    acknowledged(*s, q);
    receiver_polls(*s, q);
    sender_loses(*s, q, false);
    receiver_loses(*s, q, false);
    if (s->qp[q].s_peer) sender_loses(*s, q, true);
    if (s->qp[q].r_peer) receiver_loses(*s, q, true);
    sender_stops(*s, q);
    receiver_stops(*s, q);
    watch_answers(*s, q);
    sender_reconciles(*s, q);
    receiver_reconciles(*s, q);
    sender_resends(s, q);
    sender_rebuilds(*s, q);
    receiver_rebuilds(*s, q);
    sender_returns(*s, q);
    receiver_returns(*s, q);
  }
}

/* Is this an end at which something is missing? All sides' last queue pair may be another: that is an error there. */
static void check_end(const struct state *s) {
  for (unsigned int q = 0; q < model.qps; q++)
    if ((s->qp[q].s_peer && s->qp[q].s == UP) || (s->qp[q].r_peer && s->qp[q].r == UP)) return;
  for (unsigned int m = 0; m < model.msgs; m++)
    if (!s->counted[m] || !s->sent[m]) wrong("something waits for ever");
  for (unsigned int q = 0; q < model.qps; q++)
    if ((s->qp[q].s == UP) != (s->qp[q].r == UP) || (s->qp[q].s >= REBUILDING && s->qp[q].r >= REBUILDING))
      wrong("one side alone uses a queue pair, or it never comes back");
}

static size_t try_all(enum flaw flaw, unsigned int msgs, unsigned int qps, unsigned int losses, unsigned int returns) {
  struct state first;
  memset(&first, 0, sizeof first);
  first.part = first.part_qp = NONE;
  if (losses > 1) first.receives = (uint8_t)msgs; /* all are posted: fewer states */
  model.flaw = flaw, model.msgs = msgs, model.qps = qps;
  model.losses = losses, model.returns = returns;
  model.wrong = NULL;
  seen.n = seen.room = seen.size = 0;
  free(seen.states);
  free(seen.table);
  seen.states = NULL, seen.table = NULL;
  reach(&first);
  for (size_t i = 0; i < seen.n && !model.wrong; i++) {
    struct state s = seen.states[i]; /* the array may move */
    model.moved = false;
    all_after(&s);
    if (!model.moved) check_end(&s);
  }
  return seen.n;
}

static void all_is_well(unsigned int msgs, unsigned int qps, unsigned int losses, unsigned int returns) {
  size_t n = try_all(RIGHT, msgs, qps, losses, returns);
  printf("# %u messages, %u queue pairs, %u losses, %u returns: %zu states\n", msgs, qps, losses, returns, n);
  CHECK_MSG(!model.wrong, "%s", model.wrong);
}

TEST(one_loss) { all_is_well(3, 2, 1, 0); }
TEST(two_losses) { all_is_well(getenv("RAIL_TEST_STEP") ? 2 : 1, 3, 2, 0); }
TEST(a_return) { all_is_well(2, 2, 1, 1); }
TEST(a_loss_and_a_return_and_a_loss) { all_is_well(2, 2, getenv("RAIL_TEST_STEP") ? 3 : 2, 2); }

/* The model can fail: each rule that is left out shows. */
TEST(rules_that_are_left_out) {
  static const char *const names[FLAWS] = {
    [COUNT_TOO_EARLY] = "the count is told before all is polled",
    [NO_WAIT_FOR_RECEIVER] = "the sender writes again before the receiver has stopped",
    [IGNORE_COUNT] = "the sender trusts its own completions alone",
    [ANSWER_WHEN_BUSY] = "the watch thread answers for a receiver that has requests",
    [KEEP_COUNT] = "the receiver counts on, over a new queue pair",
    [STALE_COMPLETIONS] = "completions of the lost queue pair are taken for the new one's",
    [NEW_OUTLIVES_STOPPED] = "what was received of a try is used for the next one",
    [RETURN_GOES_ON] = "a try that the peer has ended goes on with what was received of the next one"};
  for (enum flaw f = RIGHT + 1; f < FLAWS; f++) {
    bool of_return = f >= KEEP_COUNT;
    size_t n = of_return ? try_all(f, 2, 2, 2, 2) : try_all(f, 3, 2, 1, 0);
    printf("# %s: %s, in state %zu\n", names[f], model.wrong ? model.wrong : "not found", n);
    CHECK_MSG(model.wrong, "%s: not found", names[f]);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(one_loss), TEST_CASE(two_losses), TEST_CASE(a_return),
                                          TEST_CASE(a_loss_and_a_return_and_a_loss),
                                          TEST_CASE(rules_that_are_left_out)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
