/* SPDX-License-Identifier: Apache-2.0
 * The wrapper's parameters; see the table for what each means. */
#ifndef TR_PARAM_H
#define TR_PARAM_H

#include "common/base/param.h"

enum tr_tests { TR_TESTS_ALL, TR_TESTS_DONE };
enum tr_check { TR_CHECK_OFF, TR_CHECK_WARN, TR_CHECK_ERROR };

struct tr_params {
  const char *plugin; /* NULL: nothing to wrap */
  const char *file;
  int64_t limit;  /* bytes */
  int64_t buffer; /* bytes, of each thread */
  int64_t tests;  /* enum tr_tests */
  int64_t check;  /* enum tr_check */
  int64_t slow_ms;
};

extern const struct rail_param_table tr_param_table;
extern struct tr_params tr_params; /* filled when the library is loaded, read-only afterwards */

void tr_params_load(void);

#endif
