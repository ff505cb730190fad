/* SPDX-License-Identifier: Apache-2.0
 * The script: statements into devices and faults. The form is in fv.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/preload/fakeverbs/fv.h"

int fakeverbs_script(const char *text);
long fakeverbs_calls(const char *call);

enum { MAX_FAULTS = 64, MAX_WORDS = 24, MAX_CALLS = 32 };

struct word {
  const char *name;
  int value;
};
#define WORD(prefix, name, small) {small, prefix##name}

static const struct word errors[] = {
  {"ENOMEM", ENOMEM}, {"ETIMEDOUT", ETIMEDOUT}, {"EINVAL", EINVAL}, {"EIO", EIO}, {"EPERM", EPERM}, {"EFAULT", EFAULT},
  {"EAGAIN", EAGAIN}, {"ENOSYS", ENOSYS}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ENODEV", ENODEV}, {"EMFILE", EMFILE},
  {"ENOSPC", ENOSPC}, {"EBUSY", EBUSY}, {"EINTR", EINTR}, {NULL, 0}};
static const struct word qp_states[] = {
  {"reset", IBV_QPS_RESET}, {"init", IBV_QPS_INIT}, {"rtr", IBV_QPS_RTR}, {"rts", IBV_QPS_RTS}, {"err", IBV_QPS_ERR},
  {NULL, 0}};
static const struct word port_states[] = {
  {"down", IBV_PORT_DOWN}, {"init", IBV_PORT_INIT}, {"armed", IBV_PORT_ARMED}, {"active", IBV_PORT_ACTIVE}, {NULL, 0}};
static const struct word gid_types[] = {{"ib", 0}, {"v1", 1}, {"v2", 2}, {NULL, 0}};
static const struct word events[] = {
  WORD(IBV_EVENT_, DEVICE_FATAL, "device_fatal"), WORD(IBV_EVENT_, PORT_ACTIVE, "port_active"),
  WORD(IBV_EVENT_, PORT_ERR, "port_err"), WORD(IBV_EVENT_, LID_CHANGE, "lid_change"),
  WORD(IBV_EVENT_, GID_CHANGE, "gid_change"), WORD(IBV_EVENT_, PKEY_CHANGE, "pkey_change"),
  WORD(IBV_EVENT_, SM_CHANGE, "sm_change"), WORD(IBV_EVENT_, CLIENT_REREGISTER, "client_reregister"),
  WORD(IBV_EVENT_, QP_FATAL, "qp_fatal"), WORD(IBV_EVENT_, QP_REQ_ERR, "qp_req_err"),
  WORD(IBV_EVENT_, QP_ACCESS_ERR, "qp_access_err"), WORD(IBV_EVENT_, COMM_EST, "comm_est"),
  WORD(IBV_EVENT_, PATH_MIG, "path_mig"), WORD(IBV_EVENT_, CQ_ERR, "cq_err"), {NULL, 0}};
static const struct word statuses[] = {
  WORD(IBV_WC_, LOC_LEN_ERR, "loc_len_err"), WORD(IBV_WC_, LOC_QP_OP_ERR, "loc_qp_op_err"),
  WORD(IBV_WC_, LOC_PROT_ERR, "loc_prot_err"), WORD(IBV_WC_, WR_FLUSH_ERR, "wr_flush_err"),
  WORD(IBV_WC_, MW_BIND_ERR, "mw_bind_err"), WORD(IBV_WC_, BAD_RESP_ERR, "bad_resp_err"),
  WORD(IBV_WC_, LOC_ACCESS_ERR, "loc_access_err"), WORD(IBV_WC_, REM_INV_REQ_ERR, "rem_inv_req_err"),
  WORD(IBV_WC_, REM_ACCESS_ERR, "rem_access_err"), WORD(IBV_WC_, REM_OP_ERR, "rem_op_err"),
  WORD(IBV_WC_, RETRY_EXC_ERR, "retry_exc_err"), WORD(IBV_WC_, RNR_RETRY_EXC_ERR, "rnr_retry_exc_err"),
  WORD(IBV_WC_, REM_ABORT_ERR, "rem_abort_err"), WORD(IBV_WC_, FATAL_ERR, "fatal_err"),
  WORD(IBV_WC_, RESP_TIMEOUT_ERR, "resp_timeout_err"), WORD(IBV_WC_, GENERAL_ERR, "general_err"), {NULL, 0}};

/* A fault of a call (`call` set) or of a work request. */
struct fault {
  char call[24], op[8];
  long from, times, seen;
  int err, to, status; /* to -1: any */
  uint32_t vendor, twist;
  bool stall;
};
static struct fault faults[MAX_FAULTS];
static int nfaults;
static bool empty;
static struct { char name[24]; long count; } calls[MAX_CALLS];

