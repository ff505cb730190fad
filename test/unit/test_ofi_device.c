/* SPDX-License-Identifier: Apache-2.0
 * The device table over the scripted libfabric: names, properties, order, fusing, and what is said where there is no
 * device. */
#include <dirent.h>

#include "plugin/ofi/ofi_device.h"
#include "test/harness/log_lines.h"
#include "test/unit/ofi_fake.h"

static const struct rail_net_props_v12 *properties(int dev) {
  static struct rail_net_props_v12 props[4];
  static int next;
  struct rail_net_props_v12 *p = &props[next++ % 4];
  memset(p, 0x5a, sizeof *p);
  CHECK(ofi_get_properties(dev, p) == RAIL_OK);
  return p;
}

/* The devices that the library offers by this script; NULL: by that with which the program began. */
static void load(const char *offers) {
  char script[1024];
  snprintf(script, sizeof script, "nics=none reset=1 %s", offers ? offers : "");
  ofi_devices_unload();
  if (offers) fake_script(script);
  log_forget();
  rail_log_set_sink(log_capture);
  ofi_params_load();
  ofi_devices_load();
}

/* A property that NCCL distinguishes devices by: never the same for two. */
static void check_distinct(void) {
  for (int i = 0; i < ofi_device_count(); i++)
    for (int k = 0; k < i; k++) {
      const struct rail_net_props_v12 *a = properties(i), *b = properties(k);
      CHECK(strcmp(a->name, b->name) != 0 && (a->guid != b->guid || a->port != b->port) && a->guid && b->guid);
    }
}

TEST(each_domain_is_a_device) {
  load("prov=cxi nic=cxi0 speed=200 nic_addr=0x11 nic=cxi1 speed=400 nic_addr=0x12 inject=32");
  CHECK_INT(ofi_device_count(), 2);
  CHECK_INT(log_warnings(), 0);
  const struct rail_net_props_v12 *p = properties(1);
  CHECK_STR(p->name, "cxi1");
  CHECK(!p->pci_path && p->speed == 400000 && p->max_recvs == 8 && p->max_comms == 65536 && p->reg_is_global == 0);
  CHECK(p->ptr_support == RAIL_PTR_HOST && p->vprops.ndevs == 1 && p->vprops.devs[0] == 1);
  CHECK_INT(properties(0)->speed, 200000);
  check_distinct();
  CHECK_INT(ofi_nic_count(), 2);
  const struct ofi_nic *nic = ofi_nic_at(1);
  CHECK(nic == ofi_device_at(1, "")->rails[0] && nic->protocol == OFI_PROTOCOL_RMA && nic->caps.inject_size == 32);
  CHECK_STR(nic->provider, "cxi");
  CHECK(log_said("cxi            cxi0         rma") && log_said("device 1 is cxi1, provider cxi, protocol rma"));
  CHECK(!ofi_device_at(2, "listen") && log_said("listen: device 2 does not exist; allowed: 0..1"));
  CHECK(!ofi_device_at(-1, "listen"));
}

/* Only a script at the start makes several of one name, so this case is the first. */
#define OF_ONE_NAME "prov=psm2 nic=psm2 pci=0000:af:00.0 nic=psm2 pci=0000:3b:00.0 nic=psm2 pci=0000:3b:00.1"
TEST(names_and_links_are_kept_apart) {
  load(NULL);
  CHECK_INT(ofi_device_count(), 3);
  CHECK_STR(properties(0)->name, "psm2");
  CHECK_STR(properties(1)->name, "psm2#1");
  CHECK_STR(properties(2)->name, "psm2#2");
  CHECK_INT(ofi_nic_at(0)->info->nic->bus_attr->attr.pci.bus_id, 0x3b); /* by their places on the bus */
  CHECK_INT(ofi_nic_at(2)->info->nic->bus_attr->attr.pci.bus_id, 0xaf);
  check_distinct();
}

TEST(a_pci_path_is_that_of_sysfs) {
  DIR *folder = opendir("/sys/bus/pci/devices");
  char script[1024], address[32] = "";
  for (struct dirent *e; folder && !address[0] && (e = readdir(folder)) != NULL;)
    if (e->d_name[0] != '.' && strlen(e->d_name) == 12) snprintf(address, sizeof address, "%.12s", e->d_name);
  if (folder) closedir(folder);
  if (!address[0]) tap_skip_case("no PCI device in /sys/bus/pci/devices");
  snprintf(script, sizeof script, "prov=cxi nic=cxi0 pci=%s", address);
  load(script);
  const char *path = properties(0)->pci_path, *slash = path ? strrchr(path, '/') : NULL;
  CHECK_MSG(slash && strncmp(path, "/sys/devices/", 13) == 0 && strcmp(slash + 1, address) == 0, "%s for %s",
            path ? path : "none", address);
  CHECK(log_said(address));
}

static int fuse(int n, int a, int b, int c, int d, int e, rail_result_t expected) {
  const struct rail_net_vprops_v12 props = {.ndevs = n, .devs = {a, b, c, d, e}};
  int dev = -1;
  CHECK_INT(ofi_device_fuse(&dev, &props), expected);
  return dev;
}

