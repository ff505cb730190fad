/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin around another one ($GDRNET_INNER) that takes GPU memory too: that of the fake driver, which is the
 * host's. It is as unkind as a NIC may be: what is received into GPU memory cannot be seen there until a flush of that
 * buffer is over; until then there is nonsense. It counts what it is asked for (gdrnet_count, for tests).
 *
 *   GDRNET_OFFERS=cuda,dmabuf   what its devices take besides host memory
 *   GDRNET_REFUSES=cuda,dmabuf  what it then does not register after all
 *   GDRNET_PCI_PATH=PATH        where its devices are, if not where the inner one says
 *   GDRNET_FORCE_FLUSH=1        its devices ask for flushes
 *   GDRNET_KIND=1               what is received can be seen at once
 *   GDRNET_FLUSH=N              a flush is over at its N-th test; 0: when iflush returns, without a request
 *   GDRNET_FLUSH_FAILS=N        the N-th iflush fails; GDRNET_FLUSH_TEST_FAILS=N: the N-th test of one
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "rail/net.h"

#define EXPORT __attribute__((visibility("default")))
enum { MOST = 4096, NONSENSE = 0x5A };

struct mr {
  void *inner;
  bool gpu;
};

/* A request of the inner plugin, or a flush. `hidden`: bytes that are not to be seen yet, kept after the request. */
struct request {
  bool used, is_flush, gpu_recv;
  void *inner;
  char *data, *hidden;
  size_t size;
  int tests;
};

static const struct rail_net_v12 *inner;
static struct request pool[MOST];
static struct { const char *name; long n; } counts[] = {
    {"cuda", 0}, {"dmabuf", 0}, {"left", 0}, {"gpu sends", 0}, {"gpu receives", 0}, {"flushes", 0}, {"flush tests", 0}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

static bool listed(const char *variable, const char *word) {
  const char *list = getenv(variable);
  return list && strstr(list, word) != NULL;
}

static long *count_of(const char *name) {
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    if (strcmp(counts[i].name, name) == 0) return &counts[i].n;
  abort();
}

/* The count afterwards. */
static long count(const char *name, long change) {
  pthread_mutex_lock(&lock);
  long n = *count_of(name) += change;
  pthread_mutex_unlock(&lock);
  return n;
}

EXPORT long gdrnet_count(const char *name);
long gdrnet_count(const char *name) { return count(name, 0); }

static struct request *new_request(void) {
  struct request *r = pool;
  pthread_mutex_lock(&lock);
  while (r < pool + MOST && r->used) r++;
  if (r == pool + MOST) abort();
  *r = (struct request){.used = true};
  pthread_mutex_unlock(&lock);
  return r;
}

static void free_request(struct request *r) {
  pthread_mutex_lock(&lock);
  r->used = false;
  pthread_mutex_unlock(&lock);
}

static int answer(struct request *r, int result, void **request) {
  *request = result == RAIL_OK && r->inner ? r : NULL;
  if (!*request) free_request(r);
  return result;
}

/* ---- the slots ---- */

static int gdr_properties(int dev, struct rail_net_props_v12 *props) {
  int result = inner->get_properties(dev, props);
  if (result != RAIL_OK) return result;
  if (listed("GDRNET_OFFERS", "cuda")) props->ptr_support |= RAIL_PTR_CUDA;
  if (listed("GDRNET_OFFERS", "dmabuf")) props->ptr_support |= RAIL_PTR_DMABUF;
  if (getenv("GDRNET_PCI_PATH")) props->pci_path = getenv("GDRNET_PCI_PATH");
  props->force_flush = (int)number("GDRNET_FORCE_FLUSH", 0);
  props->max_recvs = 1; /* irecv refuses groups */
  return RAIL_OK;
}

static int new_mr(void *comm, void *data, size_t size, bool gpu, void **mhandle) {
  struct mr *mr = calloc(1, sizeof *mr);
  mr->gpu = gpu;
  int result = inner->reg_mr(comm, data, size, RAIL_PTR_HOST, &mr->inner);
  *mhandle = mr;
  if (result != RAIL_OK) free(mr);
  else count("left", 1);
  return result;
}

static int gdr_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  if (type == RAIL_PTR_CUDA && (!listed("GDRNET_OFFERS", "cuda") || listed("GDRNET_REFUSES", "cuda")))
    return RAIL_BAD_ARGUMENT;
  if (type == RAIL_PTR_CUDA) count("cuda", 1);
  return new_mr(comm, data, size, type == RAIL_PTR_CUDA, mhandle);
}

static int gdr_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
  struct stat st;
  if (!listed("GDRNET_OFFERS", "dmabuf") || listed("GDRNET_REFUSES", "dmabuf")) return RAIL_BAD_ARGUMENT;
  if (type != RAIL_PTR_CUDA || offset || fstat(fd, &st) != 0 || st.st_size < (off_t)size) return RAIL_BAD_ARGUMENT;
  count("dmabuf", 1);
  return new_mr(comm, data, size, true, mhandle);
}

