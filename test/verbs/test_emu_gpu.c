/* SPDX-License-Identifier: Apache-2.0
 * Memory of ghost's GPU under emulated devices: what they write there is hidden until they have answered a read. */
#include <dlfcn.h>

#include "test/verbs/verbs.h"

enum { SIZE = 65536 };

static void *driver;
static size_t (*hidden)(const void *p, size_t size);

static void *symbol(const char *name) {
  void *found = dlsym(driver, name);
  CHECK(found);
  return found;
}

static char *device_memory(void) {
  char path[4096];
  Dl_info emulated;
  int (*init)(unsigned), (*retain)(void **, int), (*set)(void *), (*alloc)(uint64_t *, size_t);
  void *context;
  uint64_t address;
  CHECK(dladdr(dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr"), &emulated)); /* lib/emu/libibverbs.so.1 */
  const char *file = emulated.dli_fname, *name = strrchr(file, '/');
  CHECK(name);
  snprintf(path, sizeof path, "%.*s/../ghost/libcuda.so.1", (int)(name - file), file);
  driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(driver);
  *(void **)&init = symbol("cuInit");
  *(void **)&retain = symbol("cuDevicePrimaryCtxRetain");
  *(void **)&set = symbol("cuCtxSetCurrent");
  *(void **)&alloc = symbol("cuMemAlloc_v2");
  *(void **)&hidden = symbol("ghost_nic_hidden");
  CHECK_OK(init(0));
  CHECK_OK(retain(&context, 0));
  CHECK_OK(set(context));
  CHECK_OK(alloc(&address, SIZE));
  return (char *)(uintptr_t)address; /* until the process ends */
}

static void write_and_read(struct end *a, struct end *b, struct ibv_mr *mr, uint64_t iova, const char *there) {
  struct work w;
  fill(a->data, 8192, 9);
  work(&w, a, b, IBV_WR_RDMA_WRITE, 1, 0, 8192);
  w.wr.wr.rdma.remote_addr = iova;
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK_OK(post(a, &w.wr));
  CHECK_COMPLETION(a, 1, IBV_WC_SUCCESS);
  CHECK(memcmp(there, a->data, 8192) == 0);
  CHECK_INT(hidden(there, SIZE / 2), 8192);
  work(&w, a, b, IBV_WR_RDMA_READ, 2, 0, 1);
  CHECK_OK(post(a, &w.wr)); /* of memory of the host: it says nothing about the GPU's */
  CHECK_COMPLETION(a, 2, IBV_WC_SUCCESS);
  CHECK_INT(hidden(there, SIZE / 2), 8192);
  w.wr.wr.rdma.remote_addr = iova;
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK_OK(post(a, &w.wr));
  CHECK_COMPLETION(a, 2, IBV_WC_SUCCESS);
  CHECK_INT(hidden(there, SIZE / 2), 0);
}

TEST(writes_are_hidden_until_a_read) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  int (*export)(void *, uint64_t, size_t, int, unsigned long long), fd;
  char *memory = device_memory();
  pair_open(&a, &b, &s);
  struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, SIZE, ALL_ACCESS);
  CHECK(mr);
  write_and_read(&a, &b, mr, (uintptr_t)memory + 64, memory + 64);
  CHECK_OK(ibv_dereg_mr(mr));
  *(void **)&export = symbol("cuMemGetHandleForAddressRange");
  CHECK_OK(export(&fd, (uintptr_t)memory, SIZE, 1, 0));
  mr = ibv_reg_dmabuf_mr(b.pd, 4096, SIZE - 4096, 0x10000, fd, ALL_ACCESS);
  CHECK(mr);
  close(fd);
  write_and_read(&a, &b, mr, 0x10000, memory + 4096);
  CHECK_OK(ibv_dereg_mr(mr));
  pair_close(&a, &b);
}

TEST_MAIN(TEST_CASE(writes_are_hidden_until_a_read))
