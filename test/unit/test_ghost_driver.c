/* SPDX-License-Identifier: Apache-2.0
 * Ghost's driver and runtime: the order in a stream, copies of any direction, kinds of memory and whose it is,
 * graphs. */
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ghost/nccl/gh_layout.h"
#include "test/unit/ghost_runtime.h"

TEST(copies_run_in_the_streams_order) {
  enum { SIZE = 1 << 20 };
  open_libraries();
  int (*host_alloc)(void **, size_t, unsigned) = symbol("cudaHostAlloc"), (*host_free)(void *) = symbol("cudaFreeHost");
  char *a, *b, *host;
  void *stream;
  CUDA(cuda_malloc((void **)&a, SIZE));
  CUDA(cuda_malloc((void **)&b, SIZE));
  CUDA(host_alloc((void **)&host, SIZE, 2));
  CUDA(make_stream(&stream, 1));
  for (int i = 1; i <= 50; i++) {
    CUDA(async_set(a, i, SIZE, stream));
    CUDA(async_copy(b, a, SIZE, 4, stream));
    CUDA(async_set(a, 0, SIZE, stream));
    CUDA(async_copy(host, b, SIZE, 4, stream));
    CUDA(sync_stream(stream));
    CHECK(host[0] == i && host[SIZE - 1] == i);
  }
  CUDA(end_stream(stream));
  CUDA(cuda_free(a));
  CUDA(cuda_free(b));
  CUDA(host_free(host));
}

/* Memory of the host that is not registered is the caller's again when the call returns. */
TEST(pageable_memory_is_free_after_the_call) {
  enum { N = 200 };
  open_libraries();
  int *device, got = -1;
  void *stream;
  CUDA(cuda_malloc((void **)&device, N * sizeof *device));
  CUDA(make_stream(&stream, 1));
  for (int i = 0; i < N; i++) {
    int value_of_now = i;
    CUDA(async_copy(&device[i], &value_of_now, sizeof value_of_now, 4, stream));
    value_of_now = -2;
  }
  CUDA(async_copy(&got, &device[N - 1], sizeof got, 4, stream));
  CHECK_INT(got, N - 1);
  CUDA(sync_stream(stream));
  for (int i = 0; i < N; i++) CHECK_INT(device[i], i);
  CUDA(end_stream(stream));
  CUDA(cuda_free(device));
}

/* A copy may not leave the memory in which it begins; what is not the driver's own is not freed. */
TEST(memory_has_ends_and_owners) {
  enum { SIZE = 4096 };
  open_libraries();
  int (*copy)(void *, const void *, size_t, int) = symbol("cudaMemcpy");
  int (*host_register)(void *, size_t, unsigned) = symbol("cudaHostRegister");
  int (*host_unregister)(void *) = symbol("cudaHostUnregister"), (*last)(void) = symbol("cudaGetLastError");
  char *device, *other, *host = aligned_alloc(4096, 2 * SIZE);
  void *stream;
  CHECK(host);
  CUDA(cuda_malloc((void **)&device, SIZE));
  CUDA(cuda_malloc((void **)&other, SIZE));
  CUDA(make_stream(&stream, 1));
  memset(host, 1, 2 * SIZE);
  CUDA(copy(device, host, SIZE, 4));
  CUDA(copy(device + 96, host, SIZE - 96, 4));
  CHECK_INT(copy(device + 96, host, SIZE - 95, 4), 1);
  CHECK_INT(copy(host, device + 96, SIZE - 95, 4), 1);
  CHECK_INT(copy(device, other, SIZE + 1, 4), 1);
  CHECK_INT(async_copy(device + 96, host, SIZE - 95, 4, stream), 1);
  CHECK_INT(async_copy(host, device + 96, SIZE - 95, 4, stream), 1);
  CHECK_INT(async_copy(host, device + 96, SIZE - 95, 4, &stream), 400); /* no stream: that is looked at first */
  CHECK_INT(async_set(device + 96, 0, SIZE - 95, stream), 1);
  CHECK_INT(async_set(device + 96, 0, SIZE - 95, &stream), 400);
  CHECK_INT(cuda_free(device + 96), 1);
  CUDA(host_register(host, SIZE, 0));
  CHECK_INT(copy(host + 96, other, SIZE - 95, 4), 1);
  CHECK_INT(cuda_free(host), 1);
  CUDA(host_unregister(host));
  CUDA(host_register(host + 64, SIZE, 0)); /* any piece of memory; but no page of two of them */
  CHECK_INT(copy(host + 64, other, SIZE, 4), 0);
  CHECK_INT(host_register(host, 64, 0), 712);
  CHECK_INT(host_register(host + SIZE + 64, 8, 0), 712);
  CUDA(host_unregister(host + 64));
  int (*host_alloc)(void **, size_t, unsigned) = symbol("cudaHostAlloc"), (*host_free)(void *) = symbol("cudaFreeHost");
  void *pinned;
  CUDA(host_alloc(&pinned, SIZE, 0));
  CHECK(host_unregister(pinned) != 0);
  CUDA(host_free(pinned));
  (void)last();
  CUDA(sync_stream(stream));
  CUDA(end_stream(stream));
  CUDA(cuda_free(other));
  CUDA(cuda_free(device));
  free(host);
}

