/* SPDX-License-Identifier: Apache-2.0
 * Writes JSON onto a stream, and opens and closes the files that reports go to. */
#include "kit/kit_json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct kit_json kit_json_start(FILE *f) { return (struct kit_json){.f = f}; }

int kit_utf8_size(const unsigned char *p) { /* RFC 3629 */
  if (*p < 0x80) return 1;
  int n = *p >= 0xc2 && *p < 0xe0 ? 2 : *p >= 0xe0 && *p < 0xf0 ? 3 : *p >= 0xf0 && *p < 0xf5 ? 4 : 0;
  for (int i = 1; i < n; i++)
    if ((p[i] & 0xc0) != 0x80) return 0;
  if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
      (*p == 0xf4 && p[1] > 0x8f))
    return 0;
  return n;
}

/* One character; returns its bytes. What is no UTF-8 becomes the replacement character: a plugin's names and log lines
 * may be anything. */
static int put_character(FILE *f, const unsigned char *p) {
  int n = kit_utf8_size(p);
  if (n > 1) fwrite(p, 1, (size_t)n, f);
  else if (n == 0) fputs("\\ufffd", f);
  else if (*p == '"' || *p == '\\') fprintf(f, "\\%c", *p);
  else if (*p == '\n') fputs("\\n", f);
  else if (*p == '\t') fputs("\\t", f);
  else if (*p < 0x20 || *p == 0x7f) fprintf(f, "\\u%04x", *p);
  else putc(*p, f);
  return n > 1 ? n : 1;
}

static void quoted(FILE *f, const char *text) {
  putc('"', f);
  for (const unsigned char *p = (const unsigned char *)text; *p;) p += put_character(f, p);
  putc('"', f);
}

static void element(struct kit_json *j, const char *key) {
  if (j->some[j->depth]) putc(',', j->f);
  if (j->depth > 0 && j->depth <= 3) fprintf(j->f, "\n%*s", 2 * j->depth, "");
  else if (j->some[j->depth]) putc(' ', j->f);
  j->some[j->depth] = true;
  if (!key) return;
  quoted(j->f, key);
  fputs(": ", j->f);
}

static void open_bracket(struct kit_json *j, const char *key, char bracket) {
  element(j, key);
  putc(bracket, j->f);
  if (j->depth + 1 < KIT_JSON_DEPTH) j->depth++;
  j->some[j->depth] = false;
}

void kit_json_object(struct kit_json *j, const char *key) { open_bracket(j, key, '{'); }
void kit_json_array(struct kit_json *j, const char *key) { open_bracket(j, key, '['); }

void kit_json_end(struct kit_json *j, char bracket) {
  bool some = j->some[j->depth];
  if (j->depth > 0) j->depth--;
  if (some && j->depth < 3) fprintf(j->f, "\n%*s", 2 * j->depth, "");
  putc(bracket, j->f);
}

void kit_json_text(struct kit_json *j, const char *key, const char *value) {
  element(j, key);
  if (value) quoted(j->f, value);
  else fputs("null", j->f);
}

void kit_json_format(struct kit_json *j, const char *key, const char *fmt, ...) {
  char text[4096];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  kit_json_text(j, key, text);
}

void kit_json_int(struct kit_json *j, const char *key, int64_t value) {
  element(j, key);
  fprintf(j->f, "%" PRId64, value);
}

void kit_json_uint(struct kit_json *j, const char *key, uint64_t value) {
  element(j, key);
  fprintf(j->f, "%" PRIu64, value);
}

void kit_json_number(struct kit_json *j, const char *key, double value) {
  element(j, key);
  if (isfinite(value)) fprintf(j->f, "%.9g", value);
  else fputs("null", j->f);
}

void kit_json_bool(struct kit_json *j, const char *key, bool value) {
  element(j, key);
  fputs(value ? "true" : "false", j->f);
}

bool kit_json_finish(struct kit_json *j) {
  putc('\n', j->f);
  return fflush(j->f) == 0 && !ferror(j->f);
}

FILE *kit_file_open(const char *program, const char *path) {
  if (!path || strcmp(path, "-") == 0) return stdout;
  FILE *f = fopen(path, "we");
  if (!f) fprintf(stderr, "%s: cannot write %s: %s\n", program, path, strerror(errno));
  return f;
}

bool kit_file_check(const char *program, const char *path) {
  const char *slash = path ? strrchr(path, '/') : NULL;
  if (!path || strcmp(path, "-") == 0) return true;
  char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
  struct stat about;
  const bool is_folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
  if (is_folder) errno = EISDIR;
  bool found = folder && !is_folder &&
               (access(path, W_OK) == 0 || (errno == ENOENT && access(folder, W_OK | X_OK) == 0));
  if (!found) fprintf(stderr, "%s: cannot write %s: %s\n", program, path, strerror(errno));
  free(folder);
  return found;
}

bool kit_file_close(const char *program, FILE *f, const char *path) {
  bool to_stdout = f == stdout, ok = fflush(f) == 0 && !ferror(f);
  if (!to_stdout && fclose(f) != 0) ok = false;
  if (!ok) fprintf(stderr, "%s: writing %s failed\n", program, to_stdout ? "standard output" : path);
  return ok;
}
