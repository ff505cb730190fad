/* SPDX-License-Identifier: Apache-2.0
 * The socket plugin's parameters; see the table for what each means. */
#ifndef SK_PARAM_H
#define SK_PARAM_H

#include "common/base/param.h"

#define SK_MAX_THREADS 16 /* of the engine, and NCCL's */

enum sk_tls_mode { SK_TLS_OFF, SK_TLS_PSK };
enum sk_engine_kind { SK_ENGINE_INLINE, SK_ENGINE_EPOLL, SK_ENGINE_AUTO, SK_ENGINE_NCCL };

struct sk_params {
  const char *ifname;  /* NULL: NCCL's default choice */
  const char *family;  /* NULL: any */
  const char *comm_id; /* NCCL_COMM_ID: prefers interfaces of that subnet */
  const char *fuse;    /* NULL: nothing is fused at load */
  int64_t fuse_no_pci;
  const char *ports;   /* NULL: the system chooses */
  const char *bind;    /* NULL: the interface's own address */
  const char *auth_file; /* NULL: no authentication */
  int64_t tls;         /* enum sk_tls_mode */
  int64_t tc;          /* -1: the caller's */
  const char *zerocopy_text;
  int64_t zerocopy;    /* bytes; 0: never; -1: from SK_ZEROCOPY_AUTO on where there is a real device */
  const char *congestion; /* NULL: the system's */
  int64_t sndbuf, rcvbuf; /* bytes; -1: the system's */
  int64_t window;         /* bytes; 0: the system's */
  int64_t nthreads, nsocks; /* NCCL's; negative: auto */
  int64_t streams;     /* 0: by nthreads and nsocks */
  int64_t chunk;       /* bytes: the largest chunk */
  int64_t eager;       /* bytes */
  int64_t ahead;       /* bytes */
  int64_t eager_count; /* messages */
  int64_t eager_bytes;
  int64_t engine;      /* enum sk_engine_kind */
  int64_t threads;     /* 0: by nthreads */
  int64_t spin_us;
  int64_t handshake_ms;
  int64_t connect_ms;
  int64_t rail_timeout_ms;
  int64_t deadline_ms;     /* for the peer's host; 0: none */
  int64_t peer_timeout_ms; /* for its process; 0: none */
  int64_t stall_ms;        /* 0: no warning */
  int64_t user_timeout_ms; /* 0: not set */
  int64_t keepalive_ms;    /* 0: off */
  int64_t close_ms;
};

extern const struct rail_param_table sk_param_table;
extern struct sk_params sk_params; /* filled by sk_params_load, read-only afterwards */

void sk_params_load(void);

/* ---- streams and threads ------------------------------------------------------
 *
 * RAIL_SOCKET_STREAMS, RAIL_SOCKET_ENGINE and RAIL_SOCKET_THREADS, each where it is set. Else NCCL's rule
 * (ncclNetSocketGetNsockNthread in net_socket.cc): NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD sockets, or one without
 * threads; one that is not set goes by the vendor of the card. Pure functions. */

struct sk_choice {
  unsigned int count;
  int64_t asked;   /* more than count: that was the limit */
  const char *why; /* a name, for the log */
};

/* Per rail of a listener on a card of this vendor: 1..SK_MAX_STREAMS. */
struct sk_choice sk_choose_streams(const struct sk_params *params, unsigned int vendor);
/* Threads of the engine, for a process that may use so many cores. 0: the caller's calls move data. */
struct sk_choice sk_choose_threads(const struct sk_params *params, unsigned int vendor, unsigned int cores);

/* ---- options that a socket must have before it connects or listens ------------
 *
 * They count from the first packet on, and accepted sockets inherit them. */

/* Does the kernel allow the congestion control that is asked for? Logs it, once, if not. Behind sk_params_load. */
void sk_sockopt_load(void);

/* Buffer sizes, congestion control, traffic class (-1: the system's). */
void sk_sockopt_set(int fd, int traffic_class);

/* The class a connection gets: RAIL_SOCKET_TC, else the call's, else its context's. -1: the system's. */
int sk_traffic_class(int of_call, int of_ctx);

#endif
