/* SPDX-License-Identifier: Apache-2.0
 * Every area's table, in the contract's order. */
#include "kit/conform/kit_check.h"

const struct kit_check *const kit_check_tables[] = {
    kit_checks_lifecycle,
    kit_checks_properties,
    kit_checks_listen,
    kit_checks_strangers,
    kit_checks_connect,
    kit_checks_handles,
    kit_checks_nobody,
    kit_checks_requests,
    kit_checks_sizes,
    kit_checks_order,
    kit_checks_grouped,
    kit_checks_optional,
    kit_checks_flush,
    kit_checks_tear,
    kit_checks_mr,
    kit_checks_dereg,
    kit_checks_close,
    kit_checks_death,
    kit_checks_threads,
    kit_checks_forks,
    kit_checks_wakeups,
    kit_checks_attrs,
    kit_checks_leaks,
    kit_checks_cost,
    NULL,
};