enum { EXPORTED_SIZE = 2 << 20 };

/* The ends of the two pipes that one process has. */
struct pipe_ends { int in, out; };

/* Frees the memory when the other process is done with it, or has ended. One that it had before is freed already. */
static void export_memory(void *arg) {
  const struct pipe_ends *ends = arg;
  struct gh_ipc handles[2];
  char *memory, c;
  open_libraries();
  int (*get)(struct gh_ipc *, void *) = symbol("cudaIpcGetMemHandle");
  CUDA(cuda_malloc((void **)&memory, EXPORTED_SIZE));
  CUDA(get(&handles[0], memory));
  CUDA(cuda_free(memory));
  CUDA(cuda_malloc((void **)&memory, EXPORTED_SIZE));
  CUDA(get(&handles[1], memory));
  ENSURE(write(ends->out, handles, sizeof handles) == sizeof handles, "the handles were not written");
  ENSURE(read(ends->in, &c, 1) == 1, "the process that opened the memory has ended");
  CUDA(cuda_free(memory));
}

/* The forked process: it returns to no caller, whatever fails. */
_Noreturn static void run_exporter(struct pipe_ends ends) {
  char why[256];
  bool good = kit_catch(export_memory, &ends, why, sizeof why);
  if (!good) fprintf(stderr, "# the process that exports: %s\n", why);
  _exit(good ? 0 : 1);
}

/* Memory that another process has exported is closed, and neither freed nor exported again. */
static void foreign_memory(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  struct gh_ipc handles[2], handle;
  int to_child[2], to_parent[2], status;
  char c = 'x', *memory;
  ENSURE(pipe(to_child) == 0 && pipe(to_parent) == 0, "no pipes");
  pid_t child = fork();
  ENSURE(child >= 0, "no process");
  if (child == 0) {
    close(to_child[1]);
    close(to_parent[0]);
    run_exporter((struct pipe_ends){to_child[0], to_parent[1]});
  }
  close(to_child[0]); /* so that the end of one process ends the other's read */
  close(to_parent[1]);
  open_libraries();
  int (*get)(struct gh_ipc *, void *) = symbol("cudaIpcGetMemHandle");
  int (*shut)(void *) = symbol("cudaIpcCloseMemHandle");
  int (*open_handle)(void **, struct gh_ipc, unsigned) = symbol("cudaIpcOpenMemHandle");
  ENSURE(read(to_parent[0], handles, sizeof handles) == sizeof handles, "no handles");
  ENSURE_INT(open_handle((void **)&memory, handles[0], 1), 1);
  CUDA(open_handle((void **)&memory, handles[1], 1));
  memory[EXPORTED_SIZE - 1] = 7;
  ENSURE_INT(cuda_free(memory), 1);
  ENSURE_INT(get(&handle, memory), 1);
  CUDA(shut(memory));
  ENSURE_INT(shut(memory), 1);
  ENSURE(write(to_child[1], &c, 1) == 1 && waitpid(child, &status, 0) == child && status == 0, "the other process");
  close(to_child[1]);
  close(to_parent[0]);
}

TEST(memory_of_another_process) { job_run("", 1, kit_patience_ms(30000), foreign_memory, NULL); }

