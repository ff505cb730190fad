/* SPDX-License-Identifier: Apache-2.0
 * The one table of parameters of the socket plugin, what it and NCCL's rule choose, and the socket options that it
 * names. */
#include "plugin/socket/sk_param.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "common/base/sockopt.h"
#include "plugin/socket/sk_stream.h"

#define AT(field) offsetof(struct sk_params, field)

static const struct rail_param rows[] = {
  {.name = "NCCL_SOCKET_IFNAME", .type = RAIL_PARAM_STRING, .offset = AT(ifname),
   .doc = "Interfaces to use: a list of name prefixes; '^' in front excludes them, '=' makes them exact."},
  {.name = "NCCL_SOCKET_FAMILY", .type = RAIL_PARAM_STRING, .offset = AT(family),
   .doc = "AF_INET or AF_INET6 limits the addresses to that family."},
  {.name = "NCCL_COMM_ID", .type = RAIL_PARAM_STRING, .offset = AT(comm_id),
   .doc = "Address of the root; interfaces in its subnet are preferred when NCCL_SOCKET_IFNAME is unset."},
  {.name = "RAIL_SOCKET_FUSE", .type = RAIL_PARAM_STRING, .offset = AT(fuse),
   .doc = "Fuses interfaces into one device, which takes their place: 'all' (by fours), or groups such as "
          "eth0+eth1,eth2+eth3. Without it NCCL may fuse them itself (NCCL_NET_FORCE_MERGE, NCCL_NET_MERGE_LEVEL)."},
  {.name = "RAIL_NET_FUSE_NO_PCI", .type = RAIL_PARAM_BOOL, .def = "0", .offset = AT(fuse_no_pci),
   .doc = "1: makeVDevice also fuses interfaces without a PCI path (veth, bridges, tunnels). NCCL's init fails with "
          "such a device, so this is for librailyard's NCCL_NET_FORCE_MERGE and for tests. Under NCCL use "
          "RAIL_SOCKET_FUSE."},
  {.name = "RAIL_SOCKET_PORTS", .type = RAIL_PARAM_STRING, .offset = AT(ports),
   .doc = "Range of ports to listen on, first-last, tried in an order that differs from process to process. Each "
          "listener needs one for each rail. Unset: the system chooses."},
  {.name = "RAIL_SOCKET_BIND", .type = RAIL_PARAM_STRING, .offset = AT(bind),
   .doc = "Address that listeners bind to, such as 0.0.0.0 or ::, instead of their interface's. Peers are still told "
          "the interface's."},
  {.name = "RAIL_SOCKET_AUTH_FILE", .type = RAIL_PARAM_STRING, .offset = AT(auth_file),
   .doc = "File with a key of at least 16 bytes that others cannot read. Both sides of a connection then prove that "
          "they have it; a side with and a side without refuse each other. Needs OpenSSL's libcrypto."},
  {.name = "RAIL_SOCKET_TLS", .type = RAIL_PARAM_ENUM, .def = "off", .words = "off|psk", .offset = AT(tls),
   .doc = "psk: all streams are encrypted (TLS 1.3, AES-128-GCM) with keys made from that of RAIL_SOCKET_AUTH_FILE. A "
          "side with and a side without refuse each other. Needs OpenSSL 3's libssl. RAIL_SOCKET_ZEROCOPY does not "
          "apply then."},
  {.name = "RAIL_SOCKET_TC", .type = RAIL_PARAM_INT, .def = "-1", .lo = -1, .hi = 255, .offset = AT(tc),
   .doc = "Traffic class of all connections: the TOS byte (DSCP x 4) of IPv4, the traffic class of IPv6. -1 takes the "
          "caller's (NCCL's trafficClass), or leaves it to the system."},
  {.name = "NCCL_SOCKET_SNDBUF", .type = RAIL_PARAM_BYTES, .def = "-1", .lo = -1, .hi = 1 << 30, .offset = AT(sndbuf),
   .doc = "SO_SNDBUF of every stream. -1 leaves it to the system, which then adapts it."},
  {.name = "NCCL_SOCKET_RCVBUF", .type = RAIL_PARAM_BYTES, .def = "-1", .lo = -1, .hi = 1 << 30, .offset = AT(rcvbuf),
   .doc = "SO_RCVBUF of every stream. -1 leaves it to the system, which then adapts it."},
  {.name = "RAIL_SOCKET_CONGESTION", .type = RAIL_PARAM_STRING, .offset = AT(congestion),
   .doc = "TCP congestion control of all connections (cubic, bbr, dctcp ...), if the system allows it. Unset: the "
          "system's choice."},
  {.name = "RAIL_SOCKET_WINDOW", .type = RAIL_PARAM_BYTES, .def = "1M", .lo = 0, .hi = 1 << 30, .offset = AT(window),
   .doc = "Receive window that a stream begins with; the system adapts it from there. 0, or NCCL_SOCKET_RCVBUF, leaves "
          "it to the system, which begins with tcp_rmem's 128K and may stay there for long."},
  {.name = "NCCL_SOCKET_NTHREADS", .type = RAIL_PARAM_INT, .def = "-2", .lo = -2, .hi = INT32_MAX,
   .offset = AT(nthreads),
   .doc = "NCCL's helper threads, at most 16: here threads of the engine epoll, for all connections of the process and "
          "not for each. 0: none, and one stream. -2: as 0, but on AWS as 2 and on Google Cloud as 4 (by the vendor "
          "of the interface's card); where the process may use fewer than 4 cores, with the streams and no threads."},
  {.name = "NCCL_NSOCKS_PERTHREAD", .type = RAIL_PARAM_INT, .def = "-2", .lo = -2, .hi = INT32_MAX,
   .offset = AT(nsocks),
   .doc = "TCP streams per connection for each of these threads; the product is at most 16. -2: 1, but 8 on AWS. "
          "It has no effect where NCCL_SOCKET_NTHREADS is 0, as it is by default but on AWS and Google Cloud."},
  {.name = "RAIL_SOCKET_STREAMS", .type = RAIL_PARAM_INT, .def = "0", .lo = 0, .hi = SK_MAX_STREAMS,
   .offset = AT(streams),
   .doc = "TCP streams per connection; of a fused device, per interface, and 16 in all. The receiving side's value "
          "counts. 0: as NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD say, by default 1, but 16 on AWS and 4 on "
          "Google Cloud."},
  {.name = "RAIL_SOCKET_CHUNK", .type = RAIL_PARAM_BYTES, .def = "256K", .lo = SK_MAX_EAGER, .hi = SK_MAX_FRAME,
   .offset = AT(chunk),
   .doc = "With several streams, the largest chunk of a message that one stream takes at a time. A message is cut into "
          "at least as many chunks as there are streams, if they have 64 KiB each."},
  {.name = "RAIL_SOCKET_EAGER", .type = RAIL_PARAM_BYTES, .def = "32K", .lo = 0, .hi = SK_MAX_EAGER,
   .offset = AT(eager),
   .doc = "Largest message that is sent before the receiver has posted its buffer."},
  {.name = "RAIL_SOCKET_AHEAD", .type = RAIL_PARAM_BYTES, .def = "256K", .lo = 0, .hi = SK_MAX_AHEAD,
   .offset = AT(ahead),
   .doc = "The same for connections of one stream, where a message of 16 KiB and more waits in the receiver's kernel "
          "for its buffer. At most a quarter of RAIL_SOCKET_EAGER_BYTES counts, less 128. 64K or less, or "
          "RAIL_SOCKET_EAGER=0: off, and as RAIL_SOCKET_EAGER says. The sending side's value counts."},
  {.name = "RAIL_SOCKET_EAGER_COUNT", .type = RAIL_PARAM_INT, .def = "4096", .lo = 0, .hi = SK_MAX_EAGER_COUNT,
   .offset = AT(eager_count),
   .doc = "How many such messages may be under way on one connection."},
  {.name = "RAIL_SOCKET_EAGER_BYTES", .type = RAIL_PARAM_BYTES, .def = "16M", .lo = 0, .hi = SK_MAX_EAGER_BYTES,
   .offset = AT(eager_bytes),
   .doc = "And how many bytes of them; at least 4 x (RAIL_SOCKET_EAGER + 128), and at most 1M over several streams or "
          "with RAIL_SOCKET_AHEAD off. The receiver reserves address space for them; memory is used for those that it "
          "has to keep."},
  {.name = "RAIL_SOCKET_ZEROCOPY", .type = RAIL_PARAM_STRING, .def = "auto", .offset = AT(zerocopy_text),
   .doc = "Payloads of at least so many bytes (16K or more; K, M) are not copied into the kernel (MSG_ZEROCOPY). 0: "
          "all are copied. auto: 256K where the interface has hardware of its own. Never with several devices."},
  {.name = "RAIL_SOCKET_ENGINE", .type = RAIL_PARAM_ENUM, .def = "nccl", .words = "inline|epoll|auto|nccl",
   .offset = AT(engine),
   .doc = "Who moves data: inline, the calls of the caller; epoll, threads of the plugin's own, which wait for sockets "
          "to become ready; auto: epoll where the process may use 4 cores or more, else inline; nccl: as "
          "NCCL_SOCKET_NTHREADS says, which is inline by default, but auto on AWS and Google Cloud."},
  {.name = "RAIL_SOCKET_THREADS", .type = RAIL_PARAM_INT, .def = "0", .lo = 0, .hi = SK_MAX_THREADS,
   .offset = AT(threads),
   .doc = "Threads of the engine epoll, for all connections of the process; they share the copies of payloads where "
          "one has several streams. 0: as many as NCCL_SOCKET_NTHREADS says, but at least 1."},
  {.name = "RAIL_SOCKET_SPIN", .type = RAIL_PARAM_INT, .def = "20", .lo = 0, .hi = 1000000, .offset = AT(spin_us),
   .doc = "Microseconds that such a thread at most polls before it sleeps. It polls shorter, or not at all, where that "
          "does not pay: when events come more rarely, or when others need its core."},
  {.name = "RAIL_SOCKET_HANDSHAKE_TIMEOUT", .type = RAIL_PARAM_MS, .def = "10s", .lo = 10, .hi = 3600 * 1000,
   .offset = AT(handshake_ms),
   .doc = "A client that has not sent a whole HELLO within this time is dropped, and a connection refused whose other "
          "streams have not come within it of the first. With RAIL_SOCKET_TLS either side drops a stream whose TLS "
          "handshake is not over within this time of the answer to its HELLO."},
  {.name = "RAIL_SOCKET_RAIL_TIMEOUT", .type = RAIL_PARAM_MS, .def = "500ms", .lo = 100, .hi = 60 * 1000,
   .offset = AT(rail_timeout_ms),
   .doc = "With several devices: a stream whose bytes stay unacknowledged for this long, after they were sent "
          "again, is given up, and the others carry on."},
  {.name = "RAIL_SOCKET_CONNECT_TIMEOUT", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(connect_ms),
   .doc = "A peer that cannot be reached within this time is an error; until then refused connections are retried. "
          "0: no limit."},
  {.name = "RAIL_SOCKET_DEADLINE", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(deadline_ms),
   .doc = "A peer whose host does not answer for this long (TCP acknowledges nothing), be it over one stream of "
          "several, is an error. 0: wait for ever."},
  {.name = "RAIL_SOCKET_PEER_TIMEOUT", .type = RAIL_PARAM_MS, .def = "300s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(peer_timeout_ms),
   .doc = "With requests outstanding, a peer whose host answers but whose process gives no sign of life for this long "
          "is an error: it is stopped, in a debugger, or being checkpointed. Peers that are merely slow answer PING "
          "and may take any time, but for one that has not called accept: it is not known to live. 0: wait for ever."},
  {.name = "RAIL_SOCKET_STALL_WARN", .type = RAIL_PARAM_MS, .def = "10s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(stall_ms),
   .doc = "When nothing has moved for this long though requests are outstanding, a line says who waits for what; "
          "again whenever the time has doubled, or, of a peer whose process is silent, once. 0: never."},
  {.name = "RAIL_SOCKET_USER_TIMEOUT", .type = RAIL_PARAM_MS, .def = "0ms", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(user_timeout_ms),
   .doc = "TCP_USER_TIMEOUT of every stream: the kernel gives up when what was sent stays unacknowledged for this "
          "long, or the peer's window shut, even if the peer is merely stopped. 0: RAIL_SOCKET_DEADLINE and "
          "RAIL_SOCKET_PEER_TIMEOUT tell the two apart, and the option is not set, or to its maximum where that "
          "deadline is 0."},
  {.name = "RAIL_SOCKET_KEEPALIVE", .type = RAIL_PARAM_MS, .def = "10s", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(keepalive_ms),
   .doc = "Time between the kernel's probes of a quiet stream, in whole seconds; it is given up when nothing has "
          "answered for RAIL_SOCKET_DEADLINE, and two of them at least. 0: none."},
  {.name = "RAIL_SOCKET_CLOSE_TIMEOUT", .type = RAIL_PARAM_MS, .def = "5s", .lo = 0, .hi = 3600 * 1000,
   .offset = AT(close_ms),
   .doc = "The last finalize waits at most this long for bytes that were reported as sent and that the peer's host has "
          "not acknowledged; what is then left may be lost, and a line says so."},
};

