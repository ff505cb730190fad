/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults, by statements (docs/emu.md): calls that fail, requests that end with a status or never, packets that are
 * lost, late, double or torn. Packets are taken where they arrive. What is random follows from the seed. */
#include "emu/emu_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/rail_emu.h"

enum { MAX_FAULTS = 64, MAX_CALLS = 32, LATER_BYTES = 4096, HELD_MOST = 4096 };

enum kind { CALL, COMPLETE, STALL, DROP, DELAY, DUPLICATE, TEAR, SLOW, CM };

/* Of the things that it is about, those from the `from`-th on, `times` of them, each with probability 1 in `rate`. */
struct fault {
  enum kind kind;
  char call[24], op[8];
  long from, times, seen;
  uint32_t rate, qp; /* qp 0: any */
  int err, to, status;
  uint32_t vendor;
  uint64_t ns;
  bool overtake;
};
static struct fault faults[MAX_FAULTS];
static int nfaults;
static unsigned int packet_faults, request_faults, slow_faults, call_faults; /* how many of these kinds there are */
static uint64_t random_state = 0x9e3779b97f4a7c15u;
static struct { char name[24]; long count; } calls[MAX_CALLS];
static long cm_answer_ms; /* 0: as usual */

/* Statements that wait for a request: `at N …`. */
static struct { long request; char text[160]; } later[8];
static int nlater;
static long requests;
static char due_text[LATER_BYTES]; /* to be run before anything else is sent */

struct emu_held {
  STAILQ_ENTRY(emu_held) link;
  uint64_t due;
  struct emu_packet packet;
  char payload[];
};
static unsigned int nheld;

