/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations of the ofi plugin over a scripted libfabric: keys that the provider leaves to the plugin, however
 * short, and memory of a GPU (FI_HMEM), which the scripted library uses as host memory: registered as such, sent,
 * received and flushed. The driver is test/preload/fakecuda.c.
 */
#include "test/unit/ofi_rig.h"

#define MOST (128 << 10)

static struct rig r;
static uint8_t out[MOST], in[MOST];

/* ---- keys -------------------------------------------------------------------------------- */

#define PAGE 64
static void *mhandles[300];

/* Registers until it is refused or there are `most`; returns how many. Some keys are of the plugin's own memory. */
static int register_all(void *comm, int most) {
  int n = 0;
  while (n < most && net->reg_mr(comm, in + n * PAGE, PAGE, RAIL_PTR_HOST, &mhandles[n]) == RAIL_OK) n++;
  return n;
}

TEST(keys_have_as_many_bytes_as_the_domain_says) {
  static const char *const modes[] = {"mr_mode=virt_addr", "mr_mode=local,virt_addr", "mr_mode=none"};
  for (size_t m = 0; m < RAIL_COUNT_OF(modes); m++) {
    char script[100];
    snprintf(script, sizeof script, "nic=fake0 mr_key=1 %s", modes[m]);
    rig_start(script);
    rig_open(&r, 1, 1);
    int n = register_all(r.rc, RAIL_COUNT_OF(mhandles));
    CHECK_MSG(n > 200 && n <= 255, "%d registrations with keys of a byte", n);
    CHECK(log_said("all keys of this domain are taken (mr_key_size)"));
    bool taken[256] = {false}; /* each is a byte, and no two are the same */
    for (int i = 0; i < n; i++) {
      uint64_t key = ((struct ofi_mhandle *)mhandles[i])->keys[0];
      CHECK_MSG(key <= 255 && !taken[key], "key %#llx of registration %d", (unsigned long long)key, i);
      taken[key] = true;
    }
    /* What is given back is found again, wherever it is. */
    uint64_t key = ((struct ofi_mhandle *)mhandles[n / 2])->keys[0];
    CHECK_OK(net->dereg_mr(r.rc, mhandles[n / 2]));
    mhandles[n / 2] = rig_reg(r.rc, in, PAGE);
    CHECK_INT(((struct ofi_mhandle *)mhandles[n / 2])->keys[0], key);
    for (int i = 0; i < n; i++) CHECK_OK(net->dereg_mr(r.rc, mhandles[i]));
    for (int i = 0; i < 1000; i++) CHECK_OK(net->dereg_mr(r.rc, rig_reg(r.rc, in, PAGE)));
    rig_close(&r);
    rig_end();
  }
}

/* A key that was given back is used again as late as possible: a peer may still know it. */
TEST(keys_are_taken_in_turn) {
  rig_start("nic=fake0 mr_key=1 mr_mode=virt_addr");
  rig_open(&r, 1, 1);
  int last[256] = {0};
  for (int i = 1; i <= 600; i++) {
    struct ofi_mhandle *mr = rig_reg(r.rc, in, PAGE);
    uint64_t key = mr->keys[0];
    CHECK(key >= 1 && key <= 255);
    CHECK_OK(net->dereg_mr(r.rc, mr));
    CHECK_MSG(!last[key] || i - last[key] >= 200, "key %d again after %d others", (int)key, i - last[key]);
    last[key] = i;
  }
  rig_close(&r);
  rig_end();
}

TEST(memory_that_is_refused) {
  void *mhandle = &r;
  rig_start("nic=fake0");
  rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
  fake_script("fail=mr_reg:1:ENOMEM");
  CHECK_INT(net->reg_mr(r.rc, in, 100, RAIL_PTR_HOST, &mhandle), RAIL_SYSTEM_ERROR);
  CHECK(!mhandle);
  CHECK_MSG(log_said("fi_mr_regattr") && log_said("ulimit -l"), "%s", log_lines);
  CHECK_OK(net->reg_mr(r.rc, in, 100, RAIL_PTR_HOST, &mhandle));
  CHECK_OK(net->dereg_mr(r.rc, mhandle));
  rig_close_pair(&r);
}

