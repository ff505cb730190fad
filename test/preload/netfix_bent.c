/* SPDX-License-Identifier: Apache-2.0
 * A v12 plugin that is fine until NETFIX_BENT names what it is to do wrong. */
#define FIXTURE_VERSION 12
#define FIXTURE_NAME "Bent"
#define ncclNetPlugin_v12 straight_v12
#include "test/preload/net_fixture.h"
#undef ncclNetPlugin_v12

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int is(const char *what) {
  const char *how = getenv("NETFIX_BENT");
  return how && strcmp(how, what) == 0;
}

static void *idle(void *arg) {
  pause();
  return arg;
}

static void start_thread(void) {
  pthread_t thread;
  (void)!pthread_create(&thread, NULL, idle, NULL);
}

__attribute__((constructor)) static void on_load(void) {
  if (is("load_exit")) exit(7);
  if (is("load_exit_127")) exit(127); /* as the dynamic loader does when it finds itself inconsistent */
  if (is("load_crash")) abort();
  if (is("load_hang")) pause();
  if (is("load_slow")) usleep(700000);
  if (is("load_thread")) start_thread();
  if (is("load_file")) (void)!open("/dev/null", O_RDONLY);
}

static int bent_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                     rail_profiler_fn prof) {
  if (is("init_crash")) raise(SIGSEGV);
  if (is("init_hang")) pause();
  if (is("init_exit")) exit(9);
  if (is("init_fail")) return RAIL_SYSTEM_ERROR;
  if (is("init_log")) log(RAIL_LOG_WARN, RAIL_SUB_NET, __FILE__, __LINE__, "no %s here", "rail");
  for (int i = 0; is("init_info") && i < 400; i++)
    log(RAIL_LOG_INFO, RAIL_SUB_INIT, __FILE__, __LINE__, "rail %d of 400\nis here\n", i);
  if (is("thread_left")) start_thread();
  return fix_init(ctx, comm_id, config, log, prof);
}

static int bent_devices(int *ndev) {
  static int calls;
  if (is("devices_hang")) pause();
  if (is("devices_fail")) return RAIL_INTERNAL_ERROR;
  if (is("devices_unwritten")) return RAIL_OK;
  fix_devices(ndev);
  if (is("devices_changes")) *ndev += calls++;
  if (is("devices_none")) *ndev = 0;
  return RAIL_OK;
}

static void bend_texts(int dev, struct rail_net_props_v12 *p) {
  static char shared[16], path[] = "no_slash", nowhere[] = "/sys/devices/none/0000:00:00.0",
                          tty[] = "/sys/class/tty/tty";
  if (is("name_null")) p->name = NULL;
  if (is("name_wild")) p->name = (char *)16;
  if (is("name_same")) p->name = path;
  if (is("name_shared")) {
    memcpy(shared, "shared0", 8);
    shared[6] = (char)('0' + dev);
    p->name = shared;
  }
  if (is("pci_no_slash")) p->pci_path = path;
  if (is("pci_missing")) p->pci_path = nowhere;
  if (is("pci_other")) p->pci_path = tty;
  if (is("pci_made")) p->pci_path = getenv("NETFIX_PCI_PATH");
  if (is("pci_wild")) p->pci_path = (char *)16;
}

#define VPROPS_END (offsetof(struct rail_net_props_v12, vprops) + sizeof(struct rail_net_vprops_v12))
#define PADDING (offsetof(struct rail_net_props_v12, max_p2p_bytes) - VPROPS_END)
_Static_assert(PADDING > 0, "there is padding in front of max_p2p_bytes");

static void bend_numbers(int dev, struct rail_net_props_v12 *p) {
  static int calls;
  if (is("speed")) p->speed = -1;
  if (is("speed_zero")) p->speed = 0;
  if (is("latency")) p->latency = 0.9f;
  if (is("latency_negative")) p->latency = -3;
  if (is("guid")) p->guid = 0;
  if (is("max_comms")) p->max_comms = 0;
  if (is("max_recvs")) p->max_recvs = 0;
  if (is("ptr_host")) p->ptr_support = RAIL_PTR_CUDA;
  if (is("ptr_bits")) p->ptr_support |= 64;
  if (is("device_type")) p->net_device_type = 5;
  if (is("p2p_zero")) p->max_p2p_bytes = 0;
  if (is("p2p_huge")) p->max_p2p_bytes = RAIL_NET_MAX_BYTES + 1;
  if (is("vprops_count")) p->vprops.ndevs = 9;
  if (is("vprops_self")) p->vprops.devs[0] = 1 - dev;
  if (is("vprops_index")) p->vprops.ndevs = 2, p->vprops.devs[1] = 5;
  if (is("planes")) p->plane_id = (int16_t)dev;
  if (is("rails") && dev == 1) p->rail_id = RAIL_NET_ID_UNDEF;
  if (is("change")) p->speed += calls++;
  if (is("change_of_fused")) p->vprops.ndevs = 2, p->vprops.devs[1] = calls++;
  if (is("change_of_nothing")) {
    /* devices that are not counted, and 4 bytes between fields: as a structure copied from a stack has them */
    p->vprops.devs[1] = calls++;
    memset((char *)p + offsetof(struct rail_net_props_v12, max_p2p_bytes) - PADDING, calls, PADDING);
  }
}

static int bent_properties(int dev, struct rail_net_props_v12 *p) {
  struct rail_net_props_v12 before = *p;
  if (is("props_fail")) return RAIL_INTERNAL_ERROR;
  if (is("props_crash")) abort();
  fix_properties(dev, p);
  p->vprops.ndevs = 1;
  p->vprops.devs[0] = dev;
  bend_texts(dev, p);
  bend_numbers(dev, p);
  if (is("unwritten")) p->plane_id = before.plane_id;
  if (is("unwritten_text")) p->name = before.name;
  if (is("overrun")) memset(p + 1, 7, 4);
  return RAIL_OK;
}

static int bent_vdevice(int *dev, struct rail_net_vprops_v12 *props) {
  return is("fuse_no_pci") ? fix_vdevice(dev, props) : RAIL_BAD_USAGE; /* its devices have no PCI path */
}

static int bent_finalize(void *ctx) {
  fix_finalize(ctx);
  if (is("finalize_crash")) abort();
  return is("finalize_fail") ? RAIL_INTERNAL_ERROR : RAIL_OK;
}

const struct rail_net_v12 ncclNetPlugin_v12 = {
    .name = FIXTURE_NAME,
    .init = bent_init,
    .devices = bent_devices,
    .get_properties = bent_properties,
    .listen = fix_listen,
    .connect = fix_connect,
    .accept = fix_accept,
    .reg_mr = fix_reg_mr,
    .reg_mr_dmabuf = fix_reg_dmabuf,
    .dereg_mr = fix_dereg_mr,
    .isend = fix_isend,
    .irecv = fix_irecv,
    .iflush = fix_iflush,
    .test = fix_test,
    .close_send = fix_close,
    .close_recv = fix_close,
    .close_listen = fix_close,
    .irecv_consumed = fix_consumed,
    .make_vdevice = bent_vdevice,
    .finalize = bent_finalize,
    .set_net_attr = fix_attr,
};
