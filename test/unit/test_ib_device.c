/* SPDX-License-Identifier: Apache-2.0
 *
 * The device table, over the emulated device and a sysfs tree of our own:
 * two functions of one card, a virtual function with and without its physical
 * one in sight, a card with two ports, and a device without a place on a bus.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/ib/ib_device.h"
#include "test/harness/log_lines.h"
#include "test/unit/ib_emu.h"

static char root[] = "/tmp/rail-ib-sysfs-XXXXXX";

static const char *at(const char *path) {
  static char text[8][512];
  static int next;
  char *out = text[next++ % 8];
  snprintf(out, 512, "%s/%s", root, path);
  return out;
}

static void make_dirs(const char *path) {
  char text[512];
  snprintf(text, sizeof text, "%s", at(path));
  for (char *c = text + strlen(root) + 1; *c; c++) {
    if (*c != '/') continue;
    *c = 0;
    (void)mkdir(text, 0700);
    *c = '/';
  }
  if (mkdir(text, 0700) != 0 && errno != EEXIST) abort();
}

static void make_link(const char *from, const char *to) {
  if (symlink(at(to), at(from)) != 0) abort();
}

static void make_file(const char *path, const char *text) {
  FILE *file = fopen(at(path), "we");
  if (!file || fputs(text, file) < 0 || fclose(file) != 0) abort();
}

static void make_hca(const char *name, const char *function) {
  char path[256];
  snprintf(path, sizeof path, "class/infiniband/%s", name);
  make_dirs(path);
  if (!function) return;
  make_dirs(function);
  snprintf(path, sizeof path, "class/infiniband/%s/device", name);
  make_link(path, function);
}

#define BUS_A "devices/pci0000:3a/0000:3b:"
#define BUS_B "devices/pci0000:10/0000:11:"
#define BUS_C "devices/pci0000:20/0000:21:"

static void make_tree(void) {
  make_hca("two_f0", BUS_A "00.0");
  make_hca("two_f1", BUS_A "00.1");
  make_hca("vf", BUS_A "02.3");
  make_dirs(BUS_B "00.0");
  make_hca("guest_vf", BUS_C "04.5"); /* whose card is not to be seen */
  make_hca("dual", BUS_B "00.0");
  make_hca("soft", NULL);
  make_hca("seen_vf", BUS_B "01.2");
  make_dirs("devices/pci0000:50/0000:51:00.1");
  make_dirs("devices/pci0000:50/0000:51:00.0");
  make_link(BUS_B "01.2/physfn", "devices/pci0000:50/0000:51:00.1");
  make_dirs("class/infiniband/two_f0/ports/1/gid_attrs/types");
  make_file("class/infiniband/two_f0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
  make_file("class/infiniband/two_f0/ports/1/gid_attrs/types/3", "RoCE v2\n");
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
  (void)st, (void)kind, (void)ftw;
  return remove(path);
}

/* All devices of the script, in the order of libibverbs. */
static const char script[] =
    "device soft speed=16 width=1 state=active vendor=ffffff;"
    "device two_f1 guid=7700;"
    "device two_f0 guid=7700 max_qp=65536 grh=1;"
    "device dual ports=2 guid=8800 link=ib speed=128;"
    "device vf guid=7701;"
    "device guest_vf guid=99;"
    "device seen_vf guid=9a dmabuf=0;"
    "device asleep state=down";

static void reload(const char *hca) {
  emu_do("reset");
  ib_devices_unload();
  CHECK_INT(emu_live("context") + emu_live("pd"), 0);
  unsetenv("NCCL_IB_HCA");
  if (hca) setenv("NCCL_IB_HCA", hca, 1);
  ib_params_load();
  log_forget();
  ib_devices_load();
}

static struct rail_net_props_v12 props(int dev) {
  struct rail_net_props_v12 p;
  memset(&p, 0xa5, sizeof p);
  CHECK(ib_get_properties(dev, &p) == RAIL_OK);
  return p;
}

static int find(const char *name) {
  for (int i = 0; i < ib_device_count(); i++)
    if (strcmp(ib_device_at(i, "test")->name, name) == 0) return i;
  return -1;
}

static const char *names(void) {
  static char text[4096];
  text[0] = 0;
  for (int i = 0; i < ib_device_count(); i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.80s", i ? " " : "",
             ib_device_at(i, "test")->name);
  return text;
}