/* ---- memory of a GPU ------------------------------------------------------------------------ */

/* The driver: dlopen finds what is open already by its name. */
static void open_driver(void) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%.4000s", getenv("RAIL_OFI_LIBRARY"));
  strcpy(strrchr(path, '/'), "/libfakecuda.so");
  CHECK_MSG(dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), "%s", dlerror());
}

static void *reg_device(void *comm, void *data, size_t size) {
  void *mhandle = NULL;
  CHECK_OK(net->reg_mr(comm, data, size, RAIL_PTR_CUDA, &mhandle));
  CHECK(mhandle);
  return mhandle;
}

static void exchange(size_t size, void *mh_out, void *mh_in) {
  memset(in, 0xee, sizeof in);
  void *recv = rig_recv(&r, in + 16, size, 1, mh_in), *send = rig_send(&r, out + 3, size, 1, mh_out);
  CHECK_INT(rig_finish(&r, send, recv), size);
  CHECK(memcmp(in + 16, out + 3, size) == 0);
  CHECK(in[15] == 0xee && in[16 + size] == 0xee);
}

/* Each NIC reads a few bytes from itself. */
static void flush(void *mhandle, size_t size, int nreads) {
  void *data = in + 16, *request = NULL;
  long reads = fake_calls("read");
  CHECK_OK(net->iflush(r.rc, 1, &data, &(int){(int)size}, &mhandle, &request));
  CHECK((request != NULL) == (nreads > 0));
  RIG_UNTIL(!request || rig_done(request, NULL), rig_poll(r.rc));
  CHECK_INT(fake_calls("read") - reads, nreads);
}

static const struct offer {
  const char *what, *script;
  int nics, nreads; /* of a flush */
} offers[] = {
  {"rma", "nic=fake0", 1, 1},
  {"rma, local registrations", "nic=fake0 mr_mode=local,virt_addr,allocated,prov_key,hmem", 1, 1},
  {"rma, offsets, keys of ours", "nic=fake0 mr_mode=hmem", 1, 1},
  {"rma, bound to endpoints", "nic=fake0 mr_mode=local,virt_addr,prov_key,endpoint,hmem", 1, 1},
  {"tagged", "nic=fake0 no=rma,read mr_mode=hmem", 1, 0},
  {"no reads", "nic=fake0 no=read", 1, 0},
  {"two NICs", "net=one nic=fake0 nic=fake1", 2, 2},
};

