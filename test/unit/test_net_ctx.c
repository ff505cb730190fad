/* SPDX-License-Identifier: Apache-2.0
 * Contexts of plugins: what finalize takes back. */
#include <string.h>

#include "common/net/net_ctx.h"
#include "kit/kit_ensure.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static const struct rail_net_init init = {.traffic_class = 3};
static struct rail_net_ctx_link listeners[3];
static int closed[3], dropped;

static struct rail_net_ctx *begin(void) {
  struct rail_net_ctx *ctx;
  rail_log_set_sink(log_capture);
  log_forget();
  memset(listeners, 0, sizeof listeners);
  memset(closed, 0, sizeof closed);
  dropped = 0;
  ENSURE_INT(rail_net_ctx_new("RailTest", &init, &ctx), RAIL_OK);
  return ctx;
}

static void close_one(struct rail_net_ctx_link *link) {
  closed[link - listeners]++;
  rail_net_ctx_remove(link);
}

static void drop(void *attempt) { dropped += *(int *)attempt; }

TEST(recognised) {
  struct rail_net_ctx *ctx = begin();
  uint32_t other[16] = {1, 2, 3};
  CHECK(ctx->traffic_class == 3 && rail_net_ctx_of("RailTest", ctx, "listen") == ctx);
  CHECK(!rail_net_ctx_of("RailTest", NULL, "listen") && !rail_net_ctx_of("RailTest", other, "connect"));
  CHECK(log_said("RailTest: connect: ") && log_said("is not a context that init returned"));
  rail_net_ctx_free(ctx, drop, close_one);
}

/* Out of any place; what is left is closed with the context. */
TEST(listeners_in_any_order) {
  for (int out = 0; out < 3; out++) {
    struct rail_net_ctx *ctx = begin();
    for (int i = 0; i < 3; i++) rail_net_ctx_add(ctx, &listeners[i]);
    rail_net_ctx_remove(&listeners[out]);
    rail_net_ctx_free(ctx, drop, close_one);
    for (int i = 0; i < 3; i++) CHECK_INT(closed[i], i != out);
  }
}

TEST(attempts_are_dropped) {
  struct rail_net_ctx *ctx = begin();
  int one = 1, ten = 10;
  uint64_t first, second;
  CHECK_OK(rail_attempts_add(&ctx->attempts, &one, &first));
  CHECK_OK(rail_attempts_add(&ctx->attempts, &ten, &second));
  CHECK(rail_net_ctx_attempt("RailTest", ctx, first) == &one);
  rail_attempts_remove(&ctx->attempts, first);
  CHECK(!rail_net_ctx_attempt("RailTest", ctx, first) && log_said("RailTest: connect: this handle names attempt"));
  rail_net_ctx_free(ctx, drop, close_one);
  CHECK_INT(dropped, 10);
}

TEST_MAIN(TEST_CASE(recognised), TEST_CASE(listeners_in_any_order), TEST_CASE(attempts_are_dropped))
