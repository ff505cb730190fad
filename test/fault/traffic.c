/* SPDX-License-Identifier: Apache-2.0
 * TEST-HELPER
 *
 * One process with a plugin and its connections, for tests that do something
 * to it from outside: what it sees, and when, it prints as lines of JSON.
 *
 *   traffic recv|send|loop [option value]…
 *
 * recv listens and prints its handles; send wants them on its input; loop is
 * both. Then messages stream until "stop" (see commands below) or --seconds.
 * Times are CLOCK_MONOTONIC nanoseconds. Exit status 0: no wrong byte, no call
 * that broke the contract; errors that the plugin reported are for the
 * caller to check.
 */
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_net.h"
#include "kit/kit_traffic.h"
#include "test/harness/events.h"

enum { MAX_COMMS = 4096, MAX_FUSE = 8, LINE = 1 << 20, CONNECT_LIMIT_MS = 60000, CONNECT_EACH_MS = 500 };

static struct {
  bool sends, receives;
  const char *plugin, *device, *fuse, *idle;
  int comms, abi, cycles;
  double seconds, rest;
  bool churn;
} opt = {.device = "0", .idle = "sleep", .comms = 1, .cycles = 1};
static struct kit_traffic_plan plan = {.seed = 1, .mix = KIT_TRAFFIC_MIXED, .max = 1 << 20, .group = 1, .window = 8};

static struct rail_net *net;
static void *ctx;
static int dev;
static void *listens[MAX_COMMS], *sends[MAX_COMMS], *recvs[MAX_COMMS];
static char handles[MAX_COMMS][RAIL_NET_HANDLE_SIZE];
static struct kit_flow flows[2 * MAX_COMMS];
static int nflows, broken; /* broken: calls that broke the contract */
static uint64_t close_ns;  /* the longest close */
static bool quitting;

/* ---- output ---- */

static _Noreturn void give_up(const char *phase, int code) {
  event_say("error", ", \"call\": \"%s\", \"code\": %d, \"comm\": -1, \"bytes\": 0, \"messages\": 0", phase, code);
  event_say("end", ", \"ok\": false, \"wrong\": 0, \"broken\": 0, \"errors\": 1, \"bytes\": 0");
  exit(3);
}

static void must(rail_result_t r, const char *call) {
  if (r != RAIL_OK) give_up(call, (int)r);
}

/* Calls that have to succeed whatever has happened. */
static void expect_ok(rail_result_t r, const char *call) {
  if (r == RAIL_OK) return;
  broken++;
  event_say("broken", ", \"call\": \"%s\", \"code\": %d", call, (int)r);
}

/* A thread that was joined may be seen for a moment yet, on a slow machine. */
static void alone(void) {
  for (int i = 0; i < 100 && kit_thread_count() > 1; i++) usleep(10000);
}

/* Nor are a plugin's connections gone as soon as they are closed; each has a descriptor until then. What stays after
 * 10 s is for whoever reads the counts to find, and is not waited for again. */
static void gone(int fds) {
  static bool left;
  for (int i = 0; i < 1000 && !left && kit_fd_count() > fds; i++) usleep(10000);
  left = kit_fd_count() > fds;
}

static void usage(const char *event, uint64_t cpu) {
  malloc_trim(0);
  event_say(event, ", \"fds\": %d, \"threads\": %d, \"rss_kb\": %ld, \"cpu_ns\": %llu", kit_fd_count(),
            kit_thread_count(), kit_rss_kb(), (unsigned long long)cpu);
}

/* ---- plugin, device, connections ---- */

static int device_named(const char *word) {
  int n = 0;
  must(rail_net_devices(net, &n), "devices");
  for (int i = 0; i < n; i++) {
    struct rail_net_props_v12 p;
    must(rail_net_properties(net, i, &p), "getProperties");
    if (strcmp(p.name, word) == 0) return i;
  }
  char *end;
  long i = strtol(word, &end, 10);
  if (*end || i < 0 || i >= n) {
    fprintf(stderr, "traffic: no device %s among %d\n", word, n);
    give_up("device", RAIL_BAD_ARGUMENT);
  }
  return (int)i;
}

