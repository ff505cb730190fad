/* SPDX-License-Identifier: Apache-2.0
 * Shared by kit_report.c and kit_report_files.c, by nobody else. */
#ifndef RAIL_KIT_REPORT_IMPL_H
#define RAIL_KIT_REPORT_IMPL_H

#include "kit/kit_report.h"

struct kit_sums {
  int all[3], good[3], bad[3]; /* by level */
  int skipped, errors;
};
struct kit_sums kit_report_sums(const struct kit_report *r);

/* False: the stream did not take all. */
bool kit_report_json(FILE *f, const struct kit_report *r);
bool kit_report_junit(FILE *f, const struct kit_report *r);

#endif
