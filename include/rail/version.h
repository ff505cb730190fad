/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's own version, for the preprocessor. Generated from the file VERSION: change that. The version of NCCL's API
 * that librailyard follows is NCCL_VERSION_CODE of rail/railyard.h.
 */
#ifndef RAIL_VERSION_H
#define RAIL_VERSION_H

#define RAIL_VERSION_MAJOR 0
#define RAIL_VERSION_MINOR 1
#define RAIL_VERSION_PATCH 0
#define RAIL_VERSION "0.1.0"

#endif
