/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader. The file is not trusted: each length is compared
 * with what is left, each number with what it may be, and what is wrong is
 * named with its offset in the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "plugin/railtrace/trace_file.h"
#include "plugin/railtrace/trace_file_impl.h"

#define MAX_THREADS 4096

/* A piece of the file. `bad` is set once, with the offset, and ends all reading. */
struct in {
  const uint8_t *file, *at, *end;
  const char *bad;
  uint64_t bad_at;
};

/* One chunk of a thread's calls. */
struct piece {
  uint64_t at;
  uint32_t size;
};

struct stream {
  struct rail_trace_thread info;
  struct piece *pieces;
  size_t npieces, cap;
  size_t piece; /* being read */
  struct in in;
  uint64_t before; /* time of the last record */
  uint64_t calls;
  bool ready, ended; /* `next` holds an event; there are no more */
  struct rail_trace_event *next;
};

struct rail_trace {
  uint8_t *owned; /* bytes that are ours to free */
  const uint8_t *bytes;
  size_t size;
  struct rail_trace_header header;
  struct stream *streams;
  size_t nstreams;
  struct rail_trace_end end;
  bool has_end;
  char cut[160];
};

RAIL_PRINTF(3, 4) static bool explain(char *why, size_t size, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (size) vsnprintf(why, size, fmt, ap);
  va_end(ap);
  return false;
}

/* ---- numbers ----------------------------------------------------------- */

RAIL_COLD static void bad(struct in *in, const char *what) {
  if (!in->bad) {
    in->bad = what;
    in->bad_at = (uint64_t)(in->at - in->file);
  }
  in->at = in->end;
}

static uint64_t fixed(struct in *in, unsigned int bytes) {
  uint64_t v = 0;
  if ((size_t)(in->end - in->at) < bytes) {
    bad(in, "it ends within a number");
    return 0;
  }
  for (unsigned int i = 0; i < bytes; i++) v |= (uint64_t)*in->at++ << (8 * i);
  return v;
}

static uint64_t get(struct in *in) {
  uint64_t v = 0;
  for (unsigned int shift = 0; shift < 64; shift += 7) {
    if (in->at == in->end) {
      bad(in, "it ends within a number");
      return 0;
    }
    uint8_t byte = *in->at++;
    if (shift == 63 && byte > 1) break;
    v |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return v;
  }
  bad(in, "a number has more than 64 bits");
  return 0;
}

static uint64_t get_below(struct in *in, uint64_t limit, const char *what) {
  uint64_t v = get(in);
  if (v < limit) return v;
  bad(in, what);
  return 0;
}

static int64_t get_signed(struct in *in) { return trace_unzigzag(get(in)); }

static int get_int(struct in *in) {
  int64_t v = get_signed(in);
  if (v >= INT32_MIN && v <= INT32_MAX) return (int)v;
  bad(in, "a number has more than 32 bits");
  return 0;
}

static void take(struct in *in, void *to, size_t size) {
  if ((size_t)(in->end - in->at) < size) {
    bad(in, "it ends within bytes");
    return;
  }
  if (size) memcpy(to, in->at, size);
  in->at += size;
}

/* Texts are printed: what a terminal could take for a command becomes '?'. */
static void get_text(struct in *in, char *to, size_t cap, size_t len) {
  to[0] = 0;
  if (len >= cap) {
    bad(in, "a text is too long");
    return;
  }
  take(in, to, len);
  if (in->bad) len = 0;
  for (size_t i = 0; i < len; i++)
    if ((unsigned char)to[i] < ' ' || to[i] == 0x7f) to[i] = '?';
  to[len] = 0;
}

/* ---- header, chunks ---------------------------------------------------- */

