/* SPDX-License-Identifier: Apache-2.0
 *
 * Device plans: all jobs of a plan are one kernel on the user's stream, block j runs job j (core/host/rt_device.h). The
 * plan is filled in once; each time it is run there is a struct rt_run.
 *
 * Runs of a communicator follow each other on the device. Outside of captures an event from stream to stream sees to
 * that; a program that launches graphs orders them itself.
 */
#ifndef RT_DEVICE_PLAN_H
#define RT_DEVICE_PLAN_H

#include "core/plan/rt_plan.h"

/* After connecting: registers the connections, fills in the launch. */
rail_result_t rt_device_plan_prepare(struct ncclComm *comm, struct rt_plan *plan);
/* Takes over a chain of plans: runs them on their stream, one after the other, or makes them part of the graph that the
 * stream captures. The communicator has failed when this does. */
rail_result_t rt_device_plan_launch(struct ncclComm *comm, struct rt_plan *plans);

/* May a graph still run a captured plan? */
bool rt_device_plan_graphs_alive(struct ncclComm *comm);
/* Frees all captured plans. Before rt_gpu_close. */
void rt_device_plan_close(struct ncclComm *comm);

#endif
