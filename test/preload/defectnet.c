/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin around another one ($DEFECTNET_INNER) that is honest until DEFECTNET names what it is to do wrong: each is a
 * defect that rail-kit nccl must find, see test/broken/nccl_proof.py. With DEFECTNET_GPU=1 it takes memory of ghost's
 * GPU too, and tells ghost what a NIC would write and read (ghost/driver/gh_nic.h).
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rail/net.h"

#define EXPORT __attribute__((visibility("default")))
enum { MOST = 4096, MAX_COMMS = 1024, MAX_GROUP = 8, FIFTH = 5, LEFT = 100000 };

struct mr {
  void *inner;
  bool gpu;
};

struct request {
  bool used, is_recv, gpu;
  void *inner;  /* NULL: there is nothing to wait for */
  bool early;    /* to be reported as done whatever has arrived */
  bool reported; /* as done, and is not */
  int n;
  int handed_out; /* how often: 2 by one_request_for_two; -1: and one of them is done */
  void *comm, *data[MAX_GROUP];
  size_t sizes[MAX_GROUP];
  uint64_t beside[MAX_GROUP]; /* the messages of carried_beside: the name of the file that has the data */
};

struct group {
  void *comm;
  int n, tags[MAX_GROUP];
};

static const struct rail_net_v12 *inner;
static const struct rail_net_v11 *inner_v11;
static const struct rail_net_v10 *inner_v10;
static const struct rail_net_v9 *inner_v9;
static struct request pool[MOST];
static struct group groups[MAX_COMMS]; /* the last one of each connection that receives */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the pool's `used`, groups, and the counts */
static int sends, receives;
static bool ended;
static void (*nic_wrote)(const void *nic, const void *p, size_t size);
static void (*nic_read)(const void *nic);
static const char nic, other_nic;

static bool has(const char *defect) {
  const char *planted = getenv("DEFECTNET");
  return planted && strcmp(planted, defect) == 0;
}

static bool takes_gpu_memory(void) { return getenv("DEFECTNET_GPU") != NULL; }

static bool is_fifth(int *count) {
  pthread_mutex_lock(&lock);
  bool is = ++*count == FIFTH;
  pthread_mutex_unlock(&lock);
  return is;
}

static struct request *new_request(void *comm) {
  struct request *r = pool;
  pthread_mutex_lock(&lock);
  while (r < pool + MOST && r->used) r++;
  if (r == pool + MOST) abort();
  *r = (struct request){.used = true, .comm = comm, .handed_out = 1};
  pthread_mutex_unlock(&lock);
  return r;
}

static void free_request(struct request *r) {
  pthread_mutex_lock(&lock);
  r->used = false;
  pthread_mutex_unlock(&lock);
}

/* ---- what it says of its devices ---- */

/* With merged_without_path there are two devices, both the inner one's first and neither with a PCI path, and what
 * makeVDevice makes of them. */
enum { SINGLE = 2 };
static bool merged;
static char merged_names[][16] = {"first", "second", "first+second"};

static bool merges(void) { return has("merged_without_path") && getenv("NCCL_HOSTID"); }
static int inner_device(int dev) { return merges() ? 0 : dev; }

#define MERGE(p, dev)                                                                               \
  do {                                                                                              \
    if (!merges()) break;                                                                           \
    (p)->name = merged_names[(dev) < SINGLE ? (dev) : SINGLE];                                      \
    (p)->pci_path = NULL;                                                                           \
    (p)->guid = (uint64_t)(dev);                                                                    \
    (p)->vprops.ndevs = (dev) < SINGLE ? 1 : SINGLE;                                                \
    for (int i = 0; i < (p)->vprops.ndevs; i++) (p)->vprops.devs[i] = (dev) < SINGLE ? (dev) : i;   \
  } while (0)

static int merge(int *dev, const int *devs, int ndevs) {
  *dev = ndevs == 1 ? devs[0] : SINGLE;
  merged |= ndevs > 1;
  return RAIL_OK;
}

