/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs, opened when it is first needed (NCCL_IBVERBS_LIB, libibverbs.so.1, libibverbs.so), and librdmacm where
 * queue pairs are set up by the RDMA CM (RAIL_IB_RDMACM_LIB, librdmacm.so.1, librdmacm.so). All functions of the
 * libraries are called through these tables, so that the plugin loads where they are not installed. Inline functions of
 * verbs.h over a context's table (ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq) are called directly.
 * Its macros over ibv_reg_mr, ibv_query_port and ibv_get_device_list are not used: they would link to the library.
 */
#ifndef IB_VERBS_H
#define IB_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <sys/types.h>

struct ib_verbs {
  struct ibv_device **(*get_device_list)(int *count);
  void (*free_device_list)(struct ibv_device **list);
  const char *(*get_device_name)(struct ibv_device *device);
  struct ibv_context *(*open_device)(struct ibv_device *device);
  int (*close_device)(struct ibv_context *context);
  int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
  void (*ack_async_event)(struct ibv_async_event *event);
  int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
  /* The library's symbol fills struct ibv_port_attr up to and including flags; the rest is 0. */
  int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
  int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
  struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
  int (*dealloc_pd)(struct ibv_pd *pd);
  struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
  int (*dereg_mr)(struct ibv_mr *mr);
  struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *k,
                              int comp_vector);
  int (*destroy_cq)(struct ibv_cq *cq);
  struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context); /* as below: NULL where it is absent */
  int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
  int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
  void (*ack_cq_events)(struct ibv_cq *cq, unsigned int n);
  struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
  int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
  int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init_attr);
  int (*destroy_qp)(struct ibv_qp *qp);
  int (*fork_init)(void);
  /* Absent in older libraries: NULL. */
  struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access);
  struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
  int (*query_ece)(struct ibv_qp *qp, struct ibv_ece *ece);
  int (*set_ece)(struct ibv_qp *qp, struct ibv_ece *ece);
  ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
                             size_t entry_size);
  int (*query_port_speed)(struct ibv_context *context, uint32_t port, uint64_t *speed); /* in 100 Mb/s */
  const char *(*get_sysfs_path)(void);
};
extern struct ib_verbs ib_verbs;

struct ib_rdmacm {
  struct rdma_event_channel *(*create_event_channel)(void);
  void (*destroy_event_channel)(struct rdma_event_channel *channel);
  int (*create_id)(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps);
  int (*destroy_id)(struct rdma_cm_id *id);
  int (*set_option)(struct rdma_cm_id *id, int level, int name, void *value, size_t size);
  int (*bind_addr)(struct rdma_cm_id *id, struct sockaddr *addr);
  int (*listen)(struct rdma_cm_id *id, int backlog);
  __be16 (*get_src_port)(struct rdma_cm_id *id);
  int (*resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms);
  int (*resolve_route)(struct rdma_cm_id *id, int timeout_ms);
  int (*connect)(struct rdma_cm_id *id, struct rdma_conn_param *param);
  int (*establish)(struct rdma_cm_id *id);
  int (*accept)(struct rdma_cm_id *id, struct rdma_conn_param *param);
  int (*reject)(struct rdma_cm_id *id, const void *private_data, uint8_t size);
  int (*init_qp_attr)(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask);
  int (*get_cm_event)(struct rdma_event_channel *channel, struct rdma_cm_event **event);
  int (*ack_cm_event)(struct rdma_cm_event *event);
  const char *(*event_str)(enum rdma_cm_event_type event);
};
extern struct ib_rdmacm ib_rdmacm;

/* Each opens its library, once; false after one line that says what to install. Call under the plugin's lock. */
bool ib_verbs_open(void);
bool ib_rdmacm_open(void);

#endif
