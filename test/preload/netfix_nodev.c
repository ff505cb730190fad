/* SPDX-License-Identifier: Apache-2.0
 * A plugin without devices. */
#define FIXTURE_VERSION 11
#define FIXTURE_NAME "NoDev"
#define FIXTURE_DEVICES 0
#include "test/preload/net_fixture.h"
