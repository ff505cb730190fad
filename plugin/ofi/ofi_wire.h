/* SPDX-License-Identifier: Apache-2.0
 *
 * What two ofi plugins send each other. Over the TCP connection of the handshake (common/conn/protocol.h): OFFER and
 * READY. Over the fabric: control messages, one frame each, with fi_send. Data goes by fi_tsend or fi_write, without
 * any bytes of ours, or behind the frame of an EAGER or a DATA.
 *
 *   PING    both ways            the `path` carries messages; in the handshake, and where nothing moves
 *   PONG    both ways            answers a PING behind the handshake, over the same path, with counts
 *   EAGER   sender → receiver    a whole message on credit, with its tag; it may come before its receive
 *   GRANT   receiver → sender    the buffers of one or several irecvs, and a report
 *   ACK     receiver → sender    a report alone: what has arrived, and how much credit is free again
 *   DATA    sender → receiver    a whole message for a buffer that was granted
 *   FIN     sender → receiver    one part of a message was written to the buffer
 *   ASK     sender → receiver    wants a report when so many messages are there, and grants of all receives
 *   TOO_LARGE  both ways         the message does not fit its buffer
 *   REVOKE  receiver → sender    closes; nothing may be written to its buffers any more
 *   REVOKED sender → receiver    nothing will be
 *
 * A frame names the comm it is for by an index and a random token, which the comm's side chose and sent in its OFFER:
 * an endpoint serves many comms, and anybody who knows its address may send to it. GRANTs, one for each receive, are
 * numbered, and so are EAGERs; a frame names a buffer by the number of its GRANT and an index. Numbers are 32 bits and
 * wrap; they begin at OFI_FIRST_SEQ, 256 before the wrap, so that every connection of some length crosses it.
 *
 * All integers are little-endian. Whatever changes here raises OFI_WIRE_VERSION; docs/protocol-ofi.md is the
 * description.
 */
#ifndef OFI_WIRE_H
#define OFI_WIRE_H

#include <endian.h>
#include <stddef.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/conn/protocol.h"
#include "plugin/ofi/ofi_param.h"
#include "rail/net.h"

#define OFI_TAG "ROF" /* begins the magic numbers of the handshake, and those in memory */
#define OFI_WIRE_VERSION 5
#define OFI_MAX_PATHS 4      /* NICs of one device */
#define OFI_MAX_GROUP 8      /* buffers of one irecv: maxRecvs */
#define OFI_MAX_RECVS RAIL_NET_MAX_REQUESTS /* irecvs outstanding on one comm */
#define OFI_MAX_SENDS (OFI_MAX_RECVS * OFI_MAX_GROUP)
#define OFI_FIRST_SEQ 0xffffff00u
#define OFI_MAX_EAGER 96 /* EAGERs that a receiver keeps a place for */
/* GRANTs that a sender may have to keep: those of receives that are outstanding, and of those that EAGERs filled while
 * an earlier GRANT was on its way. Tables of EAGERs have as many entries. */
#define OFI_MAX_GRANTS (OFI_MAX_RECVS + OFI_MAX_EAGER)
_Static_assert((OFI_MAX_GRANTS & (OFI_MAX_GRANTS - 1)) == 0, "numbers wrap");
#define OFI_MAX_COMMS (1u << 20) /* of one endpoint: what a tag has room for */

extern const struct rail_protocol ofi_protocol;

/* Reads the key of RAIL_OFI_AUTH_FILE, once; call under the plugin's lock. False, after one line: it cannot be read,
 * so there must be no connections at all. */
bool ofi_protocol_load(void);

/* ---- handshake ------------------------------------------------------------ */

enum ofi_reason { /* beside enum rail_reason; on the wire */
  OFI_REASON_PROVIDER = RAIL_REASON_PLUGIN, /* the two sides' providers differ */
  OFI_REASON_FABRIC,                        /* the fabric carried no message between the two */
};

enum ofi_message_type { /* beside RAIL_MESSAGE_ANSWER */
  OFI_MESSAGE_OFFER = 2,
  OFI_MESSAGE_READY = 3, /* without body: every path has carried a PING to this side */
};

#define OFI_NAME_SIZE 64
#define OFI_ADDR_SIZE 256 /* of an endpoint's address, at most */