static const struct emu_word errors[] = {
  {"ENOMEM", ENOMEM}, {"ETIMEDOUT", ETIMEDOUT}, {"EINVAL", EINVAL}, {"EIO", EIO}, {"EPERM", EPERM}, {"EFAULT", EFAULT},
  {"EAGAIN", EAGAIN}, {"ENOSYS", ENOSYS}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ENODEV", ENODEV}, {"EBUSY", EBUSY}, {NULL, 0}};
static const struct emu_word states[] = {
  {"reset", IBV_QPS_RESET}, {"init", IBV_QPS_INIT}, {"rtr", IBV_QPS_RTR}, {"rts", IBV_QPS_RTS}, {"err", IBV_QPS_ERR},
  {NULL, 0}};
static const struct emu_word statuses[] = {
  {"loc_len_err", IBV_WC_LOC_LEN_ERR}, {"loc_qp_op_err", IBV_WC_LOC_QP_OP_ERR}, {"loc_prot_err", IBV_WC_LOC_PROT_ERR},
  {"wr_flush_err", IBV_WC_WR_FLUSH_ERR}, {"bad_resp_err", IBV_WC_BAD_RESP_ERR},
  {"loc_access_err", IBV_WC_LOC_ACCESS_ERR}, {"rem_inv_req_err", IBV_WC_REM_INV_REQ_ERR},
  {"rem_access_err", IBV_WC_REM_ACCESS_ERR}, {"rem_op_err", IBV_WC_REM_OP_ERR},
  {"retry_exc_err", IBV_WC_RETRY_EXC_ERR}, {"rnr_retry_exc_err", IBV_WC_RNR_RETRY_EXC_ERR},
  {"fatal_err", IBV_WC_FATAL_ERR}, {"general_err", IBV_WC_GENERAL_ERR}, {NULL, 0}};
static const struct emu_word events[] = {
  {"device_fatal", IBV_EVENT_DEVICE_FATAL}, {"port_active", IBV_EVENT_PORT_ACTIVE}, {"port_err", IBV_EVENT_PORT_ERR},
  {"lid_change", IBV_EVENT_LID_CHANGE}, {"gid_change", IBV_EVENT_GID_CHANGE}, {"pkey_change", IBV_EVENT_PKEY_CHANGE},
  {"sm_change", IBV_EVENT_SM_CHANGE}, {"client_reregister", IBV_EVENT_CLIENT_REREGISTER},
  {"qp_fatal", IBV_EVENT_QP_FATAL}, {"qp_req_err", IBV_EVENT_QP_REQ_ERR},
  {"qp_access_err", IBV_EVENT_QP_ACCESS_ERR}, {"comm_est", IBV_EVENT_COMM_EST}, {"cq_err", IBV_EVENT_CQ_ERR},
  {NULL, 0}};

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

/* ---- statements ------------------------------------------------------------------ */

static void count_kinds(void) {
  packet_faults = request_faults = slow_faults = call_faults = 0;
  for (int i = 0; i < nfaults; i++) {
    enum kind kind = faults[i].kind;
    packet_faults += kind == DROP || kind == DELAY || kind == DUPLICATE || kind == TEAR;
    request_faults += kind == COMPLETE || kind == STALL;
    slow_faults += kind == SLOW;
    call_faults += kind == CALL;
  }
}

static uint32_t qp_of(const struct emu_statement *s) {
  const char *text = emu_value(s, "qp");
  if (!text) return 0;
  if (strcmp(text, "last") == 0) return emu.last_qp ? emu.last_qp->ex.qp_base.qp_num : UINT32_MAX;
  return (uint32_t)strtoul(text, NULL, 0);
}

static bool add_fault(const struct emu_statement *s, struct fault *f) {
  const char *times = emu_value(s, "times"), *op = emu_value(s, "op");
  if (nfaults == MAX_FAULTS) return emu_complain(s, "more than 64 faults");
  f->rate = (uint32_t)emu_number(s, "rate", 0, 10);
  f->from = (long)emu_number(s, "from", 1, 10);
  /* A rate goes on; without one it is once. */
  f->times = f->rate || (times && strcmp(times, "ever") == 0) ? LONG_MAX / 2 : (long)emu_number(s, "times", 1, 10);
  f->qp = qp_of(s);
  snprintf(f->op, sizeof f->op, "%s", op ? op : "any");
  faults[nfaults++] = *f;
  count_kinds();
  return true;
}

static bool do_fail(const struct emu_statement *s) {
  struct fault f = {.kind = CALL, .to = -1};
  if (s->n < 2) return emu_complain(s, "wants a call");
  snprintf(f.call, sizeof f.call, "%s", s->words[1]);
  f.err = strcmp(f.call, "modify_qp") == 0 ? ETIMEDOUT : ENOMEM;
  if (emu_value(s, "errno") && !emu_word(errors, emu_value(s, "errno"), &f.err))
    return emu_complain(s, "no such errno");
  if (emu_value(s, "to") && !emu_word(states, emu_value(s, "to"), &f.to)) return emu_complain(s, "no such state");
  return add_fault(s, &f);
}

static bool do_complete(const struct emu_statement *s) {
  struct fault f = {.kind = COMPLETE, .vendor = (uint32_t)emu_number(s, "vendor", 0x81, 16)};
  if (s->n < 2 || !emu_word(statuses, s->words[1], &f.status)) return emu_complain(s, "no such status");
  return add_fault(s, &f);
}

/* stall, drop, delay, duplicate, tear, slow. */
static bool do_kind(const struct emu_statement *s, enum kind kind, uint64_t us) {
  struct fault f = {.kind = kind, .ns = emu_number(s, "us", us, 10) * 1000,
                    .overtake = emu_number(s, "overtake", 0, 10) != 0};
  if (kind == SLOW && !emu_value(s, "times")) {
    bool good = add_fault(s, &f);
    if (good) faults[nfaults - 1].times = LONG_MAX / 2;
    return good;
  }
  return add_fault(s, &f);
}
static bool do_stall(const struct emu_statement *s) { return do_kind(s, STALL, 0); }
static bool do_drop(const struct emu_statement *s) { return do_kind(s, DROP, 0); }
static bool do_delay(const struct emu_statement *s) { return do_kind(s, DELAY, 1000); }
static bool do_duplicate(const struct emu_statement *s) { return do_kind(s, DUPLICATE, 0); }
static bool do_tear(const struct emu_statement *s) { return do_kind(s, TEAR, 100); }
static bool do_slow(const struct emu_statement *s) { return do_kind(s, SLOW, 1000); }

static const struct emu_word cm_actions[] = {
  {"lost", RAIL_EMU_CM_LOST}, {"late", RAIL_EMU_CM_LATE}, {"reject", RAIL_EMU_CM_REJECT}, {NULL, 0}};
static const char *const cm_events[] = {"addr_resolved", "route_resolved", "connect_request", "connect_response",
                                        "established", "rejected", "disconnected", "any"};

/* cm lost|late|reject event=…; cm answer ms=N. */
static bool do_cm(const struct emu_statement *s) {
  const char *event = emu_value(s, "event");
  struct fault f = {.kind = CM, .ns = emu_number(s, "us", 100000, 10) * 1000};
  if (s->n >= 2 && strcmp(s->words[1], "answer") == 0) {
    cm_answer_ms = (long)emu_number(s, "ms", 0, 10);
    return true;
  }
  if (s->n < 2 || !emu_word(cm_actions, s->words[1], &f.status)) return emu_complain(s, "lost, late, reject or answer");
  for (size_t i = 0; i < sizeof cm_events / sizeof cm_events[0]; i++)
    if (strcmp(event ? event : "any", cm_events[i]) == 0) {
      snprintf(f.call, sizeof f.call, "%s", cm_events[i]);
      return add_fault(s, &f);
    }
  return emu_complain(s, "no such event");
}

static bool do_seed(const struct emu_statement *s) {
  if (s->n < 2) return emu_complain(s, "wants a number");
  random_state = strtoull(s->words[1], NULL, 0) * 0x9e3779b97f4a7c15u + 1;
  return true;
}

static bool do_clock(const struct emu_statement *s) {
  if (s->n < 2 || (strcmp(s->words[1], "virtual") != 0 && strcmp(s->words[1], "real") != 0))
    return emu_complain(s, "virtual or real");
  emu.virtual_clock = strcmp(s->words[1], "virtual") == 0;
  return true;
}

/* All that a network may do and a connection must bear, at random. */
static bool do_adversary(const struct emu_statement *s) {
  char text[] = "delay us=300 rate=16; delay us=20 rate=4; tear us=50 rate=4; duplicate rate=64; drop rate=256;"
                "clock virtual";
  return (s->n < 2 || do_seed(s)) && emu_script(text);
}

static bool do_fatal(const struct emu_statement *s) {
  struct emu_device *d = s->n >= 2 ? emu_device_named(s->words[1]) : NULL;
  if (!d) return emu_complain(s, "no such device");
  emu_device_fatal(d);
  return true;
}

static bool do_qp_error(const struct emu_statement *s) {
  struct emu_qp *qp = emu_qp_find(qp_of(s));
  if (!qp) return emu_complain(s, "wants qp=NUMBER, or qp=last");
  emu_qp_error(qp);
  emu_raise_qp(qp, IBV_EVENT_QP_FATAL);
  return true;
}

static bool do_event(const struct emu_statement *s) {
  int type;
  struct emu_device *d = s->n >= 3 ? emu_device_named(s->words[1]) : NULL;
  if (!d || !emu_word(events, s->words[2], &type)) return emu_complain(s, "no such device or event");
  struct ibv_async_event event = {.event_type = (enum ibv_event_type)type};
  struct emu_qp *qp = emu_value(s, "qp") ? emu_qp_find(qp_of(s)) : emu.last_qp;
  bool of_qp = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR ||
               type == IBV_EVENT_COMM_EST || type == IBV_EVENT_CQ_ERR;
  if (of_qp && !qp) return emu_complain(s, "there is no such QP");
  if (type == IBV_EVENT_CQ_ERR) event.element.cq = qp->ex.qp_base.send_cq;
  else if (of_qp) event.element.qp = &qp->ex.qp_base;
  else event.element.port_num = (int)emu_number(s, "port", 1, 10);
  emu_raise(d, &event);
  return true;
}

/* at N STATEMENT: when this process' N-th request begins, counted from here on. */
static bool do_at(const struct emu_statement *s) {
  if (s->n < 3 || nlater == sizeof later / sizeof later[0])
    return emu_complain(s, "wants a number and a statement; there may be 8");
  size_t used = 0;
  later[nlater].request = requests + strtol(s->words[1], NULL, 10);
  for (int i = 2; i < s->n && used < sizeof later[0].text; i++)
    used += (size_t)snprintf(later[nlater].text + used, sizeof later[0].text - used, "%s ", s->words[i]);
  if (used >= sizeof later[0].text) return emu_complain(s, "too long");
  nlater++;
  return true;
}

static bool do_reset(const struct emu_statement *s) {
  (void)s;
  nfaults = nlater = 0;
  cm_answer_ms = 0;
  count_kinds();
  return true;
}

bool emu_fault_statement(const struct emu_statement *s, bool *good) {
  static const struct { const char *verb; bool (*run)(const struct emu_statement *s); } verbs[] = {
    {"fail", do_fail}, {"complete", do_complete}, {"stall", do_stall}, {"drop", do_drop}, {"delay", do_delay},
    {"duplicate", do_duplicate}, {"tear", do_tear}, {"slow", do_slow}, {"seed", do_seed}, {"clock", do_clock},
    {"adversary", do_adversary}, {"fatal", do_fatal}, {"qp_error", do_qp_error}, {"event", do_event}, {"at", do_at},
    {"reset", do_reset}, {"cm", do_cm}};
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    if (strcmp(verbs[i].verb, s->words[0]) == 0) {
      *good = verbs[i].run(s);
      return true;
    }
  return false;
}

/* ---- whether it is time ------------------------------------------------------------- */

static bool is_due(struct fault *f) {
  f->seen++;
  if (f->seen < f->from || f->seen - f->from >= f->times) return false;
  return f->rate == 0 || next_random() % f->rate == 0;
}

int emu_fault_call(const char *call, int to_state) {
  int err = 0;
  for (int i = 0; i < MAX_CALLS; i++) {
    if (!calls[i].name[0]) snprintf(calls[i].name, sizeof calls[i].name, "%s", call);
    if (strcmp(calls[i].name, call) != 0) continue;
    calls[i].count++;
    break;
  }
  for (int i = 0; i < nfaults && call_faults; i++) {
    struct fault *f = &faults[i];
    if (f->kind == CALL && strcmp(f->call, call) == 0 && (f->to < 0 || f->to == to_state) && is_due(f) && !err)
      err = f->err;
  }
  return err;
}

long rail_emu_calls(const char *call) {
  long count = 0;
  pthread_mutex_lock(&emu.lock);
  for (int i = 0; i < MAX_CALLS; i++)
    if (strcmp(calls[i].name, call) == 0) count = calls[i].count;
  pthread_mutex_unlock(&emu.lock);
  return count;
}

/* ---- the connection manager's events ------------------------------------------------- */

enum rail_emu_cm rail_emu_cm_fault(const char *event, long *us) {
  enum rail_emu_cm action = RAIL_EMU_CM_NONE;
  emu_load();
  pthread_mutex_lock(&emu.lock);
  emu_fault_commands();
  for (int i = 0; i < nfaults; i++) {
    struct fault *f = &faults[i];
    if (f->kind != CM || (strcmp(f->call, "any") != 0 && strcmp(f->call, event) != 0) || !is_due(f) || action) continue;
    action = (enum rail_emu_cm)f->status;
    *us = (long)(f->ns / 1000);
  }
  pthread_mutex_unlock(&emu.lock);
  return action;
}

long rail_emu_cm_answer_ms(long otherwise) {
  emu_load();
  pthread_mutex_lock(&emu.lock);
  long ms = cm_answer_ms ? cm_answer_ms : otherwise;
  pthread_mutex_unlock(&emu.lock);
  return ms;
}

/* ---- requests ------------------------------------------------------------------------ */

static const char *name_of(enum ibv_wr_opcode op) {
  switch (op) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return "send";
    case IBV_WR_RDMA_WRITE: return "write";
    case IBV_WR_RDMA_WRITE_WITH_IMM: return "imm";
    case IBV_WR_RDMA_READ: return "read";
    default: return "atomic";
  }
}

