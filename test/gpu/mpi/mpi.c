/* SPDX-License-Identifier: Apache-2.0
 * See mpi.h. Each rank has a place in the page: it writes there, all meet, all read, all meet. */
#include "mpi.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 8
#define PLACE 65536
#define PATIENCE_S 100

static struct page {
  _Atomic unsigned at_barrier;
  char place[MAX_RANKS][PLACE];
} *page;
static int rank, nranks;

static _Noreturn void fail(const char *what) {
  fprintf(stderr, "test/gpu/mpi: rank %d: %s\n", rank, what);
  exit(3);
}

static size_t size_of(MPI_Datatype type) {
  static const size_t sizes[] = {0, 1, sizeof(int), sizeof(long), sizeof(long long), 8, sizeof(double)};
  if (type < MPI_BYTE || type > MPI_DOUBLE) fail("a type that it does not know");
  return sizes[type];
}

static int number_in(const char *name, int least, int most) {
  const char *text = getenv(name);
  int n = text ? atoi(text) : -1;
  if (n >= least && n <= most) return n;
  fprintf(stderr, "test/gpu/mpi: %s is %s; start the program with test/gpu/ranks.py\n", name, text ? text : "not set");
  exit(3);
}

static void meet(void) {
  unsigned n = (unsigned)nranks, ticket = atomic_fetch_add(&page->at_barrier, 1), all = (ticket / n + 1) * n;
  time_t end = time(NULL) + PATIENCE_S;
  while (atomic_load(&page->at_barrier) < all) {
    sched_yield();
    if (time(NULL) > end) fail("the other ranks did not come");
  }
}

static void put(const void *data, size_t size) {
  if (size > PLACE) fail("more data than the page has room for");
  memcpy(page->place[rank], data, size);
}

int MPI_Init(int *argc, char ***argv) {
  (void)argc, (void)argv;
  nranks = number_in("WORLD_SIZE", 1, MAX_RANKS);
  rank = number_in("RANK", 0, nranks - 1);
  const char *path = getenv("GPU_TEST_MPI_PAGE");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0 || ftruncate(fd, sizeof *page) != 0) fail("GPU_TEST_MPI_PAGE is not set, or no file that can be written");
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page == MAP_FAILED) fail("the page cannot be mapped");
  meet();
  return MPI_SUCCESS;
}

int MPI_Finalize(void) {
  meet();
  munmap(page, sizeof *page);
  page = NULL;
  return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int *size) {
  (void)comm;
  *size = nranks;
  return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *r) {
  (void)comm;
  *r = rank;
  return MPI_SUCCESS;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *part) {
  int colors[MAX_RANKS];
  (void)key;
  MPI_Allgather(&color, 1, MPI_INT, colors, 1, MPI_INT, comm);
  for (int r = 0; r < nranks; r++)
    if (colors[r] != color) fail("the ranks cannot be split into several groups");
  *part = comm;
  return MPI_SUCCESS;
}

int MPI_Comm_free(MPI_Comm *comm) {
  *comm = 0;
  return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) {
  (void)comm;
  meet();
  return MPI_SUCCESS;
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  size_t size = (size_t)count * size_of(type);
  (void)comm;
  if (rank == root) put(data, size);
  meet();
  if (rank != root) memcpy(data, page->place[root], size);
  meet();
  return MPI_SUCCESS;
}

static void gather(const void *from, void *to, size_t size, int wants) {
  const void *mine = from == MPI_IN_PLACE ? (char *)to + (size_t)rank * size : from;
  put(mine, size);
  meet();
  for (int r = 0; r < nranks && wants; r++) memcpy((char *)to + (size_t)r * size, page->place[r], size);
  meet();
}

int MPI_Gather(const void *from, int count, MPI_Datatype type, void *to, int to_count, MPI_Datatype to_type, int root,
               MPI_Comm comm) {
  (void)comm;
  gather(from, to, from == MPI_IN_PLACE ? (size_t)to_count * size_of(to_type) : (size_t)count * size_of(type),
         rank == root);
  return MPI_SUCCESS;
}

int MPI_Allgather(const void *from, int count, MPI_Datatype type, void *to, int to_count, MPI_Datatype to_type,
                  MPI_Comm comm) {
  (void)comm, (void)count, (void)type;
  gather(from, to, (size_t)to_count * size_of(to_type), 1);
  return MPI_SUCCESS;
}

#define COMBINE(T) \
  do { \
    T *a = (T *)to + i, b = ((const T *)(const void *)page->place[r])[i]; \
    if (op == MPI_SUM) *a += b; \
    else if (op == MPI_MIN ? b < *a : b > *a) *a = b; \
  } while (0)

int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  size_t size = (size_t)count * size_of(type);
  (void)comm;
  if (op < MPI_SUM || op > MPI_MAX || type == MPI_BYTE) fail("a reduction that it does not know");
  put(from == MPI_IN_PLACE ? to : from, size);
  meet();
  memcpy(to, page->place[0], size);
  for (int r = 1; r < nranks; r++) {
    for (int i = 0; i < count; i++) {
      if (type == MPI_DOUBLE) COMBINE(double);
      else if (type == MPI_INT) COMBINE(int);
      else COMBINE(long long); /* LONG, LONG_LONG and INT64_T: all of 8 bytes here */
    }
  }
  meet();
  return MPI_SUCCESS;
}

_Static_assert(sizeof(long) == sizeof(long long), "a long has 8 bytes");