/* ---- statements -------------------------------------------------------- */

struct statement {
  int n;
  char *words[MAX_WORDS];
};

static bool complain(const struct statement *s, const char *what) {
  fprintf(stderr, "fakeverbs: '%s", s->words[0]);
  for (int i = 1; i < s->n; i++) fprintf(stderr, " %s", s->words[i]);
  fprintf(stderr, "': %s\n", what);
  return false;
}

/* The value of key=, or NULL. */
static const char *value_of(const struct statement *s, const char *key) {
  size_t len = strlen(key);
  for (int i = 1; i < s->n; i++)
    if (strncmp(s->words[i], key, len) == 0 && s->words[i][len] == '=') return s->words[i] + len + 1;
  return NULL;
}

static uint64_t number_of(const struct statement *s, const char *key, uint64_t otherwise, int base) {
  const char *text = value_of(s, key);
  return text ? strtoull(text, NULL, base) : otherwise;
}

static bool word_of(const struct word *words, const char *text, int *value) {
  for (; words->name; words++)
    if (strcmp(words->name, text) == 0) {
      *value = words->value;
      return true;
    }
  return false;
}

static void port_keys(const struct statement *s, struct fv_device *device, unsigned int number) {
  struct fv_port *port = &device->ports[number - 1];
  const char *link = value_of(s, "link"), *gids = value_of(s, "gids");
  bool was_ib = port->ib;
  if (link) port->ib = strcmp(link, "ib") == 0;
  port->mtu = (uint8_t)number_of(s, "mtu", port->mtu, 10);
  port->lid = (uint16_t)number_of(s, "lid", port->lid, 10);
  port->subnet = number_of(s, "subnet", port->subnet, 16);
  port->grh = number_of(s, "grh", port->grh, 10) != 0;
  port->max_msg = (uint32_t)number_of(s, "max_msg", port->max_msg, 10);
  port->packet = (uint32_t)number_of(s, "packet", port->packet, 10);
  port->speed = (uint8_t)number_of(s, "speed", port->speed, 10);
  port->width = (uint8_t)number_of(s, "width", port->width, 10);
  if (was_ib != port->ib || value_of(s, "subnet")) fv_default_gids(device, number);
  if (gids) memset(port->gids, 0, sizeof port->gids);
}

