/* SPDX-License-Identifier: Apache-2.0
 * The arguments of a job, as text within it, and the check of a job that came from elsewhere. */
#include "kit/kit_job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/kit_ensure.h"

void kit_job_add(struct kit_job *job, const char *key, const char *fmt, ...) {
  size_t at = strlen(job->args), room = sizeof job->args - at;
  va_list ap;
  int n = snprintf(job->args + at, room, "%s=", key), m = 0;
  if (n >= 0 && (size_t)n < room) {
    va_start(ap, fmt);
    m = vsnprintf(job->args + at + n, room - (size_t)n, fmt, ap);
    va_end(ap);
    if (m >= 0 && (size_t)(n + m) + 1 < room) {
      job->args[at + (size_t)(n + m)] = '\n';
      job->args[at + (size_t)(n + m) + 1] = 0;
      return;
    }
  }
  fprintf(stderr, "rail-kit: no room in a job for %s\n", key);
  exit(3);
}

const char *kit_job_arg(const struct kit_job *job, const char *key) {
  static _Thread_local char value[sizeof job->args];
  size_t len = strlen(key);
  for (const char *line = job->args; *line;) {
    const char *end = strchr(line, '\n');
    if (!end) end = line + strlen(line);
    if (strncmp(line, key, len) == 0 && line[len] == '=') {
      size_t size = (size_t)(end - line) - len - 1;
      memcpy(value, line + len + 1, size);
      value[size] = 0;
      return value;
    }
    line = *end ? end + 1 : end;
  }
  return NULL;
}

uint64_t kit_job_number(const struct kit_job *job, const char *key, uint64_t otherwise) {
  const char *text = kit_job_arg(job, key);
  char *end;
  if (!text) return otherwise;
  unsigned long long value = strtoull(text, &end, 0);
  ENSURE(*text && !*end, "the job's %s is '%s', not a number", key, text);
  return value;
}

static bool can_be_fused(const struct rail_net_vprops_v12 *fuse) {
  if (fuse->ndevs < 0 || fuse->ndevs > (int)(sizeof fuse->devs / sizeof *fuse->devs)) return false;
  for (int i = 0; i < fuse->ndevs; i++)
    if (fuse->devs[i] < 0) return false;
  return true;
}

bool kit_job_check(const struct kit_job *job) {
  return memchr(job->kind, 0, sizeof job->kind) && memchr(job->name, 0, sizeof job->name) &&
         memchr(job->plugin, 0, sizeof job->plugin) && memchr(job->args, 0, sizeof job->args) && job->nprocesses >= 1 &&
         job->nprocesses <= KIT_MAX_PROCESSES && job->rank >= 0 && job->rank < job->nprocesses && job->hosts >= 1 &&
         job->hosts <= 2 && job->version >= 0 && job->dev >= 0 && can_be_fused(&job->fuse);
}
