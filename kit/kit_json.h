/* SPDX-License-Identifier: Apache-2.0
 * JSON onto a stream: commas, quotes and escapes. Within an object every call has a key, within an array it is NULL. */
#ifndef RAIL_KIT_JSON_H
#define RAIL_KIT_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KIT_JSON_DEPTH 16

struct kit_json {
  FILE *f;
  int depth;
  bool some[KIT_JSON_DEPTH]; /* has the object or array at this depth an element? */
};

struct kit_json kit_json_start(FILE *f);
void kit_json_object(struct kit_json *j, const char *key);
void kit_json_array(struct kit_json *j, const char *key);
void kit_json_end(struct kit_json *j, char bracket); /* '}' or ']' */
void kit_json_text(struct kit_json *j, const char *key, const char *value); /* NULL: null */
void kit_json_format(struct kit_json *j, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void kit_json_int(struct kit_json *j, const char *key, int64_t value);
void kit_json_uint(struct kit_json *j, const char *key, uint64_t value);
void kit_json_number(struct kit_json *j, const char *key, double value); /* not finite: null */
void kit_json_bool(struct kit_json *j, const char *key, bool value);
/* Ends the line; false: the stream did not take all. */
bool kit_json_finish(struct kit_json *j);

/* Bytes of the UTF-8 character that begins at p, which is not the text's end: 1 to 4; 0: none does. */
int kit_utf8_size(const unsigned char *p);

/* The FILE of an option like --json FILE: standard output for "-" and for NULL (not given). NULL: it cannot be opened,
 * reported on stderr as of `program`. */
FILE *kit_file_open(const char *program, const char *path);
/* Could it be opened? Before a run that takes long; nothing is made. False: reported the same way. */
bool kit_file_check(const char *program, const char *path);
/* False: it did not take all, reported on stderr. Standard output stays open. */
bool kit_file_close(const char *program, FILE *f, const char *path);

#endif
