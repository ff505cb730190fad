/* SPDX-License-Identifier: Apache-2.0
 *
 * Striping by measured rate (RAIL_IB_STRIPING): how a sender divides each message where one of the sides has several
 * rails. It knows of each route what it has outstanding, and how fast it was while it had something. All parts of a
 * message are to be done at the same time, so that a slow route gets less and none is waited for. As long as the
 * rates are about equal, so are the parts. docs/design/ib.md has the whole.
 *
 * The progress thread's, all of it. The receiver takes parts of any size (docs/protocol-ib.md, 5).
 */
#ifndef IB_STRIPE_H
#define IB_STRIPE_H

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_stats.h"

enum ib_striping { IB_STRIPING_EQUAL, IB_STRIPING_RATE }; /* RAIL_IB_STRIPING */

#define IB_STRIPE_WEIGHTS 16384u /* the sum of the weights of all routes */
_Static_assert((1ull << 63) / IB_STRIPE_WEIGHTS / IB_MAX_SENDS >= RAIL_NET_MAX_BYTES,
               "the bytes of all sends, times a weight, fit into 64 bits");

/* The QPs that connect one pair of rails; they share its rate. Where each message goes over all QPs, one QP. */
struct ib_stripe_route {
  uint64_t assigned, done; /* bytes of parts that were given to it; of those, completed */
  uint64_t ends_at;        /* of a measurement: the value of `done` at which it ends; UINT64_MAX: none runs */
  uint64_t began, bytes;   /* of it: rail_now_ns(), and what was outstanding then */
  double rate;             /* bytes per ns; 0: unknown */
  uint32_t weight;
  uint32_t left_out;       /* rounds without a part */
  uint64_t used_at;        /* rail_now_ns() of the last round with one */
  bool on_trial;           /* what is measured is a part that it was given in spite of its weight */
};

struct ib_stripe {
  bool equal;        /* all weights are the same, and parts are */
  int64_t round_left; /* bytes of messages until rates are looked at, and measured, again */
  unsigned int width; /* rails of the side that has more */
  unsigned int all;   /* most parts of a message: the plan's */
  uint64_t least;     /* lines: of several parts of a message none is smaller because of its route's rate */
  struct ib_share *shares;        /* of all sends: `all` each */
  uint64_t *stats[IB_MAX_RAILS];  /* of the group "rail"; never NULL */
  uint64_t *records[IB_MAX_RAILS], unseen[IB_RAIL_COUNTERS]; /* those in the shared page, and what the others are */
  unsigned int nroutes;
  uint8_t route_of[IB_MAX_QPS];    /* by QP */
  struct ib_stripe_route routes[IB_MAX_QPS];
};

/* For a comm whose QPs and rails are known, if it has several rails and RAIL_IB_STRIPING asks for it; else nothing.
 * False: out of memory. */
bool ib_stripe_open(struct ib_send_comm *sc);
void ib_stripe_close(struct ib_send_comm *sc);

/* Sets QP, place and size of each of a message's parts. send->nparts is the most it may have, and may become less.
 * Returns the QP of the first. */
struct ib_qp *ib_stripe_divide(struct ib_send_comm *sc, struct ib_send *send);
/* A signaled write has completed: its entry in qp->posted. */
void ib_stripe_done(struct ib_stripe *stripe, const struct ib_qp *qp, const struct ib_send *send,
                    struct ib_posted entry);

/* The loss and the return of QPs. Other QPs are in sc->live: parts that are not posted move to those. */
void ib_stripe_update_live(struct ib_send_comm *sc);
/* A part, not completed, goes over another QP than it was given to. */
void ib_stripe_move(struct ib_stripe *stripe, struct ib_send *send, unsigned int part, const struct ib_qp *to);

/* ---- pure ------------------------------------------------------------------------ */

struct ib_stripe_claim { /* of one QP */
  uint64_t outstanding; /* lines (IB_ALIGN), of its route */
  uint32_t weight;      /* not 0; the sum of all is at most IB_STRIPE_WEIGHTS */
};
struct ib_stripe_limits {
  unsigned int most; /* parts of the message */
  unsigned int all;  /* the number of parts that has a name though it is no power of two; may be above `most` */
  uint64_t least;    /* lines of a part, not 0, unless there is one part only */
  int trial;         /* this QP gets `trial_lines` whatever its weight, not more than an equal part and not less than
                      * `least`; -1: none */
  uint64_t trial_lines;
};
/* Divides `lines` (not 0) so that all QPs that get a part finish at the same time: at most `most`, those with the
 * largest parts. shares[i]: lines of claims[i]'s part; 0: none. Returns how many parts: a power of two, or `all`. */
unsigned int ib_stripe_shares(const struct ib_stripe_claim *claims, unsigned int n,
                              const struct ib_stripe_limits *limits, uint64_t lines, uint64_t *shares);

/* Weights of n rates (0: unknown, counts as the mean of the others). Returns whether they are all equal, which they are
 * when none is known, or when the rates differ by less than it takes: more while they were equal before. */
bool ib_stripe_weights(const double *rates, unsigned int n, bool equal_before, uint32_t *weights);

#endif
