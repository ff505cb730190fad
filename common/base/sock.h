/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-blocking TCP for everybody: the socket plugin's streams and the
 * runtime's bootstrap. No function here waits; a waiting wrapper for
 * start-up code (rail_sock_*_all) is at the end and takes a deadline.
 *
 * All sockets are O_NONBLOCK and CLOEXEC; data sockets have TCP_NODELAY.
 * Errors are returned, not logged: the caller knows the peer and the purpose.
 * EINTR is handled here.
 */
#ifndef RAIL_SOCK_H
#define RAIL_SOCK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "result.h"

/* An IPv4 or IPv6 address and port. */
union rail_addr {
  struct sockaddr sa;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
};

#define RAIL_ADDR_TEXT 80 /* fits "[ipv6%scope]:port" and NUL */

/* "10.0.0.1:5000", "[fe80::1%2]:5000"; returns `text`. */
const char *rail_addr_text(const union rail_addr *addr, char text[RAIL_ADDR_TEXT]);
socklen_t rail_addr_len(const union rail_addr *addr);
uint16_t rail_addr_port(const union rail_addr *addr);
void rail_addr_set_port(union rail_addr *addr, uint16_t port);
/* Same family and address; ports ignored. */
bool rail_addr_same_host(const union rail_addr *a, const union rail_addr *b);
/* "host:port", "1.2.3.4:5", "[::1]:5"; numeric first, then getaddrinfo (may block). */
rail_result_t rail_addr_parse(const char *text, union rail_addr *addr);

/* Fixed-width wire form of an address, for handles and bootstrap messages:
 * 24 bytes, network byte order. unpack checks family and zero padding. */
struct rail_addr_wire {
  uint8_t family; /* 4 or 6 */
  uint8_t zero;
  uint8_t port[2];
  uint8_t scope[4];
  uint8_t ip[16];
};
_Static_assert(sizeof(struct rail_addr_wire) == 24, "wire size");
void rail_addr_pack(const union rail_addr *addr, struct rail_addr_wire *wire);
bool rail_addr_unpack(const struct rail_addr_wire *wire, union rail_addr *addr);

/* Listens on addr (port 0: any), with the given backlog; *addr gets the port. */
rail_result_t rail_sock_listen(union rail_addr *addr, int backlog, int *fd);

/* One pending connection, or RAIL_IN_PROGRESS. Errors of a connection that
 * died while queued (ECONNABORTED...) are skipped. EMFILE etc. are RAIL_SYSTEM_ERROR. */
rail_result_t rail_sock_accept(int listen_fd, int *fd, union rail_addr *peer);

/* Starts a connect; `from` (may be NULL) is the local address to bind (port
 * 0). RAIL_OK: already connected; RAIL_IN_PROGRESS: ask rail_sock_connected. */
rail_result_t rail_sock_connect(const union rail_addr *to, const union rail_addr *from, int *fd);
/* The two halves of it. What counts from the first packet on (buffer sizes, traffic class, device) is set between
 * them. A failed start leaves the socket open. */
rail_result_t rail_sock_open(const union rail_addr *to, const union rail_addr *from, int *fd);
rail_result_t rail_sock_start(int fd, const union rail_addr *to);
/* RAIL_OK, RAIL_IN_PROGRESS, or the failure with errno set. */
rail_result_t rail_sock_connected(int fd);

/* One readv/sendmsg (MSG_NOSIGNAL). RAIL_OK with *n > 0; RAIL_IN_PROGRESS when
 * it would block (*n 0). End of stream on receive is RAIL_REMOTE_ERROR with errno 0. */
rail_result_t rail_sock_sendv(int fd, const struct iovec *iov, int niov, size_t *n);
rail_result_t rail_sock_recvv(int fd, const struct iovec *iov, int niov, size_t *n);

/* Resumable whole-buffer transfer: *done counts bytes so far. RAIL_OK when
 * *done == size. */
rail_result_t rail_sock_send_some(int fd, const void *data, size_t size, size_t *done);
rail_result_t rail_sock_recv_some(int fd, void *data, size_t size, size_t *done);

/* Waiting forms for start-up code; RAIL_REMOTE_ERROR with errno ETIMEDOUT at the deadline.
 * *abort_flag (may be NULL) nonzero ends the wait with errno ECANCELED within 50 ms. */
rail_result_t rail_sock_send_all(int fd, const void *data, size_t size, uint64_t deadline,
                                 const _Atomic int *abort_flag);
rail_result_t rail_sock_recv_all(int fd, void *data, size_t size, uint64_t deadline, const _Atomic int *abort_flag);
rail_result_t rail_sock_connect_all(const union rail_addr *to, const union rail_addr *from, uint64_t deadline,
                                    const _Atomic int *abort_flag, int *fd);
rail_result_t rail_sock_accept_all(int listen_fd, uint64_t deadline, const _Atomic int *abort_flag, int *fd,
                                   union rail_addr *peer);

union rail_addr rail_sock_local(int fd); /* this end's address; zero where there is none */
void rail_sock_close(int *fd); /* closes if >= 0 and sets -1; preserves errno */
rail_result_t rail_sock_set_buffers(int fd, int64_t sndbuf, int64_t rcvbuf); /* < 0: leave */
/* Lets the receive window of a connected socket begin at `bytes` (at most half of tcp_rmem's largest) and leaves its
 * later size to the system, which SO_RCVBUF does not (Linux: tcp_set_rcvlowat). 0: leave. */
rail_result_t rail_sock_open_window(int fd, int64_t bytes);

/* Sends the acknowledgement that is due now, if one is, and lets later ones wait, as in a dialogue. On a connection
 * that carries messages one way only, Linux sends an acknowledgement in the middle of the read of a small message,
 * which costs the message 1 us and more; called when there is nothing else to do, this takes it out of the way. Not
 * permanent: the kernel goes back to its way after losses (tcp(7), TCP_QUICKACK). */
void rail_sock_ack_now(int fd);

/* `size` bytes from the kernel's random source. */
rail_result_t rail_random_bytes(void *out, size_t size);
/* No early exit: the time tells nothing about how many bytes were right. For macs and other secrets. */
bool rail_same_bytes(const void *a, const void *b, size_t size);

#endif