/* What a stream writes while its memory is exported is not lost. */
TEST(memory_is_exported_while_it_is_written) {
  enum { BLOCKS = 16, SIZE = 16 << 20 };
  char *memory[BLOCKS];
  struct gh_ipc handle;
  void *stream;
  open_libraries();
  int (*get)(struct gh_ipc *, void *) = symbol("cudaIpcGetMemHandle");
  CUDA(make_stream(&stream, 1));
  for (int i = 0; i < BLOCKS; i++) CUDA(cuda_malloc((void **)&memory[i], SIZE));
  for (int i = 0; i < BLOCKS; i++) {
    CUDA(async_set(memory[i], 2, SIZE, stream));
    CUDA(get(&handle, memory[i]));
  }
  CUDA(sync_stream(stream));
  for (int i = 0; i < BLOCKS; i++)
    CHECK_MSG(memory[i][0] == 2 && memcmp(memory[i], memory[i] + 1, SIZE - 1) == 0, "block %d has old bytes", i);
  for (int i = 0; i < BLOCKS; i++) CUDA(cuda_free(memory[i]));
  CUDA(end_stream(stream));
}

TEST(the_runtime_says_what_the_driver_does) {
  open_libraries();
  int (*properties)(void *, int) = symbol("cudaGetDeviceProperties"), (*count)(int *) = symbol("cudaGetDeviceCount");
  int (*last)(void) = symbol("cudaGetLastError"), (*set_device)(int) = symbol("cudaSetDevice"), n = 0;
  char p[1008];
  CUDA(count(&n));
  CHECK_INT(n, 1);
  CUDA(properties(p, 0));
  CHECK(strcmp(p, "ghost GPU 0") == 0 && GH_FIELD(int, p, 360) == 8 && GH_FIELD(int, p, 576) == 0xffff);
  const char *(*name)(int) = (const char *(*)(int))symbol("cudaGetErrorName");
  CHECK_STR(name(719), "CUDA_ERROR_LAUNCH_FAILED");
  CHECK_STR(name(704), "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED");
  CHECK_INT(set_device(7), 101);
  CHECK_INT(last(), 101);
  CHECK_INT(last(), 0);
}

/* Byte by byte: pieces join, each NIC has its own, and what is freed is forgotten. */
TEST(what_nics_wrote_is_counted) {
  enum { SIZE = 8192 };
  open_libraries();
  static const char nics[2];
  void (*wrote)(const void *, const void *, size_t) = symbol("ghost_nic_wrote");
  void (*read)(const void *) = symbol("ghost_nic_read");
  size_t (*hidden)(const void *, size_t) = symbol("ghost_nic_hidden");
  char *device;
  CUDA(cuda_malloc((void **)&device, SIZE));
  wrote(&nics[0], device + 100, 50);
  wrote(&nics[0], device + 200, 50);
  wrote(&nics[0], device + 150, 50);
  wrote(&nics[0], device + 120, 0);
  CHECK_INT(hidden(device, SIZE), 150);
  CHECK_INT(hidden(device, 101), 1);
  CHECK_INT(hidden(device + 249, SIZE - 249), 1);
  CHECK_INT(hidden(device + 250, 10), 0);
  wrote(&nics[1], device + 300, 10);
  read(&nics[0]);
  CHECK_INT(hidden(device, SIZE), 10);
  for (int i = 0; i < 1000; i++) wrote(&nics[0], device + (i * 7) % 1000 * 8, 4);
  CHECK_INT(hidden(device + 400, SIZE - 400), 950 * 4);
  CUDA(cuda_free(device));
  CHECK_INT(hidden(device, SIZE), 0);
  read(&nics[1]);
}