const struct rail_param_table sk_param_table = {.module = "socket", .rows = rows, .count = RAIL_COUNT_OF(rows),
                                              .title = "Socket plugin"};
struct sk_params sk_params;

static int64_t zerocopy_of(const char *text) {
  static const struct rail_param row = {.name = "RAIL_SOCKET_ZEROCOPY", .type = RAIL_PARAM_BYTES, .hi = SK_MAX_FRAME};
  int64_t bytes;
  char why[200];
  if (strcmp(text, "auto") == 0) return -1;
  if (rail_param_parse(&row, text, &bytes, why, sizeof why) == 0)
    return bytes && bytes < SK_ZEROCOPY_MIN ? SK_ZEROCOPY_MIN : bytes;
  RAIL_WARN("RAIL_SOCKET_ZEROCOPY=%s %s; auto is used", text, why);
  return -1;
}

/* One line that names the variables of NCCL's own transport that are set and have no effect here. */
static void log_ineffective(void) {
  static const struct { const char *name, *instead; } ineffective[] = {
    {"NCCL_SOCKET_INLINE", "RAIL_SOCKET_EAGER"},
    {"NCCL_SOCKET_MIN_TASKSIZE", "RAIL_SOCKET_CHUNK"},
    {"NCCL_SOCKET_RETRY_CNT", "RAIL_SOCKET_CONNECT_TIMEOUT"},
    {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "RAIL_SOCKET_CONNECT_TIMEOUT"},
    {"NCCL_SOCKET_MAGIC", "RAIL_SOCKET_AUTH_FILE"},
  };
  char text[512];
  size_t at = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(ineffective); i++) {
    const char *value = getenv(ineffective[i].name);
    if (value && *value)
      at += (size_t)snprintf(text + at, sizeof text - at, "%s%s (instead: %s)", at ? ", " : "", ineffective[i].name,
                             ineffective[i].instead);
  }
  if (at) RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: set, but without effect on its connections: %s", text);
}

