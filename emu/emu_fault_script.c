/* SPDX-License-Identifier: Apache-2.0
 * Statements of faults: what they put into the table, or do at once. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

static const struct emu_word errors[] = {
  {"ENOMEM", ENOMEM}, {"ETIMEDOUT", ETIMEDOUT}, {"EINVAL", EINVAL}, {"EIO", EIO}, {"EPERM", EPERM}, {"EFAULT", EFAULT},
  {"EAGAIN", EAGAIN}, {"ENOSYS", ENOSYS}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ENODEV", ENODEV}, {"EBUSY", EBUSY},
  {"ENOSPC", ENOSPC}, {"EMFILE", EMFILE}, {NULL, 0}};
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
  {"path_mig", IBV_EVENT_PATH_MIG}, {NULL, 0}};

static const struct emu_word ops[] = {
  {"any", 0}, {"send", 0}, {"write", 0}, {"imm", 0}, {"read", 0}, {"atomic", 0}, {"ack", 0}, {"answer", 0},
  {"recv", 0}, {NULL, 0}};
static const struct emu_word calls[] = {
  {"open_device", 0}, {"alloc_pd", 0}, {"reg_mr", 0}, {"reg_dmabuf_mr", 0}, {"create_cq", 0}, {"create_qp", 0},
  {"create_srq", 0}, {"modify_qp", 0}, {"post_send", 0}, {"post_recv", 0}, {"post_srq_recv", 0}, {"poll_cq", 0},
  {"query_qp", 0}, {"query_ece", 0}, {"set_ece", 0}, {"query_device", 0}, {"query_port", 0}, {"query_gid", 0},
  {"get_device_list", 0}, {"fork_init", 0}, {NULL, 0}};

/* Of qp=NUMBER or qp=last; UINT32_MAX: there is no last one. */
static bool qp_of(const struct emu_statement *s, uint32_t *qpn) {
  const char *text = emu_value(s, "qp");
  unsigned long number = 0;
  bool last = text && strcmp(text, "last") == 0;
  if (text && !last && !emu_read_number(s, text, 0, 0xffffff, &number)) return false;
  *qpn = !last ? (uint32_t)number : emu.last_qp ? emu.last_qp->ex.qp_base.qp_num : UINT32_MAX;
  return true;
}

/* For ever: a rate, `times=ever`, and by itself what slows a queue pair. */
static bool add_fault(const struct emu_statement *s, struct emu_fault *f) {
  const char *times = emu_value(s, "times"), *op = emu_value(s, "op");
  unsigned long number = 1;
  int none;
  if (emu_faults.n == EMU_FAULTS) return emu_refuse(s, "there may be %d faults", EMU_FAULTS);
  bool ever = times ? strcmp(times, "ever") == 0 : f->kind == EMU_FAULT_SLOW;
  if (times && !ever && !emu_read_number(s, times, 10, LONG_MAX / 2, &number)) return false;
  if (!qp_of(s, &f->qp) || !emu_choose(s, op, ops, &none)) return false;
  f->rate = (uint32_t)emu_number(s, "rate", 0);
  f->from = (long)emu_number(s, "from", 1);
  f->times = f->rate || ever ? LONG_MAX / 2 : (long)number;
  snprintf(f->op, sizeof f->op, "%s", op ? op : "any");
  emu_faults.all[emu_faults.n++] = *f;
  emu_faults_changed();
  return true;
}

static bool do_fail(const struct emu_statement *s) {
  struct emu_fault f = {.kind = EMU_FAULT_CALL, .to = -1};
  int none;
  if (s->n < 2) return emu_refuse(s, "the call is missing");
  if (!emu_choose(s, s->words[1], calls, &none)) return false;
  snprintf(f.call, sizeof f.call, "%s", s->words[1]);
  f.err = strcmp(f.call, "modify_qp") == 0 ? ETIMEDOUT : ENOMEM;
  return emu_choose(s, emu_value(s, "errno"), errors, &f.err) && emu_choose(s, emu_value(s, "to"), states, &f.to) &&
         add_fault(s, &f);
}

static bool do_complete(const struct emu_statement *s) {
  struct emu_fault f = {.kind = EMU_FAULT_COMPLETE, .vendor = (uint32_t)emu_number(s, "vendor", 0x81)};
  if (s->n < 2) return emu_refuse(s, "the status is missing");
  return emu_choose(s, s->words[1], statuses, &f.status) && add_fault(s, &f);
}

static bool do_immediate(const struct emu_statement *s) {
  struct emu_fault f = {.kind = EMU_FAULT_IMMEDIATE, .xor = (uint32_t)emu_number(s, "xor", 1)};
  return add_fault(s, &f);
}

static bool do_kind(const struct emu_statement *s, enum emu_fault_kind kind, uint64_t us) {
  struct emu_fault f = {.kind = kind, .ns = emu_number(s, "us", us) * 1000};
  return add_fault(s, &f);
}
static bool do_stall(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_STALL, 0); }
static bool do_drop(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_DROP, 0); }
static bool do_delay(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_DELAY, 1000); }
static bool do_duplicate(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_DUPLICATE, 0); }
static bool do_tear(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_TEAR, 100); }
static bool do_slow(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_SLOW, 1000); }

/* `answer` is no fault of an event: how long one is waited for. */
enum { CM_ANSWER = -1 };
static const struct emu_word cm_actions[] = {
  {"lost", RAIL_EMU_CM_LOST}, {"late", RAIL_EMU_CM_LATE}, {"reject", RAIL_EMU_CM_REJECT}, {"answer", CM_ANSWER},
  {NULL, 0}};
