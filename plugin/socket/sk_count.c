/* SPDX-License-Identifier: Apache-2.0
 * From records to sums, and their beginning and end. */
#include "plugin/socket/sk_count.h"

#include "plugin/socket/sk_comm.h"

static uint64_t nowhere[SK_DEVICE_COUNTERS]; /* when memory is out */

static uint64_t *device_record(const char *name) {
  uint64_t *record = sk_stats_device(name);
  return record ? record : nowhere;
}

void sk_count_open(struct sk_comm *comm, const struct sk_comm_args *args) {
  static const char *const side[] = {[SK_SENDER] = "send", [SK_RECEIVER] = "receive"};
  struct sk_counts *c = &comm->counts;
  c->open = true;
  c->comm = sk_stats_comm(side[args->side], args->device->name, &args->peers[0], args->comm_id);
  if (!c->comm) c->comm = c->own;
  c->device = device_record(args->device->name);
  sk_stats_gauge(&c->device[SK_DEVICE_COMMS], 1);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream_counts *s = &comm->streams[i].counts;
    const char *path = args->paths[i] ? args->paths[i]->name : args->device->name;
    s->stream = sk_stats_stream(side[args->side], path, &args->peers[i], args->comm_id, i);
    if (!s->stream) s->stream = s->own;
    s->device = device_record(path);
    rail_stats_set(&s->stream[SK_STREAM_ALIVE], 1);
  }
}

/* How much the value grew since the last call. */
static uint64_t growth(const uint64_t *value, uint64_t *seen) {
  uint64_t now = rail_stats_get(value), by = now - *seen;
  *seen = now;
  return by;
}

void sk_count_fold(struct sk_comm *comm) {
  struct sk_counts *c = &comm->counts;
  uint64_t chunks = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream_counts *s = &comm->streams[i].counts;
    uint64_t bytes = growth(&s->stream[SK_STREAM_BYTES], &s->seen_bytes);
    rail_stats_add_shared(&s->device[SK_DEVICE_BYTES], bytes);
    if (s->device != c->device) rail_stats_add_shared(&c->device[SK_DEVICE_BYTES], bytes); /* a fused one */
    chunks += rail_stats_get(&s->stream[SK_STREAM_CHUNKS]);
  }
  rail_stats_set(&c->comm[SK_COMM_CHUNKS], chunks);
  rail_stats_set(&c->comm[SK_COMM_SYSTEM_CALLS], rail_stats_get(&comm->moved.calls));
  rail_stats_add_shared(&c->device[SK_DEVICE_MESSAGES], growth(&c->comm[SK_COMM_MESSAGES], &c->seen_messages));
}

void sk_count_close(struct sk_comm *comm) {
  struct sk_counts *c = &comm->counts;
  if (!c->open) return;
  c->open = false;
  sk_count_fold(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream_counts *s = &comm->streams[i].counts;
    if (s->stream != s->own) sk_stats_drop(SK_STATS_STREAM, s->stream);
    s->stream = s->own;
    s->device = nowhere;
  }
  sk_stats_gauge(&c->device[SK_DEVICE_COMMS], -1);
  if (c->comm != c->own) sk_stats_drop(SK_STATS_COMM, c->comm);
  c->comm = c->own;
  c->device = nowhere;
}
