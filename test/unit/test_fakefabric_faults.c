/* SPDX-License-Identifier: Apache-2.0
 *
 * What the scripted libfabric does when its script says that something goes wrong.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "test/unit/fakefabric_ends.h"

/* Receives and sends of one message each, numbered from `first`. */
static void exchange(int first, int n) {
  for (int i = first; i < first + n; i++) {
    CHECK_OK(fi_recv(right.ep, right.memory + 8 * i, 8, desc(&right), FI_ADDR_UNSPEC, &right.contexts[i]));
    memcpy(left.memory + 8 * i, &i, sizeof i);
    CHECK_OK(fi_send(left.ep, left.memory + 8 * i, 8, desc(&left), left.peer, &left.contexts[i]));
  }
}

/* The number of the completion that comes next; every one comes once. */
static int number_of(struct end *e) { return (int)((struct fi_context2 *)wait_for(e).op_context - e->contexts); }

static void expect_silence(void) {
  for (int i = 0; i < 50; i++) {
    expect_nothing(&left);
    expect_nothing(&right);
  }
}

TEST(eagain) {
  int again = 0;
  open_both("eagain_next=3");
  for (int i = 0; i < 3; i++) CHECK_INT(fi_tsend(left.ep, left.memory, 8, desc(&left), left.peer, 1, NULL), -FI_EAGAIN);
  CHECK_OK(fi_tsend(left.ep, left.memory, 8, desc(&left), left.peer, 1, NULL));
  fake_script("eagain=50 seed=3");
  for (int i = 0; i < 100; i++)
    again += fi_tsend(left.ep, left.memory, 8, desc(&left), left.peer, 1, NULL) == -FI_EAGAIN;
  CHECK_MSG(again > 20 && again < 80, "%d of 100", again);
  for (int i = again; i < 101; i++) wait_for(&left);
  close_both();
}

TEST(scripted_errors) {
  char text[64] = "", data[16];
  open_both("fail=tsend:2:EREMOTEIO:42 err_text=link_is_broken");
  for (int i = 0; i < 3; i++) CHECK_OK(fi_tsend(left.ep, left.memory, 8, desc(&left), left.peer, 1, &left.contexts[i]));
  CHECK_INT(number_of(&left), 0);
  struct fi_cq_err_entry error = wait_for_error(&left);
  CHECK(error.err == FI_EREMOTEIO && error.prov_errno == 42 && error.op_context == &left.contexts[1]);
  CHECK_STR(fi_cq_strerror(left.cq, error.prov_errno, error.err_data, text, sizeof text), "link is broken (42)");
  CHECK_STR(text, "link is broken (42)");
  CHECK_INT(number_of(&left), 2);
  /* Of a receive, with the caller's room for err_data. */
  fake_script("fail=recv:1:EIO:7");
  exchange(4, 1);
  CHECK_INT(number_of(&left), 4);
  struct fi_cq_tagged_entry entry;
  CHECK_INT(fi_cq_read(right.cq, &entry, 1), -FI_EAVAIL);
  CHECK_INT(fi_cq_read(right.cq, &entry, 1), -FI_EAVAIL);
  error = (struct fi_cq_err_entry){.err_data = data, .err_data_size = sizeof data};
  CHECK_INT(fi_cq_readerr(right.cq, &error, 0), 1);
  CHECK(error.err == FI_EIO && error.err_data == data && memcmp(data, "link is broken", 15) == 0);
  CHECK_INT(fi_cq_readerr(right.cq, &error, 0), -FI_EAGAIN);
  /* Of calls. */
  struct fid_ep *ep;
  struct fid_mr *mr;
  fake_script("fail=endpoint:2:ENOMEM fail=mr_reg:1:ENOSPC fail=av_insert:1:EIO:0:2 fail=enable:1:EINVAL");
  CHECK_OK(fi_endpoint(left.domain, left.info, &ep, NULL));
  CHECK_INT(fi_enable(ep), -FI_EINVAL);
  CHECK_OK(fi_close(&ep->fid));
  CHECK_INT(fi_endpoint(left.domain, left.info, &ep, NULL), -FI_ENOMEM);
  CHECK_INT(fi_mr_reg(left.domain, data, 8, FI_SEND, 0, 0, 0, &mr, NULL), -FI_ENOSPC);
  CHECK_INT(fi_av_insert(left.av, text, 1, NULL, 0, NULL), -FI_EIO);
  CHECK_INT(fi_av_insert(left.av, text, 1, NULL, 0, NULL), -FI_EIO);
  close_both();
}

