/* SPDX-License-Identifier: Apache-2.0
 * A plugin whose init fails. */
#define FIXTURE_VERSION 9
#define FIXTURE_NAME "BadInit"
#define FIXTURE_INIT_RESULT RAIL_SYSTEM_ERROR
#include "test/preload/net_fixture.h"
