/* SPDX-License-Identifier: Apache-2.0
 * The same of the newest version, whose init makes a context. */
#define FIXTURE_VERSION 12
#define FIXTURE_CLOSE NULL
#include "test/preload/net_fixture.h"
