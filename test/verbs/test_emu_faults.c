/* SPDX-License-Identifier: Apache-2.0
 * The emulated device's scripted faults. TEST-LIMIT: 240 */
#include "test/verbs/verbs.h"

static struct end a, b;
static char commands[] = "/dev/shm/emu-commands.XXXXXX"; /* RAIL_EMU_CONTROL */

/* Messages with numbers in them, all of which must arrive, once and in order. */
static void exchange(unsigned int n) {
  for (unsigned int i = 0; i < n; i++) {
    uint32_t size = 1 + i * 797 % 9000;
    fill(a.data, size, i);
    receive(&b, i, 0, 0);
    send_work(&a, &b, i % 3 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, i, 0, size);
    if (i % 3 == 0) send_work(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, 0);
    CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
    CHECK(memcmp(a.data, b.data, size) == 0);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    if (i % 3 == 0) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  }
  CHECK(is_quiet(&a) && is_quiet(&b));
}

/* ---- packets ---------------------------------------------------------------------- */

TEST(lost_packets_are_sent_again) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 8; /* 1 ms */
  s.retry_cnt = 7;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("drop rate=20"));
  exchange(300);
  emu_pair_close(&a, &b);
}

TEST(packets_that_come_twice_count_once) {
  struct shape s = USUAL_SHAPE;
  struct work w;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("duplicate rate=3"));
  exchange(200);
  *(uint64_t *)(void *)b.data = 0;
  for (unsigned int i = 0; i < 100; i++) { /* each is carried out once */
    work(&w, &a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, i, 0, 8);
    w.wr.wr.atomic.compare_add = 1;
    CHECK_OK(post(&a, &w.wr));
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    CHECK_INT(*(uint64_t *)(void *)a.data, i);
  }
  emu_pair_close(&a, &b);
}

TEST(everything_at_once) {
  struct shape s = USUAL_SHAPE;
  s.retry_cnt = 7;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("adversary 42"));
  exchange(300);
  emu_pair_close(&a, &b);
}

/* A write's second half is there while the first is not, and no completion yet. */
TEST(a_torn_write) {
  struct shape s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  memset(a.data, 0x77, 1000);
  CHECK(emu_command("tear us=200000"));
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 1000);
  volatile char *first = b.data, *last = b.data + 999;
  long end = now_ms() + WAIT_MS;
  while (*last == 0 && now_ms() < end) (void)is_quiet(&b);
  CHECK_INT(*last, 0x77);
  bool torn = *first == 0; /* unless this thread stood still for as long as that */
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(*first == 0x77);
  emu_pair_close(&a, &b);
  if (!torn) tap_skip_case("the machine was too slow to see it");
}

/* Of two queue pairs the second one's message may be first. */
TEST(order_between_queue_pairs_is_free) {
  struct shape s = USUAL_SHAPE;
  struct end c = {0}, d = {0};
  emu_pair_open(&a, &b, &s);
  pair_open(&c, &d, &s);
  receive(&b, 1, 0, 64);
  receive(&d, 2, 0, 64);
  emu_command_for("delay us=600000000 op=send", &b);
  send_work(&a, &b, IBV_WR_SEND, 1, 0, 8);
  send_work(&c, &d, IBV_WR_SEND, 2, 0, 8);
  CHECK_COMPLETION(&d, 2, IBV_WC_SUCCESS);
  CHECK(is_quiet(&b));
  CHECK(emu_command("clock virtual")); /* and the ten minutes are over */
  CHECK_COMPLETION(&b, 1, IBV_WC_SUCCESS);
  end_close(&c);
  end_close(&d);
  emu_pair_close(&a, &b);
}

/* Many packets that are under way are late, and not lost. A write of UC is done when it is in the ring, which has room
 * for a part of one: the packets of all but the last are held back by then. */
TEST(many_packets_under_way) {
  struct shape s = USUAL_SHAPE;
  s.type = IBV_QPT_UC;
  emu_pair_open(&a, &b, &s);
  fill(a.data, BYTES, 5);
  emu_command_for("delay us=600000000", &b);
  for (unsigned int i = 0; i < 16; i++) { /* 1,024 packets each */
    receive(&b, i, 0, 0);
    send_work(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, BYTES);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  }
  CHECK(is_quiet(&b));
  CHECK(emu_command("clock virtual"));
  for (unsigned int i = 0; i < 16; i++) CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
  CHECK(memcmp(a.data, b.data, BYTES) == 0);
  emu_pair_close(&a, &b);
}