TEST(up_to_four_are_fused) {
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  load("prov=cxi speed=100 nic=a nic=b nic=c nic=d nic=e");
  unsetenv("RAIL_NET_FUSE_NO_PCI");
  CHECK_INT(fuse(2, 2, 0, 0, 0, 0, RAIL_OK), 5);
  const struct rail_net_props_v12 *p = properties(5);
  CHECK_STR(p->name, "a+c");
  CHECK(p->speed == 200000 && p->vprops.ndevs == 2 && p->vprops.devs[0] == 0 && p->vprops.devs[1] == 2);
  CHECK_INT(fuse(2, 0, 2, 0, 0, 0, RAIL_OK), 5); /* the same set */
  CHECK_INT(fuse(3, 1, 5, 4, 0, 0, RAIL_OK), 6); /* of a fused one */
  CHECK_STR(properties(6)->name, "a+b+c+e");
  CHECK_INT(ofi_device_at(6, "")->nrails, 4);
  CHECK(ofi_device_at(6, "")->rails[3] == ofi_nic_at(4));
  fuse(5, 0, 1, 2, 3, 4, RAIL_BAD_ARGUMENT);
  fuse(2, 0, 9, 0, 0, 0, RAIL_BAD_ARGUMENT);
  fuse(2, 0, 0, 0, 0, 0, RAIL_BAD_ARGUMENT);
  CHECK_INT(ofi_device_count(), 7);
}

TEST(only_what_fits_together_is_fused) {
  load("prov=cxi nic=a nic=b");
  fuse(2, 0, 1, 0, 0, 0, RAIL_BAD_ARGUMENT);
  CHECK_INT(fuse(1, 1, 0, 0, 0, 0, RAIL_OK), ofi_device_count() - 1); /* NCCL 2.24 to 2.26 ask for these, too */
  CHECK(log_said("has no PCI path"));
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  load("prov=cxi nic=a nic=b no=rma");
  unsetenv("RAIL_NET_FUSE_NO_PCI");
  CHECK_INT(ofi_nic_at(1)->protocol, OFI_PROTOCOL_TAGGED);
  fuse(2, 0, 1, 0, 0, 0, RAIL_BAD_ARGUMENT);
  CHECK(log_said("a uses the protocol rma and b uses tagged"));
  CHECK_INT(ofi_device_count(), 2);
  static const struct { const char *offers, *words; } differ[] = {
    {"prov=cxi nic=a nic=b mr_mode=allocated,prov_key", "of a and b one names remote memory by addresses"},
    {"prov=cxi nic=a no=read nic=b", "of a and b one can read remote memory (FI_READ), one cannot"}};
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  for (size_t i = 0; i < sizeof differ / sizeof differ[0]; i++) {
    load(differ[i].offers);
    fuse(2, 0, 1, 0, 0, 0, RAIL_BAD_ARGUMENT);
    CHECK_MSG(log_said(differ[i].words) && ofi_device_count() == 2, "%s", log_lines);
  }
  unsetenv("RAIL_NET_FUSE_NO_PCI");
}

/* Of what NICs take at once, the least. */
TEST(the_largest_message_is_what_every_nic_takes) {
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  load("prov=cxi nic=a max_msg=1000000 nic=b max_msg=50000 nic=c max_msg=18446744073709551615");
  unsetenv("RAIL_NET_FUSE_NO_PCI");
  CHECK(properties(0)->max_p2p_bytes == 1000000 && properties(1)->max_coll_bytes == 50000);
  CHECK(properties(2)->max_p2p_bytes == RAIL_NET_MAX_BYTES);
  CHECK_INT(fuse(2, 0, 1, 0, 0, 0, RAIL_OK), 3);
  CHECK(properties(3)->max_p2p_bytes == 50000 && properties(3)->max_coll_bytes == 50000);
}

/* Nothing arrives in order behind a write, and only asking for it says that delivery can be reported. */
TEST(delivery_is_asked_for) {
  load("prov=efa nic=a no=saw");
  CHECK(ofi_nic_at(0)->protocol == OFI_PROTOCOL_RMA && ofi_nic_at(0)->caps.delivery_complete);
  CHECK(!ofi_nic_at(0)->caps.send_after_write);
  CHECK_INT(ofi_nic_at(0)->info->tx_attr->op_flags & FI_DELIVERY_COMPLETE, 0); /* not by default */
  load("prov=efa nic=a no=saw,delivery");
  CHECK_INT(ofi_nic_at(0)->protocol, OFI_PROTOCOL_TAGGED);
}