static int gdr_dereg_mr(void *comm, void *mhandle) {
  struct mr *mr = mhandle;
  if (!mr) return RAIL_OK;
  int result = inner->dereg_mr(comm, mr->inner);
  free(mr);
  count("left", -1);
  return result;
}

static int gdr_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
  struct mr *mr = mhandle;
  struct request *r = new_request();
  int result = inner->isend(comm, data, size, tag, mr->inner, phandle, &r->inner);
  if (result == RAIL_OK && r->inner && mr->gpu) count("gpu sends", 1);
  return answer(r, result, request);
}

static int gdr_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                     void **request) {
  struct mr *mr = mhandles[0];
  if (n != 1) return RAIL_BAD_ARGUMENT;
  struct request *r = new_request();
  r->gpu_recv = mr->gpu;
  r->data = data[0];
  int result = inner->irecv(comm, 1, data, sizes, tags, &mr->inner, phandles, &r->inner);
  if (result == RAIL_OK && r->inner && mr->gpu) count("gpu receives", 1);
  return answer(r, result, request);
}

/* The receive is over, but test does not report it yet. */
static void hide(struct request *r, size_t size) {
  r->hidden = malloc(size);
  r->size = size;
  r->is_flush = true; /* to be */
  memcpy(r->hidden, r->data, size);
  memset(r->data, NONSENSE, size);
}

static void show(struct request *r) {
  memcpy(r->data, r->hidden, r->size);
  free(r->hidden);
  free_request(r);
}

static int gdr_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  struct mr *mr = mhandles[0];
  struct request *r = pool;
  (void)comm;
  *request = NULL;
  if (count("flushes", 1) == number("GDRNET_FLUSH_FAILS", 0)) return RAIL_SYSTEM_ERROR;
  if (n != 1 || !mr->gpu) return RAIL_BAD_ARGUMENT;
  if (getenv("GDRNET_KIND")) return RAIL_OK;
  pthread_mutex_lock(&lock);
  while (r < pool + MOST && !(r->used && r->hidden && r->data == data[0])) r++;
  pthread_mutex_unlock(&lock);
  if (r == pool + MOST || r->size != (size_t)sizes[0]) return RAIL_BAD_ARGUMENT;
  if (number("GDRNET_FLUSH", 1) == 0)
    show(r);
  else
    *request = r;
  return RAIL_OK;
}

static int test_flush(struct request *r, int *done) {
  *done = 0;
  if (count("flush tests", 1) == number("GDRNET_FLUSH_TEST_FAILS", 0)) return RAIL_SYSTEM_ERROR;
  *done = ++r->tests >= number("GDRNET_FLUSH", 1);
  if (*done) show(r);
  return RAIL_OK;
}

static int gdr_test(void *request, int *done, int *sizes) {
  struct request *r = request;
  if (r->is_flush) return test_flush(r, done);
  int result = inner->test(r->inner, done, sizes);
  if (result != RAIL_OK || !*done) return result;
  if (r->gpu_recv && sizes && sizes[0] > 0 && !getenv("GDRNET_KIND"))
    hide(r, (size_t)sizes[0]);
  else
    free_request(r);
  return RAIL_OK;
}

/* Communicators that fail leave flushes behind. */
static int gdr_finalize(void *ctx) {
  int result = inner->finalize(ctx);
  pthread_mutex_lock(&lock);
  for (struct request *r = pool; r < pool + MOST; r++)
    if (r->used && r->hidden) {
      free(r->hidden);
      r->used = false;
    }
  pthread_mutex_unlock(&lock);
  return result;
}

EXPORT struct rail_net_v12 ncclNetPlugin_v12;
struct rail_net_v12 ncclNetPlugin_v12;

/* The table is the inner one's but for what has to do with memory. */
__attribute__((constructor)) static void wrap(void) {
  const char *path = getenv("GDRNET_INNER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  inner = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
  if (!inner) return;
  struct rail_net_v12 outer = *inner;
  outer.name = "GDRNet";
  outer.finalize = gdr_finalize;
  outer.get_properties = gdr_properties;
  outer.reg_mr = gdr_reg_mr;
  outer.reg_mr_dmabuf = gdr_reg_mr_dmabuf;
  outer.dereg_mr = gdr_dereg_mr;
  outer.isend = gdr_isend;
  outer.irecv = gdr_irecv;
  outer.iflush = gdr_iflush;
  outer.test = gdr_test;
  outer.irecv_consumed = NULL; /* it would be told of requests that are ours */
  ncclNetPlugin_v12 = outer;
}
