/* SPDX-License-Identifier: Apache-2.0
 *
 * Times one cell of a table: two processes and the connections between them,
 * over a plugin's vtable or plain TCP. Prints one JSON object. Exit status 0
 * when there is a figure, 1 when a byte was wrong or the transport failed
 * (the object says so), 2 for bad arguments.
 */
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/netpair/side.h"
#include "bench/timing.h"

#define SPARE_S 20 /* beyond both phases and their patience: connecting, closing */

static const char usage[] =
    "usage: netpair (--plugin PATH | --tcp) --size BYTES [option...]\n"
    "  --plugin PATH    an ncclNet plugin, driven through its newest vtable\n"
    "  --abi N          no vtable newer than version N\n"
    "  --dev N          the plugin's device (0)\n"
    "  --tcp            plain TCP streams over 127.0.0.1\n"
    "  --size BYTES     of a message, from 8\n"
    "  --comms N        connections, 1 to 64 (1)\n"
    "  --window N       messages outstanding on each, 1 to 64 (8)\n"
    "  --latency        ping-pong over a connection each way\n"
    "  --sleep US       sleep this long when nothing moved; 0: sched_yield (0)\n"
    "  --warmup S       seconds (0.1)\n"
    "  --seconds S      seconds that count (0.3)\n"
    "  --patience S     seconds without progress until it counts as stuck (5)\n";

static double seconds_of(const char *what, const char *text) {
  char *end;
  double v = strtod(text, &end);
  if (end != text && *end == 0 && isfinite(v) && v >= 0 && v <= 60) return v;
  fprintf(stderr, "%s: '%s' is not a number of seconds from 0 to 60\n", what, text);
  exit(2);
}

static unsigned int count_of(const char *what, const char *text, size_t least, size_t most) {
  size_t v = bench_number(what, text, least);
  if (v <= most) return (unsigned int)v;
  fprintf(stderr, "%s: '%s' is more than %zu\n", what, text, most);
  exit(2);
}

static void read_options(int argc, char **argv, struct options *o) {
  static const struct option longs[] = {
      {"plugin", required_argument, NULL, 'p'}, {"abi", required_argument, NULL, 'a'},
      {"dev", required_argument, NULL, 'd'},    {"tcp", no_argument, NULL, 't'},
      {"size", required_argument, NULL, 's'},   {"comms", required_argument, NULL, 'c'},
      {"window", required_argument, NULL, 'w'}, {"latency", no_argument, NULL, 'l'},
      {"sleep", required_argument, NULL, 'z'},  {"warmup", required_argument, NULL, 'u'},
      {"seconds", required_argument, NULL, 'n'}, {"help", no_argument, NULL, 'h'},
      {"patience", required_argument, NULL, 'x'},
      {0}};
  bool tcp = false;
  *o = (struct options){.lanes = 1, .window = 8, .warmup_s = 0.1, .seconds = 0.3, .patience_s = 5};
  for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
    switch (c) {
      case 'p': o->plugin = optarg; break;
      case 'a': o->abi = (int)count_of("--abi", optarg, 6, 12); break;
      case 'd': o->dev = (int)count_of("--dev", optarg, 0, 1024); break;
      case 't': tcp = true; break;
      case 's': o->size = bench_number("--size", optarg, 8); break;
      case 'c': o->lanes = count_of("--comms", optarg, 1, MAX_LANES); break;
      case 'w': o->window = count_of("--window", optarg, 1, MAX_WINDOW); break;
      case 'l': o->latency = true; break;
      case 'z': o->sleep_us = count_of("--sleep", optarg, 0, 100000); break;
      case 'u': o->warmup_s = seconds_of("--warmup", optarg); break;
      case 'n': o->seconds = seconds_of("--seconds", optarg); break;
      case 'x': o->patience_s = seconds_of("--patience", optarg); break;
      case 'h': fputs(usage, stdout); exit(0);
      default: fputs(usage, stderr); exit(2);
    }
  }
  if (optind == argc && o->size > 0 && tcp == !o->plugin) return;
  fputs(usage, stderr);
  exit(2);
}

