/* SPDX-License-Identifier: Apache-2.0
 *
 * In a process of its own: the plugin is loaded as NCCL loads it, its tables are looked at, and for one version it is
 * started and asked for its devices. What is seen goes to the parent piece by piece, so that a plugin that crashes
 * halfway has shown the first half. Memory that the plugin points to is read with care.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/net_props.h"
#include "kit/inspect/inspect.h"
#include "kit/kit_call_trace.h"
#include "kit/kit_net.h"
#include "kit/kit_vtable.h"

struct seen {
  struct kit_process *self;
  void *library;
  int threads, fds; /* before the plugin was there */
};

static double seconds_since(uint64_t start) { return (double)(rail_now_ns() - start) / 1e9; }

static void send_record(struct kit_process *self, enum kit_record_kind kind, int version, const void *data,
                        size_t size) {
  struct { struct kit_record head; uint8_t data[8192]; } record = {.head = {kind, version}};
  ENSURE(size <= sizeof record.data, "a record of %zu bytes", size);
  memcpy(record.data, data, size);
  kit_send_record(self, &record, offsetof(__typeof__(record), data) + size);
}

/* ---- what it logs ---- */

#define SAID_LINES 300 /* of one process; a plugin may log without end */

static struct {
  struct kit_process *self;
  int version;
  atomic_int lines;
} said;

/* The logger that init gets, for any thread of the plugin. Warnings go where those of all processes of the kit go. */
static void on_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void on_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  char text[KIT_SAID_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  kit_net_log(level, flags, file, line, "%s", text);
  if (level != RAIL_LOG_INFO || atomic_fetch_add(&said.lines, 1) >= SAID_LINES) return;
  for (char *at = text; (at = strchr(at, '\n')) != NULL;) *at = at[1] ? ' ' : 0;
  send_record(said.self, KIT_RECORD_SAID, said.version, text, strlen(text) + 1);
}

/* ---- memory that may not be there ---- */

/* How many of the bytes at `at` are readable; they are in `to` then. The kernel looks: a pipe takes no bad pointer. */
static size_t read_memory(const void *at, void *to, size_t size) {
  int fds[2];
  ENSURE(size <= 4096 && pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  ssize_t n = write(fds[1], at, size);
  if (n > 0) n = read(fds[0], to, (size_t)n);
  close(fds[0]);
  close(fds[1]);
  return n > 0 ? (size_t)n : 0;
}

static void read_text(const char *at, struct kit_text *text) {
  memset(text, 0, sizeof *text);
  text->state = KIT_TEXT_NULL;
  if (!at) return;
  text->state = KIT_TEXT_WILD;
  size_t n = 0;
  /* byte by byte at the end of a mapping, where the rest of a block cannot be read */
  while (n < sizeof text->s && read_memory(at + n, text->s + n, 1) == 1) {
    if (text->s[n] == 0) {
      text->state = KIT_TEXT_FINE;
      text->length = n;
      return;
    }
    n++;
  }
  if (n == sizeof text->s) text->state = KIT_TEXT_ENDLESS;
  text->length = n;
  text->s[sizeof text->s - 1] = 0;
}

/* ---- where slots point ---- */

struct place {
  uintptr_t at, own; /* what is asked for; the load address of the plugin */
  enum kit_slot_state state;
  char object[64];
};

static int find_place(struct dl_phdr_info *info, size_t size, void *arg) {
  struct place *p = arg;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    uintptr_t first = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type != PT_LOAD || p->at < first || p->at - first >= segment->p_memsz) continue;
    const char *slash = strrchr(info->dlpi_name, '/');
    snprintf(p->object, sizeof p->object, "%s", slash ? slash + 1 : info->dlpi_name);
    if (!(segment->p_flags & PF_X)) p->state = KIT_SLOT_DATA;
    else p->state = info->dlpi_addr == p->own ? KIT_SLOT_FINE : KIT_SLOT_ELSEWHERE;
    return 1;
  }
  return 0;
}