static bool is_about(const struct fault *f, const struct emu_qp *qp, const char *op) {
  return (strcmp(f->op, "any") == 0 || strcmp(f->op, op) == 0) && (!f->qp || f->qp == qp->ex.qp_base.qp_num);
}

/* Statements whose request this is wait for the end of the current call: they may break the QP that is just sending. */
static void look_for_later(void) {
  requests++;
  for (int i = 0; i < nlater; i++) {
    if (later[i].request != requests) continue;
    size_t used = strlen(due_text);
    snprintf(due_text + used, sizeof due_text - used, "%s;", later[i].text);
    later[i] = later[--nlater];
    i--;
  }
}

struct emu_verdict emu_fault_request(struct emu_qp *qp, enum ibv_wr_opcode op) {
  struct emu_verdict verdict = {.status = IBV_WC_SUCCESS};
  look_for_later();
  for (int i = 0; i < nfaults && request_faults; i++) {
    struct fault *f = &faults[i];
    if ((f->kind != COMPLETE && f->kind != STALL) || !is_about(f, qp, name_of(op)) || !is_due(f)) continue;
    if (f->kind == STALL) verdict.stall = true;
    else if (verdict.status == IBV_WC_SUCCESS) {
      verdict.status = (enum ibv_wc_status)f->status;
      verdict.vendor = f->vendor;
    }
  }
  return verdict;
}

