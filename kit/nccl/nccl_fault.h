/* SPDX-License-Identifier: Apache-2.0
 * Ranks and links that are lost. */
#ifndef RAIL_KIT_NCCL_FAULT_H
#define RAIL_KIT_NCCL_FAULT_H

#include "kit/nccl/nccl_rank.h"

void kit_nccl_killed(struct kit_nccl_rank *r);
void kit_nccl_aborted(struct kit_nccl_rank *r);
void kit_nccl_stopped(struct kit_nccl_rank *r);
void kit_nccl_link_lost(struct kit_nccl_rank *r);

#endif
