/* SPDX-License-Identifier: Apache-2.0
 *
 * The results as one JSON object, with what is needed to repeat them: options,
 * versions, and the variables that were set for the runtime and its plugin.
 */
#include <math.h>
#include <string.h>
#include <sys/utsname.h>

#include "common/base/clock.h"
#include "kit/kit_json.h"
#include "rail/version.h"
#include "tools/rail-coll/coll.h"

extern char **environ;

static void write_config(struct kit_json *j, const struct rc_report *r) {
  const struct rc_options *o = r->o;
  static const char *const averages[] = {"rank0", "average", "least", "greatest"};
  kit_json_object(j, "config");
  kit_json_text(j, "collective", o->collective->name);
  kit_json_int(j, "nranks", r->nranks);
  kit_json_int(j, "threads", o->threads);
  kit_json_int(j, "ranks_per_thread", o->comms_per_thread);
  kit_json_text(j, "launch", r->launch);
  kit_json_uint(j, "minbytes", o->min_bytes);
  kit_json_uint(j, "maxbytes", o->max_bytes);
  kit_json_uint(j, "stepbytes", o->step_bytes);
  kit_json_uint(j, "stepfactor", o->step_bytes ? 0 : o->step_factor);
  kit_json_int(j, "iters", o->iters);
  kit_json_int(j, "warmup_iters", o->warmup);
  kit_json_int(j, "agg_iters", o->aggregate);
  kit_json_int(j, "check", o->checks);
  kit_json_bool(j, "blocking", o->blocking);
  kit_json_bool(j, "registered", o->registered);
  kit_json_uint(j, "offset", o->offset);
  kit_json_uint(j, "seed", o->seed);
  kit_json_text(j, "data", o->data == RC_DATA_EXACT ? "exact" : "random");
  kit_json_text(j, "time", averages[o->average]);
  kit_json_int(j, "cudagraph", o->graphs);
  kit_json_array(j, "memory");
  for (int i = 0; i < o->nmemory; i++) kit_json_text(j, NULL, rc_memory_names[o->memory[i]]);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

static void write_versions(struct kit_json *j) {
  struct utsname u;
  int library = 0;
  (void)ncclGetVersion(&library);
  kit_json_object(j, "version");
  kit_json_text(j, "rail_coll", RAIL_VERSION);
  kit_json_int(j, "nccl_headers", NCCL_VERSION_CODE);
  kit_json_int(j, "nccl_library", library);
  if (uname(&u) == 0) {
    kit_json_text(j, "kernel", u.release);
    kit_json_text(j, "machine", u.machine);
  }
  kit_json_end(j, '}');
}

static void write_environment(struct kit_json *j) {
  kit_json_object(j, "environment");
  for (char **e = environ; *e; e++) {
    char name[128];
    size_t n = strcspn(*e, "=");
    if ((*e)[n] != '=' || n >= sizeof name) continue;
    if (strncmp(*e, "NCCL_", 5) != 0 && strncmp(*e, "RAIL_", 5) != 0) continue;
    memcpy(name, *e, n);
    name[n] = 0;
    kit_json_text(j, name, *e + n + 1);
  }
  kit_json_end(j, '}');
}

static void write_ranks(struct kit_json *j, const struct rc_report *r) {
  kit_json_array(j, "ranks");
  for (int i = 0; i < r->nranks; i++) {
    const struct rc_rank_info *k = &r->ranks[i];
    kit_json_object(j, NULL);
    kit_json_int(j, "rank", k->rank);
    kit_json_int(j, "pid", k->pid);
    kit_json_int(j, "device", k->device);
    kit_json_text(j, "host", k->host);
    kit_json_text(j, "transports", k->transports);
    kit_json_text(j, "net_plugin", k->plugin);
    kit_json_text(j, "memory", rc_memory_names[k->memory]);
    if (k->gpu[0]) {
      kit_json_text(j, "gpu", k->gpu);
      kit_json_text(j, "bus_id", k->bus_id);
    }
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

/* null: not asked for, or this collective has no such form */
static void write_side(struct kit_json *j, const char *name, const struct rc_side *s, bool timed) {
  if (!s->ran || !s->supported) {
    kit_json_text(j, name, NULL);
    return;
  }
  kit_json_object(j, name);
  kit_json_number(j, "time_us", timed ? s->us : NAN);
  kit_json_number(j, "algbw", timed ? s->algbw : NAN);
  kit_json_number(j, "busbw", timed ? s->busbw : NAN);
  if (s->checked) {
    kit_json_uint(j, "wrong", s->wrong);
    kit_json_uint(j, "outside", s->outside);
  } else {
    kit_json_text(j, "wrong", NULL);
    kit_json_text(j, "outside", NULL);
  }
  kit_json_end(j, '}');
}

static void write_rows(struct kit_json *j, const struct rc_report *r) {
  kit_json_array(j, "rows");
  for (size_t i = 0; i < r->nrows; i++) {
    const struct rc_row *row = &r->rows[i];
    kit_json_object(j, NULL);
    kit_json_uint(j, "size", row->bytes);
    kit_json_uint(j, "count", row->count);
    kit_json_text(j, "type", row->type);
    kit_json_text(j, "redop", row->op);
    kit_json_int(j, "root", row->root);
    write_side(j, "out_of_place", &row->out, r->o->iters > 0);
    write_side(j, "in_place", &row->in, r->o->iters > 0);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

int rc_json_write(const struct rc_report *r) {
  FILE *f = kit_file_open(RC_NAME, r->o->json);
  if (!f) return -1;
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  write_config(&j, r);
  write_versions(&j);
  write_environment(&j);
  write_ranks(&j, r);
  write_rows(&j, r);
  kit_json_object(&j, "summary");
  kit_json_uint(&j, "wrong", r->wrong);
  kit_json_uint(&j, "outside", r->outside);
  kit_json_number(&j, "avg_busbw", r->busbw_n ? r->busbw_sum / (double)r->busbw_n : 0.0);
  kit_json_number(&j, "seconds", (double)rail_now_ns() / 1e9 - r->started);
  kit_json_end(&j, '}');
  kit_json_end(&j, '}');
  (void)kit_json_finish(&j);
  return kit_file_close(RC_NAME, f, r->o->json) ? 0 : -1;
}