bool emu_fault_is_holding(void) { return nheld; }
bool emu_fault_is_pending(void) { return due_text[0]; }

void emu_fault_run_pending(void) {
  char text[LATER_BYTES];
  if (!due_text[0]) return;
  memcpy(text, due_text, sizeof text);
  due_text[0] = 0;
  (void)emu_script(text);
}

uint64_t emu_fault_slow(struct emu_qp *qp) {
  uint64_t ns = 0;
  for (int i = 0; i < nfaults && slow_faults; i++)
    if (faults[i].kind == SLOW && is_about(&faults[i], qp, "any") && is_due(&faults[i])) ns += faults[i].ns;
  return ns;
}

/* ---- packets ---------------------------------------------------------------------------- */

static const char *packet_name(const struct emu_packet *p) {
  switch (p->op) {
    case EMU_OP_SEND:
    case EMU_OP_UD: return "send";
    case EMU_OP_WRITE: return p->flags & EMU_IMM ? "imm" : "write";
    case EMU_OP_READ: return "read";
    case EMU_OP_ACK: return "ack";
    case EMU_OP_READ_RESPONSE:
    case EMU_OP_ATOMIC_RESPONSE: return "answer";
    default: return "atomic";
  }
}

/* Behind those of its QP that are held already, unless it may overtake. False: no memory; it goes on at once. */
static bool hold(struct emu_qp *qp, const struct emu_packet *p, const char *payload, uint64_t due, bool first) {
  if (nheld >= HELD_MOST) return false;
  struct emu_held *h = malloc(sizeof *h + p->payload);
  if (!h) return false;
  nheld++;
  h->packet = *p;
  h->due = due;
  emu_move(h->payload, payload, p->payload);
  if (first) STAILQ_INSERT_HEAD(&qp->held, h, link);
  else STAILQ_INSERT_TAIL(&qp->held, h, link);
  if (due < emu.next_held) emu.next_held = due;
  if (emu.engine_until && due < emu.engine_until) emu_engine_wake();
  return true;
}

