/* SPDX-License-Identifier: Apache-2.0
 * Where listeners listen: RAIL_SOCKET_PORTS and RAIL_SOCKET_BIND, for firewalls. */
#ifndef SK_PORTS_H
#define SK_PORTS_H

#include "plugin/socket/sk_device.h"

/* Reads the two parameters; a value that makes no sense is warned about and ignored. Call under the plugin's lock. */
void sk_ports_load(void);

/* A listening socket for one interface. *addr is where a peer finds it: the
 * interface's address, whatever the socket is bound to. Logs why not. */
rail_result_t sk_ports_listen(const struct sk_device *interface, int backlog, union rail_addr *addr, int *fd);

#endif
