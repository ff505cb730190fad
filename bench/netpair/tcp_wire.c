/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes over plain TCP streams: the system's own limit. No headers, nothing
 * agreed: each message is one write and one read of its size, repeated for
 * what did not fit. Only the oldest message of a stream moves.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bench/netpair/side.h"
#include "common/sock.h"

struct piece {
  char *at;
  size_t left;
};

struct stream {
  int fd, listen_fd;
  struct piece pieces[MAX_WINDOW];
};

struct tcp {
  struct stream out[MAX_LANES], in[MAX_LANES];
};

static rail_result_t start(struct side *s, struct tcp *t) {
  for (unsigned int i = 0; i < MAX_LANES; i++)
    t->out[i].fd = t->in[i].fd = t->out[i].listen_fd = t->in[i].listen_fd = -1;
  for (unsigned int i = 0; i < s->nin; i++) {
    union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    RAIL_TRY(rail_sock_listen(&addr, 1, &t->in[i].listen_fd));
    rail_addr_pack(&addr, (struct rail_addr_wire *)(void *)s->shared->handles[s->id][i]);
  }
  snprintf(s->shared->outcome[s->id].wire, sizeof s->shared->outcome[s->id].wire, "TCP");
  atomic_store(&s->shared->listening[s->id], 1);
  return RAIL_OK;
}

static rail_result_t connect_step(struct side *s, struct tcp *t, bool *all) {
  for (unsigned int i = 0; i < s->nout; i++) {
    struct lane *lane = &s->out[i];
    if (lane->comm) continue;
    *all = false;
    if (!atomic_load(&s->shared->listening[1 - s->id])) continue;
    rail_result_t result;
    if (t->out[i].fd < 0) {
      union rail_addr to;
      if (!rail_addr_unpack((struct rail_addr_wire *)(void *)s->shared->handles[1 - s->id][i], &to))
        return RAIL_INTERNAL_ERROR;
      result = rail_sock_connect(&to, NULL, &t->out[i].fd);
    } else {
      result = rail_sock_connected(t->out[i].fd);
    }
    if (result == RAIL_IN_PROGRESS) continue;
    RAIL_TRY(result);
    lane->comm = &t->out[i];
  }
  return RAIL_OK;
}

static rail_result_t accept_step(struct side *s, struct tcp *t, bool *all) {
  for (unsigned int i = 0; i < s->nin; i++) {
    struct stream *stream = &t->in[i];
    union rail_addr peer;
    if (s->in[i].comm) continue;
    rail_result_t result = rail_sock_accept(stream->listen_fd, &stream->fd, &peer);
    if (result == RAIL_IN_PROGRESS) {
      *all = false;
      continue;
    }
    RAIL_TRY(result);
    rail_sock_close(&stream->listen_fd);
    s->in[i].comm = stream;
  }
  return RAIL_OK;
}

static rail_result_t tcp_open(struct side *s) {
  struct tcp *t = s->wire;
  bool all = true;
  if (!t) {
    if (!(t = s->wire = calloc(1, sizeof *t))) return RAIL_SYSTEM_ERROR;
    RAIL_TRY(start(s, t));
  }
  RAIL_TRY(connect_step(s, t, &all));
  RAIL_TRY(accept_step(s, t, &all));
  return all ? RAIL_OK : RAIL_IN_PROGRESS;
}

/* The lane's next slot is free, and so is the piece that goes with it. */
static rail_result_t tcp_post(struct side *s, struct lane *lane, char *data, void **request) {
  struct stream *stream = lane->comm;
  struct piece *piece = &stream->pieces[lane->next];
  *piece = (struct piece){.at = data, .left = s->o->size};
  *request = piece;
  return RAIL_OK;
}

/* Lanes test nothing but their oldest request, so this is always the stream's next piece. */
static rail_result_t tcp_test(struct side *s, struct lane *lane, void *request, int *done, int *size) {
  struct stream *stream = lane->comm;
  struct piece *piece = request;
  while (piece->left > 0) {
    ssize_t n =
        size ? recv(stream->fd, piece->at, piece->left, 0) : send(stream->fd, piece->at, piece->left, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return RAIL_OK;
    if (n <= 0) return RAIL_REMOTE_ERROR;
    piece->at += n;
    piece->left -= (size_t)n;
  }
  *done = 1;
  if (size) *size = (int)s->o->size;
  return RAIL_OK;
}

static void tcp_close(struct side *s) {
  struct tcp *t = s->wire;
  for (unsigned int i = 0; i < MAX_LANES; i++) {
    rail_sock_close(&t->out[i].fd);
    rail_sock_close(&t->in[i].fd);
  }
  free(t);
}

const struct wire_ops tcp_wire = {
    .open = tcp_open, .send = tcp_post, .recv = tcp_post, .test = tcp_test, .close = tcp_close};