static bool do_device(const struct statement *s) {
  if (s->n < 2 || fv.ndevices == FV_DEVICES) return complain(s, "wants a name; there may be 16");
  struct fv_device *d = &fv.devices[fv.ndevices];
  memset(d, 0, sizeof *d);
  d->index = fv.ndevices++;
  snprintf(d->ibv.name, sizeof d->ibv.name, "%s", s->words[1]);
  snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%u", d->index);
  d->ibv.node_type = IBV_NODE_CA;
  d->ibv.transport_type = (enum ibv_transport_type)number_of(s, "transport", IBV_TRANSPORT_IB, 10);
  d->nports = (unsigned int)number_of(s, "ports", 1, 10);
  if (d->nports < 1 || d->nports > FV_PORTS) return complain(s, "1 to 4 ports");
  d->guid = number_of(s, "guid", 0xfa4e000000000000u + ((uint64_t)d->index << 8), 16);
  d->vendor = (uint32_t)number_of(s, "vendor", 0xfa4e, 16);
  d->max_qp = (int)number_of(s, "max_qp", 65536, 10);
  d->max_qp_wr = (int)number_of(s, "max_qp_wr", 16384, 10);
  d->max_inline = (int)number_of(s, "inline", 256, 10);
  d->cq_size = (int)number_of(s, "cq_size", 0, 10);
  d->dmabuf = number_of(s, "dmabuf", 1, 10) != 0;
  d->ece = number_of(s, "ece", 1, 10) != 0;
  for (unsigned int p = 1; p <= d->nports; p++) {
    int state = IBV_PORT_ACTIVE;
    struct fv_port *port = &d->ports[p - 1];
    *port = (struct fv_port){.mtu = IBV_MTU_4096, .speed = 32, .width = 2, .max_msg = 1u << 30,
                             .packet = 4096,
                             .lid = (uint16_t)(1 + d->index * FV_PORTS + p), .subnet = 0xfe80000000000000u};
    const char *wanted = value_of(s, "state");
    if (wanted && !word_of(port_states, wanted, &state)) return complain(s, "no such state");
    port->state = (enum ibv_port_state)state;
    fv_default_gids(d, p);
    port_keys(s, d, p);
  }
  return true;
}

/* "NAME NUMBER" of words 1 and 2. */
static struct fv_device *device_and_port(const struct statement *s, unsigned int *number) {
  struct fv_device *d = s->n >= 3 ? fv_device_named(s->words[1]) : NULL;
  *number = d ? (unsigned int)strtoul(s->words[2], NULL, 10) : 0;
  return d && *number >= 1 && *number <= d->nports ? d : NULL;
}

static bool do_port(const struct statement *s) {
  unsigned int number;
  int state;
  struct fv_device *d = device_and_port(s, &number);
  if (!d) return complain(s, "no such device or port");
  port_keys(s, d, number);
  if (!value_of(s, "state")) return true;
  if (!word_of(port_states, value_of(s, "state"), &state)) return complain(s, "no such state");
  bool was = d->ports[number - 1].state == IBV_PORT_ACTIVE, is = state == IBV_PORT_ACTIVE;
  d->ports[number - 1].state = (enum ibv_port_state)state;
  struct ibv_async_event event = {.element.port_num = (int)number,
                                  .event_type = is ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR};
  if (was != is) fv_raise(d, &event);
  return true;
}

static bool do_gid(const struct statement *s) {
  unsigned int number;
  int type = 2;
  struct fv_device *d = device_and_port(s, &number);
  if (!d || s->n < 5) return complain(s, "wants device, port, index, address");
  unsigned long index = strtoul(s->words[3], NULL, 10);
  struct fv_gid gid = {.valid = strcmp(s->words[4], "none") != 0};
  if (index >= FV_GIDS) return complain(s, "indices are 0 to 63");
  bool ipv4 = !strchr(s->words[4], ':');
  if (ipv4) gid.gid.raw[10] = gid.gid.raw[11] = 0xff;
  if (gid.valid && inet_pton(ipv4 ? AF_INET : AF_INET6, s->words[4], gid.gid.raw + (ipv4 ? 12 : 0)) != 1)
    return complain(s, "not an address");
  if (value_of(s, "type") && !word_of(gid_types, value_of(s, "type"), &type)) return complain(s, "no such type");
  gid.type = (uint32_t)type;
  gid.ifindex = (uint32_t)number_of(s, "ifindex", 0, 10);
  d->ports[number - 1].gids[index] = gid;
  return true;
}

