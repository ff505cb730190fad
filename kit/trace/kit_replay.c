/* SPDX-License-Identifier: Apache-2.0
 * The parent of a replay: starts a process for each file, and reports. */
#include "kit/trace/kit_replay.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "kit/kit_group.h"
#include "kit/kit_json.h"
#include "kit/trace/replay_run.h"

enum { SAME = 0, DIFFERS = 1, NOT_RUN = 3 };

struct report {
  const struct kit_replay *how;
  FILE *out;
  struct replay_result results[KIT_MAX_PROCESSES];
  bool came[KIT_MAX_PROCESSES];
};

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  struct report *r = arg;
  (void)group;
  if (message->kind == KIT_MESSAGE_RECORD && message->size == sizeof r->results[0]) {
    memcpy(&r->results[message->rank], message->data, message->size);
    r->came[message->rank] = true;
  } else if (message->kind == KIT_MESSAGE_NOTE || message->kind == KIT_MESSAGE_LOG) {
    fprintf(r->how->json ? stderr : r->out, "%s: %s%s\n", r->how->files[message->rank],
            message->kind == KIT_MESSAGE_LOG ? "the plugin says: " : "", message->text);
  }
}

static uint64_t differences(const struct replay_result *s) {
  return s->wrong_sizes + s->wrong_bytes + s->failures + s->undone;
}

static double ratio(uint64_t replayed, uint64_t recorded) {
  return recorded ? (double)replayed / (double)recorded : 0;
}

static void print_times(FILE *out, const struct replay_result *s) {
  static const char *const sides[] = {"isend to done", "irecv to done"};
  static const char *const quantiles[] = {"p50", "p99", "max"};
  fprintf(out, "  %-14s %-4s %12s %12s %7s\n", "time", "", "recorded us", "replayed us", "ratio");
  for (int dir = 0; dir < 2; dir++) {
    if (!s->replayed[dir][2]) continue;
    for (int q = 0; q < REPLAY_QUANTILES; q++)
      fprintf(out, "  %-14s %-4s %12.1f %12.1f %7.2f\n", sides[dir], quantiles[q], (double)s->recorded[dir][q] / 1e3,
              (double)s->replayed[dir][q] / 1e3, ratio(s->replayed[dir][q], s->recorded[dir][q]));
  }
  fprintf(out, "  %-14s %-4s %12.1f %12.1f %7.2f\n", "all of it", "", (double)s->recorded_ns / 1e3,
          (double)s->replayed_ns / 1e3, ratio(s->replayed_ns, s->recorded_ns));
}

static void print_side(const struct report *r, int rank) {
  const struct replay_result *s = &r->results[rank];
  FILE *out = r->out;
  fprintf(out, "%s: %" PRIu64 " messages, %" PRIu64 " bytes, contents of %" PRIu64 " compared; ", r->how->files[rank],
          s->messages, s->bytes, s->checked);
  if (s->messages == 0 && s->left_out) fprintf(out, "nothing to compare\n");
  else if (differences(s) == 0) fprintf(out, "all as recorded\n");
  else
    fprintf(out, "%" PRIu64 " wrong sizes, %" PRIu64 " wrong contents, %" PRIu64 " errors, %" PRIu64 " stuck\n",
            s->wrong_sizes, s->wrong_bytes, s->failures, s->undone);
  if (s->overtaken) fprintf(out, "  %" PRIu64 " requests overtook one that was first in the recording\n", s->overtaken);
  if (s->left_out) fprintf(out, "  %" PRIu64 " messages or buffers without a counterpart: left out\n", s->left_out);
  if (s->unknown) fprintf(out, "  %" PRIu64 " messages lie over others in flight: contents not compared\n", s->unknown);
  if (s->errors) fprintf(out, "  %" PRIu64 " calls were errors in the recording: left out\n", s->errors);
  if (s->flushes) fprintf(out, "  %" PRIu64 " flushes left out: there is no GPU memory here\n", s->flushes);
  if (s->dropped) fprintf(out, "  %" PRIu64 " calls are missing in the recording\n", s->dropped);
  if (r->how->compare) print_times(out, s);
}