static void look_at_table(const struct seen *seen, int version) {
  struct kit_seen_table table = {0};
  void *slots[RAIL_NET_SLOTS] = {NULL};
  char symbol[32];
  struct link_map *map = NULL;
  snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
  const void *vtable = dlsym(seen->library, symbol);
  if (!vtable) return;
  table.there = true;
  int n = rail_net_slot_count(version);
  size_t size = (size_t)n * sizeof(void *);
  table.readable = read_memory(vtable, slots, size) == size;
  (void)dlinfo(seen->library, RTLD_DI_LINKMAP, &map);
  for (int i = 0; i < n && table.readable; i++) {
    struct place place = {.at = (uintptr_t)slots[i], .own = map ? map->l_addr : 0, .state = KIT_SLOT_WILD};
    if (slots[i] && i > 0) dl_iterate_phdr(find_place, &place);
    table.slots[i] = (uint8_t)(slots[i] ? i > 0 ? place.state : KIT_SLOT_FINE : KIT_SLOT_NULL);
    snprintf(table.object[i], sizeof table.object[i], "%s", place.object);
  }
  if (table.readable) read_text(slots[0], &table.name);
  send_record(seen->self, KIT_RECORD_TABLE, version, &table, sizeof table);
}

/* ---- loading ---- */

static void load(struct seen *seen) {
  struct kit_seen_load record = {.done = true};
  const char *path = kit_process_job(seen->self)->plugin;
  seen->threads = kit_thread_count();
  seen->fds = kit_fd_count();
  uint64_t start = rail_now_ns();
  kit_call_begin(KIT_CALL_LOAD);
  seen->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  kit_call_end();
  record.seconds = seconds_since(start);
  record.loaded = seen->library != NULL;
  if (!record.loaded) {
    const char *error = dlerror();
    snprintf(record.error, sizeof record.error, "%s", error ? error : "dlopen failed without a reason");
  }
  record.threads = kit_thread_count() - seen->threads;
  record.fds = kit_fd_count() - seen->fds;
  send_record(seen->self, KIT_RECORD_LOAD, 0, &record, sizeof record);
}

static void unload(struct seen *seen) {
  kit_call_begin(KIT_CALL_UNLOAD);
  dlclose(seen->library);
  kit_call_end();
}

/* ---- properties ---- */

#define VPROPS(to, from)                                                                  \
  do {                                                                                    \
    (to)->vprops.ndevs = (from)->vprops.ndevs;                                            \
    for (size_t i_ = 0; i_ < RAIL_COUNT_OF((from)->vprops.devs); i_++)                    \
      (to)->vprops.devs[i_] = (from)->vprops.devs[i_];                                    \
  } while (0)

static size_t widen(const struct rail_net_slots *s, const union kit_props *p, struct rail_net_props_v12 *to) {
  memset(to, 0, sizeof *to);
  if (s->get_properties_v12) {
    *to = p->v12;
    return sizeof p->v12;
  }
  if (s->get_properties_v11) {
    RAIL_NET_COPY_V9_PROPS(to, &p->v11);
    VPROPS(to, &p->v11);
    to->max_multi_request_size = p->v11.max_multi_request_size;
    return sizeof p->v11;
  }
  if (s->get_properties_v9) {
    RAIL_NET_COPY_V9_PROPS(to, &p->v9);
    VPROPS(to, &p->v9);
    return sizeof p->v9;
  }
  if (s->get_properties_v8) {
    RAIL_NET_COPY_V8_PROPS(to, &p->v8);
    return sizeof p->v8;
  }
  if (s->get_properties_v7) {
    RAIL_NET_COPY_V7_PROPS(to, &p->v7);
    return sizeof p->v7;
  }
  RAIL_NET_COPY_V6_PROPS(to, &p->v6);
  return sizeof p->v6;
}

static int fetch(const struct rail_net_slots *s, int dev, int fill, union kit_props *p) {
  memset(p, fill, sizeof *p);
  kit_call_begin(KIT_CALL_PROPERTIES);
  int result = kit_props_get(s, dev, p);
  kit_call_end();
  return result;
}

/* Devices that NCCL attaches to the first CPU: the first two. */
struct no_pci { int n, dev[2]; };