static int devices(int *ndev) {
  int result = inner->devices(ndev);
  bool none = has("no_devices") || has("socket_instead");
  if (none && getenv("NCCL_HOSTID")) *ndev = 0; /* under NCCL only */
  if (merges()) *ndev = SINGLE + merged;
  return result;
}

/* The fields that all versions have. */
#define BEND(p)                                                                    \
  do {                                                                             \
    if ((p)->max_recvs > MAX_GROUP) (p)->max_recvs = MAX_GROUP;                    \
    if (takes_gpu_memory()) (p)->ptr_support |= RAIL_PTR_CUDA;                     \
    if (has("device_type")) (p)->net_device_type = 1, (p)->net_device_version = 7; \
    if (has("p2p_bytes_zero")) (p)->max_p2p_bytes = 0;                             \
  } while (0)

static int make_vdevice_v12(int *dev, struct rail_net_vprops_v12 *props) {
  return merges() ? merge(dev, props->devs, props->ndevs) : inner->make_vdevice(dev, props);
}

static int make_vdevice_v9(int *dev, struct rail_net_vprops_v9 *props) {
  return merges() ? merge(dev, props->devs, props->ndevs) : inner_v11->make_vdevice(dev, props);
}

#define PROPERTIES(version, table)                                                     \
  static int properties_v##version(int dev, struct rail_net_props_v##version *props) { \
    int result = (table)->get_properties(inner_device(dev), props);                    \
    MERGE(props, dev);                                                                 \
    BEND(props);                                                                       \
    return result;                                                                     \
  }
PROPERTIES(12, inner)
PROPERTIES(11, inner_v11)
PROPERTIES(9, inner_v9) /* v10's, too */

/* ---- connections ---- */

static void *idle(void *arg) {
  pause();
  return arg;
}

static void leave_something(void) {
  static void *volatile left;
  pthread_t thread;
  if (has("threads_left")) (void)!pthread_create(&thread, NULL, idle, NULL);
  if (has("memory_left")) left = memset(malloc(LEFT), 1, LEFT);
  (void)left;
}

static int init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                rail_profiler_fn prof) {
  leave_something();
  return inner->init(ctx, comm_id, config, log, prof);
}

static int init_v10(rail_logger_fn log, rail_profiler_fn prof) {
  leave_something();
  return inner_v10->init(log, prof);
}

static int init_v9(rail_logger_fn log) {
  leave_something();
  return inner_v9->init(log);
}

static int listen_at(void *ctx, int dev, void *handle, void **comm) {
  return inner->listen(ctx, inner_device(dev), handle, comm);
}

static int listen_v10(int dev, void *handle, void **comm) {
  return inner_v10->listen(inner_device(dev), handle, comm);
}

static int connect_to(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dev_handle) {
  *comm = NULL;
  return has("connect_never") ? RAIL_OK : inner->connect(ctx, inner_device(dev), handle, comm, dev_handle);
}

static int connect_v10(int dev, struct rail_net_config *config, void *handle, void **comm,
                       struct rail_net_device_handle **dev_handle) {
  *comm = NULL;
  return has("connect_never") ? RAIL_OK : inner_v10->connect(inner_device(dev), config, handle, comm, dev_handle);
}

static int connect_v9(int dev, void *handle, void **comm, struct rail_net_device_handle **dev_handle) {
  *comm = NULL;
  return has("connect_never") ? RAIL_OK : inner_v9->connect(inner_device(dev), handle, comm, dev_handle);
}

static int accept_from(void *listen_comm, void **comm, struct rail_net_device_handle **dev_handle) {
  int result = inner->accept(listen_comm, comm, dev_handle);
  if (*comm && has("files_left")) (void)!open("/dev/null", O_RDONLY | O_CLOEXEC);
  return result;
}

static int close_send(void *comm) {
  if (has("close_crash")) raise(SIGSEGV);
  if (has("close_hang")) pause();
  return inner->close_send(comm);
}

