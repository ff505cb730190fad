/* SPDX-License-Identifier: Apache-2.0
 * rail-train's options; it trains with one rank and with several, and compares the losses step by step. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/common/options.h"
#include "tools/rail-train/train.h"

#define GRACE_S 10
#define LEAST_RIGHT 0.95 /* of the test images */

#define AT(field) .at = offsetof(struct tr_options, field)

static const struct tool_option options[] = {
    {"data", 0, "FILE", "digits.csv: 64 pixels and the digit a line", TOOL_TEXT, AT(data), .allowed = "a file",
     .preset = "demo/data/digits.csv"},
    {"ranks", 0, "N", "processes of the second run", TOOL_INT, AT(ranks), .min = 1, .max = TR_MAX_RANKS, .preset = "4"},
    {"steps", 0, "N", "steps of both", TOOL_INT, AT(steps), .min = 1, .max = 1000000, .preset = "500"},
    {"batch", 0, "N", "images a step, of all ranks together", TOOL_INT, AT(batch), .min = 1, .max = 1024,
     .preset = "128"},
    {"seed", 0, "N", "of parameters and order", TOOL_U64, AT(seed), .preset = "1"},
    {"tolerance", 0, "X", "greatest relative difference of the losses", TOOL_REAL, AT(tolerance), .max = 1,
     .preset = "1e-5"},
    {"csv", 0, "FILE", "write the losses of every step", TOOL_TEXT, AT(csv), .allowed = "a file"},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = TR_NAME,
    .usage = "[option...]",
    .about = "Trains a small network on images of digits twice: in one process, and as N processes that\n"
             "each take their part of every batch and average gradients with ncclAllReduce. Both must give the\n"
             "same loss at every step.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = "exit status: 0 the runs agree and the network is good, 1 not, 2 bad arguments, 3 a rank failed",
};

/* As rc_options_parse: 0 go on, 1 ended well, -1 told. */
static int parse(int argc, char **argv, struct tr_options *o) {
  *o = (struct tr_options){.data = "demo/data/digits.csv", .ranks = 4, .steps = 500, .batch = 128, .rate = 0.05f,
                           .momentum = 0.9f, .tolerance = 1e-5, .seed = 1};
  int r = tool_options_read(&command, argc, argv, o, NULL);
  if (r == 0 && o->batch % o->ranks != 0) {
    fprintf(stderr, TR_NAME ": --batch %d must be a multiple of --ranks %d\n", o->batch, o->ranks);
    return -1;
  }
  return r;
}

static struct tr_result *result_new(int steps) {
  size_t size = sizeof(struct tr_result) + (size_t)steps * sizeof(double);
  void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return m == MAP_FAILED ? NULL : m;
}

static double difference(double a, double b) { return fabs(a - b) / fmax(fabs(a), 1e-300); }

static void print_line(int step, const struct tr_result *one, const struct tr_result *many) {
  double a = one->loss[step], b = many->loss[step];
  printf("%8d  %14.9f  %14.9f  %12.1e\n", step, a, b, difference(a, b));
}

/* Every step is compared, some are shown. Returns how many differ too much. */
static int compare(const struct tr_options *o, const struct tr_result *one, const struct tr_result *many) {
  int differ = 0, every = o->steps >= 20 ? o->steps / 10 : 1, worst = 0;
  char heading[32];
  snprintf(heading, sizeof heading, "loss %d rank%s", many->nranks, many->nranks == 1 ? "" : "s");
  printf("%8s  %14s  %14s  %12s\n", "step", "loss 1 rank", heading, "difference");
  for (int s = 0; s < o->steps; s++) {
    double d = difference(one->loss[s], many->loss[s]);
    bool wrong = !(d <= o->tolerance); /* a NaN is wrong */
    if (s % every == 0 || s == o->steps - 1 || (wrong && differ < 5)) print_line(s, one, many);
    if (d > difference(one->loss[worst], many->loss[worst])) worst = s;
    differ += wrong;
  }
  printf("\nlosses compared: %d steps, %d differ by more than %g; greatest relative difference %.1e (step %d)\n",
         o->steps, differ, o->tolerance, difference(one->loss[worst], many->loss[worst]), worst);
  return differ;
}

static bool good(const char *who, const struct tr_result *r) {
  double share = (double)r->right / (double)r->ntest;
  printf("%-16s %zu of %zu test images right (%.1f %%%s), %.2f s\n", who, r->right, r->ntest, 100 * share,
         share >= LEAST_RIGHT ? "" : "; TOO FEW, 95 are expected", r->seconds);
  return share >= LEAST_RIGHT;
}

static int write_csv(const struct tr_options *o, const struct tr_result *one, const struct tr_result *many) {
  FILE *f = fopen(o->csv, "we");
  if (f) {
    fprintf(f, "step,loss_1_rank,loss_%d_ranks\n", many->nranks);
    for (int s = 0; s < o->steps; s++) fprintf(f, "%d,%.17g,%.17g\n", s, one->loss[s], many->loss[s]);
  }
  if (f && fclose(f) == 0) return 0;
  fprintf(stderr, TR_NAME ": cannot write %s: %s\n", o->csv, strerror(errno));
  return -1;
}

static int report(const struct tr_options *o, const struct tr_result *one, const struct tr_result *many) {
  char who[32];
  bool ok = compare(o, one, many) == 0;
  snprintf(who, sizeof who, "%d rank%s:", many->nranks, many->nranks == 1 ? "" : "s");
  ok = good("1 rank:", one) && ok;
  ok = good(who, many) && ok;
  if (many->plugin[0]) printf("gradients went over %s, plugin %s\n", many->transports, many->plugin);
  else printf("gradients went over %s\n", many->transports);
  printf("%s\n", ok ? "OK: the same training, spread over processes." : "FAILED: see the lines above.");
  if (o->csv && write_csv(o, one, many) != 0) return TOOL_EXIT_FAILED;
  return ok ? TOOL_EXIT_OK : TOOL_EXIT_RESULT;
}

int main(int argc, char **argv) {
  struct tr_options o;
  struct tr_data d;
  int status = TOOL_EXIT_FAILED, parsed = parse(argc, argv, &o);
  if (parsed != 0) return parsed > 0 ? tool_exit_printed(TR_NAME) : TOOL_EXIT_USAGE;
  if (tr_data_load(o.data, &d) != 0) return TOOL_EXIT_USAGE;
  if (d.ntrain < (size_t)o.batch || d.ntest == 0) {
    fprintf(stderr, TR_NAME ": %s has too few images for --batch %d\n", o.data, o.batch);
    tr_data_free(&d);
    return TOOL_EXIT_USAGE;
  }
  struct tr_result *one = result_new(o.steps), *many = result_new(o.steps);
  if (!one || !many) {
    fprintf(stderr, TR_NAME ": no memory for %d steps\n", o.steps);
    goto out;
  }
  printf("%zu images of 8 x 8 pixels to train on, %zu held out; network 64-%d-10; %d steps of %d images\n\n", d.ntrain,
         d.ntest, TR_HIDDEN, o.steps, o.batch);
  struct tr_job alone = {&o, &d, one}, together = {&o, &d, many};
  status = tool_fork_job(TR_NAME, 1, 128, GRACE_S, tr_rank, &alone);
  if (status == TOOL_EXIT_OK) status = tool_fork_job(TR_NAME, o.ranks, 128, GRACE_S, tr_rank, &together);
  if (status == TOOL_EXIT_OK) status = report(&o, one, many);
out:
  tr_data_free(&d);
  return status;
}
