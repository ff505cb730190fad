/* SPDX-License-Identifier: Apache-2.0
 * The table behind rt_param.h, and the public listing of it. */
#include "core/comm/rt_param.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/param.h"
#include "core/comm/rt_conf.h"
#include "rail/railyard.h"

#define AT(field) .offset = offsetof(struct rt_params, field)
#define K 1024ll
#define M (1024ll * K)
#define HOUR_MS 3600000ll

/* Grouped as the struct is. MS rows: a bare number is seconds; lo and hi are milliseconds. */
static const struct rail_param rows[] = {
  {.name = "NCCL_COMM_ID", .type = RAIL_PARAM_STRING, AT(comm_id),
   .doc = "host:port of the rendezvous, which rank 0 opens. Unset: ncclGetUniqueId opens one on a free port."},
  {.name = "NCCL_SOCKET_IFNAME", .type = RAIL_PARAM_STRING, AT(socket_ifname),
   .doc = "Interfaces to use: a list of name prefixes; ^ in front excludes the list, = asks for exact names."},
  {.name = "NCCL_SOCKET_FAMILY", .type = RAIL_PARAM_STRING, AT(socket_family),
   .doc = "AF_INET or AF_INET6 limits the addresses to one family."},
  {.name = "RAIL_STORE", .type = RAIL_PARAM_STRING, AT(store),
   .doc = "Directory that all ranks share, through which rank 0 distributes the unique id."},
  {.name = "RAIL_BOOTSTRAP_TIMEOUT", .type = RAIL_PARAM_MS, .def = "60s", .lo = 100, .hi = 24 * HOUR_MS,
   AT(bootstrap_timeout_ms), .doc = "All ranks must have arrived this long after the first one did."},
  {.name = "RAIL_HEARTBEAT", .type = RAIL_PARAM_MS, .def = "1s", .lo = 0, .hi = HOUR_MS, AT(heartbeat_ms),
   .doc = "Interval of the heartbeats between neighbours; 0 switches them off."},
  {.name = "RAIL_HEARTBEAT_TIMEOUT", .type = RAIL_PARAM_MS, .def = "20s", .lo = 100, .hi = 24 * HOUR_MS,
   AT(heartbeat_timeout_ms), .doc = "A neighbour that was silent for this long is taken for dead."},
  {.name = "RAIL_MASTER_PORT_OFFSET", .type = RAIL_PARAM_INT, .def = "1", .lo = 0, .hi = 10000, AT(master_port_offset),
   .doc = "The rendezvous listens on MASTER_PORT plus this; torchrun's own store has MASTER_PORT itself."},

  {.name = "RAIL_NCHANNELS", .type = RAIL_PARAM_INT, .def = "0", .lo = 0, .hi = 16, AT(nchannels),
   .doc = "Rings, or pairs of trees, that share the data of one collective. 0: one; but where each rank has a GPU and "
          "no pair of neighbours needs a proxy up to 16, by the call's size and the GPUs' multiprocessors."},
  {.name = "NCCL_BUFFSIZE", .type = RAIL_PARAM_BYTES, .def = "4M", .lo = 64 * K, .hi = 1024 * M, AT(buffsize),
   .doc = "Buffer between two neighbours of a channel, Simple protocol; cut into 8 slots."},
  {.name = "NCCL_LL_BUFFSIZE", .type = RAIL_PARAM_BYTES, .def = "512K", .lo = 16 * K, .hi = 64 * M, AT(ll_buffsize),
   .doc = "The same for the LL protocol."},
  {.name = "RAIL_LL_MAX", .type = RAIL_PARAM_BYTES, .def = "0", .lo = 0, .hi = 64 * M, AT(ll_max),
   .doc = "Largest operation for which LL is chosen when NCCL_PROTO leaves the choice. On the host Simple is "
          "as fast for 8 bytes and faster from there on; LL is for kernels of a GPU."},
  {.name = "RAIL_CHUNK", .type = RAIL_PARAM_BYTES, .def = "0", .lo = 0, .hi = 1024 * M, AT(chunk),
   .doc = "Bytes of one step; 0 chooses by size."},
  {.name = "RAIL_EXCHANGE_MAX", .type = RAIL_PARAM_BYTES, .def = "64K", .lo = 0, .hi = 1024 * M, AT(exchange_max),
   .doc = "Largest all-reduce that ranks do by exchanging whole inputs and sums, in log2(ranks) steps: two ranks, and "
          "on host memory any power of two of them that reach each other through a plugin; for two of these it is "
          "twice as much. Where a host has more than two ranks for a core, three or more take trees instead, which "
          "have fewer messages."},
  {.name = "RAIL_TREE_MAX", .type = RAIL_PARAM_BYTES, .def = "2K", .lo = 0, .hi = 1024 * M, AT(tree_max),
   .doc = "Largest all-reduce that three or more ranks of one host do by trees instead of a ring."},
  {.name = "RAIL_TREE_MAX_NET", .type = RAIL_PARAM_BYTES, .def = "32K", .lo = 0, .hi = 1024 * M, AT(tree_max_net),
   .doc = "The same where ranks reach each other through a plugin and do not exchange (RAIL_EXCHANGE_MAX)."},
  {.name = "RAIL_PAT_MAX_NET", .type = RAIL_PARAM_BYTES, .def = "4K", .lo = 0, .hi = 1024 * M, AT(pat_max_net),
   .doc = "Largest broadcast, reduce, all-gather or reduce-scatter (of the last two: one rank's block) on host memory "
          "that three or more ranks do in log2(ranks) steps instead of by a ring, where they reach each other through "
          "a plugin."},
  {.name = "RAIL_SMALL_MAX", .type = RAIL_PARAM_BYTES, .def = "4K", .lo = 0, .hi = 64 * K, AT(small_max),
   .doc = "The most bytes that a rank publishes for a small collective on host memory, where all ranks of the host "
          "read them; never more than 64K of all ranks. 0: none is small."},
  {.name = "RAIL_SIMD", .type = RAIL_PARAM_ENUM, .def = "auto", .words = "auto|base|avx2|avx512", AT(simd),
   .doc = "Instruction set of the host reductions; auto takes the best that the processor has."},
  {.name = "RAIL_PROXY", .type = RAIL_PARAM_ENUM, .def = "auto", .words = "auto|thread|inline", AT(proxy),
   .doc = "Which thread drives the plugin: one of its own (thread), or the one that runs the collective (inline). auto:"
          " a thread where every rank of the host has two cores."},
  {.name = "RAIL_DIRECT_MIN", .type = RAIL_PARAM_BYTES, .def = "64K", .lo = 0, .hi = INT64_MAX, AT(direct_min),
   .doc = "Buffers from this size on are sent and received in place, without a copy, where registering them is cheap "
          "or ncclCommRegister did it."},
  {.name = "RAIL_STALL_WARN", .type = RAIL_PARAM_MS, .def = "60s", .lo = 0, .hi = 24 * HOUR_MS,
   AT(stall_warn_ms),
   .doc = "When a collective, send or receive has not moved for this long, a line says for which rank it waits; "
          "again whenever the time has doubled. 0: never."},
  {.name = "NCCL_SHM_DISABLE", .type = RAIL_PARAM_BOOL, .def = "0", .lo = 0, .hi = 1, AT(shm_disable),
   .doc = "1 sends through the network plugin even between ranks of one host. P2P between GPUs ends with it: "
          "its counters lie in shared memory."},
  {.name = "NCCL_P2P_DISABLE", .type = RAIL_PARAM_BOOL, .def = "0", .lo = 0, .hi = 1, AT(p2p_disable),
   .doc = "1 keeps kernels from using another rank's GPU memory: slots lie in shared memory of the host."},
  {.name = "NCCL_P2P_LEVEL", .type = RAIL_PARAM_STRING, AT(p2p_level),
   .doc = "How far two GPUs may be from each other for that: LOC (never), NVL, PIX, PXB, PHB, SYS; or NCCL's older "
          "numbers 0 to 4. Unset: as far as the driver allows. Two ranks take the nearer of theirs."},
  {.name = "NCCL_P2P_READ_ENABLE", .type = RAIL_PARAM_BOOL, .def = "0", .lo = 0, .hi = 1, AT(p2p_read),
   .doc = "1 puts slots of the Simple protocol into the sender's GPU memory, where the receiver reads them, instead of "
          "the receiver's; both ranks must have it."},
  {.name = "NCCL_CUMEM_ENABLE", .type = RAIL_PARAM_INT, .def = "-2", .lo = -2, .hi = 1, AT(cumem_enable),
   .doc = "GPU memory that ranks share, and ncclMemAlloc's: 1, by the driver's virtual memory management "
          "(cuMemCreate), and other processes get at it by fabric handles or file descriptors; 0, by cuMemAlloc, and "
          "CUDA IPC. -2: the former where the device supports it and the driver is of CUDA 12 or later. What fails one "
          "way is tried the next."},
  {.name = "NCCL_ALGO", .type = RAIL_PARAM_STRING, AT(algo),
   .doc = "Algorithms that may be chosen: a list of Ring, Tree (AllReduce), Exchange (AllReduce of two ranks, on host "
          "memory of a power of two) and PAT (all but AllReduce, host memory); ^ in front excludes. Or one for each "
          "function: Ring;AllReduce:Tree. NCCL's other words are accepted without effect. A call for which nothing is "
          "left fails, as with NCCL."},
  {.name = "NCCL_PROTO", .type = RAIL_PARAM_STRING, AT(proto),
   .doc = "Protocols that may be chosen: LL, Simple, or both as a list; ^ in front excludes. Or one for each function, "
          "as with NCCL_ALGO. LL128: Simple, but between GPUs of a host LL128."},
  {.name = "NCCL_HOSTID", .type = RAIL_PARAM_STRING, AT(hostid),
   .doc = "Replaces the host's name when ranks decide whether they share a host."},
  {.name = "NCCL_NET", .type = RAIL_PARAM_STRING, AT(net),
   .doc = "Name that the network plugin must have (its vtable's name field)."},
  {.name = "NCCL_NET_PLUGIN", .type = RAIL_PARAM_STRING, AT(net_plugin),
   .doc = "Network plugins to try in order: file names, or NAME for libnccl-net-NAME.so; none for none."},
  {.name = "RAIL_NET_FALLBACK", .type = RAIL_PARAM_BOOL, .def = "1", AT(net_fallback),
   .doc = "1: where none of NCCL_NET_PLUGIN's plugins works, the socket plugin is used, after a warning. 0: that is an "
          "error."},
  {.name = "NCCL_NET_FORCE_MERGE", .type = RAIL_PARAM_STRING, AT(net_force_merge),
   .doc = "Network devices that the plugin shall fuse into one: groups with ; between them, of 2 to 8 exact names, or "
          "NAME:PORT, with commas. Railyard's own plugins need RAIL_NET_FUSE_NO_PCI=1 for devices without a PCI path."},
  {.name = "NCCL_NET_GDR_LEVEL", .type = RAIL_PARAM_STRING, AT(net_gdr_level),
   .doc = "How far a NIC may be from the GPU whose memory it reads and writes itself: LOC (never), PIX, PXB (the "
          "default), PHB or SYS. Farther away, or where the plugin takes no GPU memory, data goes through the host's."},
  {.name = "NCCL_NET_GDR_READ", .type = RAIL_PARAM_INT, .def = "-2", .lo = -2, .hi = 1, AT(net_gdr_read),
   .doc = "0: NICs write GPU memory, and do not read it. Anything else: both, which is what NCCL does on the GPUs that "
          "the kernels run on."},
  {.name = "NCCL_NET_FORCE_FLUSH", .type = RAIL_PARAM_BOOL, .def = "0", .lo = 0, .hi = 1, AT(net_force_flush),
   .doc = "1: what a NIC has written into GPU memory is flushed before the GPU reads it, also where neither the GPU "
          "nor the plugin asks for that."},
  {.name = "NCCL_DMABUF_ENABLE", .type = RAIL_PARAM_BOOL, .def = "1", .lo = 0, .hi = 1, AT(dmabuf_enable),
   .doc = "0: GPU memory is registered with plugins by its address, never as a dma-buf."},

  {.name = "RAIL_CUDA_LIB", .type = RAIL_PARAM_STRING, .def = "libcuda.so.1", AT(cuda_lib),
   .doc = "The CUDA driver's library. It is used once the program has loaded it, never loaded for its own sake."},
  {.name = "RAIL_CUDA_KERNELS", .type = RAIL_PARAM_STRING, AT(cuda_kernels),
   .doc = "File with the kernels (cubin, fatbin or PTX) that run instead of those built into the library."},
  {.name = "RAIL_NVML_LIB", .type = RAIL_PARAM_STRING, .def = "libnvidia-ml.so.1", AT(nvml_lib),
   .doc = "NVML's library, asked where NVLinks lead when a communicator is made. Without it GPUs are taken to have "
          "none."},
  {.name = "RAIL_SYSFS", .type = RAIL_PARAM_STRING, .def = "/sys", AT(sysfs),
   .doc = "Where sysfs is mounted: GPUs' PCI paths are read there."},

  {.name = "NCCL_DEBUG", .type = RAIL_PARAM_STRING, AT(debug),
   .doc = "What is logged: NONE, VERSION, WARN (default), INFO or TRACE."},
  {.name = "NCCL_DEBUG_FILE", .type = RAIL_PARAM_STRING, AT(debug_file),
   .doc = "File that lines are appended to instead of standard error: %h is the host, %p the process."},
  {.name = "NCCL_CONF_FILE", .type = RAIL_PARAM_STRING, AT(conf_file),
   .doc = "File of NAME=value lines that are taken for variables, where the environment has none of that name; unset: "
          ".nccl.conf in the home folder. /etc/nccl.conf follows."},
  {.name = "NCCL_DEBUG_SUBSYS", .type = RAIL_PARAM_STRING, AT(debug_subsys),
   .doc = "Read by NCCL, whose logger filters a plugin's lines by it; the runtime's own lines are not filtered."},
};

