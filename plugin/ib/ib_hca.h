/* SPDX-License-Identifier: Apache-2.0
 * Which HCAs and ports there are: opened, asked, filtered by NCCL_IB_HCA. For the device table (ib_device.c). */
#ifndef IB_HCA_H
#define IB_HCA_H

#include "plugin/ib/ib_device.h"

/* Opens what the library lists and the filter lets pass; at most IB_MAX_PORTS active ports, in their order. Their
 * number. HCAs without one are closed again. */
unsigned int ib_ports_discover(struct ib_port *ports[IB_MAX_PORTS]);
/* Closes every HCA. Nobody may use one any more. */
void ib_hcas_close(void);

/* Mb/s. ib_port.c */
int ib_port_speed(struct ibv_context *context, uint8_t number, const struct ibv_port_attr *attr);
/* Of the codes of verbs (active_speed, active_width). Pure. */
int ib_link_speed(uint32_t speed_code, uint32_t width_code);

#endif