struct ofi_offer {
  uint64_t process; /* random, the same in all connections of a process */
  uint64_t token;
  uint32_t comm;
  uint32_t max_inline; /* of the payload of a frame that this side takes, and sends */
  unsigned int nnics; /* NICs of this side: 1..OFI_MAX_PATHS */
  uint32_t eager_count;      /* EAGERs that this side has places for, or sends on credit; 0: none */
  char provider[OFI_NAME_SIZE], domain[OFI_NAME_SIZE]; /* domain: of the first NIC, for log lines */
  struct ofi_address {
    uint16_t size;
    uint8_t bytes[OFI_ADDR_SIZE + 1]; /* zero behind the address */
  } addrs[OFI_MAX_PATHS];
};

struct ofi_offer_wire {
  uint64_t process, token;
  uint32_t comm, max_inline;
  uint8_t nnics, zero;
  uint16_t eager_count;
  uint8_t zeros[4];
  char provider[OFI_NAME_SIZE], domain[OFI_NAME_SIZE];
  struct ofi_address_wire {
    uint16_t size;
    uint8_t bytes[OFI_ADDR_SIZE];
    uint8_t zeros[6];
  } addrs[OFI_MAX_PATHS]; /* nnics of them are sent */
};
_Static_assert(offsetof(struct ofi_offer_wire, addrs) == 160, "offer layout");
_Static_assert(sizeof(struct ofi_address_wire) == 264, "address layout");
_Static_assert(sizeof(struct ofi_offer_wire) <= RAIL_BODY_MAX, "the largest body");

size_t ofi_offer_encode(const struct ofi_offer *offer, struct ofi_offer_wire *wire);
/* NULL, or what is wrong. */
const char *ofi_offer_decode(const void *body, size_t size, struct ofi_offer *offer);
/* May libfabric read a peer's address, which it takes without a length? `own`: this side's, of the same provider, which
 * has strings (FI_ADDR_STR) or bytes of one length. */
bool ofi_address_fits(const struct ofi_address *address, const struct ofi_address *own, bool is_string);

/* ---- frames ----------------------------------------------------------------- */

enum ofi_frame_type {
  OFI_FRAME_PING = 1,
  OFI_FRAME_GRANT = 2,
  OFI_FRAME_ACK = 3,
  OFI_FRAME_DATA = 4,
  OFI_FRAME_FIN = 5,
  OFI_FRAME_TOO_LARGE = 6,
  OFI_FRAME_REVOKE = 7,
  OFI_FRAME_REVOKED = 8,
  OFI_FRAME_EAGER = 9,
  OFI_FRAME_ASK = 10,
  OFI_FRAME_PONG = 11,
  OFI_FRAME_TYPES
};

/* What a connection has carried, as one side sees it: the same on both sides where nothing is under way. */
struct ofi_counts {
  uint32_t eagers; /* number of the next EAGER: to be sent; to arrive, behind all before it */
  uint32_t filled; /* messages for buffers that were granted: sent; here */
  uint32_t grants; /* number of the next GRANT: to be made; to arrive, behind all before it */
};

/* What a receiver has, cumulative: a later report makes an earlier one redundant. */
struct ofi_report {
  uint32_t seen;   /* all EAGERs before this number are here */
  uint32_t freed;  /* and the places of all before this one are free again */
  uint32_t filled; /* how many buffers that were granted have their message by DATA, FIN or a tagged receive */
};

enum ofi_buffer_kind {
  OFI_BUFFER_TAGGED = 1, /* a tagged receive is posted: fi_tsend */
  OFI_BUFFER_RMA = 2,    /* fi_write, then FIN */
  OFI_BUFFER_INLINE = 3, /* DATA alone: the buffer is no larger than max_inline */
  OFI_BUFFER_FILLED = 4, /* by an EAGER: nothing is to be sent */
};

struct ofi_buffer {
  uint64_t addr, size; /* addr: for fi_write, in the receiver's terms (FI_MR_VIRT_ADDR or offset) */
  uint64_t keys[OFI_MAX_PATHS]; /* by the receiver's NIC */
  uint32_t tag;        /* NCCL's */
  enum ofi_buffer_kind kind;
  unsigned int path;   /* of the tagged receive */
  bool takes_data;     /* a DATA is as good: host memory */
  bool last;           /* of its receive; the next one's is of the next GRANT */
};

/* Of one frame, of all its receives: as many as fit into OFI_FRAME_MAX where each has one key. */
#define OFI_FRAME_BUFFERS 14

