/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v6 alone. */
#define FIXTURE_VERSION 6
#include "test/preload/net_fixture.h"
