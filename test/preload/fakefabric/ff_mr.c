/* SPDX-License-Identifier: Apache-2.0
 * Memory regions: keys, descriptors, and what they allow. */
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/preload/fakefabric/ff.h"

enum { BUCKETS = sizeof ff.keys / sizeof ff.keys[0] };

static uint64_t key_limit(const struct ff_nic *nic) {
  return nic->mr_key >= 8 ? UINT64_MAX : (1ull << 8 * nic->mr_key) - 1;
}

static struct ff_mr *keyed(const struct ff_domain *domain, uint64_t key) {
  for (struct ff_mr *mr = ff.keys[key % BUCKETS]; mr; mr = mr->next)
    if (mr->key == key && !mr->o.closed && mr->o.domain == domain) return mr;
  return NULL;
}

/* Was it given out, by an MR that is closed now? */
static bool is_stale(const struct ff_domain *domain, uint64_t key) {
  for (struct ff_mr *mr = ff.keys[key % BUCKETS]; mr; mr = mr->next)
    if (mr->key == key && mr->o.domain == domain) return true;
  return false;
}

static void enable(struct ff_mr *mr) {
  mr->enabled = true;
  mr->fid.key = mr->key;
  mr->next = ff.keys[mr->key % BUCKETS];
  ff.keys[mr->key % BUCKETS] = mr;
}

/* Not in the order that they are made in. */
static int choose_key(struct ff_mr *mr, uint64_t wanted) {
  const struct ff_domain *d = mr->o.domain;
  uint64_t limit = key_limit(&d->nic);
  mr->key = wanted;
  if (d->mr_mode & FI_MR_PROV_KEY) {
    for (uint64_t i = 0; i < 512; i++) {
      mr->key = (limit == UINT64_MAX ? (mr->id + 1) * 0x9e3779b97f4a7c15u + i : mr->id + 1 + i) & limit;
      if (mr->key != FI_KEY_NOTAVAIL && !keyed(d, mr->key)) return 0;
    }
    return -FI_ENOSPC;
  }
  if (wanted > limit) {
    ff_violate("fi_mr_reg: key 0x%llx has more than %llu bytes", (unsigned long long)wanted,
               (unsigned long long)d->nic.mr_key);
    return -FI_EKEYREJECTED;
  }
  return keyed(d, wanted) ? -FI_ENOKEY : 0;
}

static bool is_mapped(const void *p, size_t len) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), last = ((uintptr_t)p + len - 1) & ~(page - 1);
  unsigned char in;
  return mincore((void *)((uintptr_t)p & ~(page - 1)), page, &in) == 0 && mincore((void *)last, page, &in) == 0;
}

static int mr_close(struct fid *fid) {
  struct ff_mr *mr = (struct ff_mr *)(void *)fid;
  if (!ff_enter(&mr->o, "fi_close")) return -FI_EBADF;
  bool in_use = mr->uses && !(mr->ep && mr->ep->closing);
  if (in_use) ff_violate("fi_close of an MR that %u operations in flight use", mr->uses);
  int err = in_use ? -FI_EBUSY : ff_shut(&mr->o);
  if (!err && mr->ep) mr->ep->bound--;
  ff_leave(&mr->o);
  return err;
}

static int mr_bind(struct fid *fid, struct fid *to, uint64_t flags) {
  struct ff_mr *mr = (struct ff_mr *)(void *)fid;
  (void)flags;
  if (!ff_enter(&mr->o, "fi_mr_bind")) return -FI_EBADF;
  bool good = to->fclass == FI_CLASS_EP && !mr->enabled && !mr->ep;
  if (good) mr->ep = (struct ff_ep *)(void *)to, mr->ep->bound++;
  else ff_violate("fi_mr_bind of an MR that is enabled or bound, or to something else than an endpoint");
  ff_leave(&mr->o);
  return good ? 0 : -FI_EINVAL;
}

static int mr_control(struct fid *fid, int command, void *arg) {
  struct ff_mr *mr = (struct ff_mr *)(void *)fid;
  (void)arg;
  if (command != FI_ENABLE) return -FI_ENOSYS;
  if (!ff_enter(&mr->o, "fi_mr_enable")) return -FI_EBADF;
  bool good = !mr->enabled && mr->ep && mr->ep->enabled;
  if (good) enable(mr);
  else ff_violate("fi_mr_enable of an MR that is enabled, or bound to no enabled endpoint");
  ff_leave(&mr->o);
  return good ? 0 : -FI_EOPBADSTATE;
}

static struct fi_ops mr_fid_ops = {sizeof mr_fid_ops, mr_close, mr_bind, mr_control, ff_no_ops, NULL, NULL};

/* The GPU that the driver says. */
static bool is_device_right(const struct fi_mr_attr *attr) {
  int (*ask)(void *, int, uint64_t), ordinal = 0;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *found = driver ? dlsym(driver, "cuPointerGetAttribute") : NULL;
  memcpy(&ask, &found, sizeof found);
  bool right = !found || ask(&ordinal, 9, (uintptr_t)attr->mr_iov->iov_base) != 0 || ordinal == attr->device.cuda;
  if (driver) dlclose(driver);
  return right;
}