static void choose_device(void) {
  struct rail_net_vprops_v12 v = {0};
  struct rail_net_props_v12 p;
  char name[256];
  if (opt.fuse) {
    char list[512], *save, *word;
    snprintf(list, sizeof list, "%s", opt.fuse);
    for (word = strtok_r(list, ",", &save); word && v.ndevs < MAX_FUSE; word = strtok_r(NULL, ",", &save))
      v.devs[v.ndevs++] = device_named(word);
    must(rail_net_make_vdevice(net, &dev, &v), "makeVDevice");
  } else {
    dev = device_named(opt.device);
  }
  must(rail_net_properties(net, dev, &p), "getProperties");
  if (plan.group > p.max_recvs) plan.group = p.max_recvs;
  event_say("device", ", \"name\": \"%s\", \"index\": %d, \"speed\": %d, \"group\": %d",
      event_quote(p.name, name, sizeof name), dev, p.speed, plan.group);
}

static void load(void) {
  char why[512];
  struct rail_net_init args = {.comm_id = plan.seed, .traffic_class = -1, .log = event_log};
  if (rail_net_load(opt.plugin, opt.abi, &net, why, sizeof why) != RAIL_OK) {
    fprintf(stderr, "traffic: %s\n", why);
    give_up("load", RAIL_SYSTEM_ERROR);
  }
  must(rail_net_init(net, &args, &ctx), "init");
  choose_device();
}

static void listen_all(void) {
  for (int i = 0; i < opt.comms; i++) must(rail_net_listen(net, ctx, dev, handles[i], &listens[i]), "listen");
  if (opt.sends) return;
  flockfile(stdout);
  printf("{\"event\": \"handles\", \"ns\": %llu, \"handles\": \"", (unsigned long long)rail_now_ns());
  for (int i = 0; i < opt.comms; i++) {
    if (i) putchar(' ');
    for (int k = 0; k < RAIL_NET_HANDLE_SIZE; k++) printf("%02x", (unsigned char)handles[i][k]);
  }
  puts("\"}");
  fflush(stdout);
  funlockfile(stdout);
}

static void read_handles(void) {
  char *line = malloc(LINE + 10), *p;
  if (!line || !fgets(line, LINE + 10, stdin) || strncmp(line, "handles ", 8) != 0) give_up("handles", RAIL_BAD_USAGE);
  p = line + 8;
  for (int i = 0; i < opt.comms; i++, p++)
    for (int k = 0; k < RAIL_NET_HANDLE_SIZE; k++, p += 2) {
      unsigned byte;
      if (sscanf(p, "%2x", &byte) != 1) give_up("handles", RAIL_BAD_USAGE);
      handles[i][k] = (char)byte;
    }
  free(line);
}

static void close_listens(void) {
  for (int i = 0; i < opt.comms; i++) {
    if (listens[i]) expect_ok(rail_net_close_listen(net, listens[i]), "closeListen");
    listens[i] = NULL;
  }
}

static void connect_all(void) {
  const uint64_t limit_ms = CONNECT_LIMIT_MS + CONNECT_EACH_MS * (uint64_t)opt.comms;
  uint64_t start = rail_now_ns(), deadline = rail_deadline_in_ms(kit_patience_ms(limit_ms)), longest = 0;
  int quiet = 0;
  for (int left = 1; left > 0; kit_rest(&quiet)) {
    left = 0;
    for (int i = 0; i < opt.comms; i++) {
      uint64_t before = rail_now_ns();
      if (opt.sends && !sends[i]) must(rail_net_connect(net, ctx, dev, handles[i], -1, &sends[i]), "connect");
      if (opt.receives && !recvs[i]) must(rail_net_accept(net, listens[i], &recvs[i]), "accept");
      uint64_t took = rail_now_ns() - before;
      if (took > longest) longest = took;
      left += (opt.sends && !sends[i]) || (opt.receives && !recvs[i]);
    }
    if (rail_deadline_passed(deadline)) give_up("connect (no end)", RAIL_REMOTE_ERROR);
  }
  close_listens();
  nflows = 0;
  for (int i = 0; i < opt.comms; i++) {
    if (recvs[i]) must(kit_flow_open(&flows[nflows++], &plan, net, recvs[i], false, (uint32_t)i), "regMr");
    if (sends[i]) must(kit_flow_open(&flows[nflows++], &plan, net, sends[i], true, (uint32_t)i), "regMr");
  }
  event_say("connected", ", \"took_ns\": %llu, \"call_ns\": %llu, \"fds\": %d, \"threads\": %d",
      (unsigned long long)(rail_now_ns() - start), (unsigned long long)longest, kit_fd_count(), kit_thread_count());
}

