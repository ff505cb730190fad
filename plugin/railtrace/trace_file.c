/* SPDX-License-Identifier: Apache-2.0
 * The layout of records, and their writer. */
#include "plugin/railtrace/trace_file.h"

#include <string.h>

#include "common/base/compiler.h"
#include "plugin/railtrace/trace_file_impl.h"

#define CALL_ON_COMM TRACE_COMM
#define POST (TRACE_COMM | TRACE_MADE | TRACE_TRIES | TRACE_BUFS)

const struct trace_layout trace_layouts[RAIL_TRACE_KINDS] = {
  [RAIL_TRACE_NONE] = {"?", 0},
  [RAIL_TRACE_INIT] = {"init", TRACE_DEV | TRACE_TAG | TRACE_MADE | TRACE_VALUE},
  [RAIL_TRACE_FINALIZE] = {"finalize", TRACE_CTX},
  [RAIL_TRACE_DEVICES] = {"devices", TRACE_VALUE},
  [RAIL_TRACE_PROPERTIES] = {"getProperties", TRACE_DEV | TRACE_PROPS},
  [RAIL_TRACE_MAKE_VDEVICE] = {"makeVDevice", TRACE_DEV | TRACE_BUFS},
  [RAIL_TRACE_SET_ATTR] = {"setNetAttr", TRACE_CTX | TRACE_ATTR},
  [RAIL_TRACE_LISTEN] = {"listen", TRACE_CTX | TRACE_DEV | TRACE_MADE | TRACE_HANDLE},
  [RAIL_TRACE_CONNECT] = {"connect", TRACE_CTX | TRACE_DEV | TRACE_TAG | TRACE_MADE | TRACE_TRIES | TRACE_HANDLE},
  [RAIL_TRACE_ACCEPT] = {"accept", TRACE_COMM | TRACE_MADE | TRACE_TRIES},
  [RAIL_TRACE_CLOSE_SEND] = {"closeSend", CALL_ON_COMM},
  [RAIL_TRACE_CLOSE_RECV] = {"closeRecv", CALL_ON_COMM},
  [RAIL_TRACE_CLOSE_LISTEN] = {"closeListen", CALL_ON_COMM},
  [RAIL_TRACE_REG_MR] = {"regMr", TRACE_COMM | TRACE_DEV | TRACE_MADE | TRACE_SPAN},
  [RAIL_TRACE_REG_DMABUF] = {"regMrDmaBuf", TRACE_COMM | TRACE_DEV | TRACE_MADE | TRACE_VALUE | TRACE_SPAN},
  [RAIL_TRACE_DEREG_MR] = {"deregMr", TRACE_COMM | TRACE_MR},
  [RAIL_TRACE_ISEND] = {"isend", POST},
  [RAIL_TRACE_IRECV] = {"irecv", POST | TRACE_VALUE},
  [RAIL_TRACE_IFLUSH] = {"iflush", POST},
  [RAIL_TRACE_TEST] = {"test", TRACE_COMM | TRACE_REQUEST | TRACE_VALUE | TRACE_TRIES | TRACE_SIZES},
  [RAIL_TRACE_CONSUMED] = {"irecvConsumed", TRACE_COMM | TRACE_REQUEST | TRACE_VALUE},
  [RAIL_TRACE_FINDING] = {"finding", TRACE_COMM | TRACE_DEV | TRACE_REQUEST | TRACE_VALUE | TRACE_SPAN},
  [RAIL_TRACE_GET_DEVICE_MR] = {"getDeviceMr", TRACE_COMM | TRACE_MR},
  [RAIL_TRACE_DROPPED] = {"dropped", TRACE_VALUE},
};

const char *rail_trace_kind_name(unsigned int kind) {
  return kind < RAIL_TRACE_KINDS ? trace_layouts[kind].name : trace_layouts[RAIL_TRACE_NONE].name;
}

/* Four bits at a time: the writer thread has the time, and the table needs no making. */
uint32_t trace_crc(uint32_t crc, const void *bytes, size_t size) {
  static const uint32_t table[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
  };
  const uint8_t *p = bytes;
  crc = ~crc;
  for (size_t i = 0; i < size; i++) {
    crc = table[(crc ^ p[i]) & 15] ^ (crc >> 4);
    crc = table[(crc ^ (p[i] >> 4)) & 15] ^ (crc >> 4);
  }
  return ~crc;
}