/* A NIC of this process finds the memory that a dma-buf stands for, while it is there. */
TEST(a_dma_buf_leads_to_its_memory) {
  enum { SIZE = 8192 };
  open_libraries();
  int (*entry)(const char *, void **, unsigned, unsigned long long, int *) = symbol("cudaGetDriverEntryPointByVersion");
  void *(*find)(int, uint64_t, size_t) = symbol("ghost_nic_dma_buf");
  bool (*is_device)(const void *, size_t) = symbol("ghost_nic_is_device");
  int (*get)(void *, uint64_t, size_t, int, unsigned long long), fd = -1, status;
  char *device, other[64] = "";
  CUDA(entry("cuMemGetHandleForAddressRange", (void **)&get, 12000, 0, &status));
  CUDA(cuda_malloc((void **)&device, SIZE));
  CUDA(get(&fd, (uint64_t)(uintptr_t)device, SIZE, 1, 0));
  CHECK(find(fd, 0, SIZE) == device && find(fd, 4096, 4096) == device + 4096);
  CHECK(!find(fd, 4096, 4097) && !find(fd, SIZE + 1, 0) && !find(-1, 0, 1));
  CHECK(is_device(device, SIZE) && !is_device(device, SIZE + 1) && !is_device(other, 1));
  CUDA(cuda_free(device));
  CHECK(!find(fd, 0, SIZE));
  close(fd);
}

/* Of the runtime; see open_graphs. */
static int (*begin)(void *, int), (*end)(void *, void **);
static int (*info)(void *, int *, unsigned long long *, void **, void *const **, const void **, size_t *);
static int (*follow)(void *, void **, const void *, size_t, unsigned);
static int (*add_record)(void **, void *, void *const *, size_t, void *);
static int (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, void *);
static int (*end_exec)(void *), (*end_graph)(void *), (*query)(void *), (*call_host)(void *, void (*)(void *), void *);
static int (*make_event)(void **), (*end_event)(void *), (*record)(void *, void *), (*over)(void *);

static void open_graphs(void) {
  open_libraries();
  begin = symbol("cudaStreamBeginCapture");
  end = symbol("cudaStreamEndCapture");
  info = symbol("cudaStreamGetCaptureInfo");
  follow = symbol("cudaStreamUpdateCaptureDependencies");
  add_record = symbol("cudaGraphAddEventRecordNode");
  instantiate = symbol("cudaGraphInstantiate");
  launch = symbol("cudaGraphLaunch");
  end_exec = symbol("cudaGraphExecDestroy");
  end_graph = symbol("cudaGraphDestroy");
  query = symbol("cudaStreamQuery");
  call_host = symbol("cudaLaunchHostFunc");
  make_event = symbol("cudaEventCreate");
  end_event = symbol("cudaEventDestroy");
  record = symbol("cudaEventRecord");
  over = symbol("cudaEventQuery");
}

static atomic_int gate;

static void wait_for_gate(void *arg) {
  (void)arg;
  while (!atomic_load(&gate)) usleep(100);
}

#define TIME_TO_RUN_US 20000 /* for a launch that does not wait though it should */

/* As NCCL captures: a stream joins without what came before, waits for an event of a stream that is not captured, and
 * the event's next record is a node of its own. The event is the one of each launch. */
TEST(a_launch_waits_for_events_outside_of_its_graph) {
  enum { SIZE = 64, REPLACE = 1, EXTERNAL = 1, THREAD = 1, LAUNCHES = 2, BUSY = 600 };
  open_graphs();
  int (*depend)(void *, void *const *, void *const *, const void *, size_t) = symbol("cudaGraphAddDependencies");
  int (*wait)(void *, void *, unsigned) = symbol("cudaStreamWaitEvent");
  char *memory;
  void *origin, *joined, *live, *fork, *outside, *graph, *exec, *capture, *node, *const *nodes;
  size_t n;
  int status;
  CUDA(cuda_malloc((void **)&memory, SIZE));
  void **const streams[] = {&origin, &joined, &live}, **const events[] = {&fork, &outside};
  for (int i = 0; i < 3; i++) CUDA(make_stream(streams[i], 1));
  for (int i = 0; i < 2; i++) CUDA(make_event(events[i]));
  CHECK(wait(live, outside, EXTERNAL) != 0); /* it does not capture */

  CUDA(begin(origin, THREAD));
  CUDA(record(fork, origin));
  CUDA(wait(joined, fork, 0));
  CUDA(follow(joined, NULL, NULL, 0, REPLACE));
  CUDA(info(joined, &status, NULL, &capture, &nodes, NULL, &n));
  CHECK(status == 1 && n == 0);
  CUDA(wait(joined, outside, EXTERNAL));
  CUDA(async_set(memory, 1, SIZE, joined));
  CUDA(add_record(&node, capture, NULL, 0, outside));
  CUDA(info(joined, &status, NULL, &capture, &nodes, NULL, &n));
  CHECK_INT((int)n, 1);
  CUDA(depend(capture, nodes, &node, NULL, 1));
  CUDA(follow(joined, &node, NULL, 1, REPLACE));
  CHECK(follow(joined, &capture, NULL, 1, REPLACE) != 0); /* no node */
  CUDA(record(fork, joined));
  CUDA(wait(origin, fork, 0));
  CUDA(end(origin, &graph));
  CUDA(instantiate(&exec, graph, 0));
  CUDA(end_graph(graph));
  for (int i = 0; i < LAUNCHES; i++) {
    memset(memory, 0, SIZE);
    atomic_store(&gate, 0);
    CUDA(call_host(live, wait_for_gate, NULL));
    CUDA(record(outside, live));
    CUDA(launch(exec, origin));
    usleep(TIME_TO_RUN_US);
    CHECK(query(origin) == BUSY && memory[0] == 0);
    atomic_store(&gate, 1);
    CUDA(sync_stream(origin));
    CHECK(memory[0] == 1 && over(outside) == 0);
  }
  CUDA(end_exec(exec));
  for (int i = 0; i < 3; i++) CUDA(end_stream(*streams[i]));
  for (int i = 0; i < 2; i++) CUDA(end_event(*events[i]));
  CUDA(cuda_free(memory));
}