static bool read_header(struct rail_trace *t, size_t *size, char *why, size_t cap) {
  struct in in = {.file = t->bytes, .at = t->bytes, .end = t->bytes + t->size};
  struct rail_trace_header *h = &t->header;
  if (t->size < TRACE_HEADER_FIXED || memcmp(t->bytes, TRACE_MAGIC, 8) != 0)
    return explain(why, cap, "not a trace: it does not begin with " TRACE_MAGIC);
  in.at += 8;
  unsigned int version = (unsigned int)fixed(&in, 2);
  if (version != RAIL_TRACE_VERSION)
    return explain(why, cap, "offset 8: format version %u; this program reads version %d", version, RAIL_TRACE_VERSION);
  *size = fixed(&in, 2);
  if (*size < TRACE_HEADER_FIXED || *size > t->size)
    return explain(why, cap, "offset 10: a header of %zu bytes; the file has %zu", *size, t->size);
  if (fixed(&in, 4) != trace_crc(0, t->bytes + 16, *size - 16))
    return explain(why, cap, "offset 12: the header's checksum is wrong");
  in.end = t->bytes + *size;
  h->clock_ns = fixed(&in, 8);
  h->realtime_ns = fixed(&in, 8);
  h->pid = (uint32_t)fixed(&in, 4);
  h->caller_version = (uint32_t)fixed(&in, 2);
  h->plugin_version = (uint32_t)fixed(&in, 2);
  (void)fixed(&in, 8);
  char *texts[] = {h->host, h->program, h->plugin_path, h->plugin_name};
  for (size_t i = 0; i < RAIL_COUNT_OF(texts); i++) get_text(&in, texts[i], RAIL_TRACE_TEXT, fixed(&in, 2));
  if (in.bad) return explain(why, cap, "offset %" PRIu64 ": the header: %s", in.bad_at, in.bad);
  return true;
}

static struct stream *stream_of(struct rail_trace *t, uint32_t thread) {
  if (thread > t->nstreams) {
    struct stream *grown = realloc(t->streams, thread * sizeof *grown);
    if (!grown) return NULL;
    memset(grown + t->nstreams, 0, (thread - t->nstreams) * sizeof *grown);
    t->streams = grown;
    t->nstreams = thread;
  }
  return &t->streams[thread - 1];
}

static bool add_piece(struct stream *s, uint64_t at, uint32_t size) {
  if (s->npieces == s->cap) {
    size_t cap = s->cap ? 2 * s->cap : 8;
    struct piece *grown = realloc(s->pieces, cap * sizeof *grown);
    if (!grown) return false;
    s->pieces = grown;
    s->cap = cap;
  }
  s->pieces[s->npieces++] = (struct piece){at, size};
  return true;
}

static void read_end(struct rail_trace *t, struct in *in) {
  t->end = (struct rail_trace_end){.limited = get(in) != 0};
  t->end.recorded = get(in);
  t->end.dropped = get(in);
  uint64_t rules = get_below(in, 4096, "an impossible number of rules");
  for (uint64_t i = 0; i < rules && !in->bad; i++) {
    uint64_t count = get(in);
    if (i < RAIL_TRACE_RULES) t->end.findings[i] = count;
  }
  t->has_end = true;
}

static bool read_chunk(struct rail_trace *t, unsigned int kind, uint32_t thread, uint64_t at, uint32_t size,
                       char *why, size_t cap) {
  struct in in = {.file = t->bytes, .at = t->bytes + at, .end = t->bytes + at + size};
  if (kind == RAIL_TRACE_CHUNK_END) {
    read_end(t, &in);
  } else {
    if (thread < 1 || thread > MAX_THREADS)
      return explain(why, cap, "offset %" PRIu64 ": thread %u; allowed are 1 to %d", at - 12, thread, MAX_THREADS);
    struct stream *s = stream_of(t, thread);
    if (!s || (kind == RAIL_TRACE_CHUNK_CALLS && !add_piece(s, at, size))) return explain(why, cap, "out of memory");
    if (kind == RAIL_TRACE_CHUNK_THREAD) {
      s->info.tid = get(&in);
      get_text(&in, s->info.name, sizeof s->info.name, get(&in));
    }
  }
  if (in.bad) return explain(why, cap, "offset %" PRIu64 ": %s", in.bad_at, in.bad);
  return true;
}