/* ---- numbers ----------------------------------------------------------- */

static uint8_t *put_fixed(uint8_t *p, uint64_t v, unsigned int bytes) {
  for (unsigned int i = 0; i < bytes; i++) *p++ = (uint8_t)(v >> (8 * i));
  return p;
}

static inline uint8_t *put(uint8_t *p, uint64_t v) {
  while (v >= 0x80) {
    *p++ = (uint8_t)(v | 0x80);
    v >>= 7;
  }
  *p++ = (uint8_t)v;
  return p;
}

static inline uint8_t *put_signed(uint8_t *p, int64_t v) { return put(p, trace_zigzag(v)); }

static uint8_t *put_text(uint8_t *p, const char *text) {
  size_t len = text ? strnlen(text, RAIL_TRACE_TEXT - 1) : 0;
  p = put_fixed(p, len, 2);
  if (len) memcpy(p, text, len);
  return p + len;
}

/* ---- header, chunks ---------------------------------------------------- */

size_t rail_trace_put_header(uint8_t out[RAIL_TRACE_HEADER_MAX], const struct rail_trace_header *h) {
  static const uint8_t magic[8] = TRACE_MAGIC;
  uint8_t *p = out + TRACE_HEADER_FIXED;
  p = put_text(p, h->host);
  p = put_text(p, h->program);
  p = put_text(p, h->plugin_path);
  p = put_text(p, h->plugin_name);
  size_t size = (size_t)(p - out);
  memcpy(out, magic, sizeof magic);
  p = put_fixed(out + 8, RAIL_TRACE_VERSION, 2);
  put_fixed(p, size, 2);
  p = put_fixed(out + 16, h->clock_ns, 8);
  p = put_fixed(p, h->realtime_ns, 8);
  p = put_fixed(p, h->pid, 4);
  p = put_fixed(p, h->caller_version, 2);
  p = put_fixed(p, h->plugin_version, 2);
  put_fixed(p, 0, 8);
  put_fixed(out + 12, trace_crc(0, out + 16, size - 16), 4);
  return size;
}

uint32_t trace_chunk_crc(const uint8_t header[RAIL_TRACE_CHUNK_HEADER], const void *payload, size_t size) {
  return trace_crc(trace_crc(0, header, 16), payload, size);
}

void rail_trace_put_chunk(uint8_t out[RAIL_TRACE_CHUNK_HEADER], enum rail_trace_chunk_kind kind, uint32_t thread,
                          const void *first, size_t nfirst, const void *second, size_t nsecond) {
  uint8_t *p = put_fixed(out, TRACE_CHUNK_MAGIC, 4);
  p = put_fixed(p, kind, 4);
  p = put_fixed(p, thread, 4);
  p = put_fixed(p, nfirst + nsecond, 4);
  uint32_t crc = trace_chunk_crc(out, first, nfirst);
  put_fixed(p, nsecond ? trace_crc(crc, second, nsecond) : crc, 4);
}

size_t rail_trace_put_thread(uint8_t out[64], uint64_t tid, const char *name) {
  size_t len = strnlen(name, sizeof(((struct rail_trace_thread *)0)->name) - 1);
  uint8_t *p = put(out, tid);
  p = put(p, len);
  memcpy(p, name, len);
  return (size_t)(p + len - out);
}

size_t rail_trace_put_end(uint8_t out[1024], const struct rail_trace_end *end) {
  uint8_t *p = put(out, end->limited);
  p = put(p, end->recorded);
  p = put(p, end->dropped);
  p = put(p, RAIL_TRACE_RULES);
  for (unsigned int i = 0; i < RAIL_TRACE_RULES; i++) p = put(p, end->findings[i]);
  return (size_t)(p - out);
}

/* ---- records ----------------------------------------------------------- */