static bool new_fault(const struct statement *s, struct fault *fault) {
  const char *times = value_of(s, "times"), *op = value_of(s, "op");
  if (nfaults == MAX_FAULTS) return complain(s, "more than 64 faults");
  fault->from = (long)number_of(s, "from", 1, 10);
  fault->times = times && strcmp(times, "ever") == 0 ? LONG_MAX / 2 : (long)number_of(s, "times", 1, 10);
  if (!fault->op[0]) snprintf(fault->op, sizeof fault->op, "%s", op ? op : "any");
  faults[nfaults++] = *fault;
  return true;
}

static bool do_fail(const struct statement *s) {
  struct fault f = {.to = -1};
  if (s->n < 2) return complain(s, "wants a call");
  snprintf(f.call, sizeof f.call, "%s", s->words[1]);
  f.err = strcmp(f.call, "modify_qp") == 0 ? ETIMEDOUT : ENOMEM;
  if (value_of(s, "errno") && !word_of(errors, value_of(s, "errno"), &f.err)) return complain(s, "no such errno");
  if (value_of(s, "to") && !word_of(qp_states, value_of(s, "to"), &f.to)) return complain(s, "no such state");
  return new_fault(s, &f);
}

static bool do_complete(const struct statement *s) {
  struct fault f = {.vendor = (uint32_t)number_of(s, "vendor", 0x81, 16)};
  if (s->n < 2 || !word_of(statuses, s->words[1], &f.status)) return complain(s, "no such status");
  return new_fault(s, &f);
}

static bool do_stall(const struct statement *s) {
  struct fault f = {.stall = true};
  return new_fault(s, &f);
}

static bool do_twist(const struct statement *s) {
  struct fault f = {.twist = (uint32_t)number_of(s, "xor", 1, 16), .op = "imm"};
  return new_fault(s, &f);
}

static bool do_event(const struct statement *s) {
  int type;
  struct fv_device *d = s->n >= 3 ? fv_device_named(s->words[1]) : NULL;
  if (!d || !word_of(events, s->words[2], &type)) return complain(s, "no such device or event");
  struct ibv_async_event event = {.event_type = (enum ibv_event_type)type};
  const char *number = value_of(s, "qp");
  struct fv_qp *qp = number ? fv_qp_numbered((uint32_t)strtoul(number, NULL, 10)) : fv.last_qp;
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_CQ_ERR:
      if (!qp) return complain(s, "there is no such QP");
      if (event.event_type == IBV_EVENT_CQ_ERR) event.element.cq = qp->ibv.send_cq;
      else event.element.qp = &qp->ibv;
      break;
    default: event.element.port_num = (int)number_of(s, "port", 1, 10); break;
  }
  fv_raise(d, &event);
  return true;
}

static bool do_events(const struct statement *s) {
  static const struct word ways[] = {{"deliver", FV_DELIVER}, {"hold", FV_HOLD}, {"lose", FV_LOSE}, {NULL, 0}};
  int how;
  if (s->n < 2 || !word_of(ways, s->words[1], &how)) return complain(s, "deliver, hold or lose");
  fv_deliver((enum fv_delivery)how);
  return true;
}

static bool do_progress(const struct statement *s) {
  if (s->n < 2) return complain(s, "post or poll");
  fv.poll_mode = strcmp(s->words[1], "poll") == 0;
  fv.burst = (unsigned int)number_of(s, "burst", UINT_MAX, 10);
  fv.skip = (uint64_t)number_of(s, "skip", 0, 10);
  return true;
}

static bool do_gid_table(const struct statement *s) {
  fv.no_gid_table = s->n >= 2 && strcmp(s->words[1], "0") == 0;
  return true;
}

static bool do_empty(const struct statement *s) {
  (void)s;
  empty = true;
  return true;
}

static bool do_reset(const struct statement *s) {
  (void)s;
  nfaults = 0;
  return true;
}