static bool cut(struct rail_trace *t, uint64_t at) {
  snprintf(t->cut, sizeof t->cut, "offset %zu: the file ends within the chunk that begins at %" PRIu64, t->size, at);
  return true;
}

static bool read_chunks(struct rail_trace *t, uint64_t at, char *why, size_t cap) {
  while (at < t->size) {
    struct in in = {.file = t->bytes, .at = t->bytes + at, .end = t->bytes + t->size};
    if (t->size - at < RAIL_TRACE_CHUNK_HEADER) return cut(t, at);
    if (fixed(&in, 4) != TRACE_CHUNK_MAGIC) return explain(why, cap, "offset %" PRIu64 ": no chunk begins here", at);
    uint32_t kind = (uint32_t)fixed(&in, 4), thread = (uint32_t)fixed(&in, 4), size = (uint32_t)fixed(&in, 4);
    uint32_t crc = (uint32_t)fixed(&in, 4);
    if (size > RAIL_TRACE_MAX_CHUNK)
      return explain(why, cap, "offset %" PRIu64 ": a chunk of %u bytes; at most %u are allowed", at + 12, size,
                 RAIL_TRACE_MAX_CHUNK);
    if (size > (size_t)(in.end - in.at)) return cut(t, at);
    if (crc != trace_chunk_crc(t->bytes + at, in.at, size))
      return explain(why, cap, "offset %" PRIu64 ": the checksum of the chunk that begins here is wrong", at);
    if (kind < RAIL_TRACE_CHUNK_CALLS || kind > RAIL_TRACE_CHUNK_END)
      return explain(why, cap, "offset %" PRIu64 ": a chunk of unknown kind %u", at + 4, kind);
    if (!read_chunk(t, kind, thread, at + RAIL_TRACE_CHUNK_HEADER, size, why, cap)) return false;
    at += RAIL_TRACE_CHUNK_HEADER + size;
  }
  return true;
}

/* ---- records ----------------------------------------------------------- */

static void get_props(struct in *in, struct rail_trace_event *e) {
  struct rail_net_props_v12 *v = &e->props;
  *v = (struct rail_net_props_v12){.name = e->name};
  get_text(in, e->name, sizeof e->name, fixed(in, 2));
  if (fixed(in, 1)) v->pci_path = e->path;
  get_text(in, e->path, sizeof e->path, fixed(in, 2));
  v->guid = get(in);
  v->ptr_support = get_int(in);
  v->reg_is_global = get_int(in);
  v->force_flush = get_int(in);
  v->speed = get_int(in);
  v->port = get_int(in);
  uint32_t latency = (uint32_t)fixed(in, 4);
  memcpy(&v->latency, &latency, sizeof latency);
  v->max_comms = get_int(in);
  v->max_recvs = get_int(in);
  v->net_device_type = get_int(in);
  v->net_device_version = get_int(in);
  v->vprops.ndevs = get_int(in);
  for (size_t i = 0; i < RAIL_COUNT_OF(v->vprops.devs); i++) v->vprops.devs[i] = get_int(in);
  v->max_p2p_bytes = get(in);
  v->max_coll_bytes = get(in);
  v->max_multi_request_size = get_int(in);
  v->rail_id = (int16_t)get_int(in);
  v->plane_id = (int16_t)get_int(in);
}

static void get_attr(struct in *in, struct rail_net_attr *a) {
  struct rail_net_comm_attr *sides[] = {&a->send, &a->recv};
  for (size_t i = 0; i < RAIL_COUNT_OF(sides); i++) {
    sides[i]->max_concurrent_peers = get_int(in);
    sides[i]->min_concurrent_peers = get_int(in);
    sides[i]->max_flows_per_peer = get_int(in);
    sides[i]->min_flows_per_peer = get_int(in);
  }
  a->op = (uint32_t)get_below(in, 1ull << 32, "a mask has more than 32 bits");
  a->algo = (uint32_t)get_below(in, 1ull << 32, "a mask has more than 32 bits");
  a->proto = (uint32_t)get_below(in, 1ull << 32, "a mask has more than 32 bits");
}

