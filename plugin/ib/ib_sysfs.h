/* SPDX-License-Identifier: Apache-2.0
 * What sysfs knows of RDMA devices and libibverbs does not say. `root` is libibverbs' own: "/sys", or SYSFS_PATH. */
#ifndef IB_SYSFS_H
#define IB_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char *ib_sysfs_root(void);

/* The PCI function of an HCA: `own`, and the card that it belongs to, by function 0 of its device, or that of its
 * physical function if it is a virtual one and merge_vfs. Both "" if there is none (Soft-RoCE). */
void ib_sysfs_pci_paths(const char *root, const char *hca, bool merge_vfs, char own[256], char card[256]);

/* enum ib_gid_type; IB_GID_UNKNOWN where it cannot be read (in a container whose network the GID is not in: EINVAL). */
uint8_t ib_sysfs_gid_type(const char *root, const char *hca, unsigned int port, unsigned int index);

/* A module is loaded by which the HCA reaches GPU memory: nvidia_peermem, or nv_peer_mem before it. */
bool ib_sysfs_has_peer_memory(const char *root);

#endif
