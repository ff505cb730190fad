/* SPDX-License-Identifier: Apache-2.0
 *
 * Two endpoints over libfakefabric.so that know each other, each with a domain,
 * CQ, AV and registered memory of its own, driven through libfabric's inline calls.
 */
#ifndef FAKEFABRIC_ENDS_H
#define FAKEFABRIC_ENDS_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "test/unit/ofi_fake.h"

enum { SIZE = 65536 };

static struct {
  int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
  void (*freeinfo)(struct fi_info *);
  struct fi_info *(*dupinfo)(const struct fi_info *);
  int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
  const char *(*strerror)(int);
} fi;

/* One side: an endpoint with its domain, CQ and AV, which knows the other's address. */
struct end {
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_cq *cq;
  struct fid_av *av;
  struct fid_ep *ep;
  struct fid_mr *mr;
  fi_addr_t peer;
  struct fi_context2 contexts[32];
  char memory[SIZE];
};
static struct end left, right;

#define ALL_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM)
#define ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static struct fi_info *hints_for(uint64_t caps) {
  struct fi_info *hints = fi.dupinfo(NULL);
  CHECK(hints);
  hints->caps = caps;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = ALL_MODES;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  return hints;
}

static int find(const struct fi_info *hints, struct fi_info **list) {
  return fi.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, list);
}

static void open_end(struct end *e, uint64_t caps, enum fi_cq_format format) {
  struct fi_info *hints = hints_for(caps);
  struct fi_av_attr av = {.type = FI_AV_UNSPEC};
  struct fi_cq_attr cq = {.format = format, .size = 64};
  memset(e, 0, sizeof *e);
  CHECK_OK(find(hints, &e->info));
  fi.freeinfo(hints);
  CHECK_OK(fi.fabric(e->info->fabric_attr, &e->fabric, NULL));
  CHECK_OK(fi_domain(e->fabric, e->info, &e->domain, NULL));
  CHECK_OK(fi_cq_open(e->domain, &cq, &e->cq, NULL));
  CHECK_OK(fi_av_open(e->domain, &av, &e->av, NULL));
  CHECK_OK(fi_endpoint(e->domain, e->info, &e->ep, NULL));
  CHECK_OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
  CHECK_OK(fi_ep_bind(e->ep, &e->av->fid, 0));
  CHECK_OK(fi_enable(e->ep));
  CHECK_OK(fi_mr_reg(e->domain, e->memory, SIZE, ACCESS, 0, e == &left ? 1 : 2, 0, &e->mr, NULL));
  if (e->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    CHECK(fi_mr_key(e->mr) == FI_KEY_NOTAVAIL);
    CHECK_OK(fi_mr_bind(e->mr, &e->ep->fid, 0));
    CHECK_OK(fi_mr_enable(e->mr));
  }
}

static void introduce(struct end *to, struct end *who) {
  char address[64];
  size_t len = sizeof address;
  CHECK_OK(fi_getname(&who->ep->fid, address, &len));
  CHECK_INT(fi_av_insert(to->av, address, 1, &to->peer, 0, NULL), 1);
}

/* The script says what is offered, from then on, and what happens. */
__attribute__((unused)) static void open_both_as(const char *script, uint64_t caps, enum fi_cq_format format) {
  char all[1024];
  snprintf(all, sizeof all, "nics=none reset=1 nic=fake0 %s", script);
  fake_script(all);
  fake_forgive();
  open_end(&left, caps, format);
  open_end(&right, caps, format);
  introduce(&left, &right);
  introduce(&right, &left);
}
__attribute__((unused)) static void open_both(const char *script) {
  open_both_as(script, FI_MSG | FI_TAGGED | FI_RMA, FI_CQ_FORMAT_TAGGED);
}

static void close_end(struct end *e) {
  int err = e->ep ? fi_close(&e->ep->fid) : 0; /* with all that is in flight */
  CHECK_OK(fi_close(&e->mr->fid));
  if (err == -FI_EBUSY) err = fi_close(&e->ep->fid); /* the MR was bound to it */
  CHECK_OK(err);
  CHECK_OK(fi_close(&e->av->fid));
  CHECK_OK(fi_close(&e->cq->fid));
  CHECK_OK(fi_close(&e->domain->fid));
  CHECK_OK(fi_close(&e->fabric->fid));
  fi.freeinfo(e->info);
}

/* All is closed, nothing was done wrong. */
__attribute__((unused)) static void close_both(void) {
  close_end(&left);
  close_end(&right);
  CHECK_MSG(fake_violations() == 0, "%s", fake_violation());
  CHECK_INT(fake_live("domain") + fake_live("ep") + fake_live("cq") + fake_live("mr") + fake_live("info"), 0);
}

__attribute__((unused)) static void *desc(struct end *e) { return fi_mr_desc(e->mr); }

/* Moves what this end's reads of its CQ move; no completion is taken. */
__attribute__((unused)) static void progress_of(struct end *e) { (void)fi_cq_read(e->cq, NULL, 0); }

__attribute__((unused)) static void expect_nothing(struct end *e) {
  struct fi_cq_tagged_entry entry;
  CHECK_INT(fi_cq_read(e->cq, &entry, 1), -FI_EAGAIN);
}

/* The next completion of `e`; both sides progress. */
__attribute__((unused)) static struct fi_cq_tagged_entry wait_for(struct end *e) {
  struct fi_cq_tagged_entry entry = {0};
  for (int i = 0; i < 1000; i++) {
    ssize_t n = fi_cq_read(e->cq, &entry, 1);
    if (n == 1) return entry;
    CHECK_INT(n, -FI_EAGAIN);
    progress_of(e == &left ? &right : &left);
  }
  tap_fail_(__FILE__, __LINE__, "no completion");
}

__attribute__((unused)) static struct fi_cq_err_entry wait_for_error(struct end *e) {
  struct fi_cq_err_entry error = {0};
  struct fi_cq_tagged_entry entry;
  ssize_t n = -FI_EAGAIN;
  for (int i = 0; i < 1000 && n == -FI_EAGAIN; i++) {
    progress_of(e == &left ? &right : &left);
    n = fi_cq_read(e->cq, &entry, 1);
  }
  CHECK_INT(n, -FI_EAVAIL);
  CHECK_INT(fi_cq_readerr(e->cq, &error, 0), 1);
  return error;
}

__attribute__((unused)) static void expect_violation(const char *part) {
  CHECK_MSG(fake_violations() == 1 && strstr(fake_violation(), part), "%ld violations, the last: %s", fake_violations(),
            fake_violation());
  fake_forgive();
}

/* One call against the interface: its error, and the violation. */
#define REFUSED(call, err, part) \
  do {                           \
    CHECK_INT(call, -(err));     \
    expect_violation(part);      \
  } while (0)

__attribute__((unused)) static void find_functions(void) {
  static const struct { const char *name; void *to; } functions[] = {
    {"fi_getinfo", &fi.getinfo}, {"fi_freeinfo", &fi.freeinfo}, {"fi_dupinfo", &fi.dupinfo}, {"fi_fabric", &fi.fabric},
    {"fi_strerror", &fi.strerror}};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    void *symbol = fake_symbol(functions[i].name);
    memcpy(functions[i].to, &symbol, sizeof symbol);
  }
}

#define FAKEFABRIC_MAIN(...)                                                        \
  int main(int argc, char **argv) {                                                 \
    static const struct tap_case cases[] = {__VA_ARGS__};                           \
    fake_use(argv[0], NULL);                                                        \
    find_functions();                                                               \
    return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);             \
  }

#endif