static void note_no_pci(struct no_pci *no_pci, int dev, const struct kit_text *path) {
  bool none = path->state == KIT_TEXT_NULL || (path->state == KIT_TEXT_FINE && !kit_props_is_pci(path->s));
  if (none && no_pci->n < 2) no_pci->dev[no_pci->n++] = dev;
}

/* A byte that keeps two different fills was not written. */
static void look_at_device(struct kit_process *self, const struct rail_net_slots *s, int version, int dev,
                           struct no_pci *no_pci) {
  struct kit_seen_props record = {.dev = dev};
  struct kit_text again;
  union kit_props one, two;
  record.result = fetch(s, dev, 0x5a, &one);
  record.result_again = fetch(s, dev, 0xa5, &two);
  if (record.result == RAIL_OK && record.result_again == RAIL_OK) {
    record.size = widen(s, &one, &record.value);
    for (size_t i = 0; i < record.size; i++) {
      record.unwritten[i] = one.bytes[i] == 0x5a && two.bytes[i] == 0xa5;
      record.changed[i] = !record.unwritten[i] && one.bytes[i] != two.bytes[i];
    }
    for (size_t i = record.size; i < sizeof one; i++) record.overrun |= one.bytes[i] != 0x5a;
    record.moved = one.v6.name != two.v6.name || one.v6.pci_path != two.v6.pci_path;
    /* an unwritten pointer is of the fill */
    read_text(record.unwritten[0] ? NULL : one.v6.name, &record.name);
    read_text(record.unwritten[sizeof(char *)] ? NULL : one.v6.pci_path, &record.pci_path);
    read_text(record.unwritten[0] ? NULL : two.v6.name, &again);
    record.texts_changed |= strcmp(record.name.s, again.s) != 0;
    read_text(record.unwritten[sizeof(char *)] ? NULL : two.v6.pci_path, &again);
    record.texts_changed |= strcmp(record.pci_path.s, again.s) != 0;
    if (record.value.vprops.ndevs <= 1) note_no_pci(no_pci, dev, &record.pci_path);
  }
  send_record(self, KIT_RECORD_PROPS, version, &record, sizeof record);
}

/* ---- starting ---- */

static int no_profiler(void **e_handle, int type, void *p_handle, int64_t plugin_id, void *ext_data) {
  (void)e_handle, (void)type, (void)p_handle, (void)plugin_id, (void)ext_data;
  return 0;
}

static int call_init(const struct rail_net_slots *s, void **ctx) {
  struct rail_net_config config = {.traffic_class = -1};
  if (s->init_v11) return s->init_v11(ctx, 0x1a2b3c4d5e6f7081ull, &config, on_log, no_profiler);
  if (s->init_v10) return s->init_v10(on_log, no_profiler);
  return s->init_v6(on_log);
}

static int call_devices(const struct rail_net_slots *s, int *ndev) {
  *ndev = -77;
  kit_call_begin(KIT_CALL_DEVICES);
  int result = s->devices(ndev);
  kit_call_end();
  return result;
}

static void look_at_devices(struct kit_process *self, const struct rail_net_slots *s, int version, int ndev,
                            struct no_pci *no_pci) {
  uint64_t asked = kit_job_number(kit_process_job(self), "devices", 0); /* how many are named; 0: all */
  for (uint64_t i = 0; i < (asked ? asked : (uint64_t)RAIL_MIN(ndev, KIT_INSPECT_MAX_DEVICES)); i++) {
    char key[32];
    snprintf(key, sizeof key, "device%llu", (unsigned long long)i);
    int dev = (int)(asked ? kit_job_number(kit_process_job(self), key, 0) : i);
    if (dev < ndev) look_at_device(self, s, version, dev, no_pci);
  }
}

/* What NCCL asks by default when there are two devices without a PCI path. */
static void ask_to_fuse(const struct rail_net_slots *s, const struct no_pci *no_pci, struct kit_seen_start *start) {
  struct rail_net_vprops_v9 narrow = {.ndevs = 2, .devs = {no_pci->dev[0], no_pci->dev[1]}};
  struct rail_net_vprops_v12 wide = {.ndevs = 2, .devs = {no_pci->dev[0], no_pci->dev[1]}};
  int dev = -1;
  if (no_pci->n < 2 || (!s->make_vdevice_v12 && !s->make_vdevice_v9)) return;
  memcpy(start->no_pci, no_pci->dev, sizeof start->no_pci);
  kit_call_begin(KIT_CALL_MAKE_VDEVICE);
  start->fuse = s->make_vdevice_v12 ? s->make_vdevice_v12(&dev, &wide) : s->make_vdevice_v9(&dev, &narrow);
  kit_call_end();
  start->fuse_called = true;
  (void)call_devices(s, &start->ndev_fused);
}

