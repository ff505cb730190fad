/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine (RAIL_SOCKET_ENGINE): threads that move connections besides the caller's.
 *
 * inline  only the caller: isend, irecv and test move data. A comm has no poll context.
 * epoll   threads wait for sockets to become ready, then own the comm and move it as test would.
 *
 * The threads belong to the process and are spread over all comms; they begin with the first comm and end with the last
 * context. A comm of the engine has a poll context at one of them. Its caller starts sends of up to
 * SK_ENGINE_INLINE_BYTES, and receives, leaves the rest to the thread, and reads flags in test. A thread that has
 * nothing else to do makes system calls for another one that owns a comm with several streams.
 *
 * It works on descriptors and a function to call, not on comms. A child of fork has none of the threads, nor of its
 * parent's comms (sk_watch.c); its own comms get threads of their own.
 */
#ifndef SK_ENGINE_H
#define SK_ENGINE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* A copy of more costs longer than waking a thread does: sends above this size are left to the engine, and several
 * such payloads are shared among its threads. */
#define SK_ENGINE_INLINE_BYTES (64 * 1024)

struct sk_poll_ctx;

enum sk_poll_result {
  SK_POLL_IDLE, /* all sockets would block */
  SK_POLL_MORE, /* there is more to do: call again */
  SK_POLL_BUSY, /* another thread owns it: call again, with the same `readable` */
};
/* What a thread calls when a socket of the context is ready or the context was notified. `readable`: a socket said
 * so. */
typedef enum sk_poll_result (*sk_poll_fn)(void *arg, bool readable);

/* The vendor of the interfaces, which has a say in how many threads there are (sk_choose_threads). Before the first
 * call of sk_engine_attach. */
void sk_engine_load(unsigned int vendor);

/* A poll context for these sockets at the least busy thread, if there is an engine (started by the first call). *ctx is
 * set before the first call of `fn`; NULL: the caller's calls move the comm. */
void sk_engine_attach(struct sk_poll_ctx **ctx, sk_poll_fn fn, void *arg, const int *fds, uint32_t n);
/* The threads serve this device from here on (sk_affinity.h). They are the process's, so they run near all the devices
 * that it has connections over. */
void sk_engine_set_affinity(const cpu_set_t *near, const char *device);
/* After return `fn` is not running and will not be called for `arg` again. */
void sk_engine_detach(struct sk_poll_ctx *ctx, const int *fds, uint32_t n);

/* One more socket, and one less, which is still open. False with errno. */
bool sk_engine_add(struct sk_poll_ctx *ctx, int fd);
void sk_engine_remove(struct sk_poll_ctx *ctx, int fd);

/* There is something to do that no socket will report; costs a system call only if the thread sleeps. */
void sk_engine_notify(struct sk_poll_ctx *ctx);

/* True: the caller is a thread of the engine, and there are others. */
bool sk_engine_can_share(void);
/* For such a caller: run(items, i) for each i < n, in this thread and in others, between what they have to do. All have
 * returned when it returns, so `run` must not block. At most UINT16_MAX items. */
void sk_engine_share(void (*run)(void *items, uint32_t i), void *items, uint32_t n);

/* No thread and no poll context is left after it. */
void sk_engine_stop(void);

#endif