TEST(silence) {
  open_both("lose=send:1 hang=send:2 gone=silent");
  exchange(0, 2);
  CHECK_INT(number_of(&left), 0);
  expect_silence();
  exchange(2, 1);
  CHECK(number_of(&left) == 2 && number_of(&right) == 0);
  /* A receive that takes a message and says nothing. */
  fake_script("hang=recv:1");
  exchange(4, 1);
  CHECK_INT(number_of(&left), 4);
  expect_silence();
  REFUSED(fi_close(&right.mr->fid), FI_EBUSY, "3 operations in flight");
  /* The other end is gone, and says nothing. What hangs holds its MR until its endpoint is closed. */
  exchange(3, 1);
  close_end(&right);
  for (int i = 0; i < 50; i++) expect_nothing(&left);
  REFUSED(fi_close(&left.mr->fid), FI_EBUSY, "2 operations in flight");
  CHECK_OK(fi_close(&left.ep->fid));
  left.ep = NULL;
  close_end(&left);
}

/* The number that endpoints get: that of the last one made. */
static uint32_t number_of_last(void) {
  struct sockaddr_in in;
  size_t len = sizeof in;
  CHECK_OK(fi_getname(&right.ep->fid, &in, &len));
  return ntohs(in.sin_port);
}

TEST(death) {
  char script[64];
  open_both("");
  snprintf(script, sizeof script, "dead=%u", number_of_last());
  fake_script(script);
  exchange(0, 1);
  expect_silence();
  fake_script("reset=1");
  CHECK(number_of(&left) == 0 && number_of(&right) == 0);
  snprintf(script, sizeof script, "dead=%u:EHOSTDOWN", number_of_last());
  fake_script(script);
  exchange(1, 1);
  CHECK_INT(wait_for_error(&left).err, FI_EHOSTDOWN);
  fake_script("reset=1 fail=send:1:EIO:0:ever");
  exchange(2, 2);
  for (int i = 0; i < 2; i++) CHECK_INT(wait_for_error(&left).err, FI_EIO);
  fake_script("reset=1 dead=0");
  exchange(4, 1);
  expect_silence();
  fake_script("reset=1");
  CHECK(number_of(&left) == 4 && number_of(&right) == 1);
  /* It dies when a message is on its way to it. */
  exchange(5, 1);
  CHECK_INT(number_of(&left), 5);
  snprintf(script, sizeof script, "dead=%u", number_of_last());
  fake_script(script);
  expect_silence();
  fake_script("reset=1");
  CHECK_INT(number_of(&right), 2);
  REFUSED(fi_close(&right.mr->fid), FI_EBUSY, "3 operations in flight");
  CHECK_OK(fi_close(&right.ep->fid));
  right.ep = NULL;
  CHECK_OK(fi_send(left.ep, left.memory, 8, desc(&left), left.peer, NULL));
  struct fi_cq_err_entry error = {0};
  progress_of(&left);
  CHECK_INT(fi_cq_readerr(left.cq, &error, 0), 1);
  CHECK_INT(error.err, FI_ECONNREFUSED);
  close_both();
}

/* How many of 32 completions come before one that was posted earlier. */
static int disorder(struct end *e) {
  int latest = -1, n = 0;
  uint32_t seen = 0;
  for (int i = 0; i < 32; i++) {
    int number = number_of(e);
    CHECK(number >= 0 && number < 32);
    n += number < latest;
    latest = number > latest ? number : latest;
    seen |= 1u << number;
  }
  CHECK_INT(seen, UINT32_MAX);
  return n;
}

