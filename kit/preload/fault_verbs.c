/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs' calls that take something of the system and may be refused it.
 * Caught where the plugin is linked to the library; one that looks its
 * functions up with dlsym passes by. What posts and polls is inline there and
 * never comes past here. Pointers need no types to be passed on.
 */
#include <errno.h>
#include <stddef.h>

#include "kit/preload/fault.h"

/* The library may be a plugin's alone, and then is no next one of ours. */
static void *verb(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (found) return found;
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return NULL;
  found = dlsym(library, name);
  dlclose(library);
  return found;
}

#define VERB(error, bad, type, name, params, args)                                   \
  type name params;                                                                  \
  PUBLIC type name params {                                                          \
    if (kit_fault_must_fail(KIT_FAIL_VERBS, #name, error, CALLER)) return bad;       \
    __typeof__(&name) real;                                                          \
    void *found = verb(#name);                                                       \
    if (!found) {                                                                    \
      errno = ENOSYS;                                                                \
      return bad;                                                                    \
    }                                                                                \
    memcpy(&real, &found, sizeof real);                                              \
    return real args;                                                                \
  }

VERB(ENOSYS, NULL, void **, ibv_get_device_list, (int *n), (n))
VERB(EMFILE, NULL, void *, ibv_open_device, (void *device), (device))
VERB(ENOMEM, NULL, void *, ibv_alloc_pd, (void *context), (context))
VERB(ENOMEM, NULL, void *, ibv_reg_mr, (void *pd, void *p, size_t n, int access), (pd, p, n, access))
VERB(ENOMEM, NULL, void *, ibv_reg_mr_iova2, (void *pd, void *p, size_t n, uint64_t iova, unsigned int access),
     (pd, p, n, iova, access))
VERB(ENOMEM, NULL, void *, ibv_reg_dmabuf_mr, (void *pd, uint64_t at, size_t n, uint64_t iova, int fd, int access),
     (pd, at, n, iova, fd, access))
VERB(ENOMEM, NULL, void *, ibv_create_cq, (void *context, int cqe, void *arg, void *channel, int vector),
     (context, cqe, arg, channel, vector))
VERB(EMFILE, NULL, void *, ibv_create_comp_channel, (void *context), (context))
VERB(ENOMEM, NULL, void *, ibv_create_srq, (void *pd, void *attr), (pd, attr))
VERB(ENOMEM, NULL, void *, ibv_create_qp, (void *pd, void *attr), (pd, attr))
VERB(ENOMEM, ENOMEM, int, ibv_modify_qp, (void *qp, void *attr, int mask), (qp, attr, mask))
VERB(EIO, EIO, int, ibv_query_qp, (void *qp, void *attr, int mask, void *init), (qp, attr, mask, init))
VERB(ENOMEM, NULL, void *, ibv_create_ah, (void *pd, void *attr), (pd, attr))
VERB(EIO, EIO, int, ibv_query_device, (void *context, void *attr), (context, attr))
VERB(EIO, EIO, int, ibv_query_port, (void *context, uint8_t port, void *attr), (context, port, attr))
VERB(EIO, -1, int, ibv_query_gid, (void *context, uint8_t port, int index, void *gid), (context, port, index, gid))
