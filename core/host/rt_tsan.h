/* SPDX-License-Identifier: Apache-2.0
 *
 * For the thread sanitizer, which goes by addresses. Ranks of one process have a connection's counters mapped once
 * each, but an area of a GPU's memory only once, so nothing that the sanitizer sees orders what lies in there. In the
 * emulation it is told by the area's own address; NULL: no area.
 */
#ifndef RT_TSAN_H
#define RT_TSAN_H

#include <stdint.h>

#if !defined(__CUDACC__) && defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define RT_TSAN_RELEASE(area) ((area) ? __tsan_release((void *)(uintptr_t)(area)) : (void)0)
#define RT_TSAN_ACQUIRE(area) ((area) ? __tsan_acquire((void *)(uintptr_t)(area)) : (void)0)
#else
#define RT_TSAN_RELEASE(area) ((void)(area))
#define RT_TSAN_ACQUIRE(area) ((void)(area))
#endif

#endif
