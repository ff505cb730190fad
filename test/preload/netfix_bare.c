/* SPDX-License-Identifier: Apache-2.0
 * A v12 plugin with every optional slot NULL, and a name of its own. */
#define FIXTURE_VERSION 12
#define FIXTURE_NAME "Bare"
#define FIXTURE_NO_OPTIONAL
#include "test/preload/net_fixture.h"
