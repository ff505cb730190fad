/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: a block does what a host kernel does, on the CPU executor. All
 * collectives, protocols, types and operators, ranks as blocks of one launch, some of
 * them host kernels, proxies in between; a launch run again and again; jobs that
 * follow one another on a connection; calls that differ; every wait ended by abort. Under the thread sanitizer
 * every access that no barrier, counter or flag orders is a failure.
 */
#include <pthread.h>
#include <unistd.h>

#include "core/host/rt_program.h"
#include "kit/kit_ensure.h"
#include "test/device/block_case.h"
#include "test/device/emu.h"
#include "test/device/link.h"
#include "test/harness/tap.h"

static void *get(size_t n) { return aligned_alloc(128, (n + 127) / 128 * 128); }

static bool run_all(struct rt_device_launch *launch, unsigned threads) {
  emu_collective(launch, threads);
  return true;
}

static const struct block_machine machine = {get, free, run_all};

struct outcome {
  int cases;
  const char *why;
  char text[400];
};

static bool each(const struct block_case *c, void *arg) {
  struct outcome *o = arg;
  o->cases++;
  snprintf(o->text, sizeof o->text, "%s", block_case_text(c));
  if (getenv("CASES")) printf("# %s\n", o->text);
  o->why = block_case_run(&machine, c);
  return !o->why;
}

static void run_coll(enum rt_coll coll) {
  struct outcome o = {0};
  block_cases(coll, kit_sanitized(), each, &o);
  CHECK_MSG(!o.why, "%s: %s", o.text, o.why);
  CHECK(o.cases > 0);
}

TEST(allreduce) { run_coll(RT_ALLREDUCE); }
TEST(reduce_scatter) { run_coll(RT_REDUCE_SCATTER); }
TEST(allgather) { run_coll(RT_ALLGATHER); }
TEST(broadcast) { run_coll(RT_BROADCAST); }
TEST(reduce) { run_coll(RT_REDUCE); }
TEST(send_recv) { run_coll(RT_SEND); }
TEST(copy) { run_coll(RT_COPY); }
TEST(exchange) { run_coll(RT_EXCHANGE); }
TEST(tree) { run_coll(RT_TREE); }
TEST(types_and_operators) {
  struct outcome o = {0};
  block_cases_of_types(kit_sanitized(), each, &o);
  CHECK_MSG(!o.why, "%s: %s", o.text, o.why);
  const int types = kit_sanitized() ? (RT_TYPE_COUNT + 4) / 5 : RT_TYPE_COUNT;
  CHECK_INT(o.cases, types * RT_OP_COUNT * 3);
}

/* ---- a few jobs, made by hand, on one connection ---- */

#define JOBS 4
#define BYTES 4000u
#define THREADS 8u
#define TOO_LONG 60u /* seconds, then the program ends */

static struct link line;
static char *line_memory;
static struct rt_device_launch *launch;
static uint32_t aborted;
static char out[BYTES], in[BYTES];

static void open_line(bool proxied) {
  alarm(TOO_LONG);
  line_memory = get(link_bytes(BLOCK_SLOT, proxied));
  link_init(&line, line_memory, BLOCK_SLOT, proxied, 0);
  launch = calloc(1, sizeof *launch + JOBS * sizeof launch->job[0]);
  launch->abort = &aborted;
  aborted = 0;
  for (size_t i = 0; i < BYTES; i++) out[i] = (char)(i * 7 + i / 251 + 1);
  memset(in, 0x55, sizeof in);
}

static void close_line(void) {
  alarm(0);
  free(launch);
  free(line_memory);
}

static struct rt_device_job *add(enum rt_coll coll, int proto, uint64_t bytes, uint64_t chunk, int after) {
  struct rt_device_job *j = &launch->job[launch->nblocks++];
  *j = (struct rt_device_job){.proto = proto, .op = -1};
  j->sched = (struct rt_sched){.coll = coll, .rank = coll == RT_RECV, .nranks = 2, .esize = 1, .count = bytes};
  j->sched.len = bytes;
  j->sched.chunk = chunk;
  if (coll == RT_RECV) {
    j->recv[0] = &line.recv;
    j->recv_after[0] = after;
    j->sched.recv = in;
  } else {
    j->send[0] = &line.send;
    j->send_after[0] = after;
    j->sched.send = out;
  }
  j->call = rt_sched_call(&j->sched);
  return j;
}

