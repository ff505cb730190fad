/* SPDX-License-Identifier: Apache-2.0
 *
 * Where listeners listen, for firewalls: a range of ports and an address to
 * bind to, as two parameters give them.
 */
#ifndef RAIL_PORTS_H
#define RAIL_PORTS_H

#include "common/base/sock.h"

/* One for each pair of parameters; static, with these three filled in by its owner:
 *   static struct rail_ports ports = {
 *     .plugin = "RailSocket", .range_param = "RAIL_SOCKET_PORTS", .bind_param = "RAIL_SOCKET_BIND"}; */
struct rail_ports {
  const char *plugin; /* for lines in the log */
  const char *range_param, *bind_param;
  /* The rest is filled by rail_ports_load. */
  bool loaded;
  bool bound; /* to an address of its own */
  const char *bind_text;
  union rail_addr bind;
  uint32_t first, count; /* count 0: the system chooses */
  /* The i-th to try is first + (start + i * step) % count; step and count have no common factor. */
  uint32_t start, step;
  _Atomic uint32_t next; /* i of the next listen */
};

/* `range`: "first-last" or one port; `bind`: a numeric address; NULL or "": unset. Values as param.h returns them,
 * which live as long as the process. One that makes no sense is warned about and ignored. The first call counts; call
 * under the plugin's lock. */
void rail_ports_load(struct rail_ports *ports, const char *range, const char *bind);

/* A listening socket for the interface `name` with the address `of`. *addr is where a peer finds it: the interface's
 * address, whatever the socket is bound to, and the port. Any thread. Logs why not. */
rail_result_t rail_ports_listen(struct rail_ports *ports, const char *name, const union rail_addr *of, int backlog,
                                union rail_addr *addr, int *fd);

#endif