/* The second half of what a write brings is there long before the first, and both before its completion. Lines of 128
 * bytes stay whole: what NCCL's LL128 relies on holds for devices that write them at once. */
static bool tear(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  bool first = p->flags & EMU_FIRST;
  uint64_t va = first ? p->va : qp->message_va;
  const struct emu_mr *mr = emu_mr_find(first ? p->rkey : qp->message_rkey);
  if (p->op != EMU_OP_WRITE || p->psn != qp->exp_psn || first == qp->in_message ||
      !(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) ||
      !emu_mr_allows(mr, qp->pd, va, p->payload, IBV_ACCESS_REMOTE_WRITE))
    return false;
  uint64_t middle = (va + p->payload / 2) & ~(uint64_t)127;
  if (middle <= va) return false;
  uint32_t half = (uint32_t)(middle - va);
  emu_move(emu_mr_reach(mr, va + half, p->payload - half), payload + half, p->payload - half);
  return true;
}

bool emu_fault_packet(struct emu_qp *qp, const struct emu_packet *p, const char *payload, emu_give give) {
  if (!packet_faults && STAILQ_EMPTY(&qp->held)) return false;
  uint64_t wait = 0;
  bool dropped = false, doubled = false, overtake = false;
  for (int i = 0; i < nfaults && !dropped; i++) {
    struct fault *f = &faults[i];
    bool of_packets = f->kind == DROP || f->kind == DELAY || f->kind == DUPLICATE || f->kind == TEAR;
    if (!of_packets || !is_about(f, qp, packet_name(p)) || !is_due(f)) continue;
    if (f->kind == DROP) dropped = true;
    if (f->kind == DUPLICATE) doubled = true;
    if (f->kind == DELAY || (f->kind == TEAR && STAILQ_EMPTY(&qp->held) && tear(qp, p, payload))) wait += f->ns;
    overtake |= f->overtake;
  }
  if (dropped) return true;
  if (wait || (!STAILQ_EMPTY(&qp->held) && !overtake)) {
    if (doubled) (void)hold(qp, p, payload, emu_now() + wait, false);
    return hold(qp, p, payload, emu_now() + wait, false);
  }
  if (doubled) give(qp, p, payload);
  return false;
}