void sk_params_load(void) {
  const struct rail_param_table *const tables[] = {&sk_param_table};
  rail_param_load(&sk_param_table, &sk_params);
  sk_params.zerocopy = zerocopy_of(sk_params.zerocopy_text);
  int64_t least = SK_MIN_EAGER_BYTES(sk_params.eager);
  if (sk_params.eager_bytes < least) {
    RAIL_WARN("RAIL_SOCKET_EAGER_BYTES=%lld is too small for RAIL_SOCKET_EAGER=%lld; %lld is used",
              (long long)sk_params.eager_bytes, (long long)sk_params.eager, (long long)least);
    sk_params.eager_bytes = least;
  }
  if (sk_params.nthreads > SK_MAX_THREADS)
    RAIL_WARN("NCCL_SOCKET_NTHREADS=%lld is more than %d; %d is used", (long long)sk_params.nthreads, SK_MAX_THREADS,
              SK_MAX_THREADS);
  log_ineffective();
  rail_param_check_unknown(tables, RAIL_COUNT_OF(tables));
}

/* ---- streams and threads ------------------------------------------------------ */

#define AUTO_CORES 4 /* with fewer they are busy with the callers' threads */
#define FEW_CORES "fewer than 4 cores"

/* What NCCL does where it is not told. The first row is for all cards that no other one names. */
static const struct cloud {
  unsigned int vendor;
  int64_t nthreads, nsocks;
  const char *why;
} clouds[] = {
  {0, 0, 1, "default"},
  {0x1d0f, 2, 8, "NCCL's default on AWS"},
  {0x1ae0, 4, 1, "NCCL's default on Google Cloud"},
};

