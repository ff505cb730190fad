/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's side of the rendezvous: it sends its rank and its address, and gets the table of all addresses.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/bootstrap/rt_rendezvous.h"
#include "core/comm/rt_error.h"

#define GRACE_MS 3000 /* a rank waits this much longer than the root, whose error names the missing ranks */

/* How far a connection came, for the error line. */
struct join_outcome {
  bool connected, logged; /* logged: the error was logged; else errno has it */
};

static rail_result_t read_answer(const struct rt_rendezvous_rank *me, int fd, uint64_t deadline, union rail_addr *table,
                                 uint8_t *session, bool *logged) {
  char text[RAIL_ADDR_TEXT], why[RT_BOOT_MAX_TEXT + 1], raw[RT_BOOT_MAX_TEXT];
  struct rt_boot_header head;
  struct rt_boot_table first;
  size_t addresses = (size_t)me->nranks * sizeof(struct rail_addr_wire);
  RAIL_TRY(rail_sock_recv_all(fd, &head, sizeof head, deadline, me->abort_flag));
  if (head.magic == RT_BOOT_MAGIC && head.type == RT_BOOT_REFUSED && head.length <= sizeof raw) {
    RAIL_TRY(rail_sock_recv_all(fd, raw, head.length, deadline, me->abort_flag));
    rt_boot_sanitize_text(why, sizeof why, raw, head.length);
    *logged = true;
    rt_error(RAIL_REMOTE_ERROR, "bootstrap: rank %d of %d: rendezvous at %s: %s", me->rank, me->nranks,
             rail_addr_text(&me->root, text), why);
    return RAIL_REMOTE_ERROR;
  }
  const char *wrong = rt_boot_header_error(&head, sizeof first + addresses);
  if (!wrong && (head.type != RT_BOOT_TABLE || head.length != sizeof first + addresses)) wrong = "not the table";
  if (wrong) {
    *logged = true;
    rt_error(RAIL_REMOTE_ERROR,
             "bootstrap: rank %d: rendezvous at %s answered with %s; is NCCL_COMM_ID's port taken by another program?",
             me->rank, rail_addr_text(&me->root, text), wrong);
    return RAIL_REMOTE_ERROR;
  }
  RAIL_TRY(rail_sock_recv_all(fd, &first, sizeof first, deadline, me->abort_flag));
  memcpy(session, first.secret, RT_SECRET_BYTES);
  for (int rank = 0; rank < me->nranks; rank++) {
    struct rail_addr_wire wire;
    RAIL_TRY(rail_sock_recv_all(fd, &wire, sizeof wire, deadline, me->abort_flag));
    if (!rail_addr_unpack(&wire, &table[rank])) {
      *logged = true;
      rt_error(RAIL_REMOTE_ERROR, "bootstrap: rank %d: no valid address for rank %d in the rendezvous' table", me->rank,
               rank);
      return RAIL_REMOTE_ERROR;
    }
  }
  return RAIL_OK;
}

static rail_result_t send_hello(const struct rt_rendezvous_rank *me, int fd, uint64_t deadline) {
  struct {
    struct rt_boot_header head;
    struct rt_boot_hello hello;
  } out;
  memset(&out, 0, sizeof out);
  out.head = rt_boot_header_make(RT_BOOT_HELLO, 0, sizeof out.hello);
  memcpy(out.hello.secret, me->secret, RT_SECRET_BYTES);
  out.hello.rank = (uint32_t)me->rank;
  out.hello.nranks = (uint32_t)me->nranks;
  out.hello.timeout_ms = (uint32_t)rail_deadline_left_ms(deadline);
  rail_addr_pack(&me->own, &out.hello.addr);
  return rail_sock_send_all(fd, &out, sizeof out, deadline, me->abort_flag);
}

static rail_result_t join_once(const struct rt_rendezvous_rank *me, uint64_t deadline, union rail_addr *table,
                               uint8_t *session, int *fd, struct join_outcome *outcome) {
  *fd = -1;
  RAIL_TRY(rail_sock_connect_all(&me->root, NULL, deadline, me->abort_flag, fd));
  outcome->connected = true;
  RAIL_TRY(send_hello(me, *fd, deadline));
  return read_answer(me, *fd, deadline + GRACE_MS * 1000000ull, table, session, &outcome->logged);
}

static bool aborted(const struct rt_rendezvous_rank *me) { return me->abort_flag && atomic_load(me->abort_flag); }

/* Where nothing listens is no rendezvous any more. */
static rail_result_t connect_once(const struct rt_rendezvous_rank *me, uint64_t deadline, int *fd) {
  rail_result_t result = rail_sock_connect(&me->root, NULL, fd);
  while (result == RAIL_IN_PROGRESS && !aborted(me) && !rail_deadline_passed(deadline)) {
    struct pollfd p = {.fd = *fd, .events = POLLOUT};
    poll(&p, 1, RAIL_MIN(RT_BOOT_RETRY_MS, rail_deadline_left_ms(deadline)));
    result = rail_sock_connected(*fd);
  }
  return result;
}

void rt_rendezvous_end(const struct rt_rendezvous_rank *me) {
  uint64_t deadline = rail_deadline_in_ms(me->timeout_ms);
  char byte;
  int fd = -1;
  if (connect_once(me, deadline, &fd) == RAIL_OK && send_hello(me, fd, deadline) == RAIL_OK)
    rail_sock_recv_all(fd, &byte, 1, deadline, me->abort_flag); /* until the rendezvous has read it */
  rail_sock_close(&fd);
}

rail_result_t rt_rendezvous_join(const struct rt_rendezvous_rank *me, union rail_addr *table,
                                 uint8_t session[RT_SECRET_BYTES]) {
  char text[RAIL_ADDR_TEXT];
  uint64_t deadline = rail_deadline_in_ms(me->timeout_ms);
  for (;;) {
    int fd;
    struct join_outcome outcome = {false, false};
    rail_result_t result = join_once(me, deadline, table, session, &fd, &outcome);
    rail_sock_close(&fd);
    if (result == RAIL_OK || outcome.logged) return result;
    bool closed_by_root = outcome.connected && (errno == 0 || errno == ECONNRESET || errno == EPIPE);
    if (closed_by_root && me->well_known && !aborted(me) && !rail_deadline_passed(deadline)) {
      poll(NULL, 0, RT_BOOT_RETRY_MS); /* another communicator's rendezvous at this address that just ended */
      continue;
    }
    rail_addr_text(&me->root, text);
    if (aborted(me)) return RAIL_REMOTE_ERROR;
    if (!outcome.connected) {
      rt_error(result,
               "bootstrap: rank %d of %d cannot reach the rendezvous at %s: %s (tried for %" PRIu64
               " ms); does rank 0 run, and can %s be routed to from here (NCCL_SOCKET_IFNAME)?",
               me->rank, me->nranks, text, strerror(errno), me->timeout_ms, text);
    } else if (closed_by_root) {
      rt_error(result,
               "bootstrap: rank %d of %d: the rendezvous at %s closed the connection without an answer; the unique id "
               "is stale or of another job, or the process that made it died",
               me->rank, me->nranks, text);
    } else {
      rt_error(result, "bootstrap: rank %d of %d: no answer from the rendezvous at %s: %s", me->rank, me->nranks, text,
               strerror(errno));
    }
    return result;
  }
}
