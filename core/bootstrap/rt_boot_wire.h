/* SPDX-License-Identifier: Apache-2.0
 *
 * The bootstrap's messages as they lie on the wire: little-endian, fixed
 * widths. Addresses inside are in network order (struct rail_addr_wire).
 *
 *   rank → rendezvous   HELLO; answer TABLE or REFUSED, then the connection ends
 *   rank → next rank    PEER_HELLO ring; then both sides: HEARTBEAT, ABORT, GOODBYE
 *   rank → any rank     PEER_HELLO data; answered by one byte, RT_BOOT_ACCEPTED; then, one way: MESSAGE, GATHER, SPLIT
 *
 * The secrets keep other jobs and programs out; they are sent in clear and
 * do not replace a trusted network. A change of any layout here raises RT_BOOT_VERSION.
 *
 * The same in every version, so that ranks of two versions can refuse each other with a reason: the header, the secret
 * at the start of a HELLO, a REFUSED, and the fields of struct rt_boot_id.
 */
#ifndef RT_BOOT_WIRE_H
#define RT_BOOT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/sock.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs below are sent as they lie");

/* Of every socket of the bootstrap. Chosen, not measured: each is far from what a working network needs, and from what
 * a user waits for. */
#define RT_BOOT_HELLO_MS 10000 /* a pending connection's hello, which a peer sends at once */
#define RT_BOOT_RETRY_MS 50    /* between two attempts at an address that another communicator still uses */

#define RT_BOOT_MAGIC 0x544f4252u /* "RBOT" */
#define RT_BOOT_VERSION 2
#define RT_BOOT_ACCEPTED 0x57 /* the sender waits for it: messages on a connection that is dropped would be lost */
#define RT_BOOT_MAX_RANKS 4096
#define RT_BOOT_MAX_MESSAGE (64u << 20)
#define RT_BOOT_MAX_TEXT 480
#define RT_SECRET_BYTES 16

enum rt_boot_type {
  RT_BOOT_HELLO = 1,
  RT_BOOT_TABLE = 2,
  RT_BOOT_REFUSED = 3,
  RT_BOOT_PEER_HELLO = 4,
  RT_BOOT_MESSAGE = 5,   /* rt_bootstrap_send; tag is the caller's */
  RT_BOOT_GATHER = 6,    /* one step of an allgather; tag counts allgathers */
  RT_BOOT_SPLIT = 7,     /* tag is the split's serial */
  RT_BOOT_HEARTBEAT = 8, /* tag: the sender's interval, ms; 0: no more will come */
  RT_BOOT_ABORT = 9,
  RT_BOOT_GOODBYE = 10,
};

struct rt_boot_header {
  uint32_t magic;
  uint16_t version;
  uint16_t type; /* enum rt_boot_type */
  uint32_t tag;
  uint32_t length; /* bytes that follow */
};
_Static_assert(sizeof(struct rt_boot_header) == 16, "wire size");
_Static_assert(offsetof(struct rt_boot_header, length) == 12, "wire offset");

struct rt_boot_hello {
  uint8_t secret[RT_SECRET_BYTES]; /* the unique id's */
  uint32_t rank, nranks;
  uint32_t timeout_ms; /* how long this rank waits for the others from now on */
  uint32_t zero;
  struct rail_addr_wire addr; /* where this rank listens; port 0 only when nranks is 1 */
};
_Static_assert(sizeof(struct rt_boot_hello) == 56, "wire size");

/* TABLE: this, then nranks addresses. */
struct rt_boot_table {
  uint8_t secret[RT_SECRET_BYTES]; /* of this communicator, for PEER_HELLO */
};
_Static_assert(sizeof(struct rt_boot_table) == 16, "wire size");

enum rt_boot_link { RT_BOOT_LINK_RING = 1, RT_BOOT_LINK_DATA = 2 };

struct rt_boot_peer_hello {
  uint8_t secret[RT_SECRET_BYTES];
  uint32_t from, to; /* ranks */
  uint32_t link;     /* enum rt_boot_link */
  uint32_t nranks;
};
_Static_assert(sizeof(struct rt_boot_peer_hello) == 32, "wire size");

/* ABORT: length is 8 plus the text's, which has no NUL. */
struct rt_boot_abort {
  uint32_t origin; /* rank that died or aborted */
  uint32_t result; /* enum rail_result, 1 to 6 */
  char text[RT_BOOT_MAX_TEXT];
};
_Static_assert(offsetof(struct rt_boot_abort, text) == 8, "wire offset");

/* What a unique id holds; the rest of its 128 bytes is zero. */
struct rt_boot_id {
  uint32_t magic;
  uint16_t version;
  uint16_t well_known; /* 1: rank 0 opens the rendezvous at addr in rt_bootstrap_open */
  uint8_t secret[RT_SECRET_BYTES];
  struct rail_addr_wire addr;
};
_Static_assert(sizeof(struct rt_boot_id) == 48, "wire size");

static inline struct rt_boot_header rt_boot_header_make(enum rt_boot_type type, uint32_t tag, size_t length) {
  return (struct rt_boot_header){.magic = RT_BOOT_MAGIC,
                                 .version = RT_BOOT_VERSION,
                                 .type = (uint16_t)type,
                                 .tag = tag,
                                 .length = (uint32_t)length};
}

/* What is wrong with a header, behind which at most `max` bytes may follow; NULL: nothing. */
static inline const char *rt_boot_header_error(const struct rt_boot_header *h, size_t max) {
  if (h->magic != RT_BOOT_MAGIC) return "not a Railyard bootstrap message";
  if (h->version != RT_BOOT_VERSION) return "another version of the bootstrap protocol";
  if (h->length > max) return "a length out of bounds";
  return NULL;
}

/* Text from the wire goes to logs: `size` bytes to a NUL-terminated line without control characters. */
static inline void rt_boot_sanitize_text(char *text, size_t cap, const char *from, size_t size) {
  size_t n = size < cap - 1 ? size : cap - 1;
  for (size_t i = 0; i < n; i++) text[i] = (unsigned char)from[i] < 32 || from[i] == 127 ? '?' : from[i];
  text[n] = 0;
}

#endif
