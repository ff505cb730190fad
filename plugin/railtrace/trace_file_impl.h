/* SPDX-License-Identifier: Apache-2.0
 * What trace_file.c and trace_file_read.c agree on. */
#ifndef RAIL_TRACE_FILE_IMPL_H
#define RAIL_TRACE_FILE_IMPL_H

#include "plugin/railtrace/trace_file.h"

#define TRACE_MAGIC "RAILTRCE"
#define TRACE_CHUNK_MAGIC 0x4b435452u /* "RTCK" */
#define TRACE_HEADER_FIXED 48
#define TRACE_FAILED 0x80 /* in a record's first byte: its result is not 0, and follows */

/* Which fields a record has, and in which order they come. */
enum trace_field {
  TRACE_CTX = 1 << 0,
  TRACE_COMM = 1 << 1,
  TRACE_DEV = 1 << 2,
  TRACE_TAG = 1 << 3,
  TRACE_MADE = 1 << 4,
  TRACE_MR = 1 << 5,
  TRACE_REQUEST = 1 << 6,
  TRACE_VALUE = 1 << 7,
  TRACE_TRIES = 1 << 8,
  TRACE_SPAN = 1 << 9, /* address, size */
  TRACE_BUFS = 1 << 10,
  TRACE_SIZES = 1 << 11, /* n and the sizes of bufs */
  TRACE_HANDLE = 1 << 12,
  TRACE_PROPS = 1 << 13,
  TRACE_ATTR = 1 << 14,
};

struct trace_layout {
  const char *name;
  unsigned int fields;
};
extern const struct trace_layout trace_layouts[RAIL_TRACE_KINDS];

/* CRC-32 as in zlib; begin with 0. */
uint32_t trace_crc(uint32_t crc, const void *bytes, size_t size);
/* Of a chunk: its header without the checksum, then the payload. */
uint32_t trace_chunk_crc(const uint8_t header[RAIL_TRACE_CHUNK_HEADER], const void *payload, size_t size);

/* Signed numbers: small ones stay small. */
static inline uint64_t trace_zigzag(int64_t v) { return ((uint64_t)v << 1) ^ (v < 0 ? UINT64_MAX : 0); }
static inline int64_t trace_unzigzag(uint64_t v) { return (int64_t)(v >> 1) ^ -(int64_t)(v & 1); }

#endif
