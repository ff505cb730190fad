/* SPDX-License-Identifier: Apache-2.0
 * The plugin's page of counters: its tables and labels. */
#include "plugin/socket/sk_stats.h"

#include <stdio.h>

#include "common/obs/stats.h"
#include "plugin/socket/sk_comm.h"

static const struct rail_stats_counter comm_counters[] = {
  [SK_COMM_SENT_BYTES] = {"sent_bytes", RAIL_STATS_COUNTER, "Payload handed to the kernel, without headers."},
  [SK_COMM_RECEIVED_BYTES] = {"received_bytes", RAIL_STATS_COUNTER, "Payload received, without headers."},
  [SK_COMM_MESSAGES] = {"messages", RAIL_STATS_COUNTER, "Messages that are done."},
  [SK_COMM_EAGER_MESSAGES] = {"eager_messages", RAIL_STATS_COUNTER,
                              "Messages that went ahead of the receiver's buffer."},
  [SK_COMM_GRANTED_MESSAGES] = {"granted_messages", RAIL_STATS_COUNTER,
                                "Messages that waited for the receiver's buffer."},
  [SK_COMM_CHUNKS] = {"chunks", RAIL_STATS_COUNTER, "Chunks of messages that its streams moved, in all."},
  [SK_COMM_SYSTEM_CALLS] = {"system_calls", RAIL_STATS_COUNTER, "System calls that moved bytes, or tried to; with "
                            "RAIL_SOCKET_TLS calls of TLS, which make one or more each."},
  [SK_COMM_CONTROL_FRAMES] = {"control_frames", RAIL_STATS_COUNTER, "Frames of grants, credit or counts, no payload."},
  [SK_COMM_STALLS] = {"stalls", RAIL_STATS_COUNTER,
                      "Times that nothing moved for the stall time though something was outstanding."},
  [SK_COMM_RETRIES] = {"retries", RAIL_STATS_COUNTER, "Frames that were sent again."},
  [SK_COMM_FAILOVERS] = {"failovers", RAIL_STATS_COUNTER, "Streams that were lost and whose work others took over."},
  [SK_COMM_ERRORS] = {"errors", RAIL_STATS_COUNTER, "Requests that ended with an error."},
  [SK_COMM_OUTSTANDING] = {"outstanding", RAIL_STATS_GAUGE, "Requests that are not done."},
  [SK_COMM_CREDIT_BYTES] = {"credit_bytes", RAIL_STATS_GAUGE,
                            "Bytes that may still be sent ahead of the receiver's buffers."},
  [SK_COMM_PROGRESS_TIME] = {"progress_time", RAIL_STATS_TIME, "When bytes moved last."},
};
_Static_assert(RAIL_COUNT_OF(comm_counters) == SK_COMM_COUNTERS, "a row each");

static const struct rail_stats_counter stream_counters[] = {
  [SK_STREAM_BYTES] = {"bytes", RAIL_STATS_COUNTER, "Payload that this stream moved."},
  [SK_STREAM_CHUNKS] = {"chunks", RAIL_STATS_COUNTER, "Chunks of messages that this stream moved."},
  [SK_STREAM_ALIVE] = {"alive", RAIL_STATS_GAUGE, "1 while the stream is up, 0 after it was lost."},
  [SK_STREAM_LOST] = {"lost", RAIL_STATS_COUNTER, "How often the stream was lost."},
};
_Static_assert(RAIL_COUNT_OF(stream_counters) == SK_STREAM_COUNTERS, "a row each");

static const struct rail_stats_counter device_counters[] = {
  [SK_DEVICE_BYTES] = {"bytes", RAIL_STATS_COUNTER, "Payload moved over the device, both ways; brought up to date "
                                                    "several times a second and at close."},
  [SK_DEVICE_MESSAGES] = {"messages", RAIL_STATS_COUNTER, "Messages done on the device's connections; like bytes."},
  [SK_DEVICE_COMMS] = {"comms", RAIL_STATS_GAUGE, "Connections that are open, each direction being one."},
  [SK_DEVICE_CONNECTS] = {"connects", RAIL_STATS_COUNTER, "Connections made from here."},
  [SK_DEVICE_ACCEPTS] = {"accepts", RAIL_STATS_COUNTER, "Connections made to here."},
  [SK_DEVICE_REFUSED] = {"refused", RAIL_STATS_COUNTER, "Peers that were refused: version, secret, settings or busy."},
  [SK_DEVICE_DROPPED] = {"dropped", RAIL_STATS_COUNTER, "Clients that were dropped because they are no peers."},
  [SK_DEVICE_ERRORS] = {"errors", RAIL_STATS_COUNTER, "Connections that failed."},
};
_Static_assert(RAIL_COUNT_OF(device_counters) == SK_DEVICE_COUNTERS, "a row each");

/* Memory is taken when a record is: the maxima cost address space only. */
static const struct rail_stats_group groups[] = {
  [SK_STATS_COMM] = {"comm", comm_counters, SK_COMM_COUNTERS, 4096},
  [SK_STATS_STREAM] = {"stream", stream_counters, SK_STREAM_COUNTERS, 16384},
  [SK_STATS_DEVICE] = {"device", device_counters, SK_DEVICE_COUNTERS, 256},
};
_Static_assert(RAIL_COUNT_OF(groups) == SK_STATS_GROUPS, "a row each");