static pid_t start_side(const struct options *o, struct shared *shared, unsigned int id) {
  pid_t parent = getpid(), pid = fork();
  if (pid != 0) return pid;
  static struct side side; /* too big for comfort on a stack */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  /* The last word on a plugin that never returns. */
  alarm((unsigned int)(o->warmup_s + o->seconds + 4 * o->patience_s) + SPARE_S);
  side = (struct side){.id = id, .o = o, .shared = shared, .ops = o->plugin ? &net_wire : &tcp_wire};
  side.nout = id == 0 ? o->lanes : o->latency ? 1 : 0;
  side.nin = id == 1 ? o->lanes : o->latency ? 1 : 0;
  side_run(&side);
  exit(0); /* not _exit: what is preloaded reports at the end */
}

/* A side that did not end by itself. */
static void note_death(struct shared *shared, unsigned int id, int status) {
  int none = VERDICT_OK;
  bool killed = WIFSIGNALED(status);
  if (!killed && WEXITSTATUS(status) == 0) return;
  int verdict = killed && WTERMSIG(status) == SIGALRM ? VERDICT_STUCK : VERDICT_FAILED;
  if (!atomic_compare_exchange_strong(&shared->verdict, &none, verdict)) return;
  snprintf(shared->what, sizeof shared->what, "%s ended by %s %d", id == 0 ? "sender" : "receiver",
           killed ? "signal" : "exit status", killed ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void print_text(const char *key, const char *text) {
  printf(", \"%s\": \"", key);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  putchar('"');
}

static void print_figures(const struct options *o, const struct shared *shared) {
  const struct outcome *a = &shared->outcome[0], *b = &shared->outcome[1];
  double seconds = (double)(RAIL_MAX(a->end, b->end) - RAIL_MIN(a->start, b->start)) / 1e9;
  double bytes = (double)b->messages * (double)o->size;
  printf(", \"messages\": %llu, \"seconds\": %.6f", (unsigned long long)b->messages, seconds);
  if (o->latency) {
    printf(", \"half_us\": {\"min\": %.3f, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f}", a->half_us[0], a->half_us[1],
           a->half_us[2], a->half_us[3]);
  } else {
    printf(", \"gb_s\": %.6f, \"messages_s\": %.1f", bytes / seconds / 1e9, (double)b->messages / seconds);
    printf(", \"cpu_s_per_gb\": %.6f", (a->cpu_s + b->cpu_s) / bytes * 1e9);
  }
}

static int report(const struct options *o, const struct shared *shared) {
  static const char *const names[] = {"ok", "wrong", "failed", "stuck"};
  const struct outcome *a = &shared->outcome[0], *b = &shared->outcome[1];
  int verdict = atomic_load(&shared->verdict);
  printf("{\"size\": %zu, \"comms\": %u, \"window\": %u, \"sleep_us\": %u", o->size, o->lanes, o->window, o->sleep_us);
  print_text("wire", b->wire[0] ? b->wire : a->wire);
  printf(", \"abi\": %d", b->version);
  print_text("verdict", names[verdict]);
  if (verdict == VERDICT_OK) print_figures(o, shared);
  else print_text("what", shared->what);
  puts("}");
  return verdict == VERDICT_OK ? 0 : 1;
}

int main(int argc, char **argv) {
  struct options o;
  pid_t pids[2];
  read_options(argc, argv, &o);
  if (o.latency) o.lanes = 1;
  struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    perror("netpair: mmap");
    return 1;
  }
  for (unsigned int i = 0; i < PHASES; i++) atomic_store(&shared->last[i], UINT64_MAX);
  for (unsigned int i = 0; i < 2; i++) {
    if ((pids[i] = start_side(&o, shared, i)) > 0) continue;
    perror("netpair: fork");
    atomic_store(&shared->verdict, VERDICT_FAILED); /* ends the one that runs */
  }
  for (unsigned int i = 0; i < 2; i++) {
    int status;
    pid_t pid = wait(&status);
    if (pid > 0) note_death(shared, pid == pids[1], status);
  }
  return report(&o, shared);
}