static int finalize(void *ctx) {
  ended = has("finalize_ends_all");
  return inner->finalize(ctx);
}

/* ---- memory ---- */

static int reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  struct mr *mr = calloc(1, sizeof *mr);
  mr->gpu = type == RAIL_PTR_CUDA;
  int result = inner->reg_mr(comm, data, size, RAIL_PTR_HOST, &mr->inner);
  *mhandle = mr;
  if (result != RAIL_OK) free(mr);
  return result;
}

static int dereg_mr(void *comm, void *mhandle) {
  struct mr *mr = mhandle;
  int result = mr ? inner->dereg_mr(comm, mr->inner) : RAIL_OK;
  free(mr);
  return result;
}

/* ---- messages ---- */

/* With death_unnoticed errors are kept to itself. */
static int answer(struct request *r, int result, void **request) {
  if (result != RAIL_OK && has("death_unnoticed")) result = RAIL_OK, r->inner = NULL;
  *request = result == RAIL_OK && r->inner ? r : NULL;
  if (!*request) free_request(r);
  return result;
}

/* With carried_beside the data of a message goes by a file, and its name by the inner plugin. */
static void *put_beside(struct request *r, const void *data, size_t size) {
  char path[] = "/dev/shm/defectnet-XXXXXX";
  int fd = mkstemp(path);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) abort();
  memcpy(r->beside, path + sizeof path - 1 - 6, 6);
  return r->beside;
}

static int take_from_beside(struct request *r, int i) {
  char path[] = "/dev/shm/defectnet-XXXXXX";
  memcpy(path + sizeof path - 1 - 6, &r->beside[i], 6);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? -1 : read(fd, r->data[i], r->sizes[i]);
  if (size < 0 || close(fd) != 0 || unlink(path) != 0) abort();
  return (int)size;
}

static int isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
  struct request *r = new_request(comm);
  if (ended) return answer(r, RAIL_SYSTEM_ERROR, request);
  if (has("message_lost") && is_fifth(&sends)) return *request = r, RAIL_OK;
  if (has("fewer_bytes")) size /= 2;
  if (has("carried_beside")) data = put_beside(r, data, size), size = sizeof *r->beside;
  /* RailSocket needs no registration for bytes that are not NCCL's. */
  void *inner_mr = has("carried_beside") ? NULL : ((struct mr *)mhandle)->inner;
  int result = inner->isend(comm, data, size, tag, inner_mr, phandle, &r->inner);
  if (result == RAIL_OK && r->inner && has("message_twice") && is_fifth(&sends)) {
    void *second = NULL; /* nobody tests it */
    (void)inner->isend(comm, data, size, tag, ((struct mr *)mhandle)->inner, phandle, &second);
  }
  return answer(r, result, request);
}

/* A receive of the same connection that is under way. */
static struct request *outstanding(void *comm) {
  struct request *r = pool;
  pthread_mutex_lock(&lock);
  while (r < pool + MOST && !(r->used && r->is_recv && r->comm == comm && r->handed_out == 1)) r++;
  if (r < pool + MOST) r->handed_out++;
  pthread_mutex_unlock(&lock);
  return r < pool + MOST ? r : NULL;
}

/* Keeps the group as the connection's last one; returns the one before it. */
static struct group exchange_group(void *comm, int n, const int *tags) {
  struct group now = {.comm = comm, .n = n}, *g = groups;
  memcpy(now.tags, tags, (size_t)n * sizeof *tags);
  pthread_mutex_lock(&lock);
  while (g < groups + MAX_COMMS && g->comm && g->comm != comm) g++;
  if (g == groups + MAX_COMMS) abort();
  struct group before = *g;
  *g = now;
  pthread_mutex_unlock(&lock);
  return before;
}

