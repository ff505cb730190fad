/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel does by itself is not enough, in either direction. With TCP_USER_TIMEOUT it ends a stream whose peer
 * keeps its window shut although it answers each probe: a peer that is merely stopped. Without, it takes 15 minutes to
 * give up a host that is gone. So the option stays off, and the watch thread looks at what the kernel has seen.
 */
#include "plugin/socket/sk_host.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "common/base/compiler.h"
#include "common/base/sockopt.h"
#include "plugin/socket/sk_param.h"

#define MS 1000000ull
#define SAME_ANSWER (100 * MS) /* the kernel's times are of its own clock's ticks */

/* The peer's window is shut, so that not even what arrives is acknowledged further: then any answer counts. Before
 * Linux 5.4 nobody says so; then it always does. */
static bool is_shut(const struct tcp_info *info, socklen_t len) {
  return len < offsetof(struct tcp_info, tcpi_snd_wnd) + sizeof info->tcpi_snd_wnd || info->tcpi_snd_wnd == 0;
}

uint64_t sk_host_silence(struct sk_host *host, int fd, uint64_t now, uint64_t idle_until) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) return 0;
  uint64_t ago_ms = RAIL_MIN(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
  bool acked = info.tcpi_bytes_acked != host->acked, shut = is_shut(&info, len);
  bool unanswered = info.tcpi_unacked && (ago_ms > info.tcpi_last_data_sent || (!acked && !shut));
  host->acked = info.tcpi_bytes_acked;
  host->has_unacked = info.tcpi_unacked || info.tcpi_notsent_bytes;
  if (!unanswered && !info.tcpi_probes) { /* of probes, those since the last answer are counted */
    host->unanswered = 0;
    host->settled = now;
    return 0;
  }
  uint32_t asked = info.tcpi_total_retrans + info.tcpi_retransmits + info.tcpi_probes;
  uint64_t answered = now > ago_ms * MS ? now - ago_ms * MS : 1;
  answered = RAIL_MAX(answered, RAIL_MAX(host->settled, idle_until));
  /* A host may be heard that does not hear us: then only what it acknowledges counts. */
  bool anew = shut ? answered > host->unanswered + SAME_ANSWER : acked;
  if (!host->unanswered || anew) {
    host->unanswered = answered;
    host->asked = asked;
  }
  return asked != host->asked ? now - host->unanswered : 0;
}

void sk_host_set_options(int fd) {
  int64_t deadline = sk_params.deadline_ms;
  rail_sockopt_user_timeout(fd, sk_params.user_timeout_ms);
  rail_sockopt_keepalive(fd, sk_params.keepalive_ms, deadline);
  if (deadline) rail_sockopt_max_rto(fd, deadline / 6);
}