/* What many of the fields mean, and so their names, depends on the type; 0 where the type has none. */
struct ofi_frame {
  enum ofi_frame_type type;
  uint32_t comm;
  uint64_t token;
  union {
    uint32_t seq;        /* the number, whatever it is of */
    uint32_t grant;      /* GRANT: its number, of several the first; DATA, FIN, TOO_LARGE: of the buffer's GRANT */
    uint32_t next_grant; /* ACK: number of the next GRANT */
    uint32_t eager;      /* EAGER: its number */
    uint32_t next_eager; /* ASK: number of the next EAGER; PONG: ofi_counts.eagers */
    uint32_t wants_pong; /* PING: 0 in the handshake, else 1 */
  };
  union {
    unsigned int index; /* DATA, FIN, TOO_LARGE: of the buffer in its receive */
    unsigned int path;  /* PING, PONG */
  };
  union {
    unsigned int parts;   /* FIN: of the message */
    unsigned int is_idle; /* PONG: 1 where its side has nothing under way, else 0 */
  };
  unsigned int nbuffers; /* GRANT 1..OFI_FRAME_BUFFERS, else 0 */
  unsigned int nkeys; /* of each buffer: NICs of the receiver */
  uint64_t size;      /* EAGER, DATA, FIN, TOO_LARGE: of the message */
  union {
    uint32_t tag;    /* EAGER: NCCL's */
    uint32_t filled; /* PONG: ofi_counts.filled */
  };
  union {
    uint32_t count;         /* whatever it is of */
    uint32_t first_unknown; /* EAGER: number of the first GRANT that its sender did not know */
    uint32_t granted_sends; /* ASK: messages that were sent to granted buffers, ever */
    uint32_t grants;        /* PONG: ofi_counts.grants */
  };
  struct ofi_report report; /* GRANT, ACK */
  struct ofi_buffer buffers[OFI_FRAME_BUFFERS];
};

/* A frame without buffers, of which only `type` is set; much cheaper than to zero all of it. */
static inline void ofi_frame_begin(struct ofi_frame *frame, enum ofi_frame_type type) {
  frame->type = type;
  frame->seq = 0;
  frame->index = frame->parts = frame->nbuffers = frame->nkeys = 0;
  frame->size = 0;
  frame->tag = frame->count = 0;
}

#define OFI_FRAME_MAGIC 0xf1u

/* Then the report, then the buffers, or the payload. It is written and read in place, at any address: a copy would be
 * read in other pieces than those it was written in, which stalls a processor's loads. */
struct ofi_frame_wire {
  uint8_t magic, version;
  uint8_t type, index;
  uint32_t comm;
  uint64_t token;
  uint32_t seq;
  uint8_t parts, nbuffers, nkeys, zero;
  union {
    uint64_t size;
    struct { uint32_t tag, count; }; /* of those that ofi_frame_has_count names */
  };
} __attribute__((packed, may_alias));
_Static_assert(sizeof(struct ofi_frame_wire) == 32, "frame layout");

struct ofi_report_wire {
  uint32_t seen, freed, filled, zero;
};

struct ofi_buffer_wire { /* then nkeys keys of 8 bytes */
  uint64_t addr, size;
  uint32_t tag;
  uint8_t kind, path, takes_data, last;
};
_Static_assert(sizeof(struct ofi_buffer_wire) == 24, "buffer layout");

#define OFI_FRAME_SIZE sizeof(struct ofi_frame_wire)
#define OFI_BUFFER_SIZE(nkeys) (sizeof(struct ofi_buffer_wire) + 8u * (nkeys))
#define OFI_BUFFERS_MAX (OFI_MAX_GROUP * OFI_BUFFER_SIZE(OFI_MAX_PATHS)) /* bytes: any one receive fits */
_Static_assert(OFI_FRAME_BUFFERS == OFI_BUFFERS_MAX / OFI_BUFFER_SIZE(1), "buffers of a frame");
#define OFI_FRAME_MAX (OFI_FRAME_SIZE + sizeof(struct ofi_report_wire) + OFI_BUFFERS_MAX)

/* Those with tag and count instead of a size. */
static inline bool ofi_frame_has_count(unsigned int type) {
  return type == OFI_FRAME_EAGER || type == OFI_FRAME_ASK || type == OFI_FRAME_PONG;
}

/* The first OFI_FRAME_SIZE bytes, which are all but for a GRANT and an ACK. Inlined: where the type is known, most
 * fields are constants. */