/* Records, waits and launches are work of the legacy stream, too: it and the blocking streams run in the order in which
 * they are given any. */
TEST(the_legacy_stream_keeps_its_order) {
  enum { SIZE = 64, THREAD = 1, BUSY = 600 };
  open_graphs();
  int (*wait)(void *, void *, unsigned) = symbol("cudaStreamWaitEvent");
  char *memory;
  void *blocking, *other, *event, *graph, *exec;
  CUDA(cuda_malloc((void **)&memory, SIZE));
  CUDA(make_stream(&blocking, 0));
  CUDA(make_stream(&other, 1));
  CUDA(make_event(&event));
  for (int on_legacy = 0; on_legacy < 2; on_legacy++) { /* a record behind work of the other one */
    atomic_store(&gate, 0);
    CUDA(call_host(on_legacy ? NULL : blocking, wait_for_gate, NULL));
    CUDA(record(event, on_legacy ? blocking : NULL));
    usleep(TIME_TO_RUN_US);
    CHECK_INT(over(event), BUSY);
    atomic_store(&gate, 1);
    CUDA(sync_stream(NULL));
    CUDA(sync_stream(blocking));
    CHECK_INT(over(event), 0);
  }
  atomic_store(&gate, 0); /* what the legacy stream waits for, a blocking one waits for */
  CUDA(call_host(other, wait_for_gate, NULL));
  CUDA(record(event, other));
  CUDA(wait(NULL, event, 0));
  CUDA(async_set(memory, 3, SIZE, blocking));
  usleep(TIME_TO_RUN_US);
  CHECK_INT(query(blocking), BUSY);
  atomic_store(&gate, 1);
  CUDA(sync_stream(blocking));
  CHECK_INT(memory[0], 3);
  atomic_store(&gate, 0); /* a wait of a blocking stream comes behind the legacy one's work */
  CUDA(call_host(NULL, wait_for_gate, NULL));
  CUDA(wait(blocking, event, 0));
  usleep(TIME_TO_RUN_US);
  CHECK_INT(query(blocking), BUSY);
  CUDA(begin(other, THREAD)); /* and so does a graph */
  CUDA(async_set(memory, 2, SIZE, other));
  CUDA(end(other, &graph));
  CUDA(instantiate(&exec, graph, 0));
  CUDA(end_graph(graph));
  CUDA(async_set(memory, 1, SIZE, NULL));
  CUDA(launch(exec, blocking));
  usleep(TIME_TO_RUN_US);
  CHECK_INT(memory[0], 3);
  atomic_store(&gate, 1);
  CUDA(sync_stream(NULL));
  CUDA(sync_stream(blocking));
  CHECK_INT(memory[0], 2);
  CUDA(end_exec(exec));
  CUDA(end_event(event));
  CUDA(end_stream(blocking));
  CUDA(end_stream(other));
  CUDA(cuda_free(memory));
}