static void close_all(void) {
  for (int i = 0; i < nflows; i++) {
    uint64_t before = rail_now_ns();
    expect_ok(kit_flow_dereg(&flows[i]), "deregMr");
    expect_ok(flows[i].sends ? rail_net_close_send(net, flows[i].comm) : rail_net_close_recv(net, flows[i].comm),
              flows[i].sends ? "closeSend" : "closeRecv");
    uint64_t took = rail_now_ns() - before;
    if (took > close_ns) close_ns = took;
    kit_flow_free(&flows[i]);
  }
  for (int i = 0; i < opt.comms; i++) sends[i] = recvs[i] = NULL;
  close_listens();
}

/* ---- a service thread's work beside the traffic ---- */

static atomic_bool churn_stop;

static void *churn(void *arg) {
  static uint8_t block[1 << 20];
  (void)arg;
  for (uint64_t n = plan.seed; !atomic_load(&churn_stop); n = n * 6364136223846793005ull + 1442695040888963407ull) {
    struct kit_flow *f = &flows[(n >> 33) % (uint64_t)nflows];
    void *mh = NULL;
    size_t from = (n >> 20) % sizeof block;
    if (rail_net_reg_mr(net, f->comm, block + from, sizeof block - from, RAIL_PTR_HOST, &mh) == RAIL_OK) {
      sched_yield();
      rail_net_dereg_mr(net, f->comm, mh);
    }
    usleep(200);
  }
  return NULL;
}

/* ---- commands ---- */

/* stop: end in order; hold MS: post nothing new; pause MS: call nothing; lap: forget the longest pause; close; quit */
static void command(const char *line, uint64_t *held_until) {
  char word[32] = "";
  int ms = 0;
  sscanf(line, "%31s %d", word, &ms);
  if (strcmp(word, "stop") == 0) {
    for (int i = 0; i < nflows; i++) kit_flow_end(&flows[i]);
  } else if (strcmp(word, "hold") == 0) {
    *held_until = rail_deadline_in_ms((uint64_t)ms);
    for (int i = 0; i < nflows; i++) flows[i].hold = true;
  } else if (strcmp(word, "pause") == 0) {
    usleep((useconds_t)ms * 1000);
  } else if (strcmp(word, "lap") == 0) {
    for (int i = 0; i < nflows; i++) flows[i].pause_ns = 0;
  } else {
    quitting = true;
  }
  event_say("did", ", \"command\": \"%s\"", word);
}

static void read_commands(uint64_t *held_until) {
  static char buf[4096];
  static size_t have;
  struct pollfd p = {.fd = 0, .events = POLLIN};
  if (poll(&p, 1, 0) <= 0) return;
  ssize_t n = read(0, buf + have, sizeof buf - 1 - have);
  if (n <= 0) { /* the parent process has ended */
    quitting = true;
    return;
  }
  have += (size_t)n;
  buf[have] = 0;
  for (char *end; (end = strchr(buf, '\n'));) {
    *end = 0;
    command(buf, held_until);
    have -= (size_t)(end + 1 - buf);
    memmove(buf, end + 1, have + 1);
  }
}

/* ---- the run ---- */

static uint64_t totals(uint64_t *messages, uint64_t *wrong) {
  uint64_t bytes = 0;
  *messages = *wrong = 0;
  for (int i = 0; i < nflows; i++) {
    bytes += flows[i].bytes;
    *messages += flows[i].messages;
    *wrong += flows[i].wrong;
  }
  return bytes;
}

/* The longest time that a connection did not get on. */
static uint64_t longest_pause(uint64_t *end) {
  uint64_t longest = 0;
  for (int i = 0; i < nflows; i++)
    if (flows[i].pause_ns > longest) longest = flows[i].pause_ns, *end = flows[i].pause_end_ns;
  return longest;
}