static const struct emu_word cm_events[] = {
  {"addr_resolved", 0}, {"route_resolved", 0}, {"connect_request", 0}, {"connect_response", 0}, {"established", 0},
  {"rejected", 0}, {"disconnected", 0}, {"any", 0}, {NULL, 0}};

/* cm lost|late|reject event=…; cm answer ms=N. */
static bool do_cm(const struct emu_statement *s) {
  const char *event = emu_value(s, "event");
  struct emu_fault f = {.kind = EMU_FAULT_CM, .ns = emu_number(s, "us", 100000) * 1000};
  int none;
  if (s->n < 2) return emu_refuse(s, "what is to happen is missing: lost, late, reject or answer");
  if (!emu_choose(s, s->words[1], cm_actions, &f.status) || !emu_choose(s, event, cm_events, &none)) return false;
  if (f.status == CM_ANSWER) {
    emu_faults.cm_answer_ms = (long)emu_number(s, "ms", 0);
    return true;
  }
  snprintf(f.call, sizeof f.call, "%s", event ? event : "any");
  return add_fault(s, &f);
}

static bool do_seed(const struct emu_statement *s) {
  unsigned long seed;
  if (s->n < 2) return emu_refuse(s, "the number is missing");
  if (!emu_read_number(s, s->words[1], 0, ULONG_MAX, &seed)) return false;
  emu_faults_seed(seed);
  return true;
}

static bool do_clock(const struct emu_statement *s) {
  static const struct emu_word clocks[] = {{"virtual", true}, {"real", false}, {NULL, 0}};
  int is_virtual = false;
  if (s->n < 2) return emu_refuse(s, "virtual or real is missing");
  if (!emu_choose(s, s->words[1], clocks, &is_virtual)) return false;
  emu.virtual_clock = is_virtual;
  return true;
}

/* The thread may be waiting for another end of this. */
static bool do_progress(const struct emu_statement *s) {
  static const struct emu_word ways[] = {
    {"thread", EMU_BY_THREAD}, {"post", EMU_BY_POST}, {"poll", EMU_BY_POLL}, {NULL, 0}};
  int way = EMU_BY_THREAD;
  if (s->n < 2) return emu_refuse(s, "thread, post or poll is missing");
  if (!emu_choose(s, s->words[1], ways, &way)) return false;
  emu.progress_by = (enum emu_by)way;
  emu.burst = (uint32_t)emu_number(s, "burst", UINT32_MAX);
  emu.skip = emu_number(s, "skip", 0);
  emu_engine_wake();
  return true;
}

static bool do_fatal(const struct emu_statement *s) {
  struct emu_device *d = s->n >= 2 ? emu_device_named(s->words[1]) : NULL;
  if (!d) return emu_refuse(s, "%s: there is no such device", s->n >= 2 ? s->words[1] : "");
  emu_device_fatal(d);
  return true;
}

static bool do_qp_error(const struct emu_statement *s) {
  uint32_t qpn;
  if (!qp_of(s, &qpn)) return false;
  struct emu_qp *qp = emu_qp_find(qpn);
  if (!qp) return emu_refuse(s, "no such queue pair; allowed: qp=NUMBER of one of this process, or qp=last");
  emu_qp_error(qp);
  emu_raise_qp(qp, IBV_EVENT_QP_FATAL);
  return true;
}

static bool do_event(const struct emu_statement *s) {
  int type = 0;
  uint32_t qpn;
  struct emu_device *d = s->n >= 2 ? emu_device_named(s->words[1]) : NULL;
  if (!d || s->n < 3) return emu_refuse(s, "%s", d ? "the event is missing" : "there is no such device");
  if (!emu_choose(s, s->words[2], events, &type) || !qp_of(s, &qpn)) return false;
  struct ibv_async_event event = {.event_type = (enum ibv_event_type)type};
  struct emu_qp *qp = emu_value(s, "qp") ? emu_qp_find(qpn) : emu.last_qp;
  bool of_qp = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR ||
               type == IBV_EVENT_COMM_EST || type == IBV_EVENT_PATH_MIG || type == IBV_EVENT_CQ_ERR;
  if (of_qp && !qp) return emu_refuse(s, "there is no such queue pair");
  if (type == IBV_EVENT_CQ_ERR) event.element.cq = qp->ex.qp_base.send_cq;
  else if (of_qp) event.element.qp = &qp->ex.qp_base;
  else event.element.port_num = (int)emu_number(s, "port", 1);
  emu_raise(d, &event);
  return true;
}

static bool do_reset(const struct emu_statement *s) {
  (void)s;
  emu_faults.n = emu_faults.nlater = 0;
  emu_faults.cm_answer_ms = 0;
  emu_faults_changed();
  return true;
}

#define HOW_OFTEN "from times rate"
#define WHICH HOW_OFTEN " op qp"

const struct emu_verb emu_fault_verbs[] = {
  {"fail", do_fail, 1, "errno to " HOW_OFTEN}, {"complete", do_complete, 1, "vendor " WHICH},
  {"stall", do_stall, 0, WHICH}, {"drop", do_drop, 0, WHICH}, {"delay", do_delay, 0, "us " WHICH},
  {"duplicate", do_duplicate, 0, WHICH}, {"tear", do_tear, 0, "us " WHICH},
  {"slow", do_slow, 0, "us qp " HOW_OFTEN}, {"immediate", do_immediate, 0, "xor qp " HOW_OFTEN},
  {"seed", do_seed, 1, ""}, {"clock", do_clock, 1, ""}, {"progress", do_progress, 1, "burst skip"},
  {"fatal", do_fatal, 1, ""}, {"qp_error", do_qp_error, 0, "qp"}, {"event", do_event, 2, "port qp"},
  {"reset", do_reset, 0, ""}, {"cm", do_cm, 1, "event us ms " HOW_OFTEN}, {NULL, NULL, 0, ""}};