static void get_bufs(struct in *in, struct rail_trace_event *e, bool only_sizes) {
  e->n = (unsigned int)get_below(in, RAIL_TRACE_GROUP + 1, "more buffers than a call can have");
  for (unsigned int i = 0; i < e->n; i++) {
    struct rail_trace_buf *b = &e->bufs[i];
    if (!only_sizes) {
      b->mr = get(in);
      b->at = get(in);
    }
    b->size = get(in);
    if (!only_sizes) b->tag = get_signed(in);
  }
}

static void get_fields(struct in *in, struct rail_trace_event *e, unsigned int fields) {
  if (fields & TRACE_CTX) e->ctx = get(in);
  if (fields & TRACE_COMM) e->comm = get(in);
  if (fields & TRACE_DEV) e->dev = get_signed(in);
  if (fields & TRACE_TAG) e->tag = get_signed(in);
  if (fields & TRACE_MADE) e->made = get(in);
  if (fields & TRACE_MR) e->mr = get(in);
  if (fields & TRACE_REQUEST) e->request = get(in);
  if (fields & TRACE_VALUE) e->value = get(in);
  if (fields & TRACE_TRIES) {
    e->tries = get(in);
    e->waited = e->tries ? get(in) : 0;
  }
  if (fields & TRACE_SPAN) {
    e->address = get(in);
    e->size = get(in);
  }
  if (fields & (TRACE_BUFS | TRACE_SIZES)) get_bufs(in, e, (fields & TRACE_SIZES) != 0);
  if (fields & TRACE_HANDLE) take(in, e->handle, sizeof e->handle);
  if (fields & TRACE_PROPS) get_props(in, e);
  if (fields & TRACE_ATTR) get_attr(in, &e->attr);
}

/* Everything of the event but the large arrays begins as 0. */
static void clear(struct rail_trace_event *e) {
  memset(e, 0, offsetof(struct rail_trace_event, bufs));
  e->name[0] = e->path[0] = 0;
}

static void get_event(struct stream *s, uint32_t thread, struct rail_trace_event *e) {
  struct in *in = &s->in;
  clear(e);
  unsigned int first = (unsigned int)fixed(in, 1), kind = first & ~(unsigned int)TRACE_FAILED;
  if (kind == RAIL_TRACE_NONE || kind >= RAIL_TRACE_KINDS) {
    if (!in->bad) in->at--;
    bad(in, "a record of unknown kind");
    return;
  }
  e->kind = (enum rail_trace_kind)kind;
  e->result = first & TRACE_FAILED ? get_int(in) : 0;
  uint64_t after = get(in);
  e->duration = get(in);
  e->thread = thread;
  e->ns = s->before + after;
  if (e->ns < s->before) bad(in, "time runs over");
  s->before = e->ns;
  get_fields(in, e, trace_layouts[kind].fields);
  if (in->bad) return;
  /* Findings are remarks on the call that follows; dropped calls have had their numbers. */
  if (kind == RAIL_TRACE_DROPPED) s->calls += e->value;
  e->number = s->calls + 1;
  if (kind != RAIL_TRACE_DROPPED && kind != RAIL_TRACE_FINDING) s->calls++;
}

/* Makes the thread's next event ready, if it has one. */
static bool advance(struct rail_trace *t, size_t index, char *why, size_t cap) {
  struct stream *s = &t->streams[index];
  if (s->ready || s->ended) return true;
  while (s->in.at == s->in.end) {
    if (s->piece == s->npieces) {
      s->ended = true;
      return true;
    }
    const struct piece *p = &s->pieces[s->piece++];
    s->in = (struct in){.file = t->bytes, .at = t->bytes + p->at, .end = t->bytes + p->at + p->size};
  }
  if (!s->next) s->next = calloc(1, sizeof *s->next);
  if (!s->next) return explain(why, cap, "out of memory");
  get_event(s, (uint32_t)index + 1, s->next);
  if (s->in.bad) return explain(why, cap, "offset %" PRIu64 ": %s", s->in.bad_at, s->in.bad);
  s->ready = true;
  return true;
}