TEST(device_memory_is_sent_received_and_flushed) {
  static const size_t sizes[] = {8, 2048, 2049, 40001, MOST - 4096};
  open_driver();
  for (size_t o = 0; o < RAIL_COUNT_OF(offers); o++) {
    char script[200];
    struct rail_net_props_v12 props;
    snprintf(script, sizeof script, "cuda=1 add=hmem %s", offers[o].script);
    rig_start(script);
    ofi_params.min_part = 4096;
    rig_open(&r, offers[o].nics, offers[o].nics);
    CHECK_OK(net->get_properties(0, &props));
    CHECK_MSG(props.ptr_support == (RAIL_PTR_HOST | RAIL_PTR_CUDA), "%s", offers[o].what);
    for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 31 + (i >> 8));
    long registered = fake_calls("mr_hmem");
    void *dev_out = reg_device(r.sc, out, sizeof out), *dev_in = reg_device(r.rc, in, sizeof in);
    CHECK_INT(fake_calls("mr_hmem") - registered, 2 * offers[o].nics);
    void *host_out = rig_reg(r.sc, out, sizeof out), *host_in = rig_reg(r.rc, in, sizeof in);
    CHECK_INT(fake_calls("mr_hmem") - registered, 2 * offers[o].nics);
    for (size_t i = 0; i < RAIL_COUNT_OF(sizes); i++) {
      exchange(sizes[i], dev_out, dev_in);
      flush(dev_in, sizes[i], offers[o].nreads);
      exchange(sizes[i], dev_out, host_in);
      flush(host_in, sizes[i], 0);
      exchange(sizes[i], host_out, dev_in);
      flush(dev_in, sizes[i], offers[o].nreads);
    }
    /* Bytes for a GPU never go through a copy of the processor's. */
    uint64_t inside = rail_stats_get(&rig_comm(r.sc)->stats[OFI_COMM_INLINE]);
    exchange(8, host_out, dev_in);
    CHECK_INT(rail_stats_get(&rig_comm(r.sc)->stats[OFI_COMM_INLINE]), inside);
    ofi_params.flush_disable = 1;
    flush(dev_in, 8, 0);
    CHECK_OK(net->dereg_mr(r.sc, dev_out));
    CHECK_OK(net->dereg_mr(r.sc, host_out));
    CHECK_OK(net->dereg_mr(r.rc, dev_in));
    CHECK_OK(net->dereg_mr(r.rc, host_in));
    rig_close(&r);
    CHECK_MSG(log_warnings() == 0, "%s: %s", offers[o].what, log_warning);
    rig_end();
  }
}

/* The library, the machine and every NIC must have it. */
TEST(device_memory_that_cannot_be_is_refused) {
  static const struct { const char *script; int nics; } without[] = {
    {"add=hmem nic=fake0", 1},         /* no CUDA in the library */
    {"cuda=1 nic=fake0", 1},           /* none in the provider */
    {"cuda=1 net=one nic=fake0 add=hmem nic=fake1", 2}};
  open_driver();
  for (size_t i = 0; i < RAIL_COUNT_OF(without); i++) {
    struct rail_net_props_v12 props;
    void *mhandle = &r;
    rig_start(without[i].script);
    rig_open(&r, without[i].nics, without[i].nics);
    CHECK_OK(net->get_properties(without[i].nics == 1 ? 0 : 2, &props));
    CHECK_INT(props.ptr_support, RAIL_PTR_HOST);
    CHECK_INT(net->reg_mr(r.rc, in, sizeof in, RAIL_PTR_CUDA, &mhandle), RAIL_SYSTEM_ERROR);
    CHECK(!mhandle && log_said("has no CUDA memory (FI_HMEM)"));
    rig_close(&r);
    rig_end();
  }
}

TEST(a_registration_that_fails_leaves_nothing) {
  open_driver();
  for (int k = 1; k <= 2; k++) {
    char script[100];
    void *mhandle = &r;
    rig_start("cuda=1 add=hmem net=one nic=fake0 nic=fake1");
    rig_open(&r, 2, 2);
    long live = fake_live("mr");
    snprintf(script, sizeof script, "fail=mr_hmem:%d:ENOMEM", k);
    fake_script(script);
    CHECK_INT(net->reg_mr(r.rc, in, sizeof in, RAIL_PTR_CUDA, &mhandle), RAIL_SYSTEM_ERROR);
    CHECK(!mhandle && log_said(k == 1 ? "with fake0 (fake)" : "with fake1 (fake)") && log_said("memlock"));
    CHECK_INT(fake_live("mr"), live);
    rig_close(&r);
    rig_end();
  }
}

RIG_MAIN(TEST_CASE(keys_have_as_many_bytes_as_the_domain_says), TEST_CASE(keys_are_taken_in_turn),
         TEST_CASE(memory_that_is_refused),
         TEST_CASE(device_memory_is_sent_received_and_flushed), TEST_CASE(device_memory_that_cannot_be_is_refused),
         TEST_CASE(a_registration_that_fails_leaves_nothing))