static void progress_line(void) {
  uint64_t messages, wrong, end, bytes = totals(&messages, &wrong);
  event_say("progress", ", \"bytes\": %llu, \"messages\": %llu, \"wrong\": %llu, \"pause_ns\": %llu",
      (unsigned long long)bytes, (unsigned long long)messages, (unsigned long long)wrong,
      (unsigned long long)longest_pause(&end));
}

static void report_error(struct kit_flow *f) {
  event_say("error",
            ", \"call\": \"%s\", \"code\": %d, \"comm\": %u, \"side\": \"%s\", \"bytes\": %llu, \"messages\": %llu",
            f->error_call, (int)f->error, f->conn, f->sends ? "send" : "recv", (unsigned long long)f->bytes,
            (unsigned long long)f->messages);
  kit_flow_test_after_error(f);
}

static void idle(int *quiet) {
  if (strcmp(opt.idle, "spin") == 0) return;
  if (strcmp(opt.idle, "sleep") == 0) kit_rest(quiet);
  else sched_yield();
}

static void stream(void) {
  bool *reported = calloc((size_t)nflows, sizeof *reported);
  uint64_t start = rail_now_ns(), stop = opt.seconds > 0 ? start + (uint64_t)(opt.seconds * 1e9) : UINT64_MAX;
  uint64_t look = start, line = start, held_until = 0;
  int quiet = 0;
  for (int open = nflows; open > 0 && !quitting && reported;) {
    int did = 0;
    open = 0;
    for (int i = 0; i < nflows; i++) {
      did += kit_flow_step(&flows[i]);
      if (flows[i].error && !reported[i]) report_error(&flows[i]), reported[i] = true;
      open += !flows[i].error && !flows[i].finished;
    }
    uint64_t now = rail_now_ns();
    if (did) quiet = 0;
    else idle(&quiet);
    if (now >= stop) {
      for (int i = 0; i < nflows; i++) kit_flow_end(&flows[i]);
      stop = UINT64_MAX;
    }
    if (held_until && now >= held_until) {
      held_until = 0;
      for (int i = 0; i < nflows; i++) flows[i].hold = false;
    }
    if (now < look) continue;
    look = now + 1000000;
    read_commands(&held_until);
    if (now >= line) progress_line(), line = now + 100000000;
  }
  free(reported);
}

/* For how long this thread stood ready and had no processor; 0: the kernel does not say. */
static unsigned long long delay_ns(void) {
  unsigned long long ran = 0, delay = 0;
  FILE *f = fopen("/proc/self/schedstat", "re");
  if (!f) return 0;
  if (fscanf(f, "%llu %llu", &ran, &delay) != 2) delay = 0;
  fclose(f);
  return delay;
}

static void verdict(const struct kit_flow *list, int n) {
  char safe[400];
  int errors = 0, finished = 0;
  uint64_t messages, wrong, end = 0, bytes = totals(&messages, &wrong), pause = longest_pause(&end);
  for (int i = 0; i < n; i++) {
    errors += list[i].error != RAIL_OK;
    finished += list[i].finished;
    if (list[i].wrong)
      event_say("wrong", ", \"comm\": %u, \"side\": \"%s\", \"text\": \"%s\"", list[i].conn,
                list[i].sends ? "send" : "recv", event_quote(list[i].why, safe, sizeof safe));
  }
  event_say("result", ", \"errors\": %d, \"finished\": %d, \"comms\": %d, \"wrong\": %llu, \"bytes\": %llu, "
      "\"messages\": %llu, \"pause_ns\": %llu, \"pause_end_ns\": %llu, \"cpu_ns\": %llu, "
      "\"delay_ns\": %llu",
      errors, finished, opt.comms, (unsigned long long)wrong, (unsigned long long)bytes, (unsigned long long)messages,
      (unsigned long long)pause, (unsigned long long)end, (unsigned long long)kit_cpu_ns(), delay_ns());
  if (wrong) broken++;
}

/* Connected, and no call at all: what does that cost? */
static void rest(void) {
  uint64_t before = kit_cpu_ns();
  usleep((useconds_t)(opt.rest * 1e6));
  usage("rested", kit_cpu_ns() - before);
}

