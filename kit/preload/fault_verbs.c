/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs' calls that take something of the system and may be refused it.
 * Caught where the plugin is linked to the library, and where it looks its
 * functions up (fault_dlsym.c). What posts and polls is inline there, over a
 * context's own table: fault_posts.c. Pointers need no types to be passed on.
 */
#include <errno.h>
#include <stddef.h>

#include "kit/preload/fault.h"

/* The library may be a plugin's alone, and then is no next one of ours. */
static void *search(const char *name) {
  void *found = kit_fault_dlsym(RTLD_NEXT, name);
  if (found) return found;
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return NULL;
  found = kit_fault_dlsym(library, name);
  dlclose(library);
  return found;
}

/* `theirs` is what the plugin found when it looked the name up, in whichever library; NULL: it did not. */
#define VERB(error, bad, type, name, params, args)                                   \
  static _Atomic(void *) theirs_##name;                                              \
  type name params;                                                                  \
  PUBLIC type name params {                                                          \
    if (kit_fault_must_fail(KIT_FAIL_VERBS, #name, error, CALLER)) return bad;       \
    __typeof__(&name) real;                                                          \
    void *found = atomic_load(&theirs_##name);                                       \
    if (!found) found = search(#name);                                               \
    if (!found) {                                                                    \
      errno = ENOSYS;                                                                \
      return bad;                                                                    \
    }                                                                                \
    memcpy(&real, &found, sizeof real);                                              \
    return real args;                                                  \
  }

VERB(ENOSYS, NULL, void **, ibv_get_device_list, (int *n), (n))
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
VERB(EOPNOTSUPP, EOPNOTSUPP, int, ibv_query_ece, (void *qp, void *ece), (qp, ece))
VERB(EOPNOTSUPP, EOPNOTSUPP, int, ibv_set_ece, (void *qp, void *ece), (qp, ece))

/* Its own table of what posts and polls is changed, too. */
static _Atomic(void *) theirs_ibv_open_device;
void *ibv_open_device(void *device);
PUBLIC void *ibv_open_device(void *device) {
  void *(*real)(void *device);
  if (kit_fault_must_fail(KIT_FAIL_VERBS, "ibv_open_device", EMFILE, CALLER)) return NULL;
  void *found = atomic_load(&theirs_ibv_open_device);
  if (!found) found = search("ibv_open_device");
  if (!found) {
    errno = ENOSYS;
    return NULL;
  }
  memcpy(&real, &found, sizeof real);
  void *context = real(device);
  if (context) kit_fault_posts(context);
  return context;
}

static const struct { const char *name; void *ours; _Atomic(void *) *theirs; } table[] = {
#define ROW(name) {#name, (void *)name, &theirs_##name}
    ROW(ibv_get_device_list), ROW(ibv_alloc_pd), ROW(ibv_reg_mr), ROW(ibv_reg_mr_iova2), ROW(ibv_reg_dmabuf_mr),
    ROW(ibv_create_cq), ROW(ibv_create_comp_channel), ROW(ibv_create_srq), ROW(ibv_create_qp), ROW(ibv_modify_qp),
    ROW(ibv_query_qp), ROW(ibv_create_ah), ROW(ibv_query_device), ROW(ibv_query_port), ROW(ibv_query_gid),
    ROW(ibv_query_ece), ROW(ibv_set_ece), ROW(ibv_open_device),
#undef ROW
};

void *kit_fault_verb(const char *name, void *found) {
  for (size_t i = 0; found && i < sizeof table / sizeof *table; i++) {
    if (strcmp(table[i].name, name) != 0) continue;
    if (found != table[i].ours) atomic_store(table[i].theirs, found);
    return table[i].ours;
  }
  return found;
}
