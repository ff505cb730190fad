/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI_Allreduce of floats, timed as rail-coll times ours: out of place, the same
 * two buffers each time, warm-up, a barrier, the timed calls, and the greatest
 * time of all ranks. Prints one JSON object a size.
 *
 *   mpirun -np 2 mpi_allreduce MINBYTES MAXBYTES FACTOR ITERS WARMUP
 *
 * ITERS 0: one call a size, whose result is checked and counted as "wrong".
 */
#include <mpi.h>

#include "timing.h"

struct job {
  int rank, nranks;
  size_t min_bytes, max_bytes, factor;
  int iters, warmup;
  float *send, *recv;
};

/* Small integers: no order of additions rounds. */
static float input(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 13) % 101) - 50.0f; }

static void must(int result, const char *what) {
  if (result == MPI_SUCCESS) return;
  fprintf(stderr, "%s failed: %d\n", what, result);
  MPI_Abort(MPI_COMM_WORLD, 3);
}

static void repeat(const struct job *j, size_t count, int times) {
  for (int i = 0; i < times; i++)
    must(MPI_Allreduce(j->send, j->recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
}

static double timed_us(const struct job *j, size_t count) {
  double greatest = 0;
  repeat(j, count, j->warmup);
  must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
  double start = bench_now_us();
  repeat(j, count, j->iters);
  double us = (bench_now_us() - start) / j->iters;
  must(MPI_Reduce(&us, &greatest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD), "MPI_Reduce");
  return greatest;
}

static unsigned long long wrong_elements(const struct job *j, size_t count) {
  unsigned long long wrong = 0, all = 0;
  for (size_t i = 0; i < count; i++) j->recv[i] = -1e30f;
  repeat(j, count, 1);
  for (size_t i = 0; i < count; i++) {
    float expected = 0;
    for (int r = 0; r < j->nranks; r++) expected += input(r, i);
    wrong += j->recv[i] != expected;
  }
  must(MPI_Reduce(&wrong, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD), "MPI_Reduce");
  return all;
}

static void run(const struct job *j) {
  for (size_t bytes = j->min_bytes; bytes <= j->max_bytes; bytes *= j->factor) {
    size_t count = bytes / sizeof(float);
    for (size_t i = 0; i < count; i++) j->send[i] = input(j->rank, i);
    for (size_t i = 0; i < count; i++) j->recv[i] = 0;
    if (j->iters == 0) {
      unsigned long long wrong = wrong_elements(j, count);
      if (j->rank == 0) printf("{\"size\": %zu, \"wrong\": %llu}\n", bytes, wrong);
      continue;
    }
    double us = timed_us(j, count);
    if (j->rank == 0) printf("{\"size\": %zu, \"time_us\": %.4f}\n", bytes, us);
  }
}

int main(int argc, char **argv) {
  struct job j = {.rank = 0};
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 3;
  if (argc != 6) {
    fprintf(stderr, "usage: mpi_allreduce MINBYTES MAXBYTES FACTOR ITERS WARMUP\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  must(MPI_Comm_rank(MPI_COMM_WORLD, &j.rank), "MPI_Comm_rank");
  must(MPI_Comm_size(MPI_COMM_WORLD, &j.nranks), "MPI_Comm_size");
  j.min_bytes = bench_number("MINBYTES", argv[1], sizeof(float));
  j.max_bytes = bench_number("MAXBYTES", argv[2], j.min_bytes);
  j.factor = bench_number("FACTOR", argv[3], 2);
  j.iters = (int)bench_number("ITERS", argv[4], 0);
  j.warmup = (int)bench_number("WARMUP", argv[5], 0);
  int err = posix_memalign((void **)&j.send, 4096, j.max_bytes);
  if (err == 0) err = posix_memalign((void **)&j.recv, 4096, j.max_bytes);
  if (err != 0) {
    fprintf(stderr, "no memory for 2 x %zu bytes\n", j.max_bytes);
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  run(&j);
  free(j.send);
  free(j.recv);
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 3;
}
