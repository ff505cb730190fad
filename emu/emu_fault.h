/* SPDX-License-Identifier: Apache-2.0
 * Statements, and the faults among them. */
#ifndef EMU_FAULT_H
#define EMU_FAULT_H

#include "emu/emu.h"

enum { EMU_WORDS = 32 };

struct emu_statement {
  int n;
  char *words[EMU_WORDS];
  const char *file; /* where it stands */
  int line;
};
struct emu_word {
  const char *name;
  int value;
};
/* A statement's first word, and what may follow it: so many words, and key=value. `keys` has blanks between them.
 * NULL: a statement follows. */
struct emu_verb {
  const char *name;
  bool (*run)(const struct emu_statement *s);
  int words;
  const char *keys;
};

/* emu_statement.c. A refusal is a line on stderr with file, line and statement; what refuses returns false. */
__attribute__((format(printf, 2, 3))) bool emu_refuse(const struct emu_statement *s, const char *format, ...);
bool emu_statement_fits(const struct emu_statement *s, const struct emu_verb *verb); /* or refuses */
const char *emu_value(const struct emu_statement *s, const char *key); /* of key=, or NULL */
bool emu_read_number(const struct emu_statement *s, const char *text, int base, unsigned long highest,
                     unsigned long *number); /* or refuses */
uint64_t emu_number(const struct emu_statement *s, const char *key, uint64_t otherwise); /* one that is known to fit */
/* The value of a word; refuses what is none of them. NULL: true, and no value. */
bool emu_choose(const struct emu_statement *s, const char *text, const struct emu_word *words, int *value);
struct emu_device *emu_device_named(const char *name);
/* That of words 1 and 2; NULL: they are refused. */
struct emu_device *emu_device_and_port(const struct emu_statement *s, unsigned int *number);

extern const struct emu_verb emu_config_verbs[], emu_fault_verbs[]; /* up to a name that is NULL */

/* emu_script.c */
void emu_load(void); /* once; takes the lock */
void emu_script_pending(void); /* those that wait for this moment */
void emu_commands(void);       /* statements that were appended to the file RAIL_EMU_CONTROL */
uint64_t emu_commands_next(void); /* when that is to be done again */

/* ---- the table of faults ------------------------------------------------------ */

enum { EMU_FAULTS = 64, EMU_DUE_BYTES = 4096 };

enum emu_fault_kind {
  EMU_FAULT_CALL,
  EMU_FAULT_COMPLETE,
  EMU_FAULT_STALL,
  EMU_FAULT_DROP,
  EMU_FAULT_DELAY,
  EMU_FAULT_DUPLICATE,
  EMU_FAULT_TEAR,
  EMU_FAULT_SLOW,
  EMU_FAULT_IMMEDIATE,
  EMU_FAULT_CM,
};

/* Of the things that it is about, those from the `from`-th on, `times` of them, each with probability 1 in `rate`. */
struct emu_fault {
  enum emu_fault_kind kind;
  char call[24], op[8];
  long from, times, seen;
  uint32_t rate, qp; /* qp 0: any */
  int err, to, status;
  uint32_t vendor, xor;
  uint64_t ns;
};

extern struct emu_faults {
  struct emu_fault all[EMU_FAULTS];
  int n;
  unsigned int packets, requests, receives, slow, calls; /* how many of these kinds there are */
  uint64_t random;
  long cm_answer_ms; /* 0: as usual */
  /* Statements that wait for a request: `at N …`. */
  struct { long request; char text[160]; } later[8];
  int nlater;
  long begun;                   /* requests */
  char due_text[EMU_DUE_BYTES]; /* to be run before anything else is sent */
} emu_faults;

static inline bool emu_fault_of_packets(const struct emu_fault *f) {
  return f->kind == EMU_FAULT_DROP || f->kind == EMU_FAULT_DELAY || f->kind == EMU_FAULT_DUPLICATE ||
         f->kind == EMU_FAULT_TEAR;
}

/* emu_fault.c */
void emu_faults_changed(void);
void emu_faults_seed(uint64_t seed);
bool emu_fault_is_due(struct emu_fault *f); /* counts */
bool emu_fault_is_about(const struct emu_fault *f, const struct emu_qp *qp, const char *op);
int emu_fault_call(const char *call, int to_state); /* 0, or the errno that the call is to fail with */
int emu_fault_poll(void); /* the same for ibv_poll_cq, which is counted elsewhere */
struct emu_verdict {
  bool stall; /* it never completes */
  enum ibv_wc_status status;
  uint32_t vendor;
};
struct emu_verdict emu_fault_request(struct emu_qp *qp, enum ibv_wr_opcode op); /* before its first packet */
bool emu_fault_is_pending(void); /* statements wait: nothing is sent before they have been run */
void emu_fault_receive(struct emu_qp *qp, struct ibv_wc *wc); /* changes the completion of a receive */
uint64_t emu_fault_slow(struct emu_qp *qp); /* ns to wait before the next packet */

/* emu_fault_packet.c */
typedef void (*emu_give)(struct emu_qp *qp, const struct emu_packet *packet, const char *payload);
/* True: the packet was dropped, or is held back. */
bool emu_fault_packet(struct emu_qp *qp, const struct emu_packet *packet, const char *payload, emu_give give);
/* For each queue pair with packets that are held back: the position of the oldest one in its ring. */
void emu_fault_each_held(void (*fn)(const struct emu_qp *qp, uint64_t at));
void emu_fault_forget(struct emu_qp *qp);
/* Delivers held packets whose time has come; returns when the next is due, UINT64_MAX: there is none. */
uint64_t emu_fault_due(uint64_t now, emu_give give);

#endif
