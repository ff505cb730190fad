/* SPDX-License-Identifier: Apache-2.0
 * How busy others keep this machine, and what is free. */
#ifndef RAIL_KIT_BENCH_LOAD_H
#define RAIL_KIT_BENCH_LOAD_H

struct kit_bench_load { double time, busy, own; }; /* seconds */

struct kit_bench_load kit_bench_load_now(void);
/* Cores that processes which are not this one or its ended children have kept busy since. NAN: this system does not
 * say. Interrupts are left out: loopback's belong to no process. */
double kit_bench_load_of_others(const struct kit_bench_load *since);
/* Bytes that processes can still have. NAN: this system does not say. */
double kit_bench_free_memory(void);

#endif