TEST(active_ports_in_the_order_of_the_bus) {
  reload(NULL);
  CHECK_STR(names(), "soft dual:1 dual:2 guest_vf two_f0 two_f1 vf seen_vf");
  CHECK_INT(log_warnings(), 0);
  setenv("NCCL_IB_DEVICE_PCI_ORDER", "0", 1);
  reload(NULL);
  unsetenv("NCCL_IB_DEVICE_PCI_ORDER");
  CHECK_STR(names(), "soft two_f1 two_f0 dual:1 dual:2 vf guest_vf seen_vf");
  union rail_addr side;
  CHECK_STR(ib_oob_interface(&side), "lo");
  CHECK_INT(rail_addr_port(&side), 0);
}

TEST(cards_functions_and_virtual_functions) {
  reload(NULL);
  CHECK_STR(props(find("two_f1")).pci_path, at(BUS_A "00.0"));
  CHECK_STR(props(find("vf")).pci_path, at(BUS_A "00.0"));
  CHECK_STR(props(find("guest_vf")).pci_path, at(BUS_C "04.5")); /* there is no other function: not made up */
  CHECK_STR(props(find("seen_vf")).pci_path, at("devices/pci0000:50/0000:51:00.0"));
  CHECK(props(find("soft")).pci_path == NULL);
  CHECK_INT(props(find("two_f0")).port, 1);
  CHECK_INT(props(find("two_f1")).port, 2);
  CHECK_INT(props(find("vf")).port, 3);
  CHECK_INT(props(find("dual:1")).port, 1);
  CHECK_INT(props(find("dual:2")).port, 2);
  setenv("NCCL_IB_MERGE_VFS", "0", 1);
  reload(NULL);
  unsetenv("NCCL_IB_MERGE_VFS");
  CHECK_STR(props(find("two_f1")).pci_path, at(BUS_A "00.0"));
  CHECK_STR(props(find("vf")).pci_path, at(BUS_A "02.3"));
  CHECK_STR(props(find("seen_vf")).pci_path, at(BUS_B "01.2"));
}

TEST(properties_are_whole) {
  reload("=two_f0:1:3:1,seen_vf,soft");
  struct rail_net_props_v12 p = props(find("two_f0"));
  CHECK(p.guid == 0x7700 && p.speed == 100000 && p.reg_is_global == 1 && p.force_flush == 0 && p.max_recvs == 8);
  CHECK(p.latency == 0 && p.max_comms == 65536 && p.max_p2p_bytes == RAIL_NET_MAX_BYTES);
  CHECK_INT(p.max_multi_request_size, 1);
  CHECK(p.vprops.ndevs == 1 && p.vprops.devs[0] == find("two_f0") && p.rail_id == 3 && p.plane_id == 1);
  CHECK_INT(p.ptr_support, RAIL_PTR_HOST | RAIL_PTR_DMABUF);
  CHECK_INT(props(find("soft")).speed, 14000);
  CHECK_INT(props(find("seen_vf")).ptr_support, RAIL_PTR_HOST);
  CHECK_INT(props(find("soft")).rail_id, -1);
  make_dirs("module/nvidia_peermem");
  make_file("module/nvidia_peermem/version", "1\n");
  reload(NULL);
  CHECK_INT(props(find("two_f0")).ptr_support, RAIL_PTR_HOST | RAIL_PTR_DMABUF | RAIL_PTR_CUDA);
  setenv("RAIL_IB_PROTOCOL", "send", 1); /* a provider may write into a receive WR's memory by the CPU */
  reload(NULL);
  unsetenv("RAIL_IB_PROTOCOL");
  CHECK_INT(props(find("two_f0")).ptr_support, RAIL_PTR_HOST);
  CHECK_INT(props(find("two_f0")).max_recvs, 1);
  CHECK_OK(unlink(at("module/nvidia_peermem/version")));
}

TEST(a_filter_that_lets_nothing_pass_is_said) {
  reload("=mlx5_0");
  CHECK_INT(ib_device_count(), 0);
  CHECK(log_warned("NCCL_IB_HCA==mlx5_0"));
  CHECK(!ib_device_at(0, "test") && log_warned("there are no devices"));
  CHECK_INT(emu_live("context"), 0);
  setenv("NCCL_IB_DISABLE", "1", 1);
  reload(NULL);
  unsetenv("NCCL_IB_DISABLE");
  CHECK_INT(ib_device_count(), 0);
  setenv("NCCL_SOCKET_IFNAME", "=nosuch", 1);
  reload(NULL);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  CHECK(ib_device_count() == 0 && log_warned("NCCL_SOCKET_IFNAME==nosuch"));
}

static void reload_with(const char *fault) {
  reload("none");
  ib_devices_unload();
  unsetenv("NCCL_IB_HCA");
  ib_params_load();
  log_forget();
  emu_do(fault);
  ib_devices_load();
}

