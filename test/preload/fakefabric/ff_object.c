/* SPDX-License-Identifier: Apache-2.0
 * Fabrics and domains, and what all objects have in common. */
#include <stdatomic.h>
#include <string.h>

#include "test/preload/fakefabric/ff.h"

__attribute__((weak)) void __tsan_write8(void *p);

static const char *const names[FF_CLASSES] = {"fabric", "domain", "endpoint", "CQ", "AV", "MR", "info"};

/* ---- all objects ------------------------------------------------------- */

/* What one thread at a time may use, by the threading model that the domain was opened with. */
static struct ff_object *serialised(struct ff_object *o) {
  enum fi_threading threading = o->domain ? o->domain->threading : FI_THREAD_SAFE;
  if (threading == FI_THREAD_SAFE) return NULL;
  return threading == FI_THREAD_DOMAIN ? &o->domain->o : o;
}

bool ff_enter(struct ff_object *o, const char *call) {
  struct ff_object *one = serialised(o);
  bool alone = !one || __atomic_fetch_add(&one->inside, 1, __ATOMIC_RELAXED) == 0;
  if (one && __tsan_write8) __tsan_write8(&one->witness);
  ff_lock();
  if (!alone)
    ff_violate("%s (%s) while another thread is in a call of the same %s", call, names[o->class], names[one->class]);
  if (!o->closed) return true;
  ff_violate("%s: the %s is closed", call, names[o->class]);
  ff_leave(o);
  return false;
}

void ff_leave(struct ff_object *o) {
  struct ff_object *one = serialised(o);
  if (one) __atomic_fetch_sub(&one->inside, 1, __ATOMIC_RELAXED);
  ff_unlock();
}

void ff_open(struct ff_object *o, enum ff_class class, struct ff_object *parent) {
  o->class = class;
  o->parent = parent;
  if (parent) {
    parent->users++;
    o->domain = parent->domain;
  }
  ff.live[class]++;
}

int ff_shut(struct ff_object *o) {
  if (o->users) {
    ff_violate("fi_close of a %s that %u open objects use", names[o->class], o->users);
    return -FI_EBUSY;
  }
  o->closed = true;
  if (o->parent) o->parent->users--;
  ff.live[o->class]--;
  return 0;
}

int ff_no_bind(struct fid *fid, struct fid *to, uint64_t flags) {
  (void)fid, (void)to, (void)flags;
  return -FI_ENOSYS;
}
int ff_no_control(struct fid *fid, int command, void *arg) {
  (void)fid, (void)command, (void)arg;
  return -FI_ENOSYS;
}
int ff_no_ops(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context) {
  (void)fid, (void)name, (void)flags, (void)ops, (void)context;
  return -FI_ENOSYS;
}

/* ---- domain ------------------------------------------------------------ */

static int domain_close(struct fid *fid) {
  struct ff_domain *d = (struct ff_domain *)(void *)fid;
  if (!ff_enter(&d->o, "fi_close")) return -FI_EBADF;
  int err = ff_shut(&d->o);
  ff_leave(&d->o);
  return err;
}

static struct fi_ops domain_fid_ops = {
    sizeof domain_fid_ops, domain_close, ff_no_bind, ff_no_control, ff_no_ops, NULL, NULL};
static struct fi_ops_domain domain_ops = {.size = sizeof domain_ops, .av_open = ff_av_open, .cq_open = ff_cq_open,
                                          .endpoint = ff_endpoint};

static int fabric_domain(struct fid_fabric *fid, struct fi_info *info, struct fid_domain **domain, void *context) {
  struct ff_fabric *fabric = (struct ff_fabric *)(void *)fid;
  struct ff_domain *d = ff_alloc(sizeof *d);
  if (!ff_enter(&fabric->o, "fi_domain")) return -FI_EBADF;
  int err = ff_fault("domain");
  const struct ff_nic *nic = ff_nic_of(info);
  if (!err && (!nic || strcmp(nic->fabric, info->fabric_attr->name) != 0)) err = -FI_ENODATA;
  if (!err) {
    d->nic = *nic;
    d->mr_mode = info->domain_attr->mr_mode;
    d->threading = info->domain_attr->threading;
    if (nic->mr_mode & FI_MR_LOCAL & ~(uint64_t)d->mr_mode)
      ff_violate("fi_domain: FI_MR_LOCAL of %s was taken away", nic->name);
    d->fid = (struct fid_domain){{FI_CLASS_DOMAIN, context, &domain_fid_ops}, &domain_ops, &ff_mr_ops};
    ff_open(&d->o, FF_DOMAIN, &fabric->o);
    d->o.domain = d;
    *domain = &d->fid;
  }
  ff_leave(&fabric->o);
  if (err) ff_free(d);
  return err;
}

/* ---- fabric ------------------------------------------------------------ */

static int fabric_close(struct fid *fid) {
  struct ff_fabric *fabric = (struct ff_fabric *)(void *)fid;
  if (!ff_enter(&fabric->o, "fi_close")) return -FI_EBADF;
  int err = ff_shut(&fabric->o);
  ff_leave(&fabric->o);
  return err;
}

static struct fi_ops fabric_fid_ops = {
    sizeof fabric_fid_ops, fabric_close, ff_no_bind, ff_no_control, ff_no_ops, NULL, NULL};
static struct fi_ops_fabric fabric_ops = {.size = sizeof fabric_ops, .domain = fabric_domain};

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context) {
  ff_lock();
  ff_load();
  int err = ff_fault("fabric");
  bool known = false;
  for (unsigned int i = 0; i < ff.nnics; i++)
    known |= strcmp(ff.nics[i].fabric, attr->name) == 0 &&
             (!attr->prov_name || strcmp(ff.nics[i].prov, attr->prov_name) == 0);
  struct ff_fabric *f = err || !known ? NULL : ff_alloc(sizeof *f);
  if (f) {
    f->fid = (struct fid_fabric){{FI_CLASS_FABRIC, context, &fabric_fid_ops}, &fabric_ops, attr->api_version};
    ff_open(&f->o, FF_FABRIC, NULL);
    *fabric = &f->fid;
  }
  ff_unlock();
  return err ? err : f ? 0 : -FI_ENODATA;
}
