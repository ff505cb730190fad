/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v10 alone. */
#define FIXTURE_VERSION 10
#include "test/preload/net_fixture.h"