TEST(order_of_completions) {
  open_both("");
  exchange(0, 32);
  CHECK(disorder(&left) == 0 && disorder(&right) == 0);
  fake_script("reorder=30");
  exchange(0, 32);
  CHECK(disorder(&left) > 0 && disorder(&right) > 0);
  /* Messages went into their receives in order. */
  for (int i = 0; i < 32; i++) CHECK_INT(*(int *)(void *)(right.memory + 8 * i), i);
  fake_script("reset=1 late=20");
  exchange(0, 32);
  CHECK(disorder(&left) > 0 && disorder(&right) > 0);
  close_both();
  open_both("add=strict late=20 reorder=30");
  CHECK_INT(left.info->rx_attr->comp_order, FI_ORDER_STRICT);
  exchange(0, 32);
  CHECK(disorder(&left) == 0 && disorder(&right) == 0);
  close_both();
}

TEST(order_of_messages) {
  int wrong = 0;
  open_both("no=sas overtake=50");
  exchange(0, 32);
  CHECK(disorder(&left) == 0);
  (void)disorder(&right);
  for (int i = 0; i < 32; i++) wrong += *(int *)(void *)(right.memory + 8 * i) != i;
  CHECK(wrong > 0);
  close_both();
  open_both("overtake=50");
  exchange(0, 32);
  CHECK(disorder(&left) == 0 && disorder(&right) == 0);
  for (int i = 0; i < 32; i++) CHECK_INT(*(int *)(void *)(right.memory + 8 * i), i);
  close_both();
}

static int written(void) {
  int n = 0;
  for (int i = 1000; i < 2000; i++) n += right.memory[i] == 'w';
  return n;
}

/* A write in pieces, and a message behind it. */
static void write_and_tell(uint64_t flags) {
  struct iovec iov = {left.memory + 1000, 1000};
  struct fi_rma_iov rma = {(uintptr_t)right.memory + 1000, 1000, fi_mr_key(right.mr)};
  void *d = desc(&left);
  struct fi_msg_rma write = {.msg_iov = &iov, .desc = &d, .iov_count = 1, .addr = left.peer, .rma_iov = &rma,
                             .rma_iov_count = 1, .context = &left.contexts[30]};
  memset(left.memory + 1000, 'w', 1000);
  CHECK_OK(fi_writemsg(left.ep, &write, flags));
  exchange(0, 1);
}

TEST(torn_writes) {
  open_both("torn=300");
  write_and_tell(0);
  CHECK_INT(number_of(&left), 30);
  CHECK_INT(number_of(&left), 0);
  expect_nothing(&right);
  CHECK(written() == 300 && right.memory[1999] == 'w');
  CHECK(number_of(&right) == 0 && written() == 1000);
  close_both();
  open_both("torn=300 no=saw overtake=0");
  write_and_tell(0);
  CHECK_INT(number_of(&left), 30);
  CHECK_INT(number_of(&left), 0);
  CHECK(number_of(&right) == 0 && written() == 300);
  close_both();
  /* Completed where it arrived. */
  open_both("torn=300 no=saw");
  write_and_tell(FI_DELIVERY_COMPLETE | FI_COMPLETION);
  CHECK(number_of(&left) == 0);
  CHECK(number_of(&left) == 30 && written() == 1000);
  CHECK_INT(number_of(&right), 0);
  close_both();
}

TEST(short_queues) {
  struct fi_cq_tagged_entry entries[8];
  struct fi_cq_err_entry error = {0};
  open_both("cq_size=4 overrun=1");
  exchange(0, 8);
  CHECK_INT(fi_cq_read(left.cq, entries, 8), 4);
  CHECK_INT(fi_cq_read(left.cq, entries, 8), -FI_EAVAIL);
  CHECK_INT(fi_cq_readerr(left.cq, &error, 0), 1);
  CHECK_INT(error.err, FI_EOVERRUN);
  fake_script("overrun=2");
  CHECK_INT(fi_cq_read(left.cq, entries, 8), -FI_EOVERRUN);
  close_both();
  open_both("cq_size=4 burst=2");
  exchange(0, 8);
  CHECK_INT(fi_cq_read(left.cq, entries, 8), 2);
  for (int i = 2; i < 8; i++) CHECK_INT(number_of(&left), i);
  close_both();
}

