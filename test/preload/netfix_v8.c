/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v8 alone. */
#define FIXTURE_VERSION 8
#include "test/preload/net_fixture.h"