static void run(void) {
  launch->run++;
  emu_collective(launch, THREADS);
  for (int i = 0; i < launch->nblocks; i++) CHECK(block_ended(launch, i));
}

/* What comes is not what the receiver asks for. */
static void differ(int sends, uint64_t sent, int receives, uint64_t received, uint64_t got, uint64_t expected) {
  open_line(false);
  add(RT_SEND, sends, sent, 240, -1);
  struct rt_device_job *r = add(RT_RECV, receives, received, 240, -1);
  run();
  CHECK_MSG(r->state == RT_DEVICE_MISMATCH, "%d bytes in %d for %d in %d: state %d", (int)sent, sends, (int)received,
            receives, (int)r->state);
  CHECK_INT(r->got, got);
  CHECK_INT(r->expected, expected);
  CHECK_INT(line.recv.step, 0);
  for (uint64_t i = received; i < BYTES; i++) CHECK_INT(in[i], 0x55);
  close_line();
}

TEST(sizes_that_differ_are_found) {
  for (int proto = RT_SIMPLE; proto <= RD_LL128; proto++) {
    differ(proto, 100, proto, 40, 100, 40);
    differ(proto, 40, proto, 100, 40, 100);
    differ(proto, 0, proto, 100, 0, 100);
    differ(proto, 100, proto, 0, 100, 0);
  }
}

TEST(protocols_that_differ_are_found) {
  differ(RT_SIMPLE, 100, RT_LL, 100, 100, 208);
  differ(RT_SIMPLE, 100, RD_LL128, 100, 100, 128);
  differ(RT_LL, 100, RT_SIMPLE, 100, 208, 100);
  differ(RT_LL, 64, RD_LL128, 64, 128, 128); /* of the same size on the FIFO */
  differ(RD_LL128, 64, RT_LL, 64, 128, 128);
}

/* The steps look alike, the calls do not. */
TEST(calls_that_differ_are_found) {
  for (int proto = RT_SIMPLE; proto <= RD_LL128; proto++) {
    open_line(false);
    add(RT_SEND, proto, 100, 240, -1)->call = 300 << 4 | RT_BROADCAST;
    struct rt_device_job *r = add(RT_RECV, proto, 100, 240, -1);
    run();
    CHECK_INT(r->state, RT_DEVICE_MISMATCH);
    CHECK_INT(r->got, 300);
    CHECK_INT(r->expected, 100);
    close_line();
  }
}

/* Only a mismatch; and who comes after it leaves the connection alone. */
TEST(after_a_mismatch) {
  open_line(false);
  add(RT_SEND, RT_SIMPLE, 100, 240, -1);
  struct rt_device_job *bad = add(RT_RECV, RT_SIMPLE, 40, 240, -1), *next = add(RT_RECV, RT_SIMPLE, 100, 240, 1);
  run();
  CHECK_INT(bad->state, RT_DEVICE_MISMATCH);
  CHECK_INT(next->state, RT_DEVICE_ABORTED);
  CHECK_INT(line.recv.step, 0);
  close_line();
}

TEST(a_mismatch_is_over_with_the_next_run) {
  open_line(false);
  struct rt_device_job *s = add(RT_SEND, RT_LL, 100, 240, -1), *r = add(RT_RECV, RT_LL, 100, 240, -1);
  s->call++;
  run();
  CHECK_INT(r->state, RT_DEVICE_MISMATCH);
  s->call--;
  line.recv.step++; /* as if the step had been taken */
  run();
  CHECK_INT(r->state, RT_DEVICE_DONE);
  CHECK(memcmp(in, out, 100) == 0);
  close_line();
}

/* ---- abort: every wait ends ---- */

/* Not before the blocks have got as far as they can. */
struct far {
  const uint64_t *counter;
  uint64_t value;
};

