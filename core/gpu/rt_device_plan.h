/* SPDX-License-Identifier: Apache-2.0
 *
 * Device plans: all jobs of a plan are one kernel on the user's stream (core/host/rt_device.h). Each job has a block of
 * its own; where these would be too many, blocks share the sends and receives (core/plan/rt_p2p_blocks.h). The plan is
 * filled in once; each time it runs there is a struct rt_launch.
 *
 * Runs of a communicator follow each other on the device. Outside of captures an event from stream to stream sees to
 * that; a program that launches graphs orders them itself.
 */
#ifndef RT_DEVICE_PLAN_H
#define RT_DEVICE_PLAN_H

#include "core/plan/rt_plan.h"

struct rt_task;

/* The streams that the calls name. */
rail_result_t rt_device_plan_take_streams(struct rt_plan *plan, const struct rt_task *tasks, int n);
/* After connecting: registers the connections, fills in the launch. */
rail_result_t rt_device_plan_prepare(struct ncclComm *comm, struct rt_plan *plan);
/* Takes over the plan: runs it on its stream, or makes it part of the graph that the stream captures. The communicator
 * has failed when this does. */
rail_result_t rt_device_plan_launch(struct ncclComm *comm, struct rt_plan *plan);

/* May a graph still run a captured plan? */
bool rt_device_plan_graphs_alive(struct ncclComm *comm);
/* Frees all captured plans. Before rt_gpu_close. */
void rt_device_plan_close(struct ncclComm *comm);

#endif
