/* SPDX-License-Identifier: Apache-2.0
 * The plugin's page of counters: its tables, and who still needs it. */
#include "plugin/socket/sk_stats.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define DEVICE_NAME 64

static const struct rail_stats_counter comm_counters[] = {
  [SK_COMM_SENT_BYTES] = {"sent_bytes", RAIL_STATS_COUNTER, "Payload handed to the kernel, without headers."},
  [SK_COMM_RECEIVED_BYTES] = {"received_bytes", RAIL_STATS_COUNTER, "Payload received, without headers."},
  [SK_COMM_MESSAGES] = {"messages", RAIL_STATS_COUNTER, "Messages that are done."},
  [SK_COMM_EAGER_MESSAGES] = {"eager_messages", RAIL_STATS_COUNTER,
                              "Messages that went ahead of the receiver's buffer."},
  [SK_COMM_GRANTED_MESSAGES] = {"granted_messages", RAIL_STATS_COUNTER,
                                "Messages that waited for the receiver's buffer."},
  [SK_COMM_CHUNKS] = {"chunks", RAIL_STATS_COUNTER, "Pieces that messages were cut into."},
  [SK_COMM_SYSTEM_CALLS] = {"system_calls", RAIL_STATS_COUNTER, "Calls that moved bytes, or tried to."},
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
  [SK_STREAM_CHUNKS] = {"chunks", RAIL_STATS_COUNTER, "Pieces of messages that this stream took."},
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
  [SK_DEVICE_REFUSED] = {"refused", RAIL_STATS_COUNTER, "Peers that were refused: version, secret or settings."},
  [SK_DEVICE_STRANGERS] = {"strangers", RAIL_STATS_COUNTER, "Clients that were dropped because they are no peers."},
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

struct device {
  struct device *next;
  uint64_t *record;
  char name[DEVICE_NAME];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct rail_stats *page;
static unsigned int users; /* contexts, and records of comms and streams */
static struct device *devices;

rail_result_t sk_stats_open(void) {
  pthread_mutex_lock(&lock);
  if (!page) page = rail_stats_open("RailSocket", groups, SK_STATS_GROUPS);
  bool ok = page != NULL;
  if (ok) users++;
  pthread_mutex_unlock(&lock);
  if (ok) return RAIL_OK;
  RAIL_WARN("RailSocket: init: out of memory for counters");
  return RAIL_SYSTEM_ERROR;
}

/* Under the lock. */
static void one_user_less(void) {
  if (--users > 0) return;
  while (devices) {
    struct device *d = devices;
    devices = d->next;
    rail_stats_drop(page, SK_STATS_DEVICE, d->record);
    free(d);
  }
  rail_stats_close(page);
  page = NULL;
}

void sk_stats_close(void) {
  pthread_mutex_lock(&lock);
  one_user_less();
  pthread_mutex_unlock(&lock);
}

/* A label's value has no comma; an interface's name may. */
static void clean(char *to, size_t size, const char *from) {
  snprintf(to, size, "%s", from);
  for (char *c = to; *c; c++)
    if (*c == ',') *c = '_';
}

/* Under the lock. */
static uint64_t *take(enum sk_stats_group group, const char *label) {
  uint64_t *record = page ? rail_stats_take(page, group, "%s", label) : NULL;
  if (record) users++;
  return record;
}

static uint64_t *take_labelled(enum sk_stats_group group, const char *extra, const char *side, const char *device,
                               const union rail_addr *peer, const uint8_t *id) {
  char label[RAIL_STATS_LABEL], name[DEVICE_NAME], text[RAIL_ADDR_TEXT];
  clean(name, sizeof name, device);
  snprintf(label, sizeof label, "side=%s,device=%s,peer=%s,comm=%02x%02x%02x%02x%s", side, name,
           rail_addr_text(peer, text), id[0], id[1], id[2], id[3], extra);
  pthread_mutex_lock(&lock);
  uint64_t *record = take(group, label);
  pthread_mutex_unlock(&lock);
  return record;
}

uint64_t *sk_stats_comm(const char *side, const char *device, const union rail_addr *peer, const uint8_t *comm_id) {
  return take_labelled(SK_STATS_COMM, "", side, device, peer, comm_id);
}

uint64_t *sk_stats_stream(const char *side, const char *device, const union rail_addr *peer, const uint8_t *comm_id,
                          unsigned int stream) {
  char extra[32];
  snprintf(extra, sizeof extra, ",stream=%u", stream);
  return take_labelled(SK_STATS_STREAM, extra, side, device, peer, comm_id);
}

void sk_stats_drop(enum sk_stats_group group, uint64_t *record) {
  if (!record) return;
  pthread_mutex_lock(&lock);
  rail_stats_drop(page, group, record);
  one_user_less();
  pthread_mutex_unlock(&lock);
}

uint64_t *sk_stats_device(const char *name) {
  char label[DEVICE_NAME];
  clean(label, sizeof label, name);
  pthread_mutex_lock(&lock);
  struct device *d = devices;
  while (d && strcmp(d->name, label) != 0) d = d->next;
  if (!d && page && (d = calloc(1, sizeof *d)) != NULL) {
    snprintf(d->name, sizeof d->name, "%s", label);
    d->record = rail_stats_take(page, SK_STATS_DEVICE, "device=%s", label);
    d->next = devices;
    if (d->record) {
      devices = d;
    } else {
      free(d);
      d = NULL;
    }
  }
  uint64_t *record = d ? d->record : NULL;
  pthread_mutex_unlock(&lock);
  return record;
}