static void take_a_tenth(void *arg) {
  (void)arg;
  usleep(100000);
}

/* Work that goes on is no deadlock, however long all of it takes. */
TEST(work_that_goes_on_is_waited_for) {
  enum { PATIENCE = 2, PIECES = 25 };
  open_graphs();
  int (*wait_for_all)(void) = symbol("cudaDeviceSynchronize");
  char *before = getenv("GHOST_PATIENCE"), *kept = before ? strdup(before) : NULL, text[16];
  void *stream;
  snprintf(text, sizeof text, "%d", PATIENCE);
  setenv("GHOST_PATIENCE", text, 1);
  CUDA(make_stream(&stream, 1));
  for (int i = 0; i < PIECES; i++) CUDA(call_host(stream, take_a_tenth, NULL));
  CUDA(wait_for_all());
  CHECK_INT(query(stream), 0);
  CUDA(end_stream(stream));
  if (kept) setenv("GHOST_PATIENCE", kept, 1);
  else unsetenv("GHOST_PATIENCE");
  free(kept);
}

static void set_flag(void *arg) { atomic_store((atomic_int *)arg, 1); }

/* As NCCL 2.24 captures: nodes that no stream was asked for, the first of which waits for an event. */
TEST(nodes_of_no_stream) {
  enum { THREAD = 1, BUSY = 600, ACTIVE = 1 };
  open_graphs();
  int (*add_wait)(void **, void *, void *const *, size_t, void *) = symbol("cudaGraphAddEventWaitNode");
  int (*add_host)(void **, void *, void *const *, size_t, const void *) = symbol("cudaGraphAddHostNode");
  int (*add_kernel)(void) = symbol("cudaGraphAddKernelNode");
  static atomic_int called;
  const struct { void (*call)(void *); void *arg; } host = {set_flag, &called};
  void *stream, *live, *before, *after, *graph, *exec, *capture, *node, *const *nodes;
  size_t n;
  int status;
  CUDA(make_stream(&stream, 1));
  CUDA(make_stream(&live, 1));
  CUDA(make_event(&before));
  CUDA(make_event(&after));
  CUDA(begin(stream, THREAD));
  CUDA(info(stream, &status, NULL, &capture, &nodes, NULL, &n));
  CHECK_INT(status, ACTIVE);
  CUDA(add_wait(&node, capture, NULL, 0, before));
  CHECK(add_host(&node, capture, &capture, 1, &host) != 0); /* that is no node */
  CUDA(add_host(&node, capture, &node, 1, &host));
  CUDA(add_record(&node, capture, &node, 1, after));
  CHECK(add_kernel() != 0);
  CUDA(follow(stream, &node, NULL, 1, 0));
  CUDA(end(stream, &graph));
  CUDA(instantiate(&exec, graph, 0));
  CUDA(end_graph(graph));
  for (int i = 0; i < 2; i++) {
    atomic_store(&called, 0);
    atomic_store(&gate, 0);
    CUDA(call_host(live, wait_for_gate, NULL));
    CUDA(record(before, live));
    CUDA(launch(exec, stream));
    usleep(TIME_TO_RUN_US);
    CHECK(query(stream) == BUSY && atomic_load(&called) == 0);
    atomic_store(&gate, 1);
    CUDA(sync_stream(stream));
    CHECK(atomic_load(&called) == 1 && over(after) == 0);
  }
  CUDA(end_exec(exec));
  CUDA(end_event(before));
  CUDA(end_event(after));
  CUDA(end_stream(stream));
  CUDA(end_stream(live));
}

TEST_MAIN(TEST_CASE(nodes_of_no_stream), TEST_CASE(what_nics_wrote_is_counted),
          TEST_CASE(a_dma_buf_leads_to_its_memory),
          TEST_CASE(copies_run_in_the_streams_order), TEST_CASE(pageable_memory_is_free_after_the_call),
          TEST_CASE(memory_has_ends_and_owners), TEST_CASE(memory_of_another_process),
          TEST_CASE(memory_is_exported_while_it_is_written), TEST_CASE(the_runtime_says_what_the_driver_does),
          TEST_CASE(a_launch_waits_for_events_outside_of_its_graph), TEST_CASE(the_legacy_stream_keeps_its_order),
          TEST_CASE(work_that_goes_on_is_waited_for))
