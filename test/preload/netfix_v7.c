/* SPDX-License-Identifier: Apache-2.0
 * A plugin that speaks v7 alone. */
#define FIXTURE_VERSION 7
#include "test/preload/net_fixture.h"
