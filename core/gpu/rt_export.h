/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU memory that one rank exports and another rank of its host imports, so that kernels of both use it. What the owner
 * exports travels in the connect record. It chooses the best type that both ranks have and that works; within a process
 * the importer finds the memory by its address.
 *
 * The memory lives as long as either rank has it: a kernel of the importer may write on when the owner's end is gone.
 * Within a process references are counted; of mapped memory the driver counts them; of CUDA IPC the owner waits until
 * the importer has closed it, or its process has ended.
 *
 * A refusal's reason is in `why`.
 */
#ifndef RT_EXPORT_H
#define RT_EXPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/gpu/rt_fd_receiver.h"
#include "core/gpu/rt_gpu.h"
#include "core/gpu/rt_mem.h"
#include "core/topo/rt_pci.h"

struct rt_peer;

enum rt_export_type {
  RT_EXPORT_NONE,
  /* To another process: */
  RT_EXPORT_FABRIC, /* mapped memory, by 64 bytes */
  RT_EXPORT_FD,     /* mapped memory, by a file descriptor that the importer's rt_fd_receiver gets */
  RT_EXPORT_IPC,    /* cuMemAlloc's memory, by 64 bytes */
  /* Within one: */
  RT_EXPORT_MAPPED, /* mapped memory, by its address; the importer's device is allowed to use it */
  RT_EXPORT_PLAIN,  /* cuMemAlloc's, by its address; the importer's context is allowed to use its context's */
  RT_EXPORT_TYPES
};
#define RT_EXPORT_BIT(type) (1u << (type))

/* What the owner sends the importer, which checks all of it. Zeroed: nothing is exported. */
struct rt_export_record {
  uint32_t type;                  /* enum rt_export_type */
  uint32_t granularity;           /* the size is a multiple of it */
  uint64_t size, address, serial; /* the last two: within the owner's process */
  char bus_id[RT_CUDA_BUS_ID];
  union {
    struct rt_cuda_fabric fabric;
    struct rt_cuda_ipc ipc;
    uint8_t key[RT_FD_KEY];
  };
};

/* Bits of all types that this process can use with this device. Opens the receiver if one of them needs it. */
uint32_t rt_export_open(int device, struct rt_fd_receiver *receiver);
/* Those that `comm` may try towards this peer. */
uint32_t rt_export_types(const struct ncclComm *comm, const struct rt_peer *peer);
const char *rt_export_text(uint32_t type);
/* Can the record's size be, if `wanted` bytes were agreed upon? */
bool rt_export_size_fits(const struct rt_export_record *record, size_t wanted);

/* These make the context that they need current themselves. */

struct rt_export;
/* Zeroed memory of the communicator's GPU, for this peer to import; fills in the record. NULL: refused. */
struct rt_export *rt_export_make(struct ncclComm *comm, int peer, size_t size, struct rt_export_record *record,
                                 char why[RT_WHY]);
char *rt_export_base(const struct rt_export *e);
/* The owner's end. `closed`: a word in `shared` that is not 0 once the importer, of process `importer`, has closed what
 * it imported; NULL: it has imported nothing. True: it has the memory still; both are given back later, with the memory
 * `shared` unmapped. */
bool rt_export_free(struct rt_export *e, int64_t importer, const uint64_t *closed, struct rt_range shared);
/* Waits, a second at most, for importers of other processes that rt_export_free has left the memory to. */
void rt_export_wait(void);

/* What a rank has imported. */
struct rt_import {
  char *base;               /* NULL: none */
  void *context;            /* the importer's */
  struct rt_export *shared; /* of this process; NULL: `mem` is another's */
  struct rt_mem mem;
  uint32_t type;
  enum rt_distance path; /* between the GPU that the memory lies in, and the one that uses it */
};

/* `owner` is a rank; its GPU must not be farther than `farthest`. */
bool rt_import_open(struct ncclComm *comm, const struct rt_export_record *record, size_t size, int owner,
                    enum rt_distance farthest, struct rt_import *import, char why[RT_WHY]);
/* Accepts a zeroed struct. */
void rt_import_close(struct rt_import *import);

#endif
