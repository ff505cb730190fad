/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v12 alone. */
#define FIXTURE_VERSION 12
#include "test/preload/net_fixture.h"