TEST(what_fails_is_left_out_and_leaves_nothing) {
  reload_with("fail open_device from=2 errno=EPERM; fail query_device from=3 errno=EIO; fail alloc_pd from=2");
  CHECK(log_warned("two_f1 cannot be opened: Operation not permitted"));
  CHECK(log_warned("ibv_query_device") && log_warned("ibv_alloc_pd"));
  CHECK_INT(ib_device_count(), 4); /* of 8: not two_f1, both of dual, and the second that gets a domain */
  CHECK_INT(emu_live("context"), emu_live("pd"));
  reload_with("fail query_port from=3 errno=EINVAL"); /* two for each port */
  CHECK(log_warned("port 1 of two_f1") && log_warned("ibv_query_port"));
  CHECK_INT(ib_device_count(), 7);
  reload_with("fail get_device_list errno=ENOSYS");
  CHECK(ib_device_count() == 0 && log_warned("ib_uverbs"));
  reload_with("fail fork_init errno=EINVAL");
  CHECK(ib_device_count() == 8 && log_warned("ibv_fork_init"));
}

/* iWARP (without librdmacm), usNIC, unspecified (EFA). */
TEST(a_device_of_another_transport_is_left_out) {
  emu_do("device rnic transport=iwarp; device vnic transport=usnic_udp; device efa transport=unspecified");
  setenv("RAIL_IB_RDMACM_LIB", "/nosuch/librdmacm.so.1", 1);
  reload("rnic,vnic,efa");
  CHECK_INT(ib_device_count(), 0);
  CHECK(log_said("RAIL_IB_RDMACM_LIB=/nosuch") && log_said("no devices that connect by the RDMA CM"));
  CHECK(log_said("vnic is usNIC") && log_said("efa is neither"));
  CHECK(log_said("has a usable, active port"));
  reload("dual,efa");
  CHECK_STR(names(), "dual:1 dual:2");
}

TEST(a_hundred_times_leaves_nothing) {
  for (int i = 0; i < 100; i++) reload(NULL);
  CHECK_INT(emu_live("pd"), 7);
  ib_devices_unload();
  CHECK_INT(emu_live("pd") + emu_live("context") + emu_live("mr"), 0);
}

TEST(fused_devices) {
  reload("two_f0:1:2:0,two_f1:1:2:3,dual,soft");
  int a = find("two_f0"), b = find("two_f1"), ib = find("dual:1"), soft = find("soft"), dev = -1, again = -1;
  int have = ib_device_count();
  struct rail_net_vprops_v12 prefs = {.ndevs = 2, .devs = {b, a}};
  CHECK_OK(ib_device_fuse(&dev, &prefs));
  CHECK(dev == have && ib_device_count() == have + 1);
  struct rail_net_props_v12 p = props(dev);
  CHECK_STR(p.name, "two_f0+two_f1"); /* in the order of the table, however they were named */
  CHECK(p.speed == 200000 && p.vprops.ndevs == 2 && p.vprops.devs[0] == a && p.vprops.devs[1] == b);
  CHECK(p.rail_id == 2 && p.plane_id == (0x4000 | 1 | 8));
  CHECK_OK(ib_device_fuse(&again, &prefs));
  CHECK_INT(again, dev);
  prefs = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {dev, soft}};
  log_forget();
  CHECK(ib_device_fuse(&again, &prefs) == RAIL_BAD_ARGUMENT && log_warned("(soft) has no PCI path"));
  CHECK(again == dev && ib_device_count() == have + 1);
  ib_params.fuse_no_pci = 1;
  CHECK_OK(ib_device_fuse(&dev, &prefs));
  p = props(dev);
  CHECK_STR(p.name, "soft+two_f0+two_f1");
  CHECK(p.rail_id == -1 && p.plane_id == -1 && p.speed == 214000);
  CHECK(ib_device_at(dev, "test")->nrails == 3);
  log_forget();
  prefs = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {a, ib}};
  CHECK_INT(ib_device_fuse(&again, &prefs), RAIL_BAD_ARGUMENT);
  CHECK(log_warned("dual:1 is InfiniBand and two_f0 is RoCE"));
  prefs = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {a, a}};
  CHECK(ib_device_fuse(&again, &prefs) == RAIL_BAD_ARGUMENT && log_warned("named twice"));
  prefs = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {a, 99}};
  CHECK(ib_device_fuse(&again, &prefs) == RAIL_BAD_ARGUMENT && log_warned("device 99 does not exist"));
  prefs.ndevs = 9;
  CHECK_INT(ib_device_fuse(&again, &prefs), RAIL_BAD_ARGUMENT);
  ib_params.merge_nics = 0;
  prefs = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {a, b}};
  CHECK(ib_device_fuse(&again, &prefs) == RAIL_BAD_ARGUMENT && log_warned("NCCL_IB_MERGE_NICS"));
  CHECK_INT(again, have);
  prefs = (struct rail_net_vprops_v12){.ndevs = 1, .devs = {soft}}; /* NCCL 2.24 to 2.26 ask for these, too */
  have = ib_device_count();
  CHECK_OK(ib_device_fuse(&dev, &prefs));
  p = props(dev);
  CHECK(dev == have && p.vprops.ndevs == 1 && p.vprops.devs[0] == soft);
  CHECK_STR(p.name, "soft");
}