/* Which side's reads of its CQ bring the message to the other. */
TEST(progress) {
  static const struct { const char *script; bool left, right;
  } modes[] = {{"move=both", false, false},
               {"move=sender", true, false},
               {"move=receiver", false, true},
               {"move=any", true, true}};
  for (size_t i = 0; i < 4; i++)
    for (int side = 0; side < 2; side++) {
      open_both(modes[i].script);
      exchange(1, 1);
      progress_of(side ? &right : &left);
      CHECK_INT(right.memory[8], side ? modes[i].right : modes[i].left);
      close_both();
    }
}

TEST(multi_recv_and_cancel) {
  size_t least = 50, len = sizeof least;
  open_both("no=directed");
  CHECK_OK(fi_setopt(&right.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least));
  CHECK(fi_getopt(&right.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len) == 0 && least == 50);
  struct iovec iov = {right.memory, 100};
  void *d = desc(&right);
  struct fi_msg recv = {
      .msg_iov = &iov, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &right.contexts[0]};
  CHECK_OK(fi_recvmsg(right.ep, &recv, FI_MULTI_RECV | FI_COMPLETION));
  for (int i = 0; i < 3; i++)
    CHECK_OK(fi_send(left.ep, left.memory + i, 30, desc(&left), left.peer, &left.contexts[i]));
  for (int i = 0; i < 2; i++) {
    struct fi_cq_tagged_entry got = wait_for(&right);
    CHECK(got.op_context == &right.contexts[0] && got.buf == right.memory + 30 * i && got.len == 30);
    CHECK(!(got.flags & FI_MULTI_RECV) == (i == 0));
  }
  CHECK_OK(fi_recv(right.ep, right.memory, 30, d, FI_ADDR_UNSPEC, &right.contexts[1]));
  CHECK_INT(number_of(&right), 1);
  CHECK_OK(fi_trecv(right.ep, right.memory, 30, d, FI_ADDR_UNSPEC, 1, 0, &right.contexts[2]));
  CHECK_INT(fi_cancel(&right.ep->fid, &right.contexts[1]), -FI_ENOENT);
  CHECK_OK(fi_cancel(&right.ep->fid, &right.contexts[2]));
  struct fi_cq_err_entry error = wait_for_error(&right);
  CHECK(error.err == FI_ECANCELED && error.op_context == &right.contexts[2]);
  close_both();
}

TEST(addresses) {
  static const char *const scripts[] = {"addr=in av=map", "addr=in6 av=table", "addr=str", "addr=raw av=map"};
  for (size_t i = 0; i < 4; i++) {
    char address[64], same[64] = "";
    size_t len = sizeof address, short_len = 2, n = sizeof same;
    open_both(scripts[i]);
    CHECK_INT(left.peer == 0, i == 1 || i == 2);
    CHECK_INT(fi_getname(&right.ep->fid, address, &short_len), -FI_ETOOSMALL);
    CHECK_OK(fi_getname(&right.ep->fid, address, &len));
    CHECK_OK(fi_av_lookup(left.av, left.peer, same, &n));
    CHECK(n == len && short_len == len && memcmp(address, same, len) == 0);
    exchange(0, 1);
    CHECK(number_of(&left) == 0 && number_of(&right) == 0);
    /* Taken out; one that nothing is behind. */
    CHECK_OK(fi_av_remove(left.av, &left.peer, 1, 0));
    REFUSED(fi_send(left.ep, left.memory, 8, desc(&left), left.peer, NULL), FI_EINVAL, "not in the AV");
    if (i != 2) memset(address + 2, 1, 2);
    else strcpy(address, "fi_fake://0:60000");
    CHECK_INT(fi_av_insert(left.av, address, 1, &left.peer, 0, NULL), 1);
    CHECK_OK(fi_send(left.ep, left.memory, 8, desc(&left), left.peer, NULL));
    CHECK_INT(wait_for_error(&left).err, FI_ECONNREFUSED);
    close_both();
  }
}