static const struct cloud *cloud_of(unsigned int vendor) {
  for (size_t i = 1; i < RAIL_COUNT_OF(clouds); i++)
    if (clouds[i].vendor == vendor) return &clouds[i];
  return &clouds[0];
}

static int64_t sockets_per_thread(const struct sk_params *p, const struct cloud *cloud) {
  return p->nsocks < 0 ? cloud->nsocks : p->nsocks;
}

/* None without sockets: NCCL's threads have nothing to do then. */
static int64_t nccl_threads(const struct sk_params *p, const struct cloud *cloud) {
  if (sockets_per_thread(p, cloud) == 0) return 0;
  return p->nthreads < 0 ? cloud->nthreads : RAIL_MIN(p->nthreads, SK_MAX_THREADS);
}

struct sk_choice sk_choose_streams(const struct sk_params *p, unsigned int vendor) {
  const struct cloud *cloud = cloud_of(vendor);
  struct sk_choice choice = {.count = (unsigned int)p->streams, .asked = p->streams, .why = "RAIL_SOCKET_STREAMS"};
  if (p->streams > 0) return choice;
  int64_t sockets = nccl_threads(p, cloud) * sockets_per_thread(p, cloud);
  choice.asked = RAIL_MAX(sockets, 1);
  choice.count = (unsigned int)RAIL_MIN(choice.asked, SK_MAX_STREAMS);
  choice.why = cloud->why;
  if (p->nthreads >= 0 || p->nsocks >= 0) choice.why = "NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD";
  if (sockets == 0 && p->nthreads < 0 && p->nsocks > 0)
    choice.why = "NCCL_NSOCKS_PERTHREAD has no effect without NCCL_SOCKET_NTHREADS";
  return choice;
}

