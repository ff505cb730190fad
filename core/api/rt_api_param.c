/* SPDX-License-Identifier: Apache-2.0
 * NCCL's calls to read parameters, over the runtime's table. A handle is a row of it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/param.h"
#include "core/api/rt_api.h"
#include "core/comm/rt_param.h"

/* Text of a number is at most this long; that of a string parameter is not copied. */
#define NUMBER_TEXT 32

static const struct rail_param *find_row(const char *key) {
  const struct rail_param_table *table = rt_param_table();
  for (size_t i = 0; i < table->count; i++)
    if (strcmp(table->rows[i].name, key) == 0) return &table->rows[i];
  return NULL;
}

/* A handle comes from the caller: only a row's address is one. */
static const struct rail_param *row_of(ncclParamHandle_t h) {
  const struct rail_param_table *table = rt_param_table();
  const uintptr_t at = (uintptr_t)h, first = (uintptr_t)table->rows;
  const bool inside = at >= first && at < first + table->count * sizeof *table->rows;
  return inside && (at - first) % sizeof *table->rows == 0 ? (const struct rail_param *)at : NULL;
}

static ncclResult_t check_handle(const char *call, ncclParamHandle_t h, const void *out) {
  if (!out) return rt_error(RAIL_BAD_ARGUMENT, "%s: the result's pointer is NULL", call);
  if (!row_of(h)) return rt_error(RAIL_BAD_ARGUMENT, "%s: %p is no handle of ncclParamBind", call, (void *)h);
  return ncclSuccess;
}

static int64_t number_of(const struct rail_param *row) {
  int64_t number;
  memcpy(&number, (const char *)rt_params() + row->offset, sizeof number);
  return number;
}

/* In `text`, NUMBER_TEXT bytes, or where the parameter's own text is. */
static const char *text_of(const struct rail_param *row, char *text) {
  if (row->type == RAIL_PARAM_STRING) {
    const char *value;
    memcpy(&value, (const char *)rt_params() + row->offset, sizeof value);
    return value ? value : "";
  }
  int64_t number = number_of(row);
  if (row->type != RAIL_PARAM_ENUM) {
    snprintf(text, NUMBER_TEXT, "%" PRId64 "%s", number, row->type == RAIL_PARAM_MS ? "ms" : "");
    return text;
  }
  const char *word = row->words;
  while (number-- > 0) word += strcspn(word, "|") + 1;
  snprintf(text, NUMBER_TEXT, "%.*s", (int)strcspn(word, "|"), word);
  return text;
}

/* ---- by handle --------------------------------------------------------------------------- */

RAIL_EXPORT ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key) {
  if (!out || !key)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclParamBind: out is %p, key is %p; neither may be NULL", (void *)out,
                    (const void *)key);
  const struct rail_param *row = find_row(key);
  *out = (ncclParamHandle_t)(uintptr_t)row;
  if (row) return ncclSuccess;
  return rt_error(RAIL_BAD_ARGUMENT, "ncclParamBind: \"%s\" is no parameter of the runtime; "
                  "ncclParamGetAllParameterKeys lists them", key);
}

/* lo..hi: the type's range. */
static ncclResult_t get_number(const char *call, ncclParamHandle_t h, const void *out, int64_t lo, int64_t hi,
                               int64_t *number) {
  ncclResult_t r = check_handle(call, h, out);
  if (r != ncclSuccess) return r;
  const struct rail_param *row = row_of(h);
  if (row->type == RAIL_PARAM_STRING)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: %s is text, no number; use ncclParamGetStr", call, row->name);
  *number = number_of(row);
  if (*number >= lo && *number <= hi) return ncclSuccess;
  return rt_error(RAIL_BAD_ARGUMENT,
                  "%s: %s is %" PRId64 ", and the type has %" PRId64 " to %" PRId64 "; use ncclParamGetI64", call,
                  row->name, *number, lo, hi);
}