static void one_cycle(void) {
  pthread_t thread;
  bool churning = false;
  if (opt.receives) listen_all();
  if (!opt.receives) read_handles();
  connect_all();
  if (opt.rest > 0) rest();
  if (opt.churn) churning = pthread_create(&thread, NULL, churn, NULL) == 0;
  if (opt.rest <= 0 || opt.seconds > 0) stream();
  if (churning) {
    atomic_store(&churn_stop, true);
    pthread_join(thread, NULL);
  }
  verdict(flows, nflows);
  close_all();
}

static void *nothing(void *arg) { return arg; }

/* Before the counting begins: the first thread brings one of the sanitizer's own. */
static void first_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, nothing, NULL) == 0) pthread_join(thread, NULL);
}

static enum kit_traffic_mix mix_named(const char *word) {
  static const char *const names[] = {"fixed", "small", "mixed", "large"};
  for (int i = 0; i < 4; i++)
    if (strcmp(word, names[i]) == 0) return (enum kit_traffic_mix)i;
  fprintf(stderr, "traffic: no mix %s\n", word);
  exit(2);
}

static void option(const char *name, const char *value) {
#define IS(text) (strcmp(name, "--" text) == 0)
  if (IS("plugin")) opt.plugin = value;
  else if (IS("abi")) opt.abi = atoi(value);
  else if (IS("comms")) opt.comms = atoi(value);
  else if (IS("cycles")) opt.cycles = atoi(value);
  else if (IS("seconds")) opt.seconds = atof(value);
  else if (IS("rest")) opt.rest = atof(value);
  else if (IS("dev")) opt.device = value;
  else if (IS("fuse")) opt.fuse = value;
  else if (IS("idle")) opt.idle = value;
  else if (IS("churn")) opt.churn = atoi(value) != 0;
  else if (IS("seed")) plan.seed = strtoull(value, NULL, 0);
  else if (IS("mix")) plan.mix = mix_named(value);
  else if (IS("max")) plan.max = strtoull(value, NULL, 0);
  else if (IS("group")) plan.group = atoi(value);
  else if (IS("window")) plan.window = atoi(value);
  else if (IS("direct")) plan.direct = atoi(value) != 0;
  else {
    fprintf(stderr, "traffic: no option %s\n", name);
    exit(2);
  }
#undef IS
}

int main(int argc, char **argv) {
  const char *role = argc > 1 ? argv[1] : "";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  opt.sends = strcmp(role, "send") == 0 || strcmp(role, "loop") == 0;
  opt.receives = strcmp(role, "recv") == 0 || strcmp(role, "loop") == 0;
  for (int i = 2; i + 1 < argc; i += 2) option(argv[i], argv[i + 1]);
  bool fits = opt.comms >= 1 && opt.comms <= MAX_COMMS && plan.group >= 1 && plan.group <= KIT_TRAFFIC_BLOCK &&
              plan.window >= 1 && plan.max >= 8;
  if (!(opt.sends || opt.receives) || argc % 2 != 0 || !fits) {
    fprintf(stderr, "usage: traffic recv|send|loop [--option value]...\n");
    return 2;
  }
  if (!opt.plugin) opt.plugin = kit_plugin_path();
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (!kit_traffic_prepare(&plan)) return 2;
  first_thread();
  alone();
  usage("start", 0);
  load();
  const int fds = kit_fd_count();
  for (int i = 0; i < opt.cycles && !quitting; i++) {
    one_cycle();
    if (opt.cycles > 1) gone(fds);
    if (opt.cycles > 1) usage("cycle", kit_cpu_ns());
  }
  uint64_t before = rail_now_ns();
  expect_ok(rail_net_finalize(net, ctx), "finalize");
  uint64_t took = rail_now_ns() - before;
  rail_net_unload(net);
  kit_traffic_release(&plan);
  alone();
  usage("stopped", kit_cpu_ns());
  event_say("end", ", \"ok\": %s, \"broken\": %d, \"close_ns\": %llu, \"finalize_ns\": %llu", broken ? "false" : "true",
      broken, (unsigned long long)close_ns, (unsigned long long)took);
  return broken ? 1 : 0;
}
