/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that moves nothing: a send is done at its first test, a receive
 * finds what `rail-kit bench` expects (--check 0). What a benchmark costs by itself shows
 * over it, and whether it would notice damage: NULLNET_WRONG=N gives message
 * N of each connection a wrong byte, NULLNET_STUCK=N never completes it,
 * NULLNET_HANG=N does not come back from its receive's test,
 * NULLNET_ERROR=N fails its test, NULLNET_CRASH=N ends the process there;
 * with NULLNET_SIZE=BYTES only messages of that size. With NULLNET_CUDA it takes
 * GPU memory, too (libfakecuda.so's).
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit/bench/bench_process.h"
#include "rail/net.h"

enum { MAX_REQUESTS = 64 };

struct request {
  struct comm *comm;
  uint64_t number;
  int size;
};

struct comm {
  unsigned int lane;
  uint64_t posted;
  struct request requests[MAX_REQUESTS];
};

static uint64_t wrong_at, stuck_at, hang_at, error_at, crash_at, only_size;
static unsigned int accepted;

static uint64_t number_from(const char *name) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : UINT64_MAX;
}

static int null_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                     rail_profiler_fn prof) {
  (void)comm_id, (void)config, (void)log, (void)prof;
  wrong_at = number_from("NULLNET_WRONG");
  stuck_at = number_from("NULLNET_STUCK");
  hang_at = number_from("NULLNET_HANG");
  error_at = number_from("NULLNET_ERROR");
  crash_at = number_from("NULLNET_CRASH");
  only_size = number_from("NULLNET_SIZE");
  *ctx = NULL;
  return RAIL_OK;
}

static int null_devices(int *ndev) {
  *ndev = 1;
  return RAIL_OK;
}

static int null_properties(int dev, struct rail_net_props_v12 *props) {
  static char name[] = "null";
  int cuda = getenv("NULLNET_CUDA") ? RAIL_PTR_CUDA : 0;
  (void)dev;
  *props = (struct rail_net_props_v12){.name = name, .ptr_support = RAIL_PTR_HOST | cuda, .speed = 1, .max_comms = 64,
                                       .max_recvs = 1, .max_p2p_bytes = RAIL_NET_MAX_BYTES,
                                       .max_coll_bytes = RAIL_NET_MAX_BYTES, .max_multi_request_size = 1};
  return RAIL_OK;
}

static bool is_hit(uint64_t at, uint64_t number, size_t size) {
  return number == at && (only_size == UINT64_MAX || only_size == size);
}

static int new_comm(unsigned int lane, void **out) {
  struct comm *comm = calloc(1, sizeof *comm);
  if (!comm) return RAIL_SYSTEM_ERROR;
  comm->lane = lane;
  *out = comm;
  return RAIL_OK;
}

static int null_listen(void *ctx, int dev, void *handle, void **listen_comm) {
  (void)ctx, (void)dev;
  memset(handle, 0, RAIL_NET_HANDLE_SIZE);
  return new_comm(0, listen_comm);
}

static int null_connect(void *ctx, int dev, void *handle, void **send_comm, struct rail_net_device_handle **dh) {
  (void)ctx, (void)dev, (void)handle, (void)dh;
  return new_comm(0, send_comm);
}

static int null_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dh) {
  (void)listen_comm, (void)dh;
  return new_comm(accepted++, recv_comm);
}

static int null_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  (void)comm, (void)data, (void)size, (void)type;
  *mhandle = NULL;
  return RAIL_OK;
}

static int null_dereg_mr(void *comm, void *mhandle) {
  (void)comm, (void)mhandle;
  return RAIL_OK;
}

static void new_request(struct comm *comm, size_t size, void **request) {
  struct request *r = &comm->requests[comm->posted % MAX_REQUESTS];
  *r = (struct request){.comm = comm, .number = comm->posted++, .size = (int)size};
  *request = r;
}

static int null_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                      void **request) {
  (void)data, (void)tag, (void)mhandle, (void)phandle;
  new_request(send_comm, size, request);
  return RAIL_OK;
}

static int null_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                      void **request) {
  struct comm *comm = recv_comm;
  (void)n, (void)tags, (void)mhandles, (void)phandles;
  uint64_t wrong = is_hit(wrong_at, comm->posted, sizes[0]) ? 0x100u : 0;
  kit_bench_write_mark(data[0], sizes[0], kit_bench_mark(comm->lane, comm->posted) ^ wrong);
  new_request(comm, sizes[0], request);
  return RAIL_OK;
}

static int null_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  static struct request flush = {.number = UINT64_MAX - 1};
  (void)recv_comm, (void)n, (void)data, (void)sizes, (void)mhandles;
  *request = &flush;
  return RAIL_OK;
}

static int null_test(void *request, int *done, int *sizes) {
  const struct request *r = request;
  if (is_hit(error_at, r->number, (size_t)r->size)) return RAIL_SYSTEM_ERROR;
  if (is_hit(crash_at, r->number, (size_t)r->size)) abort();
  while (sizes && is_hit(hang_at, r->number, (size_t)r->size)) pause();
  *done = !is_hit(stuck_at, r->number, (size_t)r->size);
  if (sizes) sizes[0] = r->size;
  return RAIL_OK;
}

static int null_close(void *comm) {
  free(comm);
  return RAIL_OK;
}

static int null_finalize(void *ctx) {
  (void)ctx;
  return RAIL_OK;
}

extern const struct rail_net_v12 ncclNetPlugin_v12;
__attribute__((visibility("default"))) const struct rail_net_v12 ncclNetPlugin_v12 = {
    .name = "Null", .init = null_init, .devices = null_devices, .get_properties = null_properties,
    .listen = null_listen, .connect = null_connect, .accept = null_accept, .reg_mr = null_reg_mr,
    .dereg_mr = null_dereg_mr, .isend = null_isend, .irecv = null_irecv, .iflush = null_iflush, .test = null_test,
    .close_send = null_close, .close_recv = null_close, .close_listen = null_close, .finalize = null_finalize};