static struct rail_plugin_stats page = {.name = "RailSocket", .groups = groups, .ngroups = SK_STATS_GROUPS,
                                        .device_group = SK_STATS_DEVICE, .lock = PTHREAD_MUTEX_INITIALIZER};

rail_result_t sk_stats_open(void) { return rail_plugin_stats_open(&page); }
void sk_stats_close(void) { rail_plugin_stats_close(&page); }

static uint64_t *take(enum sk_stats_group group, const char *extra, const char *side, const char *device,
                      const union rail_addr *peer, const uint8_t *id) {
  char name[RAIL_STATS_VALUE], text[RAIL_ADDR_TEXT];
  return rail_plugin_stats_take(&page, group, "side=%s,device=%s,peer=%s,comm=%02x%02x%02x%02x%s", side,
                                rail_stats_value(name, device), rail_addr_text(peer, text), id[0], id[1], id[2], id[3],
                                extra);
}

uint64_t *sk_stats_comm(const char *side, const char *device, const union rail_addr *peer, const uint8_t *comm_id) {
  return take(SK_STATS_COMM, "", side, device, peer, comm_id);
}

uint64_t *sk_stats_stream(const char *side, const char *device, const union rail_addr *peer, const uint8_t *comm_id,
                          unsigned int stream) {
  char extra[32];
  snprintf(extra, sizeof extra, ",stream=%u", stream);
  return take(SK_STATS_STREAM, extra, side, device, peer, comm_id);
}

void sk_stats_drop(enum sk_stats_group group, uint64_t *record) { rail_plugin_stats_drop(&page, group, record); }

uint64_t *sk_stats_device(const char *name) { return rail_plugin_stats_device(&page, name); }
void sk_stats_count(const char *device, enum sk_stats_device counter) {
  rail_plugin_stats_count(&page, device, counter);
}

/* ---- a comm's records ---------------------------------------------------- */

static uint64_t unused[SK_DEVICE_COUNTERS]; /* when there is no memory */

static uint64_t *device_record(const char *name) {
  uint64_t *record = sk_stats_device(name);
  return record ? record : unused;
}

void sk_stats_attach(struct sk_comm *comm, const struct sk_comm_args *args) {
  static const char *const side[] = {[SK_SENDER] = "send", [SK_RECEIVER] = "receive"};
  struct sk_comm_counts *c = &comm->counts;
  c->open = true;
  c->comm = sk_stats_comm(side[args->side], args->device->name, &args->peers[0], args->comm_id);
  if (!c->comm) c->comm = c->own;
  c->device = device_record(args->device->name);
  sk_stats_gauge(&c->device[SK_DEVICE_COMMS], 1);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream_counts *s = &comm->streams[i].counts;
    const char *nic = args->nics[i] ? args->nics[i]->name : args->device->name;
    s->stream = sk_stats_stream(side[args->side], nic, &args->peers[i], args->comm_id, i);
    if (!s->stream) s->stream = s->own;
    s->device = device_record(nic);
    rail_stats_set(&s->stream[SK_STREAM_ALIVE], 1);
  }
}

/* How much the value grew since the last call. */
static uint64_t growth(const uint64_t *value, uint64_t *seen) {
  uint64_t now = rail_stats_get(value), by = now - *seen;
  *seen = now;
  return by;
}

void sk_stats_update(struct sk_comm *comm) {
  struct sk_comm_counts *c = &comm->counts;
  uint64_t chunks = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream_counts *s = &comm->streams[i].counts;
    uint64_t bytes = growth(&s->stream[SK_STREAM_BYTES], &s->seen_bytes);
    rail_stats_add_shared(&s->device[SK_DEVICE_BYTES], bytes);
    if (s->device != c->device) rail_stats_add_shared(&c->device[SK_DEVICE_BYTES], bytes); /* a fused one */
    chunks += rail_stats_get(&s->stream[SK_STREAM_CHUNKS]);
  }
  rail_stats_set(&c->comm[SK_COMM_CHUNKS], chunks);
  rail_stats_set(&c->comm[SK_COMM_SYSTEM_CALLS], rail_stats_get(&comm->traffic.calls));
  rail_stats_add_shared(&c->device[SK_DEVICE_MESSAGES], growth(&c->comm[SK_COMM_MESSAGES], &c->seen_messages));
}

void sk_stats_detach(struct sk_comm *comm) {
  struct sk_comm_counts *c = &comm->counts;
  if (!c->open) return;
  c->open = false;
  sk_stats_update(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream_counts *s = &comm->streams[i].counts;
    if (s->stream != s->own) sk_stats_drop(SK_STATS_STREAM, s->stream);
    s->stream = s->own;
    s->device = unused;
  }
  sk_stats_gauge(&c->device[SK_DEVICE_COMMS], -1);
  if (c->comm != c->own) sk_stats_drop(SK_STATS_COMM, c->comm);
  c->comm = c->own;
  c->device = unused;
}
