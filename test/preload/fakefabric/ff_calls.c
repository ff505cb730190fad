/* SPDX-License-Identifier: Apache-2.0
 * The many calls that post, each as one struct ff_request. */
#include "test/preload/fakefabric/ff.h"

#define PIECE(buf, len) const struct iovec iov = {(void *)(uintptr_t)(buf), (len)}
#define ONE .iov = &iov, .desc = &desc, .n = 1
#define MANY .iov = iov, .desc = desc, .n = n
#define COPIED .iov = &iov, .n = 1
#define POST(...) return ff_post(ep, &(const struct ff_request){__VA_ARGS__})
#define INJECT (FI_INJECT | FF_QUIET)

/* ---- messages ---------------------------------------------------------- */

static ssize_t recv_(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, void *context) {
  PIECE(buf, len);
  POST(FF_RECV, ONE, .addr = from, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, void *context) {
  POST(FF_RECV, MANY, .addr = from, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t recvmsg_(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags) {
  POST(FF_RECV, m->msg_iov, m->desc, m->iov_count, .addr = m->addr, .context = m->context, .flags = flags);
}
static ssize_t send_(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, void *context) {
  PIECE(buf, len);
  POST(FF_SEND, ONE, .addr = to, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, void *context) {
  POST(FF_SEND, MANY, .addr = to, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t sendmsg_(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags) {
  POST(FF_SEND, m->msg_iov, m->desc, m->iov_count, .addr = m->addr, .context = m->context, .data = m->data,
       .flags = flags);
}
static ssize_t inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to) {
  PIECE(buf, len);
  POST(FF_SEND, COPIED, .addr = to, .flags = INJECT);
}
static ssize_t senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to,
                        void *context) {
  PIECE(buf, len);
  POST(FF_SEND, ONE, .addr = to, .context = context, .data = data, .flags = FF_DEFAULTS | FI_REMOTE_CQ_DATA);
}
static ssize_t injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to) {
  PIECE(buf, len);
  POST(FF_SEND, COPIED, .addr = to, .data = data, .flags = INJECT | FI_REMOTE_CQ_DATA);
}

struct fi_ops_msg ff_msg_ops = {sizeof ff_msg_ops, recv_, recvv, recvmsg_, send_, sendv, sendmsg_, inject, senddata,
                                injectdata};

/* ---- tagged messages --------------------------------------------------- */

static ssize_t trecv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t tag,
                     uint64_t ignore, void *context) {
  PIECE(buf, len);
  POST(FF_TRECV, ONE, .addr = from, .tag = tag, .ignore = ignore, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t trecvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, uint64_t tag,
                      uint64_t ignore, void *context) {
  POST(FF_TRECV, MANY, .addr = from, .tag = tag, .ignore = ignore, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t trecvmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags) {
  if (flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) return -FI_EOPNOTSUPP;
  POST(FF_TRECV, m->msg_iov, m->desc, m->iov_count, .addr = m->addr, .tag = m->tag, .ignore = m->ignore,
       .context = m->context, .flags = flags);
}
static ssize_t tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
                     void *context) {
  PIECE(buf, len);
  POST(FF_TSEND, ONE, .addr = to, .tag = tag, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t tsendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, uint64_t tag,
                      void *context) {
  POST(FF_TSEND, MANY, .addr = to, .tag = tag, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t tsendmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags) {
  POST(FF_TSEND, m->msg_iov, m->desc, m->iov_count, .addr = m->addr, .tag = m->tag, .context = m->context,
       .data = m->data, .flags = flags);
}
static ssize_t tinject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t tag) {
  PIECE(buf, len);
  POST(FF_TSEND, COPIED, .addr = to, .tag = tag, .flags = INJECT);
}
static ssize_t tsenddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to,
                         uint64_t tag, void *context) {
  PIECE(buf, len);
  POST(FF_TSEND, ONE, .addr = to, .tag = tag, .context = context, .data = data,
       .flags = FF_DEFAULTS | FI_REMOTE_CQ_DATA);
}
static ssize_t tinjectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t tag) {
  PIECE(buf, len);
  POST(FF_TSEND, COPIED, .addr = to, .tag = tag, .data = data, .flags = INJECT | FI_REMOTE_CQ_DATA);
}

struct fi_ops_tagged ff_tagged_ops = {sizeof ff_tagged_ops, trecv, trecvv, trecvmsg, tsend, tsendv, tsendmsg, tinject,
                                      tsenddata, tinjectdata};

/* ---- RMA --------------------------------------------------------------- */

static size_t length_of(const struct iovec *iov, size_t n) {
  size_t length = 0;
  while (n--) length += iov[n].iov_len;
  return length;
}
#define REMOTE(length) const struct fi_rma_iov rma = {addr, (length), key}
#define THERE .rma = &rma, .nrma = 1

static ssize_t read_(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr, uint64_t key,
                     void *context) {
  PIECE(buf, len);
  REMOTE(len);
  POST(FF_READ, ONE, THERE, .addr = from, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t readv_(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t from, uint64_t addr,
                      uint64_t key, void *context) {
  REMOTE(length_of(iov, n));
  POST(FF_READ, MANY, THERE, .addr = from, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t readmsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags) {
  POST(FF_READ, m->msg_iov, m->desc, m->iov_count, m->rma_iov_count, m->rma_iov, .addr = m->addr, .context = m->context,
       .flags = flags);
}
static ssize_t write_(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t addr,
                      uint64_t key, void *context) {
  PIECE(buf, len);
  REMOTE(len);
  POST(FF_WRITE, ONE, THERE, .addr = to, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t writev_(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t n, fi_addr_t to, uint64_t addr,
                       uint64_t key, void *context) {
  REMOTE(length_of(iov, n));
  POST(FF_WRITE, MANY, THERE, .addr = to, .context = context, .flags = FF_DEFAULTS);
}
static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags) {
  POST(FF_WRITE, m->msg_iov, m->desc, m->iov_count, m->rma_iov_count, m->rma_iov, .addr = m->addr,
       .context = m->context, .data = m->data, .flags = flags);
}
static ssize_t inject_write(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t addr, uint64_t key) {
  PIECE(buf, len);
  REMOTE(len);
  POST(FF_WRITE, COPIED, THERE, .addr = to, .flags = INJECT);
}
static ssize_t writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to,
                         uint64_t addr, uint64_t key, void *context) {
  PIECE(buf, len);
  REMOTE(len);
  POST(FF_WRITE, ONE, THERE, .addr = to, .context = context, .data = data, .flags = FF_DEFAULTS | FI_REMOTE_CQ_DATA);
}
static ssize_t inject_writedata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to,
                                uint64_t addr, uint64_t key) {
  PIECE(buf, len);
  REMOTE(len);
  POST(FF_WRITE, COPIED, THERE, .addr = to, .data = data, .flags = INJECT | FI_REMOTE_CQ_DATA);
}

struct fi_ops_rma ff_rma_ops = {sizeof ff_rma_ops, read_, readv_, readmsg, write_, writev_, writemsg, inject_write,
                                writedata, inject_writedata};