RAIL_HOT_INLINE void ofi_head_encode(const struct ofi_frame *frame, void *bytes) {
  struct ofi_frame_wire *wire = bytes;
  wire->magic = OFI_FRAME_MAGIC;
  wire->version = OFI_WIRE_VERSION;
  wire->type = (uint8_t)frame->type;
  wire->index = (uint8_t)frame->index;
  wire->comm = htole32(frame->comm);
  wire->token = htole64(frame->token);
  wire->seq = htole32(frame->seq);
  wire->parts = (uint8_t)frame->parts;
  wire->nbuffers = (uint8_t)frame->nbuffers;
  wire->nkeys = (uint8_t)(frame->nbuffers ? frame->nkeys : 0);
  wire->zero = 0;
  if (ofi_frame_has_count(frame->type)) {
    wire->tag = htole32(frame->tag);
    wire->count = htole32(frame->count);
  } else {
    wire->size = htole64(frame->size);
  }
}

/* `bytes`: OFI_FRAME_MAX, or OFI_FRAME_SIZE for frames other than GRANT and ACK. Returns the size. */
size_t ofi_frame_encode(const struct ofi_frame *frame, void *bytes);
/* A received message of `size` bytes that is no EAGER (ofi_is_eager). False: no frame that this version sends. Fields
 * that name a comm, a GRANT, an EAGER, a path or a number of keys are the caller's to check. *payload: of DATA,
 * frame->size bytes. */
bool ofi_frame_decode(const void *bytes, size_t size, struct ofi_frame *frame, const void **payload);
/* Of a message that is none: begins it as one of this version's? Then its comm and token, and its type as it is. */
bool ofi_frame_decode_head(const void *bytes, size_t size, struct ofi_frame *frame);

/* ---- EAGER, which is read in place: most messages of few bytes are one ------------ */

struct ofi_eager {
  uint32_t seq;           /* its number */
  uint32_t tag;           /* NCCL's */
  uint32_t first_unknown; /* number of the first GRANT that its sender did not know */
  uint32_t size;          /* of the payload */
  const void *payload;
};

/* Is a received message of `size` bytes an EAGER of this version? Comm, token and the fields of struct ofi_eager are
 * the caller's to check. What is compared: magic, version, type, index; parts, nbuffers, nkeys, zero. */
static inline bool ofi_is_eager(const struct ofi_frame_wire *wire, size_t size) {
  static const uint8_t first[] = {OFI_FRAME_MAGIC, OFI_WIRE_VERSION, OFI_FRAME_EAGER, 0}, zeros[4];
  return size >= sizeof *wire && memcmp(wire, first, sizeof first) == 0 &&
         memcmp(&wire->parts, zeros, sizeof zeros) == 0 && size - sizeof *wire <= OFI_MAX_INLINE;
}

static inline struct ofi_eager ofi_eager_decode(const struct ofi_frame_wire *wire, size_t size) {
  return (struct ofi_eager){.seq = le32toh(wire->seq), .tag = le32toh(wire->tag),
                            .first_unknown = le32toh(wire->count), .size = (uint32_t)(size - sizeof *wire),
                            .payload = wire + 1};
}

/* ---- tags of tagged messages ---------------------------------------------------- */

/* The tag of a tagged message, 44 bits: the receiver's comm and bits of its token, the GRANT, the buffer. Receives of
 * one comm have GRANTs of different numbers modulo OFI_MAX_GRANTS. One that comes late, for a comm that is closed,
 * must not fit a receive of the next comm with that index: all other bits are the token's. */
#define OFI_TAG_INDEX_BITS 3
#define OFI_TAG_SEQ_BITS 7
#define OFI_TAG_TOKEN_BITS 14
_Static_assert(1u << OFI_TAG_INDEX_BITS == OFI_MAX_GROUP && 1u << OFI_TAG_SEQ_BITS == OFI_MAX_GRANTS, "tag layout");
static inline uint64_t ofi_tag(uint32_t comm, uint64_t token, uint32_t seq, unsigned int index) {
  uint64_t tag = (uint64_t)comm << OFI_TAG_TOKEN_BITS | (token & ((1u << OFI_TAG_TOKEN_BITS) - 1));
  tag = tag << OFI_TAG_SEQ_BITS | seq % OFI_MAX_GRANTS;
  return tag << OFI_TAG_INDEX_BITS | index;
}

#endif