TEST(formats) {
  union {
    struct fi_cq_entry context[2];
    struct fi_cq_msg_entry msg[2];
    struct fi_cq_data_entry data[2];
  } e;
  static const enum fi_cq_format formats[] = {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA};
  for (int i = 0; i < 3; i++) {
    open_both_as("", FI_MSG, formats[i]);
    exchange(0, 2);
    CHECK_INT(fi_cq_read(left.cq, &e, 2), 2);
    CHECK_INT(fi_cq_read(right.cq, &e, 2), 2);
    const void *second = i == 0 ? e.context[1].op_context : i == 1 ? e.msg[1].op_context : e.data[1].op_context;
    CHECK(second == &right.contexts[1]);
    CHECK_INT(i == 0 ? 8 : i == 1 ? e.msg[1].len : e.data[1].len, 8);
    close_both();
  }
}

/* ---- threads ----------------------------------------------------------- */

static atomic_bool stop;

static bool in_time(const struct timespec *began) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec - began->tv_sec < 100;
}

/* Each end is one thread's, as FI_THREAD_DOMAIN wants it: one sends, one receives, 500 messages. */
static void *receive_all(void *failed) {
  struct fi_cq_tagged_entry entry;
  int got = 0;
  for (int i = 0; got < 500;) {
    if (i < got + 8 && i < 500 &&
        fi_trecv(right.ep, right.memory + 4096 * (i % 8), 4096, desc(&right), FI_ADDR_UNSPEC, (uint64_t)i, 0, NULL) ==
            0)
      i++;
    if (fi_cq_read(right.cq, &entry, 1) != 1) continue;
    const char *payload = right.memory + 4096 * (got % 8);
    for (int b = 0; b < 4096; b++)
      if (payload[b] != (char)got) *(bool *)failed = true;
    got++;
  }
  return NULL;
}

TEST(two_threads) {
  pthread_t thread;
  bool failed = false;
  struct fi_cq_tagged_entry entry;
  open_both("eager=1000 eagain=20");
  CHECK_OK(pthread_create(&thread, NULL, receive_all, &failed));
  for (int i = 0, done = 0; done < 500;) {
    if (i < done + 8 && i < 500) {
      memset(left.memory + 4096 * (i % 8), i, 4096);
      if (fi_tsend(left.ep, left.memory + 4096 * (i % 8), 4096, desc(&left), left.peer, (uint64_t)i, NULL) == 0) i++;
    }
    done += fi_cq_read(left.cq, &entry, 1) == 1;
  }
  pthread_join(thread, NULL);
  CHECK(!failed);
  close_both();
}

static void *read_on(void *end) {
  struct end *e = end;
  struct fi_cq_tagged_entry entry;
  while (!atomic_load(&stop)) (void)fi_cq_read(e->cq, &entry, 1);
  return NULL;
}

/* One domain from two threads at a time. A race detector would say so, too, and end the test. */
TEST(threads_that_share) {
#if defined(__SANITIZE_THREAD__)
  tap_skip_case("it is a race");
#endif
  pthread_t thread;
  struct timespec began;
  struct fi_cq_tagged_entry entry;
  open_both("");
  atomic_store(&stop, false);
  clock_gettime(CLOCK_MONOTONIC, &began);
  CHECK_OK(pthread_create(&thread, NULL, read_on, &left));
  while (fake_violations() == 0 && in_time(&began)) (void)fi_cq_read(left.cq, &entry, 1);
  atomic_store(&stop, true);
  pthread_join(thread, NULL);
  CHECK_MSG(strstr(fake_violation(), "while another thread is in a call of the same domain"), "%s", fake_violation());
  fake_forgive();
  close_both();
}

FAKEFABRIC_MAIN(TEST_CASE(eagain), TEST_CASE(scripted_errors), TEST_CASE(silence), TEST_CASE(death),
                TEST_CASE(order_of_completions), TEST_CASE(order_of_messages), TEST_CASE(torn_writes),
                TEST_CASE(short_queues), TEST_CASE(progress), TEST_CASE(multi_recv_and_cancel), TEST_CASE(addresses),
                TEST_CASE(formats), TEST_CASE(two_threads), TEST_CASE(threads_that_share))
