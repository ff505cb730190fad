/* SPDX-License-Identifier: Apache-2.0
 *
 * The results as one JSON object, with what is needed to repeat them: options,
 * versions, and the variables that were set for the runtime and its plugin.
 */
#include <errno.h>
#include <string.h>
#include <sys/utsname.h>

#include "common/base/clock.h"
#include "rail/version.h"
#include "tools/rail-coll/coll.h"

extern char **environ;

static void string(FILE *f, const char *s, size_t len) {
  fputc('"', f);
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)s[i];
    if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
    else if (c < 0x20 || c >= 0x7f) fprintf(f, "\\u%04x", c);
    else fputc(c, f);
  }
  fputc('"', f);
}

static void field(FILE *f, const char *name, const char *value) {
  fprintf(f, "\"%s\": ", name);
  string(f, value, strlen(value));
}

static void write_config(FILE *f, const struct rc_report *r) {
  const struct rc_options *o = r->o;
  static const char *const averages[] = {"rank0", "average", "least", "greatest"};
  fprintf(f, "  \"config\": {\n    ");
  field(f, "collective", o->collective->name);
  fprintf(f, ", \"nranks\": %d, \"threads\": %d, \"ranks_per_thread\": %d, ", r->nranks, o->threads,
          o->comms_per_thread);
  field(f, "launch", r->launch);
  fprintf(f, ",\n    \"minbytes\": %llu, \"maxbytes\": %llu, \"stepbytes\": %llu, \"stepfactor\": %llu,\n",
          (unsigned long long)o->min_bytes, (unsigned long long)o->max_bytes, (unsigned long long)o->step_bytes,
          (unsigned long long)(o->step_bytes ? 0 : o->step_factor));
  fprintf(f, "    \"iters\": %d, \"warmup_iters\": %d, \"agg_iters\": %d, \"check\": %d,\n", o->iters, o->warmup,
          o->aggregate, o->checks);
  fprintf(f, "    \"blocking\": %s, \"registered\": %s, \"offset\": %llu, \"seed\": %llu, ",
          o->blocking ? "true" : "false", o->registered ? "true" : "false", (unsigned long long)o->offset,
          (unsigned long long)o->seed);
  field(f, "data", o->data == RC_DATA_EXACT ? "exact" : "random");
  fprintf(f, ", ");
  field(f, "time", averages[o->average]);
  fprintf(f, ",\n    \"cudagraph\": %d, \"memory\": [", o->graphs);
  for (int i = 0; i < o->nmemory; i++) fprintf(f, "%s\"%s\"", i ? ", " : "", rc_memory_names[o->memory[i]]);
  fprintf(f, "]");
  fprintf(f, "\n  },\n");
}

static void write_versions(FILE *f) {
  struct utsname u;
  int library = 0;
  (void)ncclGetVersion(&library);
  fprintf(f, "  \"version\": {");
  field(f, "rail_coll", RAIL_VERSION);
  fprintf(f, ", \"nccl_headers\": %d, \"nccl_library\": %d", NCCL_VERSION_CODE, library);
  if (uname(&u) == 0) {
    fprintf(f, ", ");
    field(f, "kernel", u.release);
    fprintf(f, ", ");
    field(f, "machine", u.machine);
  }
  fprintf(f, "},\n");
}

static void write_environment(FILE *f) {
  const char *comma = "";
  fprintf(f, "  \"environment\": {");
  for (char **e = environ; *e; e++) {
    const char *eq = strchr(*e, '=');
    if (!eq || (strncmp(*e, "NCCL_", 5) != 0 && strncmp(*e, "RAIL_", 5) != 0)) continue;
    fprintf(f, "%s", comma);
    string(f, *e, (size_t)(eq - *e));
    fprintf(f, ": ");
    string(f, eq + 1, strlen(eq + 1));
    comma = ", ";
  }
  fprintf(f, "},\n");
}

static void write_ranks(FILE *f, const struct rc_report *r) {
  fprintf(f, "  \"ranks\": [\n");
  for (int i = 0; i < r->nranks; i++) {
    const struct rc_rank_info *k = &r->ranks[i];
    fprintf(f, "    {\"rank\": %d, \"pid\": %d, \"device\": %d, ", k->rank, k->pid, k->device);
    field(f, "host", k->host);
    fprintf(f, ", ");
    field(f, "transports", k->transports);
    fprintf(f, ", ");
    field(f, "net_plugin", k->plugin);
    fprintf(f, ", ");
    field(f, "memory", rc_memory_names[k->memory]);
    if (k->gpu[0]) {
      fprintf(f, ", ");
      field(f, "gpu", k->gpu);
      fprintf(f, ", ");
      field(f, "bus_id", k->bus_id);
    }
    fprintf(f, "}%s\n", i + 1 < r->nranks ? "," : "");
  }
  fprintf(f, "  ],\n");
}

/* null: not asked for, or this collective has no such form */
static void write_side(FILE *f, const char *name, const struct rc_side *s, bool timed) {
  fprintf(f, ", \"%s\": ", name);
  if (!s->ran || !s->supported) {
    fprintf(f, "null");
    return;
  }
  if (timed) fprintf(f, "{\"time_us\": %.4g, \"algbw\": %.6g, \"busbw\": %.6g, ", s->us, s->algbw, s->busbw);
  else fprintf(f, "{\"time_us\": null, \"algbw\": null, \"busbw\": null, ");
  if (s->checked) fprintf(f, "\"wrong\": %llu, \"outside\": %llu}", (unsigned long long)s->wrong,
                          (unsigned long long)s->outside);
  else fprintf(f, "\"wrong\": null, \"outside\": null}");
}

static void write_rows(FILE *f, const struct rc_report *r) {
  fprintf(f, "  \"rows\": [\n");
  for (size_t i = 0; i < r->nrows; i++) {
    const struct rc_row *row = &r->rows[i];
    fprintf(f, "    {\"size\": %zu, \"count\": %zu, ", row->bytes, row->count);
    field(f, "type", row->type);
    fprintf(f, ", ");
    field(f, "redop", row->op);
    fprintf(f, ", \"root\": %d", row->root);
    write_side(f, "out_of_place", &row->out, r->o->iters > 0);
    write_side(f, "in_place", &row->in, r->o->iters > 0);
    fprintf(f, "}%s\n", i + 1 < r->nrows ? "," : "");
  }
  fprintf(f, "  ],\n");
}

int rc_json_write(const struct rc_report *r) {
  bool to_stdout = strcmp(r->o->json, "-") == 0;
  FILE *f = to_stdout ? stdout : fopen(r->o->json, "we");
  if (!f) {
    fprintf(stderr, RC_NAME ": cannot write %s: %s\n", r->o->json, strerror(errno));
    return -1;
  }
  fprintf(f, "{\n");
  write_config(f, r);
  write_versions(f);
  write_environment(f);
  write_ranks(f, r);
  write_rows(f, r);
  fprintf(f, "  \"summary\": {\"wrong\": %llu, \"outside\": %llu, \"avg_busbw\": %.6g, \"seconds\": %.3f}\n}\n",
          (unsigned long long)r->wrong, (unsigned long long)r->outside,
          r->busbw_n ? r->busbw_sum / (double)r->busbw_n : 0.0, (double)rail_now_ns() / 1e9 - r->started);
  bool bad = ferror(f) != 0;
  if (to_stdout ? fflush(f) != 0 : fclose(f) != 0) bad = true;
  if (bad) fprintf(stderr, RC_NAME ": writing %s failed\n", r->o->json);
  return bad ? -1 : 0;
}
