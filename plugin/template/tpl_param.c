/* SPDX-License-Identifier: Apache-2.0
 * One row for each parameter; `make docs` writes docs/parameters.md from them. */
#include "plugin/template/tpl_param.h"

#include "common/base/compiler.h"

#define AT(field) offsetof(struct tpl_params, field)

static const struct rail_param rows[] = {
  {.name = "NCCL_SOCKET_IFNAME", .type = RAIL_PARAM_STRING, .offset = AT(ifname),
   .doc = "Interfaces to use, as in NCCL: prefixes, '^' in front excludes, '=' makes them exact."},
  {.name = "NCCL_SOCKET_FAMILY", .type = RAIL_PARAM_STRING, .offset = AT(family),
   .doc = "AF_INET or AF_INET6: only addresses of this family."},
  {.name = "NCCL_COMM_ID", .type = RAIL_PARAM_STRING, .offset = AT(comm_id),
   .doc = "Without NCCL_SOCKET_IFNAME: interfaces of this address's subnet come first."},
  {.name = "RAIL_TEMPLATE_AUTH_FILE", .type = RAIL_PARAM_STRING, .offset = AT(auth_file),
   .doc = "File with a key of at least 16 bytes that others cannot read: both sides prove that they have it."},
  {.name = "RAIL_TEMPLATE_CONNECT_TIMEOUT", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(connect_ms), .doc = "The TCP connection has to be there within this time. 0: no limit."},
  {.name = "RAIL_TEMPLATE_DEADLINE", .type = RAIL_PARAM_MS, .def = "30s", .lo = 0, .hi = 24 * 3600 * 1000,
   .offset = AT(deadline_ms),
   .doc = "A peer whose host has not answered for this long is given up. 0: the kernel decides."},
};

const struct rail_param_table tpl_param_table = {
  .module = "template", .rows = rows, .count = RAIL_COUNT_OF(rows), .title = "Template, not installed"};
struct tpl_params tpl_params;

void tpl_params_load(void) {
  static const struct rail_param_table *const tables[] = {&tpl_param_table};
  rail_param_load(&tpl_param_table, &tpl_params);
  rail_param_check_unknown(tables, RAIL_COUNT_OF(tables));
}
