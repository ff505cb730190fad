/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks' buffers. A device's have a copy on the host each, where inputs are made and results are checked.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-coll/coll.h"

const char *const rc_memory_names[] = {[RC_MEMORY_HOST] = "host", [RC_MEMORY_DEVICE] = "device",
                                       [RC_MEMORY_MANAGED] = "managed", NULL};

enum rc_memory rc_memory_of(const struct rc_options *o, int rank) { return o->memory[rank % o->nmemory]; }

bool rc_uses_gpus(const struct rc_options *o) { return o->memory[0] != RC_MEMORY_HOST; }

static uint64_t available_bytes(void) {
  char line[128];
  unsigned long long kb = 0;
  FILE *f = fopen("/proc/meminfo", "re");
  if (!f) return UINT64_MAX;
  while (fgets(line, sizeof line, f))
    if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) break;
  fclose(f);
  return kb ? kb * 1024 : UINT64_MAX;
}

int rc_memory_check(const struct rc_process *p, const struct rc_place *place) {
  uint64_t ranks = (uint64_t)p->nlocal * (uint64_t)place->local_processes;
  uint64_t each = 2 * (p->o->max_bytes + p->o->offset + 3 * RC_GUARD), have = available_bytes();
  if (each < have / ranks / 10 * 9) return 0;
  if (p->first == 0)
    fprintf(stderr, RC_NAME ": -e %llu MiB needs %llu MiB for the buffers of %llu ranks on this machine, which has "
            "%llu MiB available; use a smaller -e\n", (unsigned long long)p->o->max_bytes >> 20,
            (unsigned long long)(each >> 20) * ranks, (unsigned long long)ranks, (unsigned long long)have >> 20);
  return -1;
}

/* ---- one buffer ---- */

static size_t total_bytes(const struct rc_options *o) { return o->max_bytes + o->offset + 2 * RC_GUARD; }

static int register_buffer(struct rc_worker *w, struct rc_rank *r, struct rc_buffer *b, char *base) {
  ncclResult_t result = ncclCommRegister(r->c, base, total_bytes(w->process->o), &b->handle);
  return result == ncclSuccess ? 0 : rc_failed(w, r, "ncclCommRegister", result);
}

static int open_on_device(struct rc_worker *w, struct rc_rank *r, struct rc_buffer *b) {
  const struct rc_options *o = w->process->o;
  int result = rc_gpu_alloc(&r->gpu, total_bytes(o), r->memory == RC_MEMORY_MANAGED, &b->gpu_base);
  char what[64];
  snprintf(what, sizeof what, "%zu MiB of %s memory (-e)", total_bytes(o) >> 20, rc_memory_names[r->memory]);
  if (result != 0) return rc_gpu_failed(w, r, what, result);
  return o->registered ? register_buffer(w, r, b, b->gpu_base) : 0;
}

static int open_on_host(struct rc_worker *w, struct rc_rank *r, struct rc_buffer *b) {
  const struct rc_options *o = w->process->o;
  b->from_library = o->registered && r->memory == RC_MEMORY_HOST;
  if (!b->from_library) {
    int err = posix_memalign((void **)&b->base, 4096, total_bytes(o));
    return err == 0 ? 0 : rc_report_error("buffers", err);
  }
  (void)rc_gpu_use(NULL); /* or it might be a device's */
  ncclResult_t result = ncclMemAlloc((void **)&b->base, total_bytes(o));
  if (result != ncclSuccess) return rc_failed(w, r, "ncclMemAlloc", result);
  return register_buffer(w, r, b, b->base);
}

static int open_buffer(struct rc_worker *w, struct rc_rank *r, struct rc_buffer *b) {
  const struct rc_options *o = w->process->o;
  if (open_on_host(w, r, b) != 0) return -1;
  if (r->memory != RC_MEMORY_HOST && open_on_device(w, r, b) != 0) return -1;
  b->bytes = o->max_bytes;
  b->data = b->base + RC_GUARD + o->offset;
  b->user = (b->gpu_base ? b->gpu_base : b->base) + RC_GUARD + o->offset;
  return 0;
}

static void close_buffer(struct rc_rank *r, struct rc_buffer *b) {
  if (b->handle && atomic_load(&r->comm)) (void)ncclCommDeregister(r->c, b->handle);
  if (b->from_library) (void)ncclMemFree(b->base);
  else free(b->base);
  rc_gpu_free(&r->gpu, b->gpu_base);
  *b = (struct rc_buffer){0};
}

int rc_buffer_push(struct rc_worker *w, const struct rc_rank *r, const struct rc_buffer *b, size_t used) {
  if (!b->gpu_base) return 0;
  int result = rc_gpu_put(&r->gpu, b->user - RC_GUARD, b->data - RC_GUARD, used + 2 * RC_GUARD);
  return result == 0 ? 0 : rc_gpu_failed(w, r, "copying the input there", result);
}

int rc_buffer_pull(struct rc_worker *w, const struct rc_rank *r, const struct rc_buffer *b, size_t used) {
  if (!b->gpu_base) return 0;
  int result = rc_gpu_get(&r->gpu, b->data - RC_GUARD, b->user - RC_GUARD, used + 2 * RC_GUARD);
  return result == 0 ? 0 : rc_gpu_failed(w, r, "copying the result back", result);
}

/* ---- all of them ---- */

int rc_buffers_open(struct rc_worker *w) {
  for (int i = 0; i < w->n; i++) {
    struct rc_rank *r = &w->ranks[i];
    if (open_buffer(w, r, &r->send) != 0 || open_buffer(w, r, &r->recv) != 0) return -1;
    r->mine = calloc(1, RC_RECORD_MAX);
    r->all = calloc((size_t)w->process->nranks, RC_RECORD_MAX);
    if (!r->mine || !r->all) return rc_report_error("buffers", ENOMEM);
  }
  return 0;
}

void rc_buffers_close(struct rc_process *p) {
  for (int i = 0; i < p->nlocal; i++) {
    struct rc_rank *r = &p->ranks[i];
    close_buffer(r, &r->send);
    close_buffer(r, &r->recv);
    free(r->mine);
    free(r->all);
  }
}
