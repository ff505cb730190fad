/* SPDX-License-Identifier: Apache-2.0
 * Tables that are none, for rail-kit inspect: a function, one that is too small, one of zeros, one that points to data,
 * one that is not exported, one under the type's name. Nobody can call any of them. */
#include "rail/net.h"

#define HIDDEN __attribute__((visibility("hidden"), used))

int ncclNetPlugin_v6(void);
int ncclNetPlugin_v6(void) { return 0; }

void *ncclNetPlugin_v7[3] = {(void *)"Odd", (void *)ncclNetPlugin_v6, (void *)ncclNetPlugin_v6};

struct rail_net_v8 ncclNetPlugin_v8;

static int data;
struct rail_net_v9 ncclNetPlugin_v9 = {.name = "Socket", .init = (int (*)(rail_logger_fn))(void *)&data};

HIDDEN const struct rail_net_v10 ncclNetPlugin_v10 = {.name = "Odd"};

const struct rail_net_v11 ncclNet_v11 = {.name = "Odd"};

/* Slots that lead nowhere at all. */
struct rail_net_v12 ncclNetPlugin_v12 = {.name = (const char *)16, .devices = (int (*)(int *))(void *)4096};

/* What NCCL also looks for in a net plugin. */
int ncclTunerPlugin_v4[4], ncclGinPlugin_v11[4], ncclCollNetPlugin_v8[4], ncclNetPlugin_v5[4];