/* Each of its packets waits, and is sent then; another queue pair of the same device is as fast as ever. */
TEST(a_slow_queue_pair) {
  struct shape s = USUAL_SHAPE;
  struct end c = {0}, d = {0};
  emu_pair_open(&a, &b, &s);
  pair_open(&c, &d, &s);
  emu_command_for("slow us=20000", &a);
  long began = now_ms();
  fill(a.data, 3000, 1);
  for (unsigned int i = 0; i < 3; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 3000); /* 3 packets each */
  for (unsigned int i = 0; i < 3; i++) {
    for (unsigned int j = 0; j < 5; j++) {
      send_work(&c, &d, IBV_WR_RDMA_WRITE, j, 0, 3000);
      CHECK_COMPLETION(&c, j, IBV_WC_SUCCESS);
    }
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    CHECK(now_ms() - began >= 60 * (i + 1) - 1);
  }
  CHECK(memcmp(a.data, b.data, 3000) == 0);
  CHECK(emu_command("reset; slow us=20000 times=1 qp=1")); /* of a queue pair that is none of these */
  emu_command_for("slow us=20000 times=2", &a);
  began = now_ms();
  for (unsigned int i = 0; i < 50; i++) {
    send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  }
  CHECK(now_ms() - began >= 39);
  end_close(&c);
  end_close(&d);
  emu_pair_close(&a, &b);
}

