/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's side of the rendezvous: it says who it is and where it listens, and gets the table of all ranks.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/comm/rt_error.h"
#include "core/bootstrap/rt_rendezvous.h"

#define GRACE_MS 3000 /* a rank waits this much longer than the root, whose explanation is the better one */
#define RETRY_MS 50

/* How far a connection came, for the error line. */
struct visit_outcome {
  bool connected, said; /* said: the reason is logged already; else errno tells it */
};

static rail_result_t read_answer(const struct rt_visit *v, int fd, uint64_t deadline, union rail_addr *table,
                                 uint8_t *session, bool *said) {
  char text[RAIL_ADDR_TEXT], why[RT_BOOT_MAX_TEXT + 1], raw[RT_BOOT_MAX_TEXT];
  struct rt_boot_header head;
  struct rt_boot_table first;
  size_t addresses = (size_t)v->nranks * sizeof(struct rail_addr_wire);
  RAIL_TRY(rail_sock_recv_all(fd, &head, sizeof head, deadline, v->abort_flag));
  if (head.magic == RT_BOOT_MAGIC && head.type == RT_BOOT_REFUSED && head.length <= sizeof raw) {
    RAIL_TRY(rail_sock_recv_all(fd, raw, head.length, deadline, v->abort_flag));
    rt_boot_text_clean(why, sizeof why, raw, head.length);
    *said = true;
    rt_error(RAIL_REMOTE_ERROR, "bootstrap: rank %d of %d: rendezvous at %s: %s", v->rank, v->nranks,
             rail_addr_text(&v->root, text), why);
    return RAIL_REMOTE_ERROR;
  }
  const char *wrong = rt_boot_header_wrong(&head, sizeof first + addresses);
  if (!wrong && (head.type != RT_BOOT_TABLE || head.length != sizeof first + addresses)) wrong = "not the table";
  if (wrong) {
    *said = true;
    rt_error(RAIL_REMOTE_ERROR,
             "bootstrap: rank %d: rendezvous at %s answered with %s; is NCCL_COMM_ID's port taken by another program?",
             v->rank, rail_addr_text(&v->root, text), wrong);
    return RAIL_REMOTE_ERROR;
  }
  RAIL_TRY(rail_sock_recv_all(fd, &first, sizeof first, deadline, v->abort_flag));
  memcpy(session, first.secret, RT_SECRET_BYTES);
  for (int rank = 0; rank < v->nranks; rank++) {
    struct rail_addr_wire wire;
    RAIL_TRY(rail_sock_recv_all(fd, &wire, sizeof wire, deadline, v->abort_flag));
    if (!rail_addr_unpack(&wire, &table[rank])) {
      *said = true;
      rt_error(RAIL_REMOTE_ERROR, "bootstrap: rank %d: no valid address for rank %d in the rendezvous' table", v->rank,
               rank);
      return RAIL_REMOTE_ERROR;
    }
  }
  return RAIL_OK;
}

static rail_result_t send_hello(const struct rt_visit *v, int fd, uint64_t deadline) {
  struct {
    struct rt_boot_header head;
    struct rt_boot_hello hello;
  } out;
  memset(&out, 0, sizeof out);
  out.head = rt_boot_header_make(RT_BOOT_HELLO, 0, sizeof out.hello);
  memcpy(out.hello.secret, v->secret, RT_SECRET_BYTES);
  out.hello.rank = (uint32_t)v->rank;
  out.hello.nranks = (uint32_t)v->nranks;
  out.hello.timeout_ms = (uint32_t)rail_deadline_left_ms(deadline);
  rail_addr_pack(&v->own, &out.hello.addr);
  return rail_sock_send_all(fd, &out, sizeof out, deadline, v->abort_flag);
}

static rail_result_t visit_once(const struct rt_visit *v, uint64_t deadline, union rail_addr *table, uint8_t *session,
                                int *fd, struct visit_outcome *outcome) {
  *fd = -1;
  RAIL_TRY(rail_sock_connect_all(&v->root, NULL, deadline, v->abort_flag, fd));
  outcome->connected = true;
  RAIL_TRY(send_hello(v, *fd, deadline));
  return read_answer(v, *fd, deadline + GRACE_MS * 1000000ull, table, session, &outcome->said);
}

void rt_rendezvous_decline(const struct rt_visit *v) {
  uint64_t deadline = rail_deadline_in_ms(v->timeout_ms);
  char byte;
  int fd = -1;
  if (rail_sock_connect_all(&v->root, NULL, deadline, v->abort_flag, &fd) == RAIL_OK &&
      send_hello(v, fd, deadline) == RAIL_OK)
    rail_sock_recv_all(fd, &byte, 1, deadline, v->abort_flag); /* until the rendezvous has read it */
  rail_sock_close(&fd);
}

static bool aborted(const struct rt_visit *v) { return v->abort_flag && atomic_load(v->abort_flag); }

rail_result_t rt_rendezvous_join(const struct rt_visit *v, union rail_addr *table, uint8_t session[RT_SECRET_BYTES]) {
  char text[RAIL_ADDR_TEXT];
  uint64_t deadline = rail_deadline_in_ms(v->timeout_ms);
  for (;;) {
    int fd;
    struct visit_outcome outcome = {false, false};
    rail_result_t result = visit_once(v, deadline, table, session, &fd, &outcome);
    rail_sock_close(&fd);
    if (result == RAIL_OK || outcome.said) return result;
    bool hung_up = outcome.connected && (errno == 0 || errno == ECONNRESET || errno == EPIPE);
    if (hung_up && v->well_known && !aborted(v) && !rail_deadline_passed(deadline)) {
      poll(NULL, 0, RETRY_MS); /* another communicator's rendezvous at this address that just ended */
      continue;
    }
    rail_addr_text(&v->root, text);
    if (aborted(v)) return RAIL_REMOTE_ERROR;
    if (!outcome.connected) {
      rt_error(result,
               "bootstrap: rank %d of %d cannot reach the rendezvous at %s: %s (tried for %" PRIu64
               " ms); does rank 0 run, and can %s be routed to from here (NCCL_SOCKET_IFNAME)?",
               v->rank, v->nranks, text, strerror(errno), v->timeout_ms, text);
    } else if (hung_up) {
      rt_error(result,
               "bootstrap: rank %d of %d: the rendezvous at %s closed the connection without an answer; the unique id "
               "is stale or of another job, or the process that made it died",
               v->rank, v->nranks, text);
    } else {
      rt_error(result, "bootstrap: rank %d of %d: no answer from the rendezvous at %s: %s", v->rank, v->nranks, text,
               strerror(errno));
    }
    return result;
  }
}