static void json_side(struct kit_json *j, const struct report *r, int rank) {
  const struct replay_result *s = &r->results[rank];
  const struct { const char *name; uint64_t value; } numbers[] = {
      {"messages", s->messages},       {"bytes", s->bytes},
      {"checked", s->checked},         {"wrong_sizes", s->wrong_sizes},
      {"wrong_contents", s->wrong_bytes}, {"errors", s->failures},
      {"stuck", s->undone},            {"overtaken", s->overtaken},
      {"left_out", s->left_out},       {"contents_unknown", s->unknown},
      {"recorded_errors", s->errors},  {"recorded_dropped", s->dropped},
      {"recorded_ns", s->recorded_ns}, {"replayed_ns", s->replayed_ns},
      {"send_p50_recorded_ns", s->recorded[0][0]}, {"send_p50_replayed_ns", s->replayed[0][0]},
      {"recv_p50_recorded_ns", s->recorded[1][0]}, {"recv_p50_replayed_ns", s->replayed[1][0]},
  };
  kit_json_object(j, NULL);
  kit_json_text(j, "file", r->how->files[rank]);
  for (size_t i = 0; i < RAIL_COUNT_OF(numbers); i++) kit_json_int(j, numbers[i].name, (int64_t)numbers[i].value);
  kit_json_end(j, '}');
}

/* Without the file of the other end there is nothing to compare: not a finding, and not "as recorded". */
static bool nothing_compared(const struct report *r, int nfiles) {
  uint64_t messages = 0, left_out = 0;
  for (int i = 0; i < nfiles; i++) {
    messages += r->results[i].messages;
    left_out += r->results[i].left_out;
  }
  if (messages > 0 || left_out == 0) return false;
  fprintf(stderr, "rail-kit: nothing was replayed: the other ends of all connections are in files that are missing; "
          "give the files of all ranks of the job, each once\n");
  return true;
}

static int report(struct report *r, const struct kit_outcome *outcome, int nfiles) {
  struct kit_json j = kit_json_start(r->out);
  bool differs = outcome->end != KIT_END_FINE;
  int worst = outcome->rank < 0 ? 0 : outcome->rank;
  if (r->how->json) {
    kit_json_object(&j, NULL);
    kit_json_text(&j, "end", kit_end_text(outcome->end));
    kit_json_text(&j, "why", outcome->sides[worst].text);
    kit_json_array(&j, "files");
  } else if (differs) {
    fprintf(r->out, "%s: %s: %s\n", r->how->files[worst], kit_end_text(outcome->end),
            outcome->sides[worst].text);
  }
  for (int i = 0; i < nfiles; i++) {
    if (!r->came[i]) continue;
    differs |= differences(&r->results[i]) != 0;
    if (r->how->json) json_side(&j, r, i);
    else print_side(r, i);
  }
  if (r->how->json) {
    kit_json_end(&j, ']');
    kit_json_end(&j, '}');
    (void)kit_json_finish(&j);
  }
  if (outcome->end == KIT_END_ERROR) return NOT_RUN;
  if (!differs && nothing_compared(r, nfiles)) return NOT_RUN;
  return differs ? DIFFERS : SAME;
}

static bool is_recording(const char *path) {
  struct rail_trace *trace;
  char why[300];
  if (rail_trace_open(path, &trace, why, sizeof why)) return rail_trace_close(trace), true;
  fprintf(stderr, "rail-kit: %s: %s\n", path, why);
  return false;
}

int kit_replay_run(const struct kit_replay *how, FILE *out) {
  static struct report r;
  static struct kit_outcome outcome;
  struct kit_group_options group = {.on_message = on_message, .arg = &r};
  char path[PATH_MAX], key[16];
  r = (struct report){.how = how, .out = out};
  if (strchr(how->plugin, '/') && access(how->plugin, R_OK) != 0) { /* one without a slash is the linker's to find */
    fprintf(stderr, "rail-kit: %s: %m\n", how->plugin);
    return NOT_RUN;
  }
  snprintf(group.job.kind, sizeof group.job.kind, "replay");
  snprintf(group.job.plugin, sizeof group.job.plugin, "%s", how->plugin);
  group.job.seed = how->seed;
  group.job.limit_ms = how->limit_ms;
  group.job.version = how->version;
  group.job.dev = RAIL_MAX(how->dev, 0);
  while (how->files[group.nprocesses]) {
    if (group.nprocesses == KIT_MAX_PROCESSES) {
      fprintf(stderr, "rail-kit: at most %d files at a time\n", KIT_MAX_PROCESSES);
      return NOT_RUN;
    }
    if (!realpath(how->files[group.nprocesses], path)) {
      fprintf(stderr, "rail-kit: %s: %m\n", how->files[group.nprocesses]);
      return NOT_RUN;
    }
    if (!is_recording(path)) return NOT_RUN;
    snprintf(key, sizeof key, "file%d", group.nprocesses++);
    kit_job_add(&group.job, key, "%s", path);
  }
  kit_job_add(&group.job, "recorded_devices", "%d", how->dev < 0);
  kit_job_add(&group.job, "speed", "%d", how->speed);
  kit_job_add(&group.job, "check", "%d", !how->unchecked);
  kit_group_run(NULL, &group, &outcome);
  return report(&r, &outcome, group.nprocesses);
}
