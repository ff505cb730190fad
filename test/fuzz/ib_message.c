/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Bytes on the oob connection into both state machines of the ib plugin's
 * handshake, over the emulated device. Input: which side is ours, whether
 * first writes are wanted, then steps: well-formed messages of any fields, raw
 * bytes, calls, the end of the stream.
 *
 * Held: no call fails in any other way than with its errors, none hands out a
 * comm whose peer did not send everything (with first writes wanted: none at all,
 * for none comes), and queue pairs, completion queues and registrations are
 * gone afterwards.
 */
#include <endian.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_connect.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_param.h"
#include "test/fuzz/lib/fuzz.h"
#include "test/unit/ib_emu.h"
#include "test/unit/ib_hello.h"

enum step { CALL, RAW, SEND_ANSWER, SEND_OFFER, SEND_QPS, SEND_READY, HANG_UP, STEPS };
#define CALLS_PER_STEP 4

struct bed {
  bool ours_connects;
  struct rail_net_ctx *ctx;
  void *listen, *comm;
  int listener, fd; /* the peer's */
  char handle[RAIL_NET_HANDLE_SIZE];
  unsigned int sent; /* one bit for each kind of step */
  rail_result_t result;
};

/* Queue pairs that a peer names are those of no other process. */
static char emu_folder[] = "/dev/shm/emu-fuzz.XXXXXX";

/* The emulated device starts a thread with the first queue pair, and has memory mapped while one is connected. This one
 * is, to itself, so that neither looks like something that an input left. */
static struct ib_qp always;
static struct ibv_cq *always_cq;

static void connect_always(const struct ib_port *port) {
  const struct ib_qp_sizes sizes = {.send_depth = 1, .recv_depth = 1};
  union ibv_gid gid;
  always_cq = ib_verbs.create_cq(port->hca->context, 1, NULL, NULL, 0);
  FUZZ_CHECK(always_cq && ib_qp_create(&always, port, always_cq, &sizes, &always) == RAIL_OK);
  FUZZ_CHECK(ib_verbs.query_gid(port->hca->context, 1, 3, &gid) == 0);
  always.attr = (struct ib_qp_attr){.port = 1, .sgid_index = 3, .grh = true, .mtu = IBV_MTU_4096, .timeout = 14,
                                    .retry_cnt = 7, .dest_qpn = always.qp->qp_num};
  memcpy(always.attr.dgid, gid.raw, sizeof gid.raw);
  FUZZ_CHECK(ib_qp_to_init(&always, port, 0) == RAIL_OK && ib_qp_to_rtr(&always, port) == RAIL_OK);
}

static void stop(void) {
  ib_qp_destroy(&always);
  (void)ib_verbs.destroy_cq(always_cq);
  ib_devices_unload();
  rmdir(emu_folder);
}

static void start(void) {
  static bool started;
  if (started) return;
  started = true;
  FUZZ_CHECK(mkdtemp(emu_folder) && setenv("RAIL_EMU_DIR", emu_folder, 1) == 0);
  ib_emu_use("device emuA ports=2; device emuB; progress post");
  FUZZ_CHECK(ib_handshake_load());
  ib_devices_load();
  fuzz_watch(&ib_params, sizeof ib_params);
  FUZZ_CHECK(ib_device_count() == 3 && rail_watch_begin(&ib_watch) == RAIL_OK);
  connect_always(ib_device_at(0, "fuzz")->rails[0]);
  FUZZ_CHECK(atexit(stop) == 0);
}

static void hard_close(int *fd) { /* by a reset: no port waits for the inputs to come */
  struct linger now = {.l_onoff = 1};
  if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  rail_sock_close(fd);
}

/* ---- the peer ------------------------------------------------------------ */