static void finalize(const struct rail_net_slots *s, void *ctx, struct kit_seen_start *start) {
  start->finalize = RAIL_OK;
  if (!s->finalize) return;
  kit_call_begin(KIT_CALL_FINALIZE);
  start->finalize = s->finalize(ctx);
  kit_call_end();
}

/* After the last call. A thread that was joined may be counted for a moment. */
static int threads_left(const struct seen *seen) {
  int more = kit_thread_count() - seen->threads;
  for (int i = 0; more > 0 && i < 50; i++) {
    usleep(2000);
    more = kit_thread_count() - seen->threads;
  }
  return more;
}

static void start_version(struct seen *seen, int version, struct kit_seen_start *start) {
  struct rail_net_slots s;
  char symbol[32];
  void *ctx = NULL;
  snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
  const void *vtable = dlsym(seen->library, symbol);
  if (!vtable) return;
  const char *missing = rail_net_slots_missing_for_init(version, vtable);
  if (missing) kit_skip("ncclNetPlugin_v%d has no %s", version, missing);
  start->filled = rail_net_slots_fill(&s, version, vtable) != NULL;
  uint64_t begin = rail_now_ns();
  kit_call_begin(KIT_CALL_INIT);
  start->init = call_init(&s, &ctx);
  kit_call_end();
  start->init_called = true;
  start->init_s = seconds_since(begin);
  if (start->filled && start->init == RAIL_OK) {
    look_at_table(seen, version); /* NCCL, too, looks at a slot when it calls it */
    missing = rail_net_slots_fill(&s, version, vtable);
    start->filled = !missing;
  }
  if (missing) {
    send_record(seen->self, KIT_RECORD_START, version, start, sizeof *start);
    kit_skip("ncclNetPlugin_v%d has no %s, also after init", version, missing);
  }
  begin = rail_now_ns();
  if (start->init == RAIL_OK) {
    start->devices = call_devices(&s, &start->ndev);
    start->devices_called = true;
    start->devices_s = seconds_since(begin);
  }
  send_record(seen->self, KIT_RECORD_START, version, start, sizeof *start);
  begin = rail_now_ns();
  if (start->devices_called && start->devices == RAIL_OK && start->ndev > 0) {
    struct no_pci no_pci = {0};
    look_at_devices(seen->self, &s, version, start->ndev, &no_pci);
    start->properties_s = seconds_since(begin);
    (void)call_devices(&s, &start->ndev_again);
    ask_to_fuse(&s, &no_pci, start);
  }
  start->threads = kit_thread_count() - seen->threads;
  start->fds = kit_fd_count() - seen->fds;
  if (start->init == RAIL_OK) finalize(&s, ctx, start);
  start->threads_left = threads_left(seen);
  start->fds_left = kit_fd_count() - seen->fds;
  start->ended = true;
  send_record(seen->self, KIT_RECORD_START, version, start, sizeof *start);
}

void kit_inspect_process(struct kit_process *self) {
  struct seen seen = {.self = self};
  struct kit_seen_start start = {0};
  int version = kit_process_job(self)->version;
  load(&seen);
  if (!seen.library) return;
  said.self = self;
  said.version = version;
  if (version != 0) start_version(&seen, version, &start);
  for (int v = RAIL_NET_VERSION_MIN; version == 0 && v <= RAIL_NET_VERSION_MAX; v++) look_at_table(&seen, v);
  unload(&seen);
  if (!start.ended || version >= 11) return;
  start.threads_left = threads_left(&seen); /* there is no finalize: a destructor may have ended them */
  send_record(self, KIT_RECORD_START, version, &start, sizeof start);
}
