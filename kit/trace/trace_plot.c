/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/trace/trace_plot.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/compiler.h"
#include "kit/kit_json.h"

/* Beside the program in a build tree's source, or where it is installed. */
static bool find_script(char path[PATH_MAX]) {
  static const char *const places[] = {"../share/railyard/plot.py", "../../kit/plot.py", "../../../kit/plot.py"};
  char self[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return false;
  self[n] = 0;
  char *slash = strrchr(self, '/');
  if (!slash) return false;
  slash[1] = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(places); i++) {
    int len = snprintf(path, PATH_MAX, "%s%s", self, places[i]);
    if (len > 0 && len < PATH_MAX && access(path, R_OK) == 0) return true;
  }
  return false;
}

static void series(struct kit_json *j, const char *name, const double *v, uint64_t bin_ns, double scale) {
  kit_json_object(j, NULL);
  kit_json_text(j, "name", name);
  kit_json_array(j, "x");
  for (int i = 0; i < KIT_TRACE_BINS; i++) kit_json_number(j, NULL, ((double)i + 0.5) * (double)bin_ns / 1e9);
  kit_json_end(j, ']');
  kit_json_array(j, "y");
  for (int i = 0; i < KIT_TRACE_BINS; i++) kit_json_number(j, NULL, v[i] * scale);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

/* Two passes: the first tells how long the bins are. */
static bool sum_with_bins(const char *path, const struct kit_trace *how, struct kit_trace_summary *s) {
  struct kit_trace_summary first = {0};
  struct rail_trace *trace;
  char why[300] = "out of memory";
  bool ok = rail_trace_open(path, &trace, why, sizeof why) && kit_trace_sum(trace, how, &first, why, sizeof why);
  if (ok) {
    s->bin_ns = (first.last_ns - first.first_ns) / KIT_TRACE_BINS + 1;
    s->first_ns = first.first_ns;
    s->bin_bytes = calloc(KIT_TRACE_BINS, sizeof *s->bin_bytes);
    s->bin_depth = calloc(KIT_TRACE_BINS, sizeof *s->bin_depth);
    rail_trace_rewind(trace);
    ok = s->bin_bytes && s->bin_depth && kit_trace_sum(trace, how, s, why, sizeof why);
  }
  if (!ok) fprintf(stderr, "rail-kit: %s: %s\n", path, why);
  kit_trace_summary_free(&first);
  rail_trace_close(trace);
  return ok;
}

static void panel(struct kit_json *j, const struct kit_trace *how, const struct kit_trace_summary *sums, bool bytes) {
  kit_json_object(j, NULL);
  kit_json_text(j, "ylabel", bytes ? "GB/s done" : "requests outstanding");
  kit_json_text(j, "xlabel", "seconds");
  kit_json_array(j, "series");
  for (size_t i = 0; how->files[i]; i++)
    series(j, how->files[i], bytes ? sums[i].bin_bytes : sums[i].bin_depth, sums[i].bin_ns,
           bytes ? 1.0 / (double)sums[i].bin_ns : 1.0);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

static bool write_figure(FILE *f, const struct kit_trace *how, const struct kit_trace_summary *sums) {
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  kit_json_text(&j, "title", "rail-kit trace");
  kit_json_array(&j, "panels");
  panel(&j, how, sums, true);
  panel(&j, how, sums, false);
  kit_json_end(&j, ']');
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}

/* The script says itself what it lacks. */
static bool draw(const char *script, const char *figure, const char *target) {
  int status = 0;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    /* The distribution's first: its matplotlib is not seen by a python from elsewhere. */
    execl("/usr/bin/python3", "python3", script, figure, target, (char *)NULL);
    execlp("python3", "python3", script, figure, target, (char *)NULL);
    fprintf(stderr, "rail-kit: --plot needs python3 with matplotlib (Debian: python3-matplotlib)\n");
    _exit(127);
  }
  return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool kit_trace_plot(const struct kit_trace *how) {
  char script[PATH_MAX], figure[] = "/tmp/rail-kit-plot.XXXXXX";
  size_t n = 0;
  if (!find_script(script)) {
    fprintf(stderr, "rail-kit: --plot: plot.py is not in ../share/railyard beside the program\n");
    return false;
  }
  while (how->files[n]) n++;
  struct kit_trace_summary *sums = calloc(n + 1, sizeof *sums);
  bool ok = sums != NULL;
  for (size_t i = 0; ok && i < n; i++) ok = sum_with_bins(how->files[i], how, &sums[i]);
  int fd = ok ? mkstemp(figure) : -1;
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (ok && !f) perror("rail-kit: --plot");
  if (f) {
    ok = write_figure(f, how, sums);
    ok &= fclose(f) == 0;
    ok = ok && draw(script, figure, how->plot);
  }
  if (fd >= 0) unlink(figure);
  for (size_t i = 0; sums && i < n; i++) kit_trace_summary_free(&sums[i]);
  free(sums);
  return ok && f;
}