static int check_attr(const struct ff_domain *d, const struct fi_mr_attr *attr, uint64_t flags) {
  const uint64_t known = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  const struct iovec *iov = attr->mr_iov;
  if (attr->iov_count != 1 || flags & ~(uint64_t)FI_HMEM_DEVICE_ONLY) return -FI_EINVAL;
  if ((attr->access & ~known) || !attr->access || attr->offset) {
    ff_violate("fi_mr_reg: access 0x%llx, offset %llu", (unsigned long long)attr->access,
               (unsigned long long)attr->offset);
    return -FI_EINVAL;
  }
  if (attr->iface != FI_HMEM_SYSTEM && !(d->nic.caps & FI_HMEM)) return -FI_ENOSYS;
  if (attr->iface == FI_HMEM_CUDA && !is_device_right(attr)) {
    ff_violate("fi_mr_reg: memory of another GPU than device.cuda %d", attr->device.cuda);
    return -FI_EINVAL;
  }
  if (!iov->iov_len || (d->mr_mode & FI_MR_ALLOCATED && !is_mapped(iov->iov_base, iov->iov_len))) {
    ff_violate("fi_mr_reg: %zu bytes at %p are not mapped", iov->iov_len, iov->iov_base);
    return -FI_EFAULT;
  }
  return 0;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out) {
  struct ff_domain *d = (struct ff_domain *)(void *)fid;
  struct ff_mr *mr = NULL;
  if (!ff_enter(&d->o, "fi_mr_reg")) return -FI_EBADF;
  int err = ff_fault("mr_reg");
  if (!err && attr->iface != FI_HMEM_SYSTEM) err = ff_fault("mr_hmem");
  if (!err) err = check_attr(d, attr, flags);
  if (!err && (ff.nmrs + 1 >= FF_MRS || (d->nic.mr_cnt && (uint64_t)ff.live[FF_MR] >= d->nic.mr_cnt))) err = -FI_ENOSPC;
  if (!err && !(mr = ff_alloc(sizeof *mr))) err = -FI_ENOMEM;
  if (!err) {
    mr->o.domain = d;
    mr->id = ++ff.nmrs;
    mr->access = attr->access;
    mr->device = attr->iface != FI_HMEM_SYSTEM;
    mr->base = attr->mr_iov->iov_base;
    mr->len = attr->mr_iov->iov_len;
    err = choose_key(mr, attr->requested_key);
  }
  if (!err) {
    mr->fid = (struct fid_mr){{FI_CLASS_MR, attr->context, &mr_fid_ops}, (void *)(uintptr_t)mr->id, FI_KEY_NOTAVAIL};
    ff_open(&mr->o, FF_MR, &d->o);
    ff.mr_of[mr->id] = mr;
    if (!(d->mr_mode & FI_MR_ENDPOINT)) enable(mr);
    *out = &mr->fid;
  } else ff_free(mr);
  ff_leave(&d->o);
  return err;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t n, uint64_t access, uint64_t offset, uint64_t key,
                   uint64_t flags, struct fid_mr **mr, void *context) {
  const struct fi_mr_attr attr = {.mr_iov = iov, .iov_count = n, .access = access, .offset = offset,
                                  .requested_key = key, .context = context};
  return mr_regattr(fid, &attr, flags, mr);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
                  uint64_t flags, struct fid_mr **mr, void *context) {
  const struct iovec iov = {(void *)(uintptr_t)buf, len};
  return mr_regv(fid, &iov, 1, access, offset, key, flags, mr, context);
}

struct fi_ops_mr ff_mr_ops = {sizeof ff_mr_ops, mr_reg, mr_regv, mr_regattr};

struct ff_mr *ff_mr_of_desc(void *desc) {
  uintptr_t id = (uintptr_t)desc;
  struct ff_mr *mr = id < FF_MRS ? ff.mr_of[id] : NULL;
  return mr && !mr->o.closed ? mr : NULL;
}

char *ff_mr_reach(struct ff_ep *ep, const struct fi_rma_iov *rma, uint64_t access, int *err,
                  bool report) {
  const struct ff_domain *d = ep->o.domain;
  const struct ff_mr *mr = keyed(d, rma->key);
  uint64_t base = d->mr_mode & FI_MR_VIRT_ADDR && mr ? (uintptr_t)mr->base : 0;
  const char *wrong = NULL;
  *err = 0;
  if (!mr) wrong = "no MR has this key";
  else if ((mr->access & access) != access) wrong = "the MR is without this access";
  else if (mr->ep && mr->ep != ep) wrong = "the MR is bound to another endpoint (FI_MR_ENDPOINT)";
  else if (rma->addr < base || rma->addr - base > mr->len || rma->len > mr->len - (rma->addr - base))
    wrong = "it is outside of the MR";
  if (!wrong) return mr->base + (rma->addr - base);
  *err = FI_EACCES;
  if (report && (mr || !is_stale(d, rma->key)))
    ff_violate("RMA of %zu bytes at 0x%llx with key 0x%llx: %s", rma->len, (unsigned long long)rma->addr,
               (unsigned long long)rma->key, wrong);
  return NULL;
}
