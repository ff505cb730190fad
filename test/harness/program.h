/* SPDX-License-Identifier: Apache-2.0
 * What a contract program includes: TAP cases, and the harness failing them.
 * Not for the harness's own files: tap.h's state is one per program. */
#ifndef RAIL_TEST_PROGRAM_H
#define RAIL_TEST_PROGRAM_H

#include "kit/kit_net.h"
#include "test/harness/tap.h"

__attribute__((constructor)) static void program_fails_by_tap(void) { kit_on_failure(tap_fail_); }

#endif