struct sk_choice sk_choose_threads(const struct sk_params *p, unsigned int vendor, unsigned int cores) {
  const struct cloud *cloud = cloud_of(vendor);
  const bool enough = cores >= AUTO_CORES, told = p->nthreads >= 0;
  int64_t nccl = nccl_threads(p, cloud);
  bool wanted = false;
  struct sk_choice choice = {.why = "RAIL_SOCKET_ENGINE"};
  switch ((enum sk_engine_kind)p->engine) {
    case SK_ENGINE_INLINE: break;
    case SK_ENGINE_EPOLL: wanted = true; break;
    case SK_ENGINE_AUTO:
      wanted = enough;
      if (!enough) choice.why = FEW_CORES;
      break;
    case SK_ENGINE_NCCL:
      wanted = nccl > 0 && (told || enough);
      choice.why = told ? "NCCL_SOCKET_NTHREADS" : nccl > 0 && !enough ? FEW_CORES : cloud->why;
      break;
  }
  if (wanted) choice.count = (unsigned int)(p->threads ? p->threads : told || enough ? RAIL_MAX(nccl, 1) : 1);
  choice.asked = choice.count;
  return choice;
}

/* ---- socket options --------------------------------------------------------- */

#define ALLOWED "/proc/sys/net/ipv4/tcp_allowed_congestion_control"

static bool use_congestion;

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

void sk_sockopt_set(int fd, int traffic_class) {
  (void)rail_sock_set_buffers(fd, sk_params.sndbuf, sk_params.rcvbuf);
  if (use_congestion) (void)set_congestion(fd);
  rail_sockopt_traffic_class(fd, traffic_class);
}