static bool run(char *text) {
  static const struct { const char *verb; bool (*run)(const struct statement *s); } verbs[] = {
    {"device", do_device}, {"port", do_port}, {"gid", do_gid}, {"gid_table", do_gid_table}, {"fail", do_fail},
    {"complete", do_complete}, {"stall", do_stall}, {"twist", do_twist}, {"event", do_event}, {"events", do_events},
    {"progress", do_progress}, {"reset", do_reset}, {"empty", do_empty}};
  struct statement s = {0};
  char *rest = NULL;
  for (char *word = strtok_r(text, " \t\r", &rest); word && s.n < MAX_WORDS; word = strtok_r(NULL, " \t\r", &rest))
    s.words[s.n++] = word;
  if (s.n == 0) return true;
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    if (strcmp(verbs[i].verb, s.words[0]) == 0) return verbs[i].run(&s);
  return complain(&s, "no such statement");
}

static bool run_all(const char *text) {
  bool good = true;
  char *copy = strdup(text), *rest = NULL;
  bool comment = false;
  for (char *c = copy; c && *c; c++) {
    comment = *c == '#' || (comment && *c != '\n');
    if (comment) *c = ' ';
  }
  for (char *line = copy ? strtok_r(copy, ";\n", &rest) : NULL; line; line = strtok_r(NULL, ";\n", &rest))
    good &= run(line);
  free(copy);
  return good;
}

int fakeverbs_script(const char *text) {
  fv_load();
  pthread_mutex_lock(&fv.lock);
  bool good = run_all(text);
  pthread_mutex_unlock(&fv.lock);
  return good ? 0 : -1;
}

static void load(void) {
  const char *text = getenv("FAKEVERBS");
  char *file = NULL;
  size_t cap = 0;
  if (text && text[0] == '@') {
    FILE *in = fopen(text + 1, "re");
    if (!in || getdelim(&file, &cap, 0, in) < 0) fprintf(stderr, "fakeverbs: %s cannot be read\n", text + 1);
    if (in) fclose(in);
    text = file;
  }
  fv.burst = UINT_MAX;
  if (text && !run_all(text)) fprintf(stderr, "fakeverbs: FAKEVERBS is wrong\n");
  if (fv.ndevices == 0 && !empty) run_all("device fake0; device fake1");
  free(file);
}

void fv_load(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
}

/* ---- faults ------------------------------------------------------------ */

static bool is_due(struct fault *f) {
  f->seen++;
  return f->seen >= f->from && f->seen - f->from < f->times;
}

int fv_fault(const char *call, int to_state) {
  int err = 0;
  for (int i = 0; i < MAX_CALLS; i++) {
    if (!calls[i].name[0]) snprintf(calls[i].name, sizeof calls[i].name, "%s", call);
    if (strcmp(calls[i].name, call) != 0) continue;
    calls[i].count++;
    break;
  }
  for (int i = 0; i < nfaults; i++) {
    struct fault *f = &faults[i];
    if (strcmp(f->call, call) == 0 && (f->to < 0 || f->to == to_state) && is_due(f) && !err) err = f->err;
  }
  return err;
}

struct fv_verdict fv_judge(const char *op) {
  struct fv_verdict verdict = {.status = IBV_WC_SUCCESS};
  for (int i = 0; i < nfaults; i++) {
    struct fault *f = &faults[i];
    bool any = strcmp(f->op, "any") == 0 && strcmp(op, "recv") != 0;
    if (f->call[0] || (!any && strcmp(f->op, op) != 0) || !is_due(f)) continue;
    verdict.stall |= f->stall;
    verdict.twist ^= f->twist;
    if (!f->status) continue;
    verdict.status = (enum ibv_wc_status)f->status;
    verdict.vendor = f->vendor;
  }
  return verdict;
}

long fakeverbs_calls(const char *call) {
  long count = 0;
  pthread_mutex_lock(&fv.lock);
  for (int i = 0; i < MAX_CALLS; i++)
    if (strcmp(calls[i].name, call) == 0) count = calls[i].count;
  pthread_mutex_unlock(&fv.lock);
  return count;
}
