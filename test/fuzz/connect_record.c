/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * What one rank's transport tells the other's: the connect record that came
 * through the bootstrap, and the description of a peer. Input: sizes and
 * flags, the record, then two peers.
 *
 * The rank is its own peer here, over shared memory: the record is filed where
 * the bootstrap would have filed it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "core/bootstrap/rt_boot.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/transport/rt_shm.h"
#include "test/fuzz/lib/fuzz.h"

#define TO_SENDER 0xc0000001u /* the tag under which a sender looks for its receiver's record */

/* A segment as a receiver makes it, for this run; the record may name it. */
#define SEGMENT_SIZE (4096 + 64 * 1024 + 16 * 1024)
static int segment(bool magic, uint64_t size) {
  static const uint64_t right = 0x7261696c73686d32ull, wrong = 0;
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  FUZZ_CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  FUZZ_CHECK(pwrite(fd, magic ? &right : &wrong, sizeof right, 0) == sizeof right);
  return fd;
}

static void open_bootstrap(struct rt_bootstrap *b, uint8_t *data_closed, struct rt_boot_tx *tx) {
  static union rail_addr addr;
  memset(b, 0, sizeof *b);
  b->nranks = 1;
  b->listen_fd = b->event_fd = b->thread.epoll_fd = -1;
  b->data_closed = data_closed;
  b->tx = tx;
  b->addrs = &addr;
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->cond, NULL);
  for (size_t i = 0; i < RT_BOOT_BUCKETS; i++) STAILQ_INIT(&b->unexpected[i]);
}

static void check_peers(struct fuzz_in *in) {
  struct rt_peer me, a, b;
  rt_peer_describe(&me);
  a = b = me;
  uint8_t flags = fuzz_u8(in);
  if (flags & 1) fuzz_fill(in, &a, sizeof a);
  if (flags & 2) fuzz_fill(in, &b, sizeof b);
  char why[RT_WHY] = "";
  rail_result_t result = rt_peer_check(&a, &b, why);
  FUZZ_CHECK(result == RAIL_OK || (result == RAIL_BAD_USAGE && why[0]));
  FUZZ_CHECK((rt_peer_check(&b, &a, why) == RAIL_OK) == (result == RAIL_OK));
  FUZZ_CHECK(rt_transport_choose(&a, &b) == rt_transport_choose(&b, &a));
}

/* Both ends in this process, the sender's with a record of the input's making. */
static void check_record(struct fuzz_in *in) {
  static struct ncclComm comm;
  struct rt_bootstrap b;
  struct rt_peer me;
  struct rt_boot_tx tx = {.fd = -1};
  struct rt_connector *send = calloc(1, sizeof *send), *list[1] = {send};
  struct rt_connect_record record;
  struct rt_shm_record body;
  uint8_t data_closed = 0, flags = fuzz_u8(in);
  int fd = -1;
  size_t size = flags & 1 ? fuzz_u16(in) % 512 : sizeof record;
  rt_peer_describe(&me);
  open_bootstrap(&b, &data_closed, &tx);
  memset(&comm, 0, sizeof comm);
  comm.nranks = 1;
  comm.peers = &me;
  comm.bootstrap = &b;
  send->is_send = true;
  fuzz_fill(in, &record, sizeof record);
  memcpy(&body, record.body, sizeof body);
  body.pid = getpid(); /* no descriptor of another process is opened from here */
  if (flags & 8) body.size = 4096; /* which the segment then has, so that both agree */
  if (flags & 2) body.fd = fd = segment(flags & 4, flags & 24 ? 4096 : SEGMENT_SIZE); /* 16: shorter than it says */
  else if (fcntl((int)body.fd, F_GETFD) >= 0) body.fd = -1; /* nor one of this process that is no segment of this run */
  memcpy(record.body, &body, sizeof body);
  FUZZ_CHECK(rt_bootstrap_send(&b, 0, TO_SENDER, &record, RAIL_MIN(size, sizeof record)) == RAIL_OK);
  rail_result_t result = rt_connect_all(&comm, list, 1);
  FUZZ_CHECK(result != RAIL_OK || (size >= sizeof record && record.version == RT_CONNECT_VERSION &&
                                  body.size == SEGMENT_SIZE && (flags & 22) == 6));
  FUZZ_CHECK(result != RAIL_IN_PROGRESS);
  rt_connector_free(&comm, send);
  rail_sock_close(&fd);
  rt_boot_messages_free(&b);
  pthread_cond_destroy(&b.cond);
  pthread_mutex_destroy(&b.lock);
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  setenv("NCCL_BUFFSIZE", "64K", 0);
  setenv("NCCL_LL_BUFFSIZE", "16K", 0);
  check_record(&in);
  check_peers(&in);
}

void fuzz_make_seeds(void) {
  struct rt_connect_record record = {.version = RT_CONNECT_VERSION, .transport = RT_TRANSPORT_SHM};
  struct rt_shm_record body = {.fd = 1, .size = SEGMENT_SIZE};
  struct rt_peer peer = {.version = RT_PEER_VERSION, .buffsize = 65536, .ll_buffsize = 16384};
  struct fuzz_out out = {.size = 0};
  memcpy(record.body, &body, sizeof body);
  fuzz_put8(&out, 6);
  fuzz_put(&out, &record, sizeof record);
  fuzz_put8(&out, 3);
  fuzz_put(&out, &peer, sizeof peer);
  fuzz_put(&out, &peer, sizeof peer);
  fuzz_seed("shm", out.bytes, out.size);
  out.bytes[0] |= 16;
  fuzz_seed("shm-too-short", out.bytes, out.size);
  /* A descriptor that happens to be open: with "shm" before it that was once an earlier run's segment. */
  out.bytes[0] = 0;
  body.fd = 3;
  memcpy(record.body, &body, sizeof body);
  memcpy(out.bytes + 1, &record, sizeof record);
  fuzz_seed("shm-low-descriptor", out.bytes, out.size);
  out.size = 0;
  body.fd = 1;
  memcpy(record.body, &body, sizeof body);
  record.transport = RT_TRANSPORT_NET;
  strcpy(record.net_name, "Socket");
  fuzz_put8(&out, 1);
  fuzz_put16(&out, 200);
  fuzz_put(&out, &record, sizeof record);
  fuzz_seed("short", out.bytes, out.size);
}