static uint8_t *put_props(uint8_t *p, const struct rail_net_props_v12 *v) {
  uint32_t latency;
  memcpy(&latency, &v->latency, sizeof latency);
  p = put_text(p, v->name);
  *p++ = v->pci_path != NULL;
  p = put_text(p, v->pci_path);
  p = put(p, v->guid);
  p = put_signed(p, v->ptr_support);
  p = put_signed(p, v->reg_is_global);
  p = put_signed(p, v->force_flush);
  p = put_signed(p, v->speed);
  p = put_signed(p, v->port);
  p = put_fixed(p, latency, 4);
  p = put_signed(p, v->max_comms);
  p = put_signed(p, v->max_recvs);
  p = put_signed(p, v->net_device_type);
  p = put_signed(p, v->net_device_version);
  p = put_signed(p, v->vprops.ndevs);
  for (size_t i = 0; i < RAIL_COUNT_OF(v->vprops.devs); i++) p = put_signed(p, v->vprops.devs[i]);
  p = put(p, v->max_p2p_bytes);
  p = put(p, v->max_coll_bytes);
  p = put_signed(p, v->max_multi_request_size);
  p = put_signed(p, v->rail_id);
  return put_signed(p, v->plane_id);
}

static uint8_t *put_attr(uint8_t *p, const struct rail_net_attr *a) {
  const struct rail_net_comm_attr *sides[] = {&a->send, &a->recv};
  for (size_t i = 0; i < RAIL_COUNT_OF(sides); i++) {
    p = put_signed(p, sides[i]->max_concurrent_peers);
    p = put_signed(p, sides[i]->min_concurrent_peers);
    p = put_signed(p, sides[i]->max_flows_per_peer);
    p = put_signed(p, sides[i]->min_flows_per_peer);
  }
  p = put(p, a->op);
  p = put(p, a->algo);
  return put(p, a->proto);
}

static uint8_t *put_bufs(uint8_t *p, const struct rail_trace_event *e) {
  p = put(p, e->n);
  for (unsigned int i = 0; i < e->n; i++) {
    p = put(p, e->bufs[i].mr);
    p = put(p, e->bufs[i].at);
    p = put(p, e->bufs[i].size);
    p = put_signed(p, e->bufs[i].tag);
  }
  return p;
}

static uint8_t *put_sizes(uint8_t *p, const struct rail_trace_event *e) {
  p = put(p, e->n);
  for (unsigned int i = 0; i < e->n; i++) p = put(p, e->bufs[i].size);
  return p;
}

static uint8_t *put_rare(uint8_t *p, const struct rail_trace_event *e, unsigned int fields) {
  if (fields & TRACE_SPAN) p = put(put(p, e->address), e->size);
  if (fields & TRACE_BUFS) p = put_bufs(p, e);
  if (fields & TRACE_SIZES) p = put_sizes(p, e);
  if (fields & TRACE_HANDLE) {
    memcpy(p, e->handle, sizeof e->handle);
    p += sizeof e->handle;
  }
  if (fields & TRACE_PROPS) p = put_props(p, &e->props);
  if (fields & TRACE_ATTR) p = put_attr(p, &e->attr);
  return p;
}

/* The longest: 32 buffers of 40 bytes, or two texts and 24 numbers; see RAIL_TRACE_MAX_RECORD. */
_Static_assert(RAIL_TRACE_GROUP * 40 + 200 <= RAIL_TRACE_MAX_RECORD, "the longest irecv");
_Static_assert(2 * RAIL_TRACE_TEXT + 24 * 10 + 200 <= RAIL_TRACE_MAX_RECORD, "the longest getProperties");

size_t rail_trace_put_event(uint8_t out[RAIL_TRACE_MAX_RECORD], const struct rail_trace_event *e, uint64_t *before) {
  unsigned int fields = trace_layouts[e->kind].fields;
  uint8_t *p = out;
  *p++ = (uint8_t)(e->kind | (e->result ? TRACE_FAILED : 0));
  if (rail_unlikely(e->result != 0)) p = put_signed(p, e->result);
  p = put(p, e->ns > *before ? e->ns - *before : 0);
  p = put(p, e->duration);
  *before = RAIL_MAX(e->ns, *before);
  if (fields & TRACE_CTX) p = put(p, e->ctx);
  if (fields & TRACE_COMM) p = put(p, e->comm);
  if (fields & TRACE_DEV) p = put_signed(p, e->dev);
  if (fields & TRACE_TAG) p = put_signed(p, e->tag);
  if (fields & TRACE_MADE) p = put(p, e->made);
  if (fields & TRACE_MR) p = put(p, e->mr);
  if (fields & TRACE_REQUEST) p = put(p, e->request);
  if (fields & TRACE_VALUE) p = put(p, e->value);
  if (fields & TRACE_TRIES) {
    p = put(p, e->tries);
    if (e->tries) p = put(p, e->waited);
  }
  return (size_t)(put_rare(p, e, fields) - out);
}