int rail_trace_next(struct rail_trace *t, struct rail_trace_event *event, char *why, size_t why_size) {
  struct stream *first = NULL;
  for (size_t i = 0; i < t->nstreams; i++) {
    struct stream *s = &t->streams[i];
    if (!advance(t, i, why, why_size)) return -1;
    if (s->ready && (!first || s->next->ns < first->next->ns)) first = s;
  }
  if (!first) return 0;
  *event = *first->next;
  if (event->kind == RAIL_TRACE_PROPERTIES) {
    event->props.name = event->name;
    if (event->props.pci_path) event->props.pci_path = event->path;
  }
  first->ready = false;
  return 1;
}

void rail_trace_rewind(struct rail_trace *t) {
  for (size_t i = 0; i < t->nstreams; i++) {
    struct stream *s = &t->streams[i];
    s->piece = 0;
    s->in = (struct in){0};
    s->before = s->calls = 0;
    s->ready = s->ended = false;
  }
}

/* ---- open, close ------------------------------------------------------- */

bool rail_trace_open_bytes(const uint8_t *bytes, size_t size, struct rail_trace **out, char *why, size_t why_size) {
  size_t header = 0;
  *out = NULL;
  struct rail_trace *t = calloc(1, sizeof *t);
  if (!t) return explain(why, why_size, "out of memory");
  t->bytes = bytes;
  t->size = size;
  if (!read_header(t, &header, why, why_size) || !read_chunks(t, header, why, why_size)) {
    rail_trace_close(t);
    return false;
  }
  *out = t;
  return true;
}

/* Read, not mapped: a file that is truncated meanwhile must not crash the reader. */
static uint8_t *read_all(const char *path, size_t *size, char *why, size_t cap) {
  uint8_t *bytes = NULL;
  struct stat st;
  size_t got = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0) goto failed;
  if (!S_ISREG(st.st_mode)) {
    errno = EINVAL;
    goto failed;
  }
  bytes = malloc((size_t)st.st_size + 1);
  if (!bytes) goto failed;
  while (got < (size_t)st.st_size) {
    ssize_t n = read(fd, bytes + got, (size_t)st.st_size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) goto failed;
    if (n == 0) break;
    got += (size_t)n;
  }
  close(fd);
  *size = got;
  return bytes;

failed:
  explain(why, cap, "%s", strerror(errno));
  if (fd >= 0) close(fd);
  free(bytes);
  return NULL;
}

bool rail_trace_open(const char *path, struct rail_trace **out, char *why, size_t why_size) {
  size_t size = 0;
  *out = NULL;
  uint8_t *bytes = read_all(path, &size, why, why_size);
  if (!bytes) return false;
  if (!rail_trace_open_bytes(bytes, size, out, why, why_size) || !*out) {
    free(bytes);
    return false;
  }
  (*out)->owned = bytes;
  return true;
}

void rail_trace_close(struct rail_trace *t) {
  if (!t) return;
  for (size_t i = 0; i < t->nstreams; i++) {
    free(t->streams[i].pieces);
    free(t->streams[i].next);
  }
  free(t->streams);
  free(t->owned);
  free(t);
}

const struct rail_trace_header *rail_trace_header(const struct rail_trace *t) { return &t->header; }
size_t rail_trace_threads(const struct rail_trace *t) { return t->nstreams; }
const struct rail_trace_thread *rail_trace_thread(const struct rail_trace *t, uint32_t thread) {
  return thread >= 1 && thread <= t->nstreams ? &t->streams[thread - 1].info : NULL;
}
const struct rail_trace_end *rail_trace_end(const struct rail_trace *t) { return t->has_end ? &t->end : NULL; }
const char *rail_trace_cut(const struct rail_trace *t) { return t->cut[0] ? t->cut : NULL; }