/* Groups of the connection that are under way, and of more buffers than n, are done at the next test. */
static void end_larger_groups(void *comm, int n) {
  for (struct request *r = pool; r < pool + MOST; r++)
    if (r->used && r->is_recv && r->comm == comm && r->n > n) r->early = true;
}

/* Two pointers exchanged. */
static void swap(void **a, void **b) {
  void *was = *a;
  *a = *b;
  *b = was;
}

static int irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                 void **request) {
  void *buffers[MAX_GROUP], *mrs[MAX_GROUP];
  size_t room[MAX_GROUP];
  if (has("one_request_for_two") && (*request = outstanding(comm)) != NULL) return RAIL_OK;
  struct request *r = new_request(comm);
  if (ended || (n > 1 && has("group_refused"))) return answer(r, RAIL_SYSTEM_ERROR, request);
  r->n = n;
  for (int i = 0; i < n; i++) {
    const struct mr *mr = mhandles[i];
    r->gpu |= mr->gpu;
    r->data[i] = buffers[i] = data[i];
    r->sizes[i] = room[i] = sizes[i];
    mrs[i] = mr->inner;
    if (has("carried_beside")) buffers[i] = &r->beside[i], room[i] = sizeof *r->beside, mrs[i] = NULL;
  }
  struct group before = exchange_group(comm, n, tags);
  if (n < before.n && has("group_tag_kept")) tags = before.tags;
  if (n < before.n && has("group_ends_whole")) end_larger_groups(comm, n);
  if (n > 1 && has("group_swapped")) swap(&buffers[0], &buffers[1]), swap(&mrs[0], &mrs[1]);
  int result = inner->irecv(comm, n, buffers, room, tags, mrs, phandles, &r->inner);
  r->is_recv = result == RAIL_OK && r->inner;
  return answer(r, result, request);
}

static int iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  (void)data, (void)sizes, (void)mhandles;
  bool nothing = has("flush_nothing") || has("flush_untrue") || (n > 1 && has("group_flush_nothing"));
  *request = has("flush_untrue") ? new_request(comm) : NULL;
  if (!nothing) nic_read(has("flush_other_nic") ? &other_nic : &nic);
  return has("flush_error") ? RAIL_SYSTEM_ERROR : RAIL_OK;
}

/* What has arrived, as it is reported. */
static void finish_receive(struct request *r, int *sizes) {
  int got[MAX_GROUP] = {0};
  for (int i = 0; i < r->n && has("carried_beside"); i++) {
    int size = take_from_beside(r, i);
    if (sizes) sizes[i] = size;
  }
  for (int i = 0; i < r->n; i++) got[i] = sizes ? sizes[i] : (int)r->sizes[i];
  for (int i = 0; r->gpu && i < r->n; i++) nic_wrote(&nic, r->data[i], (size_t)got[i]);
  if (has("corrupt_byte") && got[0] > 0 && is_fifth(&receives)) ((char *)r->data[0])[got[0] / 2] ^= 0x40;
  for (int i = 0; sizes && i < r->n; i++)
    if (has("size_zero")) sizes[i] = 0;
}

/* Is the receive reported before its bytes are there? */
static bool is_early(const struct request *r) {
  return r->is_recv && (r->early || has("done_early") || (r->n > 1 && has("group_done_early")));
}

/* What was reported so goes on. */
static void go_on_with_reported(void) {
  for (struct request *r = pool; r < pool + MOST; r++) {
    int done = 0, sizes[MAX_GROUP];
    if (r->used && r->reported && (inner->test(r->inner, &done, sizes) != RAIL_OK || done)) free_request(r);
  }
}