void emu_fault_forget(struct emu_qp *qp) {
  for (struct emu_held *h; (h = STAILQ_FIRST(&qp->held)) != NULL; nheld--) {
    STAILQ_REMOVE_HEAD(&qp->held, link);
    free(h);
  }
}

uint64_t emu_fault_due(uint64_t now, emu_give give) {
  uint64_t next = UINT64_MAX;
  for (unsigned int i = 0; i < EMU_QPS && nheld; i++) {
    struct emu_qp *qp = emu.qps[i];
    for (struct emu_held *h; qp && (h = STAILQ_FIRST(&qp->held)) != NULL;) {
      if (h->due > now) {
        if (h->due < next) next = h->due;
        break;
      }
      STAILQ_REMOVE_HEAD(&qp->held, link);
      nheld--;
      give(qp, &h->packet, h->payload);
      free(h);
    }
  }
  return next;
}

/* ---- commands while it runs ---------------------------------------------------------------- */

enum { LOOK_NS = 5000000 };

static struct {
  bool looked;
  const char *path;
  off_t read;
  uint64_t next;
} control;

/* Whole lines that were appended to the file RAIL_EMU_CONTROL since the last look. */
void emu_fault_commands(void) {
  char text[LATER_BYTES];
  if (!control.looked) control.path = getenv("RAIL_EMU_CONTROL");
  control.looked = true;
  if (!control.path || emu_now() < control.next) return;
  control.next = emu_now() + LOOK_NS;
  int fd = open(control.path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = pread(fd, text, sizeof text - 1, control.read);
  close(fd);
  while (n > 0 && text[n - 1] != '\n') n--;
  if (n <= 0) return;
  control.read += n;
  text[n] = 0;
  (void)emu_script(text);
}

uint64_t emu_fault_next_look(void) { return control.path ? control.next : UINT64_MAX; }
