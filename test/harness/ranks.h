/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs of several ranks for tests of the runtime: one forked process each, with an environment of its own, which must
 * be set before the library is first called; so the parent calls nothing of it. What a rank's ENSURE says fails
 * the case in the parent. A rank dies with its parent.
 */
#ifndef RAIL_TEST_RANKS_H
#define RAIL_TEST_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RANKS_MAX 16
#define RANKS_SHARED 4096
#define RANKS_PATH 1024

struct job;

struct rank {
  int rank, nranks;
  void *shared; /* RANKS_SHARED zeroed bytes, the same memory in all ranks and in the parent */
  struct job *job;
};

typedef void (*rank_fn)(const struct rank *rank, void *arg);

/* `env`: "NAME=value NAME=value …", added to the environment of every rank; %d in a value is the rank, %h the
 * half of the ranks it is in, 0 or 1. NCCL_SOCKET_IFNAME=lo and the build's socket plugin are given unless it says
 * otherwise. */
struct job *job_start(const char *env, int nranks, rank_fn body, void *arg);
void *job_shared(struct job *job);
pid_t job_pid(const struct job *job, int rank);
/* Waits for one rank. True: it ended; *status as waitpid says. */
bool job_wait(struct job *job, int rank, uint64_t ms, int *status);
/* Waits for all that were not waited for, kills who is late, frees, and fails with the first message, a late rank or a
 * crash. `expect_killed`: a bit for each rank that may die of SIGKILL. */
void job_end(struct job *job, uint64_t ms, unsigned expect_killed);
/* The above in one. */
void job_run(const char *env, int nranks, uint64_t ms, rank_fn body, void *arg);

/* In a rank: rank 0's bytes to all (a unique id), once per slot 0…7. Fails after 20 s. */
void rank_broadcast(const struct rank *rank, int slot, void *data, size_t size);
/* All ranks have come here. Not through the library. Fails after 60 s. */
void rank_barrier(const struct rank *rank);

/* The threads of this process, once none has begun or ended for a while. Detached ones (the rendezvous) take a moment
 * to end, and some stay (a plugin's, a sanitizer's), so that there is no number to wait for. */
int rank_threads_settled(void);
/* In a rank: no more descriptors and threads are there than there were. Soon: a thread that was told to end may take a
 * moment. `what` might have left them. */
void rank_back_to(int fds, int threads, const char *what);

/* The build's socket plugin, or NULL. */
const char *ranks_plugin(void);
/* The full path of a file of the build; false if it is not there. */
bool ranks_built(const char *file, char path[RANKS_PATH]);

#endif
