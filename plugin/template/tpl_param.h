/* SPDX-License-Identifier: Apache-2.0
 * The plugin's parameters. Read-only once tpl_params_load has run. */
#ifndef TPL_PARAM_H
#define TPL_PARAM_H

#include "common/base/param.h"

struct tpl_params {
  const char *ifname, *family, *comm_id; /* which interfaces are devices: common/base/ifaddr.h */
  const char *auth_file;
  int64_t connect_ms, deadline_ms;
};

extern struct tpl_params tpl_params;
extern const struct rail_param_table tpl_param_table; /* config/gen_params.c finds it by this name */

void tpl_params_load(void);

#endif