/* Datagrams leave no faster than the port lets anything leave. */
TEST(a_slow_port) {
  struct shape s = USUAL_SHAPE;
  s.type = IBV_QPT_UD;
  emu_pair_open(&a, &b, &s);
  struct ibv_ah *ah = path_to(&a, &b);
  emu_port(&a, "bandwidth", 1);
  long began = now_ms();
  for (unsigned int i = 0; i < 26; i++) receive(&b, i, 0, 4096);
  for (unsigned int i = 0; i < 26; i++) send_datagram(&a, ah, b.qp->qp_num, i, 4000);
  for (unsigned int i = 0; i < 26; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  CHECK(now_ms() - began >= 99); /* 25 of them had to wait for the one before: 4 ms each */
  for (unsigned int i = 0; i < 26; i++) CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
  emu_port(&a, "bandwidth", 0);
  CHECK_OK(ibv_destroy_ah(ah));
  emu_pair_close(&a, &b);
}

/* ---- statements ------------------------------------------------------------------------- */

/* What a wrong statement is answered with on stderr; -1 is its result. */
static void check_refused(const char *statement, const char *wanted) {
  int (*command)(const char *);
  void *symbol = dlsym(RTLD_DEFAULT, "rail_emu_command");
  char said[1024] = "";
  FILE *file = tmpfile();
  CHECK(symbol && file);
  memcpy(&command, &symbol, sizeof command);
  fflush(stderr);
  int old = dup(STDERR_FILENO);
  CHECK(old >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
  int result = command(statement);
  CHECK(dup2(old, STDERR_FILENO) >= 0);
  close(old);
  rewind(file);
  (void)!fread(said, 1, sizeof said - 1, file);
  fclose(file);
  CHECK_MSG(result == -1, "%s: taken", statement);
  CHECK_MSG(strstr(said, wanted), "%s: \"%s\" has no \"%s\"", statement, said, wanted);
}

/* With the line, the key, and what is allowed. */
TEST(wrong_statements_are_refused) {
  struct shape s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  check_refused("nonsense 1", "rail_emu_command:1: 'nonsense 1': there is no such statement");
  check_refused("reset\n# nothing\ndelay overtake=1", "rail_emu_command:3: 'delay overtake=1': overtake: there is no "
                                                      "such key; allowed: us from times rate op qp");
  check_refused("port emu0 1 mtu=x", "mtu=x: allowed: a decimal number");
  check_refused("device more guid=g", "guid=g: allowed: a hexadecimal number");
  check_refused("device more max_qps=3", "max_qps: there is no such key; allowed: profile ports guid");
  check_refused("device more link=token_ring", "token_ring: allowed: eth ib");
  check_refused("port emu0 2 state=down", "2: allowed: a port from 1 to 1");
  check_refused("port emu0 1 gids=all", "all: allowed: none");
  check_refused("drop op=writes", "writes: allowed: any send write");
  check_refused("drop qp=first", "first: allowed: a number");
  check_refused("drop times=often", "often: allowed: a number");
  check_refused("fail ibv_reg_mr", "ibv_reg_mr: allowed: open_device");
  check_refused("fail reg_mr errno=ENOSUCH", "ENOSUCH: allowed: ENOMEM");
  check_refused("at 3 port emu0 1 state=gone extra", "extra: no key=value");
  check_refused("clock", "virtual or real is missing");
  check_refused("progress", "thread, post or poll is missing");
  check_refused("progress poll burst=0", "burst=0: allowed: a decimal number from 1 to 4294967295");
  check_refused("cm late event=resolved", "resolved: allowed: addr_resolved");
  exchange(3); /* none of them did anything */
  emu_pair_close(&a, &b);
}

/* What would be cut to fit, or leads to packets that no receiver takes. */
TEST(values_out_of_range_are_refused) {
  struct shape s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  check_refused("port emu0 1 mtu=0", "mtu=0: allowed: a decimal number from 1 to 5");
  check_refused("port emu0 1 mtu=9", "mtu=9: allowed: a decimal number from 1 to 5");
  check_refused("port emu0 1 mtu=257", "mtu=257: allowed: a decimal number from 1 to 5"); /* 1 in 8 bits */
  check_refused("port emu0 1 lid=65536", "lid=65536: allowed: a decimal number from 0 to 65535");
  check_refused("port emu0 1 one_way=2", "one_way=2: allowed: a decimal number from 0 to 1");
  check_refused("port emu0 1 bandwidth=18446744073710", "bandwidth=18446744073710: allowed: a decimal number from 0");
  check_refused("port emu0 4294967297 state=down", "4294967297: allowed: a port from 1 to 1");
  check_refused("device more max_cqe=4294967297", "max_cqe=4294967297: allowed: a decimal number from 1 to 16777216");
  check_refused("device more max_qp_wr=0", "max_qp_wr=0: allowed: a decimal number from 1 to");
  check_refused("device more max_sge=33", "max_sge=33: allowed: a decimal number from 1 to 32");
  check_refused("device more max_rd_atomic=129", "max_rd_atomic=129: allowed: a decimal number from 1 to 128");
  check_refused("device more vendor=100000000", "vendor=100000000: allowed: a hexadecimal number from 0 to ffffffff");
  check_refused("device more ports=5", "ports=5: allowed: a decimal number from 1 to 4");
  check_refused("delay us=18446744073709551", "us=18446744073709551: allowed: a decimal number from 0 to");
  check_refused("drop from=0", "from=0: allowed: a decimal number from 1 to");
  check_refused("drop times=9223372036854775808", "9223372036854775808: allowed: a number up to");
  check_refused("drop qp=16777216", "16777216: allowed: a number up to 16777215");
  check_refused("ring 64x", "64x: allowed: a number up to 16384");
  check_refused("ring 65", "allowed: KiB, a power of two from 64 to 16384");
  CHECK(emu_command("port emu0 1 mtu=5 lid=65535 bandwidth=1000000; port emu0 1 bandwidth=0 lid=2")); /* the ends */
  exchange(3);
  emu_pair_close(&a, &b);
}

/* ---- requests and calls ----------------------------------------------------------------- */

TEST(a_request_fails_on_command) {
  struct shape s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("complete rem_op_err from=4 vendor=77"));
  for (unsigned int i = 0; i < 6; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  for (unsigned int i = 0; i < 3; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  struct ibv_wc wc = completion(&a);
  CHECK(wc.wr_id == 3 && wc.status == IBV_WC_REM_OP_ERR && wc.vendor_err == 0x77);
  for (unsigned int i = 4; i < 6; i++) CHECK_COMPLETION(&a, i, IBV_WC_WR_FLUSH_ERR);
  emu_pair_close(&a, &b);
}

TEST(a_call_fails_on_command) {
  struct shape s = USUAL_SHAPE;
  struct work w;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("fail post_send from=2 times=2 errno=EIO; fail reg_mr"));
  CHECK_OK(post(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8)));
  CHECK_INT(post(&a, &w.wr), EIO);
  CHECK_INT(post(&a, &w.wr), EIO);
  CHECK_OK(post(&a, &w.wr));
  CHECK(!ibv_reg_mr(a.pd, a.data, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == ENOMEM);
  struct ibv_mr *mr = ibv_reg_mr(a.pd, a.data, 4096, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mr);
  CHECK_OK(ibv_dereg_mr(mr));
  emu_pair_close(&a, &b);
}

/* ---- ports and devices --------------------------------------------------------------------- */

TEST(a_port_goes_and_comes) {
  struct shape s = USUAL_SHAPE;
  char text[96];
  const char *name;
  s.timeout = 8;
  s.retry_cnt = 7;
  s.rnr_retry = 7;
  emu_pair_open(&a, &b, &s);
  name = ibv_get_device_name(b.context->device);
  snprintf(text, sizeof text, "port %s 1 state=down", name);
  CHECK(emu_command(text));
  wait_event(&b, IBV_EVENT_PORT_ERR);
  CHECK_OK(ibv_query_port(b.context, 1, &b.port));
  CHECK_INT(b.port.state, IBV_PORT_DOWN);
  snprintf(text, sizeof text, "port %s 1 state=active", name);
  CHECK(emu_command(text));
  wait_event(&b, IBV_EVENT_PORT_ACTIVE);
  exchange(10);
  snprintf(text, sizeof text, "at 5 port %s 1 state=down", name); /* in the middle of what follows */
  CHECK(emu_command(text));
  for (unsigned int i = 0; i < 8; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  unsigned int good = 0;
  struct ibv_wc wc = completion(&a);
  for (; wc.status == IBV_WC_SUCCESS; wc = completion(&a)) CHECK_INT(wc.wr_id, good++);
  CHECK_INT(wc.status, IBV_WC_RETRY_EXC_ERR);
  CHECK(good <= 4);
  snprintf(text, sizeof text, "port %s 1 state=active", name);
  CHECK(emu_command(text));
  emu_pair_close(&a, &b);
}

TEST(a_queue_pair_breaks_on_command) {
  struct shape s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  emu_command_for("at 3 qp_error", &a);
  for (unsigned int i = 0; i < 5; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  unsigned int flushed = 0;
  for (unsigned int i = 0; i < 5; i++) {
    struct ibv_wc wc = completion(&a);
    CHECK_INT(wc.wr_id, i);
    CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR);
    flushed += wc.status != IBV_WC_SUCCESS;
  }
  CHECK(flushed >= 3);
  wait_event(&a, IBV_EVENT_QP_FATAL);
  emu_pair_close(&a, &b);
}

/* Lines that are appended to a file reach running processes; half a line is none yet. */
TEST(commands_while_it_runs) {
  struct shape s = USUAL_SHAPE;
  const char *name;
  emu_pair_open(&a, &b, &s);
  name = ibv_get_device_name(a.context->device);
  FILE *out = fopen(commands, "ae");
  CHECK(out);
  CHECK(fprintf(out, "event %s lid_change\nevent %s sm_ch", name, name) > 0 && fflush(out) == 0);
  wait_event(&a, IBV_EVENT_LID_CHANGE);
  CHECK(fprintf(out, "ange\n") > 0 && fflush(out) == 0);
  wait_event(&a, IBV_EVENT_SM_CHANGE);
  fclose(out);
  emu_pair_close(&a, &b);
}

/* A line that is longer than there is room is left out, to its end; those behind it are not. */
TEST(a_command_that_is_too_long) {
  struct shape s = USUAL_SHAPE;
  const char *name;
  struct ibv_async_event event;
  emu_pair_open(&a, &b, &s);
  name = ibv_get_device_name(a.context->device);
  FILE *out = fopen(commands, "ae");
  CHECK(out);
  CHECK(fprintf(out, "%9000s; event %s sm_change\nevent %s lid_change\n", "", name, name) > 0 && fclose(out) == 0);
  struct pollfd fd = {.fd = a.context->async_fd, .events = POLLIN};
  CHECK_MSG(poll(&fd, 1, WAIT_MS) == 1, "no event within %d ms", WAIT_MS);
  CHECK_OK(ibv_get_async_event(a.context, &event));
  ibv_ack_async_event(&event);
  CHECK_INT(event.event_type, IBV_EVENT_LID_CHANGE);
  emu_pair_close(&a, &b);
}

/* ---- what a device is made with ------------------------------------------------------------------ */

static void open_pair_on(const char *device, const struct shape *s) {
  CHECK_OK(setenv("RAIL_TEST_VERBS_DEVICES", device, 1));
  emu_pair_open(&a, &b, s);
  CHECK_OK(unsetenv("RAIL_TEST_VERBS_DEVICES"));
  CHECK_STR(ibv_get_device_name(a.context->device), device);
}

/* The InfiniBand specification does not have the key of an operation without bytes checked; some devices do it. */
TEST(a_wrong_key_and_no_bytes) {
  struct shape s = USUAL_SHAPE;
  struct work w;
  CHECK(emu_command("device strict zero_byte_rkey=1"));
  emu_pair_open(&a, &b, &s);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 0);
  w.wr.wr.rdma.rkey ^= 0x5500;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  emu_pair_close(&a, &b);
  open_pair_on("strict", &s);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 0); /* with the right one */
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 3, 0, 0);
  w.wr.wr.rdma.rkey ^= 0x5500;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 3, IBV_WC_REM_ACCESS_ERR);
  emu_pair_close(&a, &b);
}