static int test(void *request, int *done, int *sizes) {
  struct request *r = request;
  if (has("done_early") || has("group_done_early") || has("group_ends_whole")) go_on_with_reported();
  *done = 1;
  if (!r->inner) return free_request(r), RAIL_OK;
  if (is_early(r)) {
    for (int i = 0; sizes && i < r->n; i++) sizes[i] = (int)r->sizes[i];
    r->reported = true;
    return RAIL_OK;
  }
  if (r->handed_out == -1) return free_request(r), RAIL_OK; /* the other of one_request_for_two */
  int result = inner->test(r->inner, done, sizes);
  if (result != RAIL_OK && has("death_unnoticed")) return *done = 0, RAIL_OK;
  if (result != RAIL_OK || !*done) return result;
  if (r->is_recv) finish_receive(r, sizes);
  if (r->handed_out == 2) r->handed_out = -1;
  else free_request(r);
  return RAIL_OK;
}

/* Up to v9 there are no events for a profiler. */
static int isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request) {
  return isend(comm, data, size, tag, mhandle, NULL, request);
}

static int irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request) {
  void *phandles[MAX_GROUP] = {NULL};
  return irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
}

/* ---- the tables: the inner ones', but for the above ---- */

/* What all versions have with the same arguments. */
#define SLOTS(t)                                                                \
  (t).name = has("socket_instead") ? "Socket" : "DefectNet";                    \
  (t).devices = devices, (t).accept = accept_from, (t).close_send = close_send; \
  (t).reg_mr = reg_mr, (t).reg_mr_dmabuf = NULL, (t).dereg_mr = dereg_mr;       \
  (t).iflush = iflush, (t).test = test;                                         \
  (t).irecv_consumed = NULL /* it would be told of requests that are ours */

#define TABLE(version)                                        \
  EXPORT struct rail_net_v##version ncclNetPlugin_v##version; \
  struct rail_net_v##version ncclNetPlugin_v##version
TABLE(9);
TABLE(10);
TABLE(11);
TABLE(12);

static void make_v11_and_v12(void) {
  struct rail_net_v11 v11 = *inner_v11;
  struct rail_net_v12 v12 = *inner;
  SLOTS(v11);
  SLOTS(v12);
  v11.get_properties = properties_v11;
  v12.get_properties = properties_v12;
  v11.init = v12.init = init;
  v11.finalize = v12.finalize = finalize;
  v11.listen = v12.listen = listen_at;
  v11.connect = v12.connect = connect_to;
  v11.make_vdevice = make_vdevice_v9;
  v12.make_vdevice = make_vdevice_v12;
  v11.isend = v12.isend = isend;
  v11.irecv = v12.irecv = irecv;
  ncclNetPlugin_v11 = v11;
  ncclNetPlugin_v12 = v12;
}

static void make_v9_and_v10(void) {
  struct rail_net_v9 v9 = *inner_v9;
  struct rail_net_v10 v10 = *inner_v10;
  SLOTS(v9);
  SLOTS(v10);
  v9.get_properties = v10.get_properties = properties_v9;
  v9.init = init_v9;
  v10.init = init_v10;
  v9.listen = v10.listen = listen_v10;
  v9.connect = connect_v9;
  v10.connect = connect_v10;
  v9.isend = isend_v9;
  v10.isend = isend;
  v9.irecv = irecv_v9;
  v10.irecv = irecv;
  v9.make_vdevice = v10.make_vdevice = make_vdevice_v9;
  ncclNetPlugin_v9 = v9;
  ncclNetPlugin_v10 = v10;
}

__attribute__((constructor)) static void wrap(void) {
  const char *path = getenv("DEFECTNET_INNER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver) {
    *(void **)&nic_wrote = dlsym(driver, "ghost_nic_wrote");
    *(void **)&nic_read = dlsym(driver, "ghost_nic_read");
  }
  if (!library) return;
  inner = dlsym(library, "ncclNetPlugin_v12");
  inner_v11 = dlsym(library, "ncclNetPlugin_v11");
  inner_v10 = dlsym(library, "ncclNetPlugin_v10");
  inner_v9 = dlsym(library, "ncclNetPlugin_v9");
  if (!inner || !inner_v11 || !inner_v10 || !inner_v9) return;
  make_v9_and_v10();
  make_v11_and_v12();
}