TEST(without_a_device_one_line_says_why) {
  static const struct { const char *offers, *words; } rows[] = {
    {"", "libfabric offers nothing (fi_getinfo: No data available), so there are no devices"},
    {"nic=a fail=getinfo:1:EIO", "libfabric offers nothing (fi_getinfo: Input/output error)"},
    {"prov=cxi nic=a rm=0", "such as cxi a: no resource management"},
    {"prov=cxi nic=a link=down", "such as cxi a: its link is down"},
    {"prov=cxi nic=a no=tagged,rma", "such as cxi a: neither FI_TAGGED nor FI_RMA"},
    {"prov=shm nic=a", "such as shm a: reaches this host only"},
    {"prov=fake nic=a", "such as fake a: not used unless RAIL_OFI_PROVIDER names it"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    load(rows[i].offers);
    CHECK_MSG(ofi_device_count() == 0 && log_warnings() == 1 && strstr(log_warning, rows[i].words), "row %zu: %s", i,
              log_warning);
  }
  CHECK(!ofi_device_at(0, "listen") && log_said("listen: device 0 does not exist; there are no devices"));
  setenv("NCCL_SOCKET_IFNAME", "=none", 1);
  load("prov=cxi nic=a");
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  CHECK(ofi_device_count() == 0 && log_said("no usable network interface for the oob connection"));
}

TEST(nccl_is_kept_from_ll128) {
  unsetenv("NCCL_PROTO");
  load(""); /* no device: nothing of NCCL's is touched */
  CHECK(!getenv("NCCL_PROTO"));
  load("prov=cxi nic=cxi0");
  CHECK_STR(getenv("NCCL_PROTO"), "^LL128");
  CHECK(log_said("NCCL_PROTO is set to ^LL128"));
  setenv("NCCL_PROTO", "LL128", 1); /* whoever asks for it gets it */
  load("prov=cxi nic=cxi0");
  CHECK_STR(getenv("NCCL_PROTO"), "LL128");
  unsetenv("NCCL_PROTO");
  setenv("RAIL_OFI_LL128", "1", 1);
  load("prov=cxi nic=cxi0");
  CHECK(!getenv("NCCL_PROTO"));
  unsetenv("RAIL_OFI_LL128");
}

static uint32_t version_1_21(void) { return FI_VERSION(1, 21); }

/* Where libfabric knows it, the provider takes it, and no thread of the provider's progresses. */
TEST(locks_of_control_are_left_out) {
  static const struct { const char *script; bool newer, left_out; } cases[] = {
    {"prov=shm nic=a data=manual", true, true}, {"prov=tcp;ofi_rxm nic=lo data=manual", true, true},
    {"prov=shm nic=a data=manual threading=domain", true, true}, {"prov=shm nic=a data=auto", true, false},
    {"prov=cxi nic=a data=manual", true, false}, {"prov=shm nic=a data=manual", false, false}};
  uint32_t (*version)(void) = ofi_fabric.version;
  setenv("RAIL_OFI_PROVIDER", "shm,tcp;ofi_rxm,cxi", 1);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ofi_fabric.version = cases[i].newer ? version_1_21 : version;
    load(cases[i].script);
    ofi_fabric.version = version;
    CHECK_INT(ofi_nic_count(), 1);
    const struct fi_domain_attr *domain = ofi_nic_at(0)->info->domain_attr;
    CHECK_INT(domain->threading, FI_THREAD_DOMAIN);
    CHECK_MSG((domain->control_progress == (enum fi_progress)OFI_PROGRESS_CONTROL_UNIFIED) == cases[i].left_out, "%s",
              cases[i].script);
  }
  setenv("FI_OFI_RXM_DATA_AUTO_PROGRESS", "1", 1); /* a thread of its own, whatever it says */
  load("prov=tcp;ofi_rxm nic=lo data=manual threading=safe");
  CHECK_INT(ofi_nic_count(), 1);
  CHECK_INT(ofi_nic_at(0)->info->domain_attr->threading, FI_THREAD_SAFE);
  unsetenv("FI_OFI_RXM_DATA_AUTO_PROGRESS");
  unsetenv("RAIL_OFI_PROVIDER");
}

TEST(everything_is_given_back) {
  load("prov=cxi nic=a nic=b");
  CHECK_INT(ofi_device_count(), 2);
  CHECK_INT(fake_live("info"), 2);
  ofi_devices_unload();
  CHECK_INT(fake_live("info"), 0);
  CHECK(ofi_device_count() == 0 && ofi_nic_count() == 0);
  load("nic=a fail=getinfo:1:EIO");
  load("prov=cxi nic=a no=msg");
  CHECK_INT(fake_live("info"), 0);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(names_and_links_are_kept_apart), TEST_CASE(each_domain_is_a_device), TEST_CASE(nccl_is_kept_from_ll128),
    TEST_CASE(a_pci_path_is_that_of_sysfs), TEST_CASE(up_to_four_are_fused),
    TEST_CASE(only_what_fits_together_is_fused), TEST_CASE(the_largest_message_is_what_every_nic_takes),
    TEST_CASE(delivery_is_asked_for), TEST_CASE(locks_of_control_are_left_out),
    TEST_CASE(without_a_device_one_line_says_why), TEST_CASE(everything_is_given_back)};
  fake_use(argv[0], OF_ONE_NAME);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  unsetenv("FI_PROVIDER");
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
