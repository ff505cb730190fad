/* SPDX-License-Identifier: Apache-2.0
 * Contexts of plugins: what finalize takes back; a caller's pointers to comms. */
#include <string.h>

#include "common/net/net_ctx.h"
#include "kit/kit_ensure.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static struct rail_key key = {.plugin = "RailTest", .param = "RAIL_TEST_AUTH_FILE"};
static const struct rail_protocol protocol = {.plugin = "RailTest", .tag = "RTT", .version = 1, .key = &key};
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

/* As in a plugin's connect: a call, with the handle that the call before has left. */
TEST(attempts) {
  struct rail_net_ctx *ctx = begin();
  struct rail_net_connect call;
  int one = 1, ten = 10;
  uint8_t first[RAIL_HANDLE_SIZE], second[RAIL_HANDLE_SIZE], old[RAIL_HANDLE_SIZE];
  struct rail_handle listener = {.naddrs = 1};
  CHECK_OK(rail_addr_parse("127.0.0.1:4711", &listener.addrs[0]));
  rail_handle_encode(&protocol, &listener, first);
  rail_handle_encode(&protocol, &listener, second);

  CHECK_OK(rail_net_connect_enter(&call, &protocol, ctx, first));
  CHECK(!call.attempt && call.ctx == ctx && rail_addr_port(&call.listener.addrs[0]) == 4711);
  CHECK_OK(rail_net_connect_keep(&call, &one));
  CHECK(call.attempt == &one);
  CHECK_OK(rail_net_connect_enter(&call, &protocol, ctx, second));
  CHECK_OK(rail_net_connect_keep(&call, &ten));
  CHECK_OK(rail_net_connect_enter(&call, &protocol, ctx, first));
  CHECK(call.attempt == &one);
  memcpy(old, first, sizeof old);
  rail_net_connect_leave(&call);
  CHECK_OK(rail_net_connect_enter(&call, &protocol, ctx, first)); /* it may connect again */
  CHECK(!call.attempt);
  CHECK_INT(rail_net_connect_enter(&call, &protocol, ctx, old), RAIL_BAD_ARGUMENT);
  CHECK(log_said("RailTest: connect: this handle names attempt"));

  rail_net_ctx_free(ctx, drop, close_one);
  CHECK_INT(dropped, 10); /* what is under way still */
}

TEST(handles_that_cannot_be_used) {
  struct rail_net_ctx *ctx = begin();
  struct rail_net_connect call;
  uint8_t zeros[RAIL_HANDLE_SIZE] = {0};
  CHECK_INT(rail_net_connect_enter(&call, &protocol, NULL, zeros), RAIL_BAD_ARGUMENT);
  CHECK(log_said("RailTest: connect: (nil) is not a context"));
  CHECK_INT(rail_net_connect_enter(&call, &protocol, ctx, NULL), RAIL_BAD_ARGUMENT);
  CHECK(log_said("RailTest: connect: this handle cannot be used: it is NULL"));
  CHECK_INT(rail_net_connect_enter(&call, &protocol, ctx, zeros), RAIL_BAD_ARGUMENT);
  CHECK(log_said("RailTest: connect: this handle cannot be used: it was not made by"));
  rail_net_ctx_free(ctx, drop, close_one);
}

/* The one that is wanted, or either; any other pointer is told in a line. */
TEST(comms_of_a_caller) {
  const uint32_t send = RAIL_OBJECT_MAGIC("RTT", 'S'), recv = RAIL_OBJECT_MAGIC("RTT", 'R');
  uint32_t sc = send, closed_comm = 0;
  rail_log_set_sink(log_capture);
  log_forget();
  CHECK(rail_net_comm_of("RailTest", &sc, send, recv, send, "isend") == &sc);
  CHECK(rail_net_comm_of("RailTest", &sc, send, recv, 0, "regMr") == &sc);
  CHECK_INT(log_warnings(), 0);
  CHECK(!rail_net_comm_of("RailTest", &sc, send, recv, recv, "irecv"));
  CHECK(log_said("RailTest: irecv: ") && log_said(" is no receive comm that is open"));
  CHECK(!rail_net_comm_of("RailTest", NULL, send, recv, send, "isend"));
  CHECK(log_said(" is no send comm that is open"));
  CHECK(!rail_net_comm_of("RailTest", &closed_comm, send, recv, 0, "regMr"));
  CHECK(log_said(" is no comm that is open"));
  CHECK_INT(log_warnings(), 3);
}

TEST_MAIN(TEST_CASE(recognised), TEST_CASE(listeners_in_any_order), TEST_CASE(attempts),
          TEST_CASE(handles_that_cannot_be_used), TEST_CASE(comms_of_a_caller))
