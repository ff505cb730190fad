/* SPDX-License-Identifier: Apache-2.0
 *
 * The scripted libfabric that tests of the ofi plugin stand on: that it carries
 * data, that it offers and does what its script says, and that it is as strict
 * as it says. Everything goes through libfabric's public inline functions.
 */
#include "test/unit/fakefabric_ends.h"

/* ---- what it carries --------------------------------------------------- */

TEST(messages) {
  open_both("inject=64");
  memcpy(left.memory, "hello", 6);
  CHECK_OK(fi_recv(right.ep, right.memory, 100, desc(&right), FI_ADDR_UNSPEC, &right.contexts[0]));
  CHECK_OK(fi_send(left.ep, left.memory, 6, desc(&left), left.peer, &left.contexts[0]));
  CHECK_STR(right.memory, "");
  struct fi_cq_tagged_entry sent = wait_for(&left), got = wait_for(&right);
  CHECK(sent.op_context == &left.contexts[0] && sent.flags == (FI_SEND | FI_MSG));
  CHECK(got.op_context == &right.contexts[0] && got.flags == (FI_RECV | FI_MSG) && got.len == 6);
  CHECK_STR(right.memory, "hello");
  /* Injected: the buffer is free at once, and there is no completion at the sender. With data; from whom. */
  fi_addr_t from = 7;
  CHECK_OK(fi_recv(right.ep, right.memory, 100, desc(&right), FI_ADDR_UNSPEC, &right.contexts[1]));
  CHECK_OK(fi_injectdata(left.ep, left.memory, 6, 0x1234, left.peer));
  memset(left.memory, 'x', 6);
  CHECK_INT(fi_cq_read(left.cq, &sent, 1), -FI_EAGAIN);
  CHECK_INT(fi_cq_readfrom(right.cq, &got, 1, &from), 1);
  CHECK(got.data == 0x1234 && got.flags & FI_REMOTE_CQ_DATA && from == right.peer);
  CHECK_STR(right.memory, "hello");
  close_both();
}

TEST(tagged_messages) {
  open_both("");
  for (int i = 0; i < 3; i++) {
    memset(left.memory + 10000 * i, 'a' + i, 10000);
    CHECK_OK(fi_tsend(left.ep, left.memory + 10000 * i, i == 2 ? 10000 : 10, desc(&left), left.peer, 40 + (uint64_t)i,
                      &left.contexts[i]));
  }
  /* Small ones are sent before there is a receive; the large one waits for its own. */
  CHECK(wait_for(&left).op_context == &left.contexts[0] && wait_for(&left).op_context == &left.contexts[1]);
  expect_nothing(&left);
  expect_nothing(&right);
  for (int i = 2; i >= 0; i--)
    CHECK_OK(fi_trecv(right.ep, right.memory + 10000 * i, 10000, desc(&right), FI_ADDR_UNSPEC, 40 + (uint64_t)i, 0,
                      &right.contexts[i]));
  for (int i = 2; i >= 0; i--) {
    struct fi_cq_tagged_entry got = wait_for(&right);
    CHECK(got.op_context == &right.contexts[i]);
    CHECK_INT(got.len, i == 2 ? 10000 : 10);
    CHECK_INT(got.tag, 40 + i);
    CHECK(memcmp(left.memory + 10000 * i, right.memory + 10000 * i, got.len) == 0);
  }
  CHECK(wait_for(&left).op_context == &left.contexts[2]);
  /* Two of one tag in their order, through a mask; too long for the second. */
  CHECK_OK(fi_tsend(left.ep, left.memory, 4, desc(&left), left.peer, 0x105, &left.contexts[0]));
  CHECK_OK(fi_tsend(left.ep, left.memory, 8, desc(&left), left.peer, 0x205, &left.contexts[1]));
  for (int i = 0; i < 2; i++)
    CHECK_OK(fi_trecv(right.ep, right.memory, 6, desc(&right), FI_ADDR_UNSPEC, 5, 0xff00, &right.contexts[i]));
  CHECK_INT(wait_for(&right).tag, 0x105);
  struct fi_cq_err_entry error = wait_for_error(&right);
  CHECK(error.err == FI_ETRUNC && error.olen == 2 && error.op_context == &right.contexts[1]);
  close_both();
}

