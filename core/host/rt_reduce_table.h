/* SPDX-License-Identifier: Apache-2.0
 * Between rt_reduce.c and the objects made of rt_reduce_impl.c: one table per
 * instruction set, indexed by type and operation. */
#ifndef RT_REDUCE_TABLE_H
#define RT_REDUCE_TABLE_H

#include "core/host/rt_reduce.h"
#include "core/host/rt_types.h"

typedef const struct rt_reduce_fns rt_reduce_table[RT_TYPE_COUNT][RT_OP_COUNT];

extern rt_reduce_table rt_reduce_table_base;
extern rt_reduce_table rt_reduce_table_avx2;
extern rt_reduce_table rt_reduce_table_avx512;

#endif