static void *set_abort(void *arg) {
  const struct far *far = arg;
  while (rt_observe(far->counter) < far->value) usleep(1000);
  usleep(20000);
  __atomic_store_n(&aborted, 1, __ATOMIC_RELAXED);
  return NULL;
}

static void run_and_abort(const uint64_t *counter, uint64_t value) {
  struct far far = {counter, value};
  pthread_t other;
  CHECK_OK(pthread_create(&other, NULL, set_abort, &far));
  run();
  CHECK_OK(pthread_join(other, NULL));
}

TEST(abort_ends_receiving) {
  for (int proto = RT_SIMPLE; proto <= RD_LL128; proto++)
    for (int begun = 0; begun < 2; begun++) {
      open_line(false);
      struct rt_device_job *r = add(RT_RECV, proto, 480, 120, -1);
      /* Half of it comes. */
      if (begun) add(RT_SEND, proto, 240, 120, -1)->call = r->call;
      const uint64_t steps = begun ? 2 : 0;
      run_and_abort(&line.at_send.credit, RT_STEPS + steps);
      CHECK_INT(r->state, RT_DEVICE_ABORTED);
      CHECK_INT(line.recv.step, steps);
      CHECK_INT(line.at_send.credit, RT_STEPS + steps);
      close_line();
    }
}

TEST(abort_ends_sending) {
  for (int proto = RT_SIMPLE; proto <= RD_LL128; proto++) {
    open_line(false);
    struct rt_device_job *s = add(RT_SEND, proto, 100 * (RT_STEPS + 1), 100, -1);
    run_and_abort(&line.at_send.tail, RT_STEPS);
    CHECK_INT(s->state, RT_DEVICE_ABORTED);
    CHECK_INT(line.send.step, RT_STEPS);
    CHECK_INT(line.at_send.tail, RT_STEPS);
    close_line();
  }
}

TEST(abort_ends_waiting_for_a_turn) {
  open_line(false);
  struct rt_device_job *r = add(RT_RECV, RT_SIMPLE, 100, 100, -1), *next = add(RT_RECV, RT_SIMPLE, 100, 100, 0);
  run_and_abort(&line.at_send.credit, RT_STEPS);
  CHECK_INT(r->state, RT_DEVICE_ABORTED);
  CHECK_INT(next->state, RT_DEVICE_ABORTED);
  close_line();
}

/* ---- a proxy ---- */

/* Takes a grant at a time and brings the step; counts what is wrong. */
static void *proxy_main(void *arg) {
  int *bad = arg;
  uint64_t at = 0;
  for (uint64_t step = 0; step < 20; step++) { /* 499 elements of 4 bytes, 25 a step */
    while (rt_observe(&line.at_recv.credit) <= step) usleep(100);
    if (step == 0) usleep(20000); /* it does not go further ahead, however long it waits */
    const uint64_t granted = rt_observe(&line.at_recv.credit);
    const uint64_t bytes = step == 19 ? 96 : 100;
    struct rt_slot *slot = &line.at_recv.slot[step % RT_STEPS];
    *bad += granted > step + RT_STEPS || slot->ptr || slot->mhandle || slot->capacity != bytes;
    memcpy(rt_conn_slot_buff(&line.recv, RT_SIMPLE, step), out + at, bytes);
    at += bytes;
    slot->bytes = bytes;
    rt_publish(&line.at_recv.tail, step + 1);
  }
  return NULL;
}

TEST(receives_are_granted) {
  int bad = 0;
  pthread_t proxy;
  open_line(true);
  struct rt_device_job *r = add(RT_RECV, RT_SIMPLE, 499, 25, -1);
  r->sched.esize = 4;
  CHECK_OK(pthread_create(&proxy, NULL, proxy_main, &bad));
  run();
  CHECK_OK(pthread_join(proxy, NULL));
  CHECK_INT(bad, 0);
  CHECK_INT(r->state, RT_DEVICE_DONE);
  CHECK_INT(line.recv.granted, 20);
  CHECK_INT(line.at_recv.credit, 20);
  CHECK(memcmp(in, out, 1996) == 0 && in[1996] == 0x55);
  close_line();
}

