/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v11 alone. */
#define FIXTURE_VERSION 11
#include "test/preload/net_fixture.h"
