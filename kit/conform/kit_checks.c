/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/conform/kit_check.h"

const struct kit_check *const kit_check_tables[] = {
    NULL,
};
