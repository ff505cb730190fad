/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v9 alone. */
#define FIXTURE_VERSION 9
#include "test/preload/net_fixture.h"
