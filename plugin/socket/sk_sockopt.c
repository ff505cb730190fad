/* SPDX-License-Identifier: Apache-2.0
 * Socket options from parameters. */
#include "plugin/socket/sk_param.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/sock.h"
#include "common/base/sockopt.h"

#define ALLOWED "/proc/sys/net/ipv4/tcp_allowed_congestion_control"

static bool use_congestion;

/* ---- congestion control ------------------------------------------------ */

static bool set_congestion(int fd) {
  const char *name = sk_params.congestion;
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

static void read_allowed(char *text, size_t size) {
  int fd = open(ALLOWED, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
  text[n > 0 ? n : 0] = 0;
  text[strcspn(text, "\n")] = 0;
  rail_sock_close(&fd);
}

void sk_sockopt_load(void) {
  char allowed[256];
  use_congestion = false;
  if (!sk_params.congestion || !*sk_params.congestion) return;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  use_congestion = fd >= 0 && set_congestion(fd);
  if (!use_congestion) {
    int err = errno;
    read_allowed(allowed, sizeof allowed);
    RAIL_WARN("RailSocket: RAIL_SOCKET_CONGESTION=%s: %s; allowed here: %s (" ALLOWED "); the system's is used",
              sk_params.congestion, strerror(err), *allowed ? allowed : "unknown");
  }
  rail_sock_close(&fd);
}

int sk_traffic_class(int of_call, int of_ctx) {
  return rail_traffic_class("RailSocket", sk_params.tc, of_call, of_ctx);
}

/* ---- all of them -------------------------------------------------------- */

void sk_sockopt_set(int fd, int traffic_class) {
  (void)rail_sock_set_buffers(fd, sk_params.sndbuf, sk_params.rcvbuf);
  if (use_congestion) (void)set_congestion(fd);
  rail_sockopt_traffic_class(fd, traffic_class);
}
