/* SPDX-License-Identifier: Apache-2.0
 * A broken plugin: close slots are NULL. */
#define FIXTURE_VERSION 8
#define FIXTURE_CLOSE NULL
#include "test/preload/net_fixture.h"
