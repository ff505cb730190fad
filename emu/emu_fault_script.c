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

static uint32_t qp_of(const struct emu_statement *s) {
  const char *text = emu_value(s, "qp");
  if (!text) return 0;
  if (strcmp(text, "last") == 0) return emu.last_qp ? emu.last_qp->ex.qp_base.qp_num : UINT32_MAX;
  return (uint32_t)strtoul(text, NULL, 0);
}

static bool add_fault(const struct emu_statement *s, struct emu_fault *f) {
  const char *times = emu_value(s, "times"), *op = emu_value(s, "op");
  if (emu_faults.n == EMU_FAULTS) return emu_complain(s, "more than 64 emu_faults.all");
  f->rate = (uint32_t)emu_number(s, "rate", 0, 10);
  f->from = (long)emu_number(s, "from", 1, 10);
  /* A rate goes on; without one it is once. */
  f->times = f->rate || (times && strcmp(times, "ever") == 0) ? LONG_MAX / 2 : (long)emu_number(s, "times", 1, 10);
  f->qp = qp_of(s);
  snprintf(f->op, sizeof f->op, "%s", op ? op : "any");
  emu_faults.all[emu_faults.n++] = *f;
  emu_faults_changed();
  return true;
}

static bool do_fail(const struct emu_statement *s) {
  struct emu_fault f = {.kind = EMU_FAULT_CALL, .to = -1};
  if (s->n < 2) return emu_complain(s, "wants a call");
  snprintf(f.call, sizeof f.call, "%s", s->words[1]);
  f.err = strcmp(f.call, "modify_qp") == 0 ? ETIMEDOUT : ENOMEM;
  if (emu_value(s, "errno") && !emu_word(errors, emu_value(s, "errno"), &f.err))
    return emu_complain(s, "no such errno");
  if (emu_value(s, "to") && !emu_word(states, emu_value(s, "to"), &f.to)) return emu_complain(s, "no such state");
  return add_fault(s, &f);
}

static bool do_complete(const struct emu_statement *s) {
  struct emu_fault f = {.kind = EMU_FAULT_COMPLETE, .vendor = (uint32_t)emu_number(s, "vendor", 0x81, 16)};
  if (s->n < 2 || !emu_word(statuses, s->words[1], &f.status)) return emu_complain(s, "no such status");
  return add_fault(s, &f);
}

/* stall, drop, delay, duplicate, tear, slow. */
static bool do_kind(const struct emu_statement *s, enum emu_fault_kind kind, uint64_t us) {
  struct emu_fault f = {.kind = kind, .ns = emu_number(s, "us", us, 10) * 1000,
                    .overtake = emu_number(s, "overtake", 0, 10) != 0};
  if (kind == EMU_FAULT_SLOW && !emu_value(s, "times")) {
    bool good = add_fault(s, &f);
    if (good) emu_faults.all[emu_faults.n - 1].times = LONG_MAX / 2;
    return good;
  }
  return add_fault(s, &f);
}
static bool do_stall(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_STALL, 0); }
static bool do_drop(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_DROP, 0); }
static bool do_delay(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_DELAY, 1000); }
static bool do_duplicate(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_DUPLICATE, 0); }
static bool do_tear(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_TEAR, 100); }
static bool do_slow(const struct emu_statement *s) { return do_kind(s, EMU_FAULT_SLOW, 1000); }

static const struct emu_word cm_actions[] = {
  {"lost", RAIL_EMU_CM_LOST}, {"late", RAIL_EMU_CM_LATE}, {"reject", RAIL_EMU_CM_REJECT}, {NULL, 0}};
static const char *const cm_events[] = {"addr_resolved", "route_resolved", "connect_request", "connect_response",
                                        "established", "rejected", "disconnected", "any"};

/* cm lost|late|reject event=…; cm answer ms=N. */
static bool do_cm(const struct emu_statement *s) {
  const char *event = emu_value(s, "event");
  struct emu_fault f = {.kind = EMU_FAULT_CM, .ns = emu_number(s, "us", 100000, 10) * 1000};
  if (s->n >= 2 && strcmp(s->words[1], "answer") == 0) {
    emu_faults.cm_answer_ms = (long)emu_number(s, "ms", 0, 10);
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

bool emu_fault_seed(const struct emu_statement *s) {
  if (s->n < 2) return emu_complain(s, "wants a number");
  emu_faults.random = strtoull(s->words[1], NULL, 0) * 0x9e3779b97f4a7c15u + 1;
  return true;
}

static bool do_clock(const struct emu_statement *s) {
  if (s->n < 2 || (strcmp(s->words[1], "virtual") != 0 && strcmp(s->words[1], "real") != 0))
    return emu_complain(s, "virtual or real");
  emu.virtual_clock = strcmp(s->words[1], "virtual") == 0;
  return true;
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
  if (s->n < 3 || emu_faults.nlater == sizeof emu_faults.later / sizeof emu_faults.later[0])
    return emu_complain(s, "wants a number and a statement; there may be 8");
  char *text = emu_faults.later[emu_faults.nlater].text;
  size_t room = sizeof emu_faults.later[0].text, used = 0;
  for (int i = 2; i < s->n && used < room; i++) used += (size_t)snprintf(text + used, room - used, "%s ", s->words[i]);
  if (used >= room) return emu_complain(s, "too long");
  emu_faults.later[emu_faults.nlater++].request = emu_faults.begun + strtol(s->words[1], NULL, 10);
  return true;
}

static bool do_reset(const struct emu_statement *s) {
  (void)s;
  emu_faults.n = emu_faults.nlater = 0;
  emu_faults.cm_answer_ms = 0;
  emu_faults_changed();
  return true;
}

bool emu_fault_statement(const struct emu_statement *s, bool *good) {
  static const struct { const char *verb; bool (*run)(const struct emu_statement *s); } verbs[] = {
    {"fail", do_fail}, {"complete", do_complete}, {"stall", do_stall}, {"drop", do_drop}, {"delay", do_delay},
    {"duplicate", do_duplicate}, {"tear", do_tear}, {"slow", do_slow}, {"seed", emu_fault_seed}, {"clock", do_clock},
    {"fatal", do_fatal}, {"qp_error", do_qp_error}, {"event", do_event}, {"at", do_at},
    {"reset", do_reset}, {"cm", do_cm}};
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    if (strcmp(verbs[i].verb, s->words[0]) == 0) {
      *good = verbs[i].run(s);
      return true;
    }
  return false;
}