TEST(rma) {
  open_both("");
  uint64_t there = (uintptr_t)right.memory, key = fi_mr_key(right.mr);
  memset(left.memory, 'w', 1000);
  CHECK_OK(fi_write(left.ep, left.memory, 1000, desc(&left), left.peer, there + 50, key, &left.contexts[0]));
  CHECK(wait_for(&left).flags == (FI_RMA | FI_WRITE));
  expect_nothing(&right);
  CHECK(memcmp(right.memory + 50, left.memory, 1000) == 0 && right.memory[49] == 0 && right.memory[1050] == 0);
  CHECK_OK(fi_writedata(left.ep, left.memory, 8, desc(&left), 77, left.peer, there, key, &left.contexts[0]));
  struct fi_cq_tagged_entry got = wait_for(&right);
  CHECK(got.data == 77 && got.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
  CHECK(wait_for(&left).op_context == &left.contexts[0]);
  CHECK_OK(fi_read(left.ep, left.memory + 4000, 1000, desc(&left), left.peer, there + 50, key, &left.contexts[1]));
  CHECK(wait_for(&left).flags == (FI_RMA | FI_READ));
  CHECK(memcmp(left.memory + 4000, left.memory, 1000) == 0);
  CHECK_OK(fi_inject_write(left.ep, "injected", 9, left.peer, there, key));
  expect_nothing(&left);
  expect_nothing(&right);
  CHECK_STR(right.memory, "injected");
  close_both();
}

/* ---- what it offers ---------------------------------------------------- */

TEST(offers) {
  struct fi_info *list, *hints = hints_for(FI_MSG | FI_RMA);
  fake_script("nics=none");
  CHECK_INT(find(hints, &list), -FI_ENODATA);
  fake_script(
      "reset=1 nic=eth0 prov=tcp;ofi_rxm speed=25 nic_attr=0 nic=mlx0 prov=verbs;ofi_rxm pci=0001:41:02.3 speed=200 "
      "inject=0 cq_data=4 add=hmem no=saw mr_mode=local,hmem nic=shm prov=shm no=rma");
  CHECK_OK(find(hints, &list));
  CHECK(list->next && !list->next->next);
  CHECK_STR(list->domain_attr->name, "eth0");
  CHECK(!list->nic && list->tx_attr->inject_size == 64 && list->caps & FI_REMOTE_WRITE);
  const struct fi_info *mlx = list->next;
  CHECK(mlx->nic->bus_attr->bus_type == FI_BUS_PCI && mlx->nic->bus_attr->attr.pci.domain_id == 1);
  CHECK(mlx->nic->bus_attr->attr.pci.bus_id == 0x41 && mlx->nic->bus_attr->attr.pci.function_id == 3);
  CHECK_INT(mlx->nic->link_attr->speed, 200000000000);
  CHECK(mlx->tx_attr->inject_size == 0 && mlx->domain_attr->cq_data_size == 4);
  CHECK(!(mlx->tx_attr->msg_order & FI_ORDER_SAW) && mlx->tx_attr->msg_order & FI_ORDER_SAS);
  CHECK_INT(mlx->domain_attr->mr_mode, FI_MR_LOCAL);
  struct fi_info *copy = fi.dupinfo(mlx);
  fi.freeinfo(list);
  CHECK_STR(copy->nic->device_attr->name, "mlx0");
  fi.freeinfo(copy);
  hints->caps = FI_MSG | FI_HMEM;
  CHECK_OK(find(hints, &list));
  CHECK(!list->next && list->domain_attr->mr_mode == (FI_MR_LOCAL | FI_MR_HMEM));
  fi.freeinfo(list);
  hints->caps = FI_MSG;
  hints->domain_attr->mr_mode &= ~FI_MR_LOCAL;
  hints->fabric_attr->prov_name = strdup("ofi_rxm");
  CHECK_OK(find(hints, &list));
  CHECK_STR(list->fabric_attr->prov_name, "tcp;ofi_rxm");
  CHECK(!list->next);
  fi.freeinfo(list);
  hints->domain_attr->threading = FI_THREAD_SAFE;
  CHECK_INT(find(hints, &list), -FI_ENODATA);
  fi.freeinfo(hints);
  fake_script("fail=getinfo:1:ENOSYS");
  CHECK_INT(find(NULL, &list), -FI_ENOSYS);
  CHECK_INT(fake_live("info"), 0);
}

/* ---- how strict it is -------------------------------------------------- */

TEST(strict_posts) {
  struct fi_context2 *c = left.contexts;
  char *m = left.memory;
  open_both("mr_mode=local,virt_addr,prov_key mode=context2 inject=16 max_msg=1000 cq_data=4 iov=1 no=delivery,read "
            "tag_format=aaaaaaaaaaaa tx_size=2");
  void *d = desc(&left);
  REFUSED(fi_send(left.ep, m, 8, NULL, left.peer, c), FI_EINVAL, "is missing (FI_MR_LOCAL)");
  REFUSED(fi_send(left.ep, m, 8, desc(&right), left.peer, c), FI_EINVAL, "another domain");
  REFUSED(fi_send(left.ep, m - 1, 8, d, left.peer, c), FI_EINVAL, "another range");
  REFUSED(fi_send(left.ep, m, 8, m, left.peer, c), FI_EINVAL, "no open MR");
  REFUSED(fi_send(left.ep, m, 1001, d, left.peer, c), FI_EMSGSIZE, "max_msg_size");
  REFUSED(fi_inject(left.ep, m, 17, left.peer), FI_EMSGSIZE, "inject_size");
  REFUSED(fi_senddata(left.ep, m, 8, d, 1ull << 32, left.peer, c), FI_EINVAL, "cq_data_size");
  REFUSED(fi_tsend(left.ep, m, 8, d, left.peer, 1ull << 48, c), FI_EINVAL, "mem_tag_format");
  REFUSED(fi_send(left.ep, m, 8, d, left.peer + 1, c), FI_EINVAL, "not in the AV");
  REFUSED(fi_send(left.ep, m, 8, d, left.peer, NULL), FI_EINVAL, "no context");
  REFUSED(fi_read(left.ep, m, 8, d, left.peer, 0, 0, c), FI_EOPNOTSUPP, "no capability");
  struct iovec two[2] = {{m, 1}, {m, 1}};
  void *descs[2] = {d, d};
  REFUSED(fi_sendv(left.ep, two, descs, 2, left.peer, c), FI_EINVAL, "iov_limit");
  struct fi_msg message = {.msg_iov = two, .desc = descs, .iov_count = 1, .addr = left.peer, .context = c};
  REFUSED(fi_sendmsg(left.ep, &message, FI_DELIVERY_COMPLETE), FI_EOPNOTSUPP, "FI_DELIVERY_COMPLETE");
  /* A context twice; one that its owner writes to. Queues have their size. */
  CHECK_OK(fi_tsend(left.ep, m, 8, d, left.peer, 1, c));
  REFUSED(fi_tsend(left.ep, m, 8, d, left.peer, 1, c), FI_EINVAL, "the context of an operation in flight");
  CHECK_OK(fi_tsend(left.ep, m, 8, d, left.peer, 1, c + 1));
  CHECK_INT(fi_tsend(left.ep, m, 8, d, left.peer, 1, c + 2), -FI_EAGAIN);
  c[1].internal[7] = NULL;
  CHECK(wait_for(&left).op_context == c && wait_for(&left).op_context == c + 1);
  expect_violation("a context was changed");
  CHECK_OK(fi_tsend(left.ep, m, 8, d, left.peer, 1, c));
  CHECK(wait_for(&left).op_context == c);
  /* When an endpoint is closed, contexts are the caller's again: of what is in flight, and of completions not read. */
  CHECK_OK(fi_tsend(left.ep, m, 8, d, left.peer, 1, c));
  CHECK_OK(fi_trecv(right.ep, right.memory, 8, desc(&right), FI_ADDR_UNSPEC, 1, 0, c + 1));
  progress_of(&left);
  CHECK_OK(fi_close(&left.ep->fid));
  left.ep = NULL;
  CHECK_OK(fi_tsend(right.ep, right.memory, 8, desc(&right), right.peer, 1, c));
  close_both();
}

TEST(strict_rma) {
  struct fi_context2 *c = left.contexts;
  open_both("mr_mode=allocated mr_key=2");
  CHECK(fi_mr_key(right.mr) == 2 && left.info->domain_attr->mr_mode == FI_MR_ALLOCATED);
  struct fid_mr *mr;
  CHECK_INT(fi_mr_reg(right.domain, right.memory, 10, FI_REMOTE_READ, 0, 2, 0, &mr, NULL), -FI_ENOKEY);
  REFUSED(fi_mr_reg(right.domain, right.memory, 10, FI_REMOTE_READ, 0, 65536, 0, &mr, NULL), FI_EKEYREJECTED,
          "2 bytes");
  REFUSED(fi_mr_reg(right.domain, (void *)0x1000, 10, FI_REMOTE_READ, 0, 9, 0, &mr, NULL), FI_EFAULT, "not mapped");
  CHECK_OK(fi_mr_reg(right.domain, right.memory, 10, FI_REMOTE_READ, 0, 65535, 0, &mr, NULL));
  /* Offsets, not addresses. */
  CHECK_OK(fi_write(left.ep, left.memory, 8, NULL, left.peer, 0, 2, c));
  CHECK(wait_for(&left).op_context == c);
  static const struct { uint64_t addr, key; const char *part; } wrong[] = {
    {SIZE - 7, 2, "outside of the MR"}, {0, 3, "no MR has this key"}, {0, 65535, "without this access"}};
  for (size_t i = 0; i < 3; i++) {
    CHECK_OK(fi_write(left.ep, left.memory, 8, NULL, left.peer, wrong[i].addr, wrong[i].key, c));
    CHECK_INT(wait_for_error(&left).err, FI_EACCES);
    expect_violation(wrong[i].part);
  }
  /* A key that was good once is an error of the operation, and no violation: its owner may close it any time. */
  CHECK_OK(fi_close(&mr->fid));
  CHECK_OK(fi_read(left.ep, left.memory, 8, NULL, left.peer, 0, 65535, c));
  CHECK_INT(wait_for_error(&left).err, FI_EACCES);
  close_both();
  /* A key is good at the endpoint that its MR is bound to. */
  open_both("mr_mode=endpoint,prov_key,virt_addr");
  struct fid_ep *other;
  CHECK_OK(fi_endpoint(right.domain, right.info, &other, NULL));
  CHECK_OK(fi_ep_bind(other, &right.cq->fid, FI_TRANSMIT | FI_RECV));
  CHECK_OK(fi_ep_bind(other, &right.av->fid, 0));
  CHECK_OK(fi_enable(other));
  CHECK_OK(fi_mr_reg(right.domain, right.memory, 8, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
  REFUSED(fi_mr_enable(mr), FI_EOPBADSTATE, "bound to no enabled endpoint");
  CHECK_OK(fi_mr_bind(mr, &other->fid, 0));
  CHECK_OK(fi_mr_enable(mr));
  CHECK_OK(fi_write(left.ep, left.memory, 8, NULL, left.peer, (uintptr_t)right.memory, fi_mr_key(mr), c));
  CHECK_INT(wait_for_error(&left).err, FI_EACCES);
  expect_violation("bound to another endpoint");
  CHECK_OK(fi_write(left.ep, left.memory, 8, NULL, left.peer, (uintptr_t)right.memory, fi_mr_key(right.mr), c));
  CHECK(wait_for(&left).op_context == c);
  CHECK_INT(fi_close(&other->fid), -FI_EBUSY); /* it is bound */
  CHECK_OK(fi_close(&mr->fid));
  CHECK_OK(fi_close(&other->fid));
  close_both();
}

TEST(strict_objects) {
  open_both("");
  REFUSED(fi_close(&left.domain->fid), FI_EBUSY, "that 4 open objects use");
  REFUSED(fi_close(&left.cq->fid), FI_EBUSY, "CQ");
  REFUSED(fi_enable(left.ep), FI_EOPBADSTATE, "not permitted");
  CHECK_OK(fi_recv(left.ep, left.memory, 8, desc(&left), FI_ADDR_UNSPEC, NULL));
  REFUSED(fi_close(&left.mr->fid), FI_EBUSY, "1 operations in flight");
  struct fid_ep *ep = left.ep;
  CHECK_OK(fi_close(&ep->fid));
  left.ep = NULL;
  REFUSED(fi_close(&ep->fid), FI_EBADF, "closed");
  REFUSED(fi_send(ep, left.memory, 8, desc(&left), left.peer, NULL), FI_EBADF, "send: the endpoint is closed");
  CHECK_OK(fi_endpoint(left.domain, left.info, &ep, NULL));
  REFUSED(fi_send(ep, left.memory, 8, desc(&left), left.peer, NULL), FI_EOPBADSTATE, "not enabled");
  REFUSED(fi_enable(ep), FI_ENOCQ, "Missing");
  CHECK_OK(fi_close(&ep->fid));
  fi_addr_t nobody = 99;
  REFUSED(fi_av_remove(left.av, &nobody, 1, 0), FI_EINVAL, "not in it");
  close_both();
}

TEST(changed_buffers) {
  struct fi_context2 *c = left.contexts;
  open_both("");
  CHECK_OK(fi_tsend(left.ep, left.memory, 8, desc(&left), left.peer, 1, c));
  left.memory[7] = 'x';
  CHECK(wait_for(&left).op_context == c);
  expect_violation("changed while its tsend");
  left.memory[7] = 'y';
  /* A large one is the provider's until it was received. */
  CHECK_OK(fi_tsend(left.ep, left.memory, 10000, desc(&left), left.peer, 2, c));
  expect_nothing(&left);
  expect_nothing(&right);
  left.memory[0] = 'x';
  CHECK_OK(fi_trecv(right.ep, right.memory, 10000, desc(&right), FI_ADDR_UNSPEC, 2, 0, c));
  CHECK(wait_for(&right).op_context == c && wait_for(&left).op_context == c);
  expect_violation("changed while its tsend");
  close_both();
}

/* Completions of successes only where they are asked for; of errors always. */
TEST(selective_completion) {
  struct fid_ep *ep;
  open_both("");
  CHECK_OK(fi_endpoint(left.domain, left.info, &ep, NULL));
  CHECK_OK(fi_ep_bind(ep, &left.cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
  CHECK_OK(fi_ep_bind(ep, &left.av->fid, 0));
  CHECK_OK(fi_enable(ep));
  struct iovec iov = {left.memory, 8};
  struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = left.peer, .tag = 1, .context = &left.contexts[1]};
  CHECK_OK(fi_tsend(ep, left.memory, 8, NULL, left.peer, 1, &left.contexts[0]));
  CHECK_OK(fi_tsendmsg(ep, &m, FI_COMPLETION));
  CHECK(wait_for(&left).op_context == &left.contexts[1]);
  fake_script("fail=tsend:1");
  CHECK_OK(fi_tsend(ep, left.memory, 8, NULL, left.peer, 1, &left.contexts[2]));
  CHECK(wait_for_error(&left).op_context == &left.contexts[2]);
  CHECK_OK(fi_close(&ep->fid));
  close_both();
}

TEST(keys_of_any_size) {
  for (int size = 1; size <= 8; size++) {
    char script[64];
    struct fid_mr *mrs[100];
    snprintf(script, sizeof script, "mr_key=%d", size);
    open_both(script);
    for (int i = 0; i < 100; i++) {
      CHECK_OK(fi_mr_reg(right.domain, right.memory + i, 1, FI_REMOTE_WRITE, 0, 0, 0, &mrs[i], NULL));
      CHECK(size == 8 || fi_mr_key(mrs[i]) >> 8 * size == 0);
    }
    for (int i = 0; i < 300; i++) { /* of one byte there are not so many: none is given out twice at a time */
      struct fid_mr *one;
      CHECK_OK(fi_mr_reg(right.domain, right.memory, 1, FI_REMOTE_WRITE, 0, 0, 0, &one, NULL));
      for (int m = 0; m < 100; m++) CHECK(fi_mr_key(mrs[m]) != fi_mr_key(one));
      CHECK_OK(fi_close(&one->fid));
    }
    for (int i = 0; i < 100; i++) {
      char byte = (char)i;
      uint64_t there = (uintptr_t)right.memory + (uintptr_t)i;
      CHECK_OK(fi_inject_write(left.ep, &byte, 1, left.peer, there, fi_mr_key(mrs[i])));
    }
    expect_nothing(&left);
    expect_nothing(&right);
    for (int i = 0; i < 100; i++) {
      CHECK_INT(right.memory[i], i);
      CHECK_OK(fi_close(&mrs[i]->fid));
    }
    close_both();
  }
}

/* With an address sanitizer: memory that is freed before an operation, or while it is in flight. */
TEST(freed_memory) {
#if !defined(__SANITIZE_ADDRESS__)
  tap_skip_case("only seen with an address sanitizer");
#endif
  open_both("");
  char *volatile freed = malloc(100);
  CHECK_OK(fi_recv(right.ep, freed, 100, NULL, FI_ADDR_UNSPEC, NULL));
  free(freed);
  CHECK_OK(fi_send(left.ep, left.memory, 100, NULL, left.peer, NULL));
  wait_for(&right);
  expect_violation("freed while its recv was in flight");
  REFUSED(fi_send(left.ep, freed, 100, NULL, left.peer, NULL), FI_EFAULT, "not the caller's");
  wait_for(&left);
  close_both();
}

FAKEFABRIC_MAIN(TEST_CASE(messages), TEST_CASE(tagged_messages), TEST_CASE(rma), TEST_CASE(offers),
                TEST_CASE(strict_posts), TEST_CASE(strict_rma), TEST_CASE(strict_objects),
                TEST_CASE(changed_buffers), TEST_CASE(selective_completion),
                TEST_CASE(keys_of_any_size), TEST_CASE(freed_memory))