#define GETTER(suffix, type, lo, hi)                                                               \
  RAIL_EXPORT ncclResult_t ncclParamGet##suffix(ncclParamHandle_t h, type *out) {                  \
    int64_t number = 0;                                                                            \
    ncclResult_t r = get_number("ncclParamGet" #suffix, h, out, lo, hi, &number);                  \
    if (r == ncclSuccess) *out = (type)number;                                                     \
    return r;                                                                                      \
  }                                                                                                \
  RT_PNAME(ParamGet##suffix)

GETTER(I8, int8_t, INT8_MIN, INT8_MAX);
GETTER(I16, int16_t, INT16_MIN, INT16_MAX);
GETTER(I32, int32_t, INT32_MIN, INT32_MAX);
GETTER(I64, int64_t, INT64_MIN, INT64_MAX);
GETTER(U8, uint8_t, 0, UINT8_MAX);
GETTER(U16, uint16_t, 0, UINT16_MAX);
GETTER(U32, uint32_t, 0, UINT32_MAX);
GETTER(U64, uint64_t, 0, INT64_MAX);

RAIL_EXPORT ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out) {
  static _Thread_local char text[NUMBER_TEXT];
  ncclResult_t r = check_handle("ncclParamGetStr", h, out);
  if (r == ncclSuccess) *out = text_of(row_of(h), text);
  return r;
}

RAIL_EXPORT ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len) {
  ncclResult_t r = check_handle("ncclParamGet", h, out);
  if (r != ncclSuccess) return r;
  if (!len) return rt_error(RAIL_BAD_ARGUMENT, "ncclParamGet: len is NULL");
  const struct rail_param *row = row_of(h);
  const bool is_text = row->type == RAIL_PARAM_STRING;
  const int64_t number = is_text ? 0 : number_of(row);
  const char *text = is_text ? text_of(row, NULL) : NULL;
  const size_t size = is_text ? strlen(text) + 1 : sizeof number;
  *len = 0;
  if (maxLen < 0 || (size_t)maxLen < size)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclParamGet: %s takes %zu bytes, maxLen is %d", row->name, size, maxLen);
  memcpy(out, is_text ? (const void *)text : &number, size);
  *len = (int)size;
  return ncclSuccess;
}

/* ---- by name ----------------------------------------------------------------------------- */

RAIL_EXPORT ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen) {
  static _Thread_local char text[NUMBER_TEXT];
  if (!key || !value || !valueLen)
    return rt_error(RAIL_BAD_ARGUMENT,
                    "ncclParamGetParameter: key is %p, value is %p, valueLen is %p; none may be NULL",
                    (const void *)key, (const void *)value, (void *)valueLen);
  const struct rail_param *row = find_row(key);
  *value = row ? text_of(row, text) : NULL;
  *valueLen = row ? (int)strlen(*value) : 0;
  if (row) return ncclSuccess;
  return rt_error(RAIL_BAD_ARGUMENT, "ncclParamGetParameter: \"%s\" is no parameter of the runtime; "
                  "ncclParamGetAllParameterKeys lists them", key);
}

RAIL_EXPORT ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen) {
  if (!table || !tableLen)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclParamGetAllParameterKeys: table is %p, tableLen is %p; neither may be NULL",
                    (void *)table, (void *)tableLen);
  *table = rt_param_names();
  *tableLen = (int)rt_param_table()->count;
  return ncclSuccess;
}

RAIL_EXPORT void ncclParamDumpAll(void) {
  const struct rail_param_table *table = rt_param_table();
  char text[NUMBER_TEXT];
  for (size_t i = 0; i < table->count; i++) printf("%s=%s\n", table->rows[i].name, text_of(&table->rows[i], text));
}

RT_PNAME(ParamBind);
RT_PNAME(ParamGetStr);
RT_PNAME(ParamGet);
RT_PNAME(ParamGetParameter);
RT_PNAME(ParamGetAllParameterKeys);
RT_PNAME(ParamDumpAll);