TEST(a_proxy_brings_a_wrong_size) {
  open_line(true);
  struct rt_device_job *r = add(RT_RECV, RT_SIMPLE, 100, 100, -1);
  line.at_recv.slot[0].bytes = 60;
  line.at_recv.tail = 1;
  run();
  CHECK_INT(r->state, RT_DEVICE_MISMATCH);
  CHECK_INT(r->got, 60);
  CHECK_INT(r->expected, 100);
  close_line();
}

/* ---- order: jobs that follow one another on a connection ---- */

TEST(jobs_take_turns) {
  open_line(false);
  add(RT_SEND, RT_SIMPLE, 1000, 100, -1);
  add(RT_RECV, RT_SIMPLE, 1000, 100, -1);
  add(RT_SEND, RT_LL, 700, 100, 0); /* of no more steps than there are slots */
  launch->job[2].sched.send = out + 1000;
  for (int again = 0; again < 3; again++) {
    /* A host kernel receives what the second job sends: it takes the steps where the first receiver has left them. */
    run();
    struct rt_program k = {.sched = launch->job[1].sched, .proto = RT_LL, .recv = {&line.recv}};
    k.sched.recv = in + 1000;
    k.sched.count = k.sched.len = 700;
    rt_program_init(&k);
    CHECK_INT(rt_program_poll(&k), RT_PROGRAM_PROGRESS);
    while (rt_program_poll(&k) == RT_PROGRAM_PROGRESS) {}
    CHECK_INT(k.phase, RT_PHASE_DONE);
    CHECK(memcmp(in, out, 1700) == 0);
    memset(in, 0, sizeof in);
  }
  close_line();
}

/* ---- a block that runs several jobs ---- */

/* One block sends twice, another receives twice: more than the slots hold, so that each waits for the other. */
TEST(a_block_runs_a_list) {
  open_line(false);
  add(RT_SEND, RT_SIMPLE, 1000, 100, -1);
  add(RT_RECV, RT_SIMPLE, 1000, 100, -1);
  add(RT_SEND, RT_LL, 2000, 100, 0);
  add(RT_RECV, RT_LL, 2000, 100, 1);
  launch->nblocks = 2;
  launch->job[0].next = 2;
  launch->job[1].next = 3;
  launch->job[2].sched.send = out + 1000;
  launch->job[3].sched.recv = in + 1000;
  for (int again = 0; again < 3; again++) {
    memset(in, 0, sizeof in);
    run();
    for (int j = 0; j < 4; j++) CHECK(block_ended(launch, j) && launch->job[j].state == RT_DEVICE_DONE);
    CHECK(memcmp(in, out, 3000) == 0);
  }
  close_line();
}

/* Calls that differ end the whole list, when the communicator fails. */
TEST(a_list_ends_with_an_abort) {
  open_line(false);
  add(RT_RECV, RT_SIMPLE, 1000, 100, -1);
  add(RT_RECV, RT_SIMPLE, 1000, 100, 0);
  launch->nblocks = 1;
  launch->job[0].next = 1;
  aborted = 1;
  run();
  for (int j = 0; j < 2; j++) CHECK(block_ended(launch, j) && launch->job[j].state == RT_DEVICE_ABORTED);
  close_line();
}

TEST_MAIN(TEST_CASE(a_block_runs_a_list), TEST_CASE(a_list_ends_with_an_abort), TEST_CASE(sizes_that_differ_are_found),
          TEST_CASE(protocols_that_differ_are_found), TEST_CASE(calls_that_differ_are_found),
          TEST_CASE(after_a_mismatch), TEST_CASE(a_mismatch_is_over_with_the_next_run), TEST_CASE(abort_ends_receiving),
          TEST_CASE(abort_ends_sending), TEST_CASE(abort_ends_waiting_for_a_turn), TEST_CASE(receives_are_granted),
          TEST_CASE(a_proxy_brings_a_wrong_size), TEST_CASE(jobs_take_turns), TEST_CASE(allreduce),
          TEST_CASE(reduce_scatter), TEST_CASE(allgather), TEST_CASE(broadcast), TEST_CASE(reduce),
          TEST_CASE(send_recv), TEST_CASE(copy), TEST_CASE(exchange), TEST_CASE(tree), TEST_CASE(types_and_operators))
