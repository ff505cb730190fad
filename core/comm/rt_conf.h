/* SPDX-License-Identifier: Apache-2.0
 * NCCL's files of variables: NAME=value lines. NCCL_CONF_FILE's, else .nccl.conf in the user's home; then
 * /etc/nccl.conf. */
#ifndef RT_CONF_H
#define RT_CONF_H

/* Sets what is not set yet, once a process, before the variables are read. As with NCCL the environment itself is
 * changed, so that plugins see the variables, too; no other thread may read or change the environment meanwhile. */
void rt_conf_load(void);

#endif
