/* SPDX-License-Identifier: Apache-2.0
 * The GPU's arithmetic, on a model of its instructions, for tests in C. */
#ifndef DEVICE_NATIVE_H
#define DEVICE_NATIVE_H

#include "core/host/rt_reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out = op(a, b) of 4 bytes of elements of a small float: RT_SUM, RT_PROD, RT_MAX, RT_MIN. */
uint32_t native_reduce(int type, int op, uint32_t a, uint32_t b);
/* The pre-operation to 4 bytes. */
uint32_t native_scale(int type, uint32_t a, const union rt_scalar *arg);

#ifdef __cplusplus
}
#endif

#endif