static const struct rail_param_table table = {.module = "core", .rows = rows, .count = RAIL_COUNT_OF(rows)};
static struct rt_params params;
static const char *names[RAIL_COUNT_OF(rows)];
static pthread_once_t params_once = PTHREAD_ONCE_INIT;

/* NCCL takes an empty variable for one that is not set, as numbers do here. Not so the plugins': an empty
 * RAIL_..._AUTH_FILE is an error, not a connection without authentication. */
static void drop_empty_texts(void) {
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    const char *text = NULL;
    char *field = (char *)&params + rows[i].offset;
    if (rows[i].type != RAIL_PARAM_STRING) continue;
    memcpy(&text, field, sizeof text);
    if (text && !*text) memcpy(field, &rows[i].def, sizeof text);
  }
}

/* Names of NCCL's that neither the runtime nor a plugin reads, in one line. */
static void name_ignored(void) {
  static const char *const plugins[] = {"NCCL_IB_", "NCCL_SOCKET_", "NCCL_NSOCKS_PERTHREAD=",
                                        "NCCL_IBVERBS_LIB=", "NCCL_GDR_FLUSH_DISABLE="};
  char list[1024] = "";
  for (char **env = environ; env && *env; env++) {
    size_t n = strcspn(*env, "="), used = strlen(list);
    bool known = strncmp(*env, "NCCL_", 5) != 0;
    for (size_t i = 0; i < RAIL_COUNT_OF(plugins); i++) known |= strncmp(*env, plugins[i], strlen(plugins[i])) == 0;
    for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) known |= !strncmp(*env, rows[i].name, n) && !rows[i].name[n];
    if (!known) snprintf(list + used, sizeof list - used, "%s%.*s", used ? ", " : "", (int)n, *env);
  }
  if (*list) RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_ENV, "without effect in Railyard: %s", list);
}

static void load(void) {
  const struct rail_param_table *const tables[] = {&table};
  rt_conf_load();
  rail_param_load(&table, &params);
  drop_empty_texts();
  if (params.debug_file) rail_log_set_file(params.debug_file);
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) names[i] = rows[i].name;
  rail_param_check_unknown(tables, RAIL_COUNT_OF(tables));
  name_ignored();
}

const struct rt_params *rt_params(void) {
  pthread_once(&params_once, load);
  return &params;
}

const struct rail_param_table *rt_param_table(void) { return &table; }

const char **rt_param_names(void) {
  rt_params();
  return names;
}

RAIL_EXPORT void railParamPrint(int markdown) { rail_param_print(stdout, &table, markdown); }