TEST(an_iwarp_device) {
  struct shape s = USUAL_SHAPE;
  struct work w;
  CHECK(emu_command("device warp transport=iwarp"));
  open_pair_on("warp", &s);
  CHECK_INT(a.context->device->transport_type, IBV_TRANSPORT_IWARP);
  CHECK_INT(a.context->device->node_type, IBV_NODE_RNIC);
  CHECK_INT(a.attr.atomic_cap, IBV_ATOMIC_NONE);
  CHECK_INT(post(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8)), EINVAL);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 8);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  emu_pair_close(&a, &b);
}

static void connect_anew(const char *command, const struct shape *s) {
  end_drop_qp(&a);
  end_drop_qp(&b);
  CHECK(emu_command(command));
  end_make_qp(&a, s);
  end_make_qp(&b, s);
  connect_ends(&a, &b, s);
}

/* The rings outlive queue pairs: those that there are keep their size. */
TEST(rings_of_another_size) {
  struct shape s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  static const char *const sizes[] = {"ring 4096", "ring 64", "ring 256"};
  for (unsigned int i = 0; i < 3; i++) {
    connect_anew(sizes[i], &s);
    fill(a.data, BYTES, i);
    send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, BYTES);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    CHECK(memcmp(a.data, b.data, BYTES) == 0);
  }
  emu_pair_close(&a, &b);
}

