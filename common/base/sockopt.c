/* SPDX-License-Identifier: Apache-2.0
 * setsockopt, with what its arguments mean. */
#include "common/base/sockopt.h"

#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "common/base/compiler.h"
#include "common/base/log.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

#define PROBE_MS 10000 /* between two keepalive probes, at most */

/* ---- how packets are marked -------------------------------------------- */

int rail_traffic_class(const char *plugin, int64_t of_param, int of_call, int of_ctx) {
  if (of_param >= 0) return (int)of_param;
  int tc = of_call >= 0 ? of_call : of_ctx;
  if (tc <= 255) return tc < 0 ? -1 : tc;
  RAIL_WARN("%s: traffic class %d does not fit the TOS byte of IP; allowed: 0..255; the system's is used", plugin, tc);
  return -1;
}

void rail_sockopt_traffic_class(int fd, int traffic_class) {
  if (traffic_class < 0) return;
  int priority = RAIL_MIN(traffic_class >> 5, 6); /* the DSCP's class; 7 is the administrator's */
  /* A socket for both families keeps one of each; one of IPv4 refuses the second. */
  (void)setsockopt(fd, IPPROTO_IP, IP_TOS, &traffic_class, sizeof traffic_class);
  (void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &traffic_class, sizeof traffic_class);
  (void)setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
}

/* ---- silent peers ------------------------------------------------------- */

void rail_sockopt_user_timeout(int fd, int64_t ms) {
  unsigned int timeout = (unsigned int)ms;
  if (ms > 0) (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
}

bool rail_sockopt_last_ack(int fd, uint32_t *ms) {
  struct tcp_info info;
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  *ms = info.tcpi_last_ack_recv;
  return true;
}

void rail_sockopt_max_rto(int fd, int64_t ms) {
  unsigned int max = (unsigned int)RAIL_MAX(1000, RAIL_MIN(ms, 120000));
  (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &max, sizeof max);
}

void rail_sockopt_keepalive(int fd, int64_t every_ms, int64_t deadline_ms) {
  if (every_ms <= 0) return;
  int on = 1, every = (int)RAIL_DIV_UP(every_ms, 1000);
  int count = (int)RAIL_MIN(RAIL_MAX(deadline_ms / (every * 1000ll) - 1, 2), 100); /* the first leaves after `every` */
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every, sizeof every);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void rail_sockopt_host_deadline(int fd, int64_t deadline_ms, int64_t grace_ms) {
  if (!deadline_ms) return;
  rail_sockopt_keepalive(fd, RAIL_MIN(deadline_ms / 3, PROBE_MS), deadline_ms);
  rail_sockopt_user_timeout(fd, deadline_ms + grace_ms);
}