static void begin_as_connector(struct bed *bed) {
  struct rail_handle handle;
  struct ib_hints hints;
  struct rail_hello hello;
  const char *why;
  FUZZ_CHECK(ib_listen(bed->ctx, 0, bed->handle, &bed->listen) == RAIL_OK);
  FUZZ_CHECK(ib_handle_decode(bed->handle, &handle, &hints, &why));
  bed->fd = socket(handle.addrs[0].sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  FUZZ_CHECK(bed->fd >= 0 && connect(bed->fd, &handle.addrs[0].sa, rail_addr_len(&handle.addrs[0])) == 0);
  const struct ib_hello_bytes bytes = ib_make_hello(&handle, "somebody's name", &hello);
  fuzz_write(bed->fd, &bytes, sizeof bytes);
}

static void begin_as_listener(struct bed *bed) {
  struct rail_handle handle = {.secret = "fifteen letters", .naddrs = 1};
  FUZZ_CHECK(rail_addr_parse("127.0.0.1:0", &handle.addrs[0]) == RAIL_OK);
  FUZZ_CHECK(rail_sock_listen(&handle.addrs[0], 4, &bed->listener) == RAIL_OK);
  rail_handle_encode(&ib_protocol, &handle, bed->handle);
}

static void send_message(struct bed *bed, enum ib_message_type type, const void *body, size_t size) {
  struct rail_session session;
  uint8_t bytes[RAIL_MESSAGE_MAX];
  rail_session_init(&session, &ib_protocol, true, &(struct rail_hello){.streams = 1});
  FUZZ_CHECK(rail_message_encode(&session, type, body, size, bytes) == RAIL_OK);
  if (bed->fd >= 0) fuzz_write(bed->fd, bytes, rail_message_size(size));
}

static void send_answer(struct fuzz_in *in, struct bed *bed) {
  uint8_t reason = fuzz_u8(in), bytes[RAIL_ANSWER_MAX];
  struct ib_refused_plan plan = {.refusal = fuzz_u8(in), .rail_here = fuzz_u8(in) % 10 - 1, .name = "peer0"};
  struct ib_refused_plan_wire wire;
  plan.rail_there = fuzz_u8(in) % 10 - 1;
  ib_refused_plan_encode(&plan, &wire);
  rail_refusal_encode(&ib_protocol, reason, &wire, bytes); /* or a welcome: there is no key here */
  if (bed->fd >= 0) fuzz_write(bed->fd, bytes, rail_answer_size(&ib_protocol));
}

static void send_offer(struct fuzz_in *in, struct bed *bed) {
  uint8_t flags = fuzz_u8(in);
  struct ib_offer o = {.sender = !bed->ours_connects, .nrails = 1 + flags % 4, .qps_per_rail = 1, .max_qps = IB_MAX_QPS,
                       .ece = flags & 16, .split = flags & 32, .max_write_log2 = 20, .recv_depth = IB_RECV_DEPTH};
  struct ib_offer_wire wire;
  for (unsigned int i = 0; i < o.nrails; i++) {
    o.rails[i] = (struct ib_offer_rail){.roce = true, .port = 1, .mtu = 5, .gid_type = 2, .name = "peer0"};
    memcpy(o.rails[i].gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d\0\1", 16);
  }
  if (flags & 64) o.qps_per_rail = fuzz_u16(in) % 200;
  if (flags & 128) o.rails[0].mtu = fuzz_u8(in);
  size_t size = ib_offer_encode(&o, &wire);
  send_message(bed, IB_MESSAGE_OFFER, &wire, size);
}

static void send_qps(struct fuzz_in *in, struct bed *bed) {
  uint8_t flags = fuzz_u8(in);
  struct ib_qps q = {.nqps = 1 + flags % 8, .nrails = 1 + flags / 8 % 4, .token = 9, .ctrl_addr = 4096,
                     .verify_addr = 8192};
  struct ib_qps_wire wire;
  for (unsigned int i = 0; i < q.nqps; i++) q.qps[i] = (struct ib_qp_info){.qpn = 1000 + i, .psn = i};
  if (flags & 64) q.qps[0].qpn = fuzz_u32(in);
  if (flags & 128) q.qps[0].ece_options = fuzz_u32(in);
  size_t size = ib_qps_encode(&q, &wire);
  send_message(bed, IB_MESSAGE_QPS, &wire, size);
}

static void send_raw(struct fuzz_in *in, struct bed *bed) {
  uint8_t bytes[127 * 40], head = fuzz_u8(in);
  size_t size = head & 0x80 ? (head & 0x7f) * 40u : head; /* what the input lacks is zero */
  fuzz_fill(in, bytes, size);
  if (bed->fd >= 0) fuzz_write(bed->fd, bytes, size);
}

/* ---- our side ------------------------------------------------------------ */

static void call(struct bed *bed) {
  for (int i = 0; i < CALLS_PER_STEP && bed->result == RAIL_OK && !bed->comm; i++) {
    if (bed->ours_connects) bed->result = ib_connect(bed->ctx, 2, bed->handle, -1, &bed->comm, NULL);
    else bed->result = ib_accept(bed->listen, &bed->comm, NULL);
    FUZZ_CHECK(bed->result == RAIL_OK || !bed->comm);
    union rail_addr peer;
    if (bed->listener >= 0 && bed->fd < 0) (void)rail_sock_accept(bed->listener, &bed->fd, &peer);
    if (bed->fd >= 0) fuzz_drain(bed->fd);
  }
  if (!bed->comm) return;
  const unsigned int raw = 1u << RAW, all = 1u << SEND_OFFER | 1u << SEND_QPS;
  FUZZ_CHECK(!ib_params.verify && ((bed->sent & raw) || (bed->sent & all) == all));
}

static void take_step(struct fuzz_in *in, struct bed *bed) {
  enum step step = (enum step)(fuzz_u8(in) % STEPS);
  bed->sent |= 1u << step;
  switch (step) {
    case CALL: call(bed); break;
    case RAW: send_raw(in, bed); break;
    case SEND_ANSWER: send_answer(in, bed); break;
    case SEND_OFFER: send_offer(in, bed); break;
    case SEND_QPS: send_qps(in, bed); break;
    case SEND_READY: send_message(bed, IB_MESSAGE_READY, "", 0); break;
    case HANG_UP: hard_close(&bed->fd); break;
    case STEPS: break;
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  const struct rail_net_init init = {.traffic_class = -1};
  struct fuzz_in in = {data, size};
  struct bed bed = {.listener = -1, .fd = -1};
  start();
  const struct ib_params params = ib_params;
  uint8_t head = fuzz_u8(&in);
  bed.ours_connects = head & 1;
  ib_params.verify = head >> 1 & 1;
  ib_params.linger_ms = 0;
  FUZZ_CHECK(rail_net_ctx_new("RailIB", &init, &bed.ctx) == RAIL_OK);
  if (bed.ours_connects) begin_as_listener(&bed);
  else begin_as_connector(&bed);
  call(&bed);
  for (int i = 0; i < 64 && in.left; i++) take_step(&in, &bed);
  call(&bed);
  hard_close(&bed.fd);
  hard_close(&bed.listener);
  if (bed.comm) FUZZ_CHECK((bed.ours_connects ? ib_close_send(bed.comm) : ib_close_recv(bed.comm)) == RAIL_OK);
  rail_net_ctx_free(bed.ctx, rail_net_setup_drop_attempt, rail_net_setup_close_listener);
  ib_params = params;
  FUZZ_CHECK(emu_live("qp") == 1 && emu_live("cq") == 1 && emu_live("mr") == 0);
}

/* ---- seeds --------------------------------------------------------------- */

static void calls(struct fuzz_out *out, int n) {
  while (n-- > 0) fuzz_put8(out, CALL);
}

static void whole(const char *name, unsigned int head, unsigned int rails) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, head);
  calls(&out, 4);
  if (head & 1) {
    fuzz_put8(&out, SEND_ANSWER);
    fuzz_put32(&out, 0);
  }
  fuzz_put8(&out, SEND_OFFER);
  fuzz_put8(&out, (rails - 1) | 16);
  calls(&out, 6);
  fuzz_put8(&out, SEND_QPS);
  fuzz_put8(&out, (rails - 1) | (rails - 1) << 3);
  calls(&out, 4);
  fuzz_put8(&out, SEND_READY);
  calls(&out, 4);
  fuzz_seed(name, out.bytes, out.size);
}

static void put_head(struct fuzz_out *out, enum ib_message_type type, size_t body) {
  const struct rail_head_wire head = {.magic = "RBKM", .version = htole16(IB_WIRE_VERSION),
                                      .type = htole16((uint16_t)type),
                                      .length = htole32((uint32_t)(body + RAIL_MAC_SIZE))};
  fuzz_put(out, &head, sizeof head);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  whole("accept", 0, 1);
  whole("connect", 1, 1);
  whole("accept-verified-three-rails", 2, 3);
  whole("connect-verified-two-rails", 3, 2);
  fuzz_put8(&out, 1);
  calls(&out, 3);
  fuzz_put8(&out, SEND_ANSWER);
  fuzz_put8(&out, IB_REASON_PLAN);
  fuzz_put8(&out, IB_REFUSAL_LINK);
  fuzz_put16(&out, 0);
  calls(&out, 2);
  fuzz_seed("refused", out.bytes, out.size);
  out.size = 0;
  fuzz_put8(&out, 0);
  fuzz_put8(&out, RAW);
  fuzz_put8(&out, 16);
  put_head(&out, IB_MESSAGE_OFFER, 136);
  calls(&out, 2);
  fuzz_put8(&out, HANG_UP);
  calls(&out, 1);
  fuzz_seed("half-an-offer", out.bytes, out.size);
  out.size = 0;
  fuzz_put8(&out, 0);
  fuzz_put8(&out, RAW);
  fuzz_put8(&out, 16);
  put_head(&out, IB_MESSAGE_QPS, sizeof(struct ib_qps_wire));
  calls(&out, 1);
  for (int i = 0; i < 2; i++) {
    fuzz_put8(&out, RAW);
    fuzz_put8(&out, 0x80 | 40);
    fuzz_put(&out, (const uint8_t[1600]){0}, 1600);
    calls(&out, 1);
  }
  fuzz_seed("the-longest", out.bytes, out.size);
}