/* The last one: this device does not come back. */
TEST(a_device_that_fails) {
  struct shape s = USUAL_SHAPE;
  char text[96];
  emu_pair_open(&a, &b, &s);
  for (unsigned int i = 0; i < 5; i++) receive(&a, i, 0, 64);
  snprintf(text, sizeof text, "fatal %s", ibv_get_device_name(a.context->device));
  CHECK(emu_command(text));
  wait_event(&a, IBV_EVENT_DEVICE_FATAL);
  for (unsigned int i = 0; i < 5; i++) CHECK_COMPLETION(&a, i, IBV_WC_WR_FLUSH_ERR);
  CHECK(!ibv_alloc_pd(a.context));
  CHECK(!ibv_open_device(a.context->device));
  emu_pair_close(&a, &b);
}

static const struct tap_case cases[] = {
  TEST_CASE(lost_packets_are_sent_again), TEST_CASE(packets_that_come_twice_count_once), TEST_CASE(everything_at_once),
  TEST_CASE(a_torn_write), TEST_CASE(order_between_queue_pairs_is_free),
  TEST_CASE(many_packets_under_way), TEST_CASE(a_slow_queue_pair),
  TEST_CASE(a_slow_port), TEST_CASE(wrong_statements_are_refused),
  TEST_CASE(values_out_of_range_are_refused), TEST_CASE(a_request_fails_on_command),
  TEST_CASE(a_call_fails_on_command), TEST_CASE(a_port_goes_and_comes), TEST_CASE(a_queue_pair_breaks_on_command),
  TEST_CASE(commands_while_it_runs),
  TEST_CASE(a_command_that_is_too_long), TEST_CASE(a_wrong_key_and_no_bytes), TEST_CASE(an_iwarp_device),
  TEST_CASE(rings_of_another_size), TEST_CASE(a_device_that_fails)};

int main(int argc, char **argv) {
  int fd = mkstemp(commands);
  if (fd < 0) return 2;
  close(fd);
  setenv("RAIL_EMU_CONTROL", commands, 1);
  int status = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  unlink(commands);
  return status;
}
