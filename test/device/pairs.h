/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs of elements of a small float, in rounds of 65536: of the fp8 types all there are, in one round; of f16 and
 * bf16 every value with one other in each round, with the limits of the type first, then with values from all over it.
 */
#ifndef DEVICE_PAIRS_H
#define DEVICE_PAIRS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAIRS 65536u /* of a round */

/* Of a type; 0: it is no small float. */
unsigned pairs_rounds(int type);
void pairs_fill(int type, unsigned round, void *a, void *b);

#ifdef __cplusplus
}
#endif

#endif