TEST(a_port_as_it_is_now) {
  struct ib_port_attr now;
  struct in_addr four;
  reload("=two_f0,dual:1");
  struct ib_port *port = ib_device_at(find("two_f0"), "test")->rails[0];
  CHECK_OK(ib_port_query(port, &now));
  CHECK(now.active && now.mtu == IBV_MTU_4096 && now.max_msg == 1u << 30 && now.grh_required && now.gids.count == 64);
  CHECK(now.gids.gids[3].valid && now.gids.gids[3].type == IB_GID_ROCE_V2 && !now.gids.gids[4].valid);
  CHECK(now.gids.gids[2].type == IB_GID_ROCE_V1);
  memcpy(&four, now.gids.gids[3].raw + 12, sizeof four);
  CHECK_STR(inet_ntoa(four), "10.77.2.1");
  /* An older library or kernel: one by one, types from sysfs, not all of them readable. */
  emu_do("gid_table 0; event two_f0 gid_change");
  CHECK_OK(ib_port_query(port, &now));
  CHECK(now.gids.gids[0].type == IB_GID_ROCE_V1 && now.gids.gids[3].type == IB_GID_ROCE_V2);
  CHECK(now.gids.gids[1].valid && now.gids.gids[1].type == IB_GID_UNKNOWN && !now.gids.gids[4].valid);
  emu_do("gid_table 1; port two_f0 1 state=down mtu=3 gids=none; gid two_f0 1 5 10.9.9.9 type=v2");
  CHECK_OK(ib_port_query(port, &now));
  CHECK(!now.active && now.mtu == IBV_MTU_1024 && !now.gids.gids[0].valid && now.gids.gids[5].valid);
  emu_do("port two_f0 1 state=active mtu=5; fail query_port errno=EIO");
  CHECK(ib_port_query(port, &now) == RAIL_SYSTEM_ERROR && log_warned("port 1 of two_f0"));
  port = ib_device_at(find("dual:1"), "test")->rails[0];
  emu_do("port dual 1 subnet=fec0000000000007 lid=12 grh=1");
  CHECK_OK(ib_port_query(port, &now));
  CHECK(now.lid == 12 && now.subnet_prefix == 0xfec0000000000007u && now.grh_required && !port->roce);
}

/* For Soft-RoCE 7 retries are endless ones. */
TEST(retries_that_end) {
  reload(NULL);
  CHECK_INT(ib_device_at(find("soft"), "test")->rails[0]->hca->max_retries, 6);
  CHECK_INT(ib_device_at(find("vf"), "test")->rails[0]->hca->max_retries, 7);
}

TEST(speeds) {
  CHECK_INT(ib_link_speed(1, 1), 2500);
  CHECK_INT(ib_link_speed(32, 2), 100000);
  CHECK_INT(ib_link_speed(64, 2), 200000);
  CHECK_INT(ib_link_speed(128, 2), 400000);
  CHECK_INT(ib_link_speed(256, 2), 800000);
  CHECK_INT(ib_link_speed(128, 16), 200000);
  CHECK_INT(ib_link_speed(8, 8), 120000);
  CHECK_INT(ib_link_speed(0, 2), 10000);
  CHECK_INT(ib_link_speed(32, 0), 10000);
  CHECK_INT(ib_link_speed(1u << 30, 2), 800000);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(active_ports_in_the_order_of_the_bus), TEST_CASE(cards_functions_and_virtual_functions),
    TEST_CASE(properties_are_whole), TEST_CASE(a_filter_that_lets_nothing_pass_is_said),
    TEST_CASE(what_fails_is_left_out_and_leaves_nothing), TEST_CASE(a_hundred_times_leaves_nothing),
    TEST_CASE(fused_devices), TEST_CASE(a_port_as_it_is_now), TEST_CASE(retries_that_end),
    TEST_CASE(speeds), TEST_CASE(a_device_of_another_transport_is_left_out)};
  if (!mkdtemp(root)) return 1;
  setenv("SYSFS_PATH", root, 1);
  make_tree();
  ib_emu_use(script);
  rail_log_set_sink(log_capture);
  int failed = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  (void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  return failed;
}
