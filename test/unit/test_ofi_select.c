/* SPDX-License-Identifier: Apache-2.0
 * Which of libfabric's infos become NICs, and why the others do not: lists made here. */
#include <arpa/inet.h>

#include "plugin/ofi/ofi_fabric.h"
#include "plugin/ofi/ofi_select.h"
#include "test/harness/tap.h"

/* ---- lists ------------------------------------------------------------------------------ */

/* An info with all that it points to. */
struct entry {
  struct fi_info info;
  struct fi_fabric_attr fabric;
  struct fi_domain_attr domain;
  struct fi_ep_attr ep;
  struct fi_tx_attr tx;
  struct fi_rx_attr rx;
  struct fid_nic nic;
  struct fi_bus_attr bus;
  struct fi_link_attr link;
  union rail_addr from;
  char provider[32], name[32];
};

#define MAX_ENTRIES 64
static struct entry entries[MAX_ENTRIES];
static unsigned int nentries;
static struct ofi_candidate got[MAX_ENTRIES];
static struct ofi_prefs prefs;
static struct rail_interface faces[4];

static const uint64_t all_caps = FI_MSG | FI_TAGGED | FI_RMA | FI_READ | FI_WRITE | FI_SEND | FI_RECV | FI_REMOTE_READ |
                                 FI_REMOTE_WRITE;

static void begin(void) {
  nentries = 0;
  memset(&prefs, 0, sizeof prefs);
  prefs.interfaces = faces;
}

static void address(union rail_addr *addr, const char *text) {
  memset(addr, 0, sizeof *addr);
  bool ipv6 = strchr(text, ':') != NULL;
  addr->sa.sa_family = ipv6 ? AF_INET6 : AF_INET;
  if (inet_pton(addr->sa.sa_family, text, ipv6 ? (void *)&addr->in6.sin6_addr : (void *)&addr->in.sin_addr) != 1)
    abort();
}

/* One that can do everything and needs nothing. */
static struct entry *add(const char *provider, const char *domain, const char *from) {
  struct entry *e = &entries[nentries++];
  memset(e, 0, sizeof *e);
  snprintf(e->provider, sizeof e->provider, "%s", provider);
  snprintf(e->name, sizeof e->name, "%s", domain);
  e->fabric.prov_name = e->provider;
  e->fabric.name = e->name;
  e->domain.name = e->name;
  e->domain.resource_mgmt = FI_RM_ENABLED;
  e->domain.mr_key_size = 8;
  e->ep.type = FI_EP_RDM;
  e->ep.max_msg_size = SIZE_MAX;
  e->ep.mem_tag_format = 0xaaaaaaaaaaaaaaaaull;
  e->tx.msg_order = e->rx.msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
  e->link.state = FI_LINK_UP;
  e->nic.link_attr = &e->link;
  e->info = (struct fi_info){.caps = all_caps, .fabric_attr = &e->fabric, .domain_attr = &e->domain, .ep_attr = &e->ep,
                             .tx_attr = &e->tx, .rx_attr = &e->rx, .nic = &e->nic};
  if (from) {
    address(&e->from, from);
    e->info.src_addr = &e->from;
    e->info.src_addrlen = rail_addr_len(&e->from);
    e->info.addr_format = e->from.sa.sa_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  }
  return e;
}

static struct entry *add_pci(const char *provider, const char *domain, uint8_t bus, size_t mbps) {
  struct entry *e = add(provider, domain, NULL);
  e->bus = (struct fi_bus_attr){.bus_type = FI_BUS_PCI, .attr.pci = {.bus_id = bus}};
  e->link.speed = mbps * 1000000;
  e->nic.bus_attr = &e->bus;
  return e;
}

static void interface(const char *name, const char *addr) {
  struct rail_interface *face = &faces[prefs.ninterfaces++];
  snprintf(face->name, sizeof face->name, "%s", name);
  address(&face->addr, addr);
}

static const struct fi_info *list(unsigned int from, unsigned int to) {
  for (unsigned int i = from; i < to; i++) entries[i].info.next = i + 1 < to ? &entries[i + 1].info : NULL;
  return from < to ? &entries[from].info : NULL;
}

static void judge(void) { CHECK_INT(ofi_select(list(0, nentries), NULL, &prefs, got, MAX_ENTRIES), nentries); }

/* The verdict of the entry, and words of its reason. */
#define SAYS(i, verdict_, words)                                                                          \
  CHECK_MSG(got[i].verdict == (verdict_) && strstr(got[i].why, words), "entry %d is %d, '%s'; expected %d, '%s'", \
            (int)(i), (int)got[i].verdict, got[i].why, (int)(verdict_), words)

/* ---- what an info can do ------------------------------------------------------------------ */

TEST(capabilities_are_read) {
  struct ofi_caps c;
  begin();
  struct entry *e = add("tcp;ofi_rxm", "eth0", NULL);
  e->tx.inject_size = 64;
  ofi_caps_of(&e->info, true, &c);
  CHECK(c.tagged && c.rma && c.rma_read && c.send_after_write && !c.delivery_complete && !c.hmem && !c.hmem_cuda);
  CHECK(!c.mr_local && !c.mr_virt_addr && !c.mr_prov_key && !c.mr_endpoint);
  CHECK(c.inject_size == 64 && c.mr_key_size == 8 && c.tag_bits == 64 && !c.manual_progress);
  e->rx.msg_order = FI_ORDER_SAS; /* of one side only */
  e->tx.op_flags = FI_DELIVERY_COMPLETE;
  e->info.caps &= ~FI_REMOTE_READ;
  e->info.caps |= FI_HMEM;
  e->domain.mr_mode = FI_MR_LOCAL | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  e->domain.data_progress = FI_PROGRESS_MANUAL;
  e->ep.mem_tag_format = 0x5555555555555555ull;
  ofi_caps_of(&e->info, true, &c);
  CHECK(c.rma && !c.rma_read && !c.send_after_write && c.delivery_complete && c.hmem && c.hmem_cuda);
  CHECK(c.mr_local && !c.mr_virt_addr && c.mr_prov_key && c.mr_endpoint && c.manual_progress && c.tag_bits == 63);
  ofi_caps_of(&e->info, false, &c);
  CHECK(c.hmem && !c.hmem_cuda);
  e->info.caps &= ~FI_REMOTE_WRITE;
  e->ep.mem_tag_format = 0;
  ofi_caps_of(&e->info, false, &c);
  CHECK(!c.rma && c.tag_bits == 0);
}

TEST(the_protocol_follows_from_them) {
  static const struct {
    const char *provider;
    bool tagged, rma, ordered, complete;
    unsigned int tag_bits;
    enum ofi_wanted wanted;
    enum ofi_protocol expected;
    const char *why;
  } rows[] = {
    {"tcp;ofi_rxm", true, true, true, false, 64, OFI_WANT_AUTO, OFI_PROTOCOL_RMA, "arrive behind them"},
    {"efa", true, true, false, true, 64, OFI_WANT_AUTO, OFI_PROTOCOL_RMA, "delivery"},
    {"efa", true, true, false, false, 64, OFI_WANT_AUTO, OFI_PROTOCOL_TAGGED, "neither FI_ORDER_SAW nor"},
    {"psm2", true, false, true, true, 64, OFI_WANT_AUTO, OFI_PROTOCOL_TAGGED, "no FI_RMA"},
    {"shm", true, true, true, true, 64, OFI_WANT_AUTO, OFI_PROTOCOL_TAGGED, "shared memory"},
    {"shm", false, true, true, true, 0, OFI_WANT_AUTO, OFI_PROTOCOL_RMA, "arrive behind them"},
    {"shm", true, true, true, true, 64, OFI_WANT_RMA, OFI_PROTOCOL_RMA, "asks for it"},
    {"tcp", true, true, true, true, 64, OFI_WANT_TAGGED, OFI_PROTOCOL_TAGGED, "asks for it"},
    {"tcp", false, true, true, true, 64, OFI_WANT_TAGGED, OFI_PROTOCOL_NONE, "no FI_TAGGED"},
    {"tcp", true, true, true, true, OFI_TAG_BITS - 1, OFI_WANT_TAGGED, OFI_PROTOCOL_NONE, "too few bits"},
    {"tcp", true, true, true, true, OFI_TAG_BITS, OFI_WANT_TAGGED, OFI_PROTOCOL_TAGGED, ""},
    {"tcp", true, true, false, false, 64, OFI_WANT_RMA, OFI_PROTOCOL_NONE, "neither FI_ORDER_SAW nor"},
    {"tcp", true, false, true, true, 64, OFI_WANT_RMA, OFI_PROTOCOL_NONE, "no FI_RMA"},
    {"tcp", false, false, true, true, 0, OFI_WANT_AUTO, OFI_PROTOCOL_NONE, "neither FI_TAGGED nor FI_RMA"},
    {"tcp", true, false, true, true, 10, OFI_WANT_AUTO, OFI_PROTOCOL_NONE, "too few bits"},
    {"tcp", false, true, false, false, 0, OFI_WANT_AUTO, OFI_PROTOCOL_NONE, "neither FI_ORDER_SAW nor"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const struct ofi_caps caps = {.tagged = rows[i].tagged, .rma = rows[i].rma, .send_after_write = rows[i].ordered,
                                  .delivery_complete = rows[i].complete, .tag_bits = rows[i].tag_bits};
    const char *why = "";
    enum ofi_protocol protocol = ofi_protocol_choose(rows[i].provider, &caps, rows[i].wanted, &why);
    CHECK_MSG(protocol == rows[i].expected && strstr(why, rows[i].why), "row %zu: %s, '%s'", i,
              ofi_protocol_name(protocol), why);
  }
}

/* ---- what the plugin cannot use ------------------------------------------------------------- */

static void break_type(struct entry *e) { e->ep.type = FI_EP_DGRAM; }
static void break_msg(struct entry *e) { e->info.caps &= ~FI_MSG; }
static void break_recv(struct entry *e) { e->info.caps &= ~FI_RECV; }
static void break_both(struct entry *e) { e->info.caps &= ~(FI_TAGGED | FI_RMA); }
static void break_tags(struct entry *e) { e->info.caps &= ~FI_RMA, e->ep.mem_tag_format = 0xffffffffull; }
static void break_prefix(struct entry *e) { e->info.mode |= FI_MSG_PREFIX; }
static void break_cq_data(struct entry *e) { e->info.mode |= FI_RX_CQ_DATA | FI_CONTEXT; }
static void break_unknown_mode(struct entry *e) { e->info.mode |= 1ull << 40; }
static void break_event(struct entry *e) { e->domain.mr_mode |= FI_MR_RMA_EVENT | FI_MR_LOCAL; }
static void break_raw(struct entry *e) { e->domain.mr_mode |= FI_MR_RAW; }
static void break_unknown_mr(struct entry *e) { e->domain.mr_mode |= 1 << 20; }
static void break_resources(struct entry *e) { e->domain.resource_mgmt = FI_RM_DISABLED; }
static void break_keys(struct entry *e) { e->domain.mr_key_size = 32; }
static void break_link(struct entry *e) { e->link.state = FI_LINK_DOWN; }
static void break_hook(struct entry *e) { snprintf(e->provider, sizeof e->provider, "cxi;ofi_hook_perf"); }

TEST(each_lack_has_its_reason) {
  static const struct { void (*harm)(struct entry *e); const char *why; } rows[] = {
    {break_type, "FI_EP_DGRAM, not FI_EP_RDM"},
    {break_msg, "no FI_MSG"},
    {break_recv, "no FI_MSG"},
    {break_both, "neither FI_TAGGED nor FI_RMA"},
    {break_tags, "too few bits"},
    {break_prefix, "needs FI_MSG_PREFIX"},
    {break_cq_data, "needs FI_RX_CQ_DATA"},
    {break_unknown_mode, "needs mode 0x10000000000"},
    {break_event, "needs FI_MR_RMA_EVENT"},
    {break_raw, "needs FI_MR_RAW"},
    {break_unknown_mr, "needs mr_mode 0x100000"},
    {break_resources, "FI_RM_DISABLED"},
    {break_keys, "keys of 32 bytes"},
    {break_link, "its link is down"},
    {break_hook, "is a hook"},
  };
  begin();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) rows[i].harm(add("cxi", "cxi0", NULL));
  add("cxi", "cxi0", NULL); /* and one that nothing is wrong with */
  judge();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) SAYS(i, OFI_LACKING, rows[i].why);
  SAYS(nentries - 1, OFI_CHOSEN, "chosen; rma");
}

TEST(modes_and_registrations_that_are_given_do_no_harm) {
  begin();
  struct entry *e = add("cxi", "cxi0", NULL);
  e->info.mode = FI_CONTEXT | FI_CONTEXT2;
  e->domain.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM;
  e->domain.resource_mgmt = FI_RM_UNSPEC;
  judge();
  SAYS(0, OFI_CHOSEN, "");
}

TEST(a_wanted_protocol_is_a_filter) {
  begin();
  add("efa", "rdmap0", NULL)->info.caps &= ~FI_RMA;
  add("verbs;ofi_rxm", "mlx5_0", NULL);
  prefs.protocol = OFI_WANT_RMA;
  judge();
  SAYS(0, OFI_FILTERED, "RAIL_OFI_PROTOCOL=rma is impossible: no FI_RMA");
  SAYS(1, OFI_CHOSEN, "chosen; rma");
  prefs.protocol = OFI_WANT_TAGGED;
  judge();
  SAYS(0, OFI_CHOSEN, "chosen; tagged");
  SAYS(1, OFI_USABLE, "one provider, efa");
}

TEST(delivery_complete_is_known_by_asking) {
  begin();
  for (int i = 0; i < 3; i++) {
    struct entry *e = add("efa", i == 1 ? "rdmap1" : "rdmap0", NULL);
    e->tx.msg_order = 0;
    if (i == 2) e->tx.op_flags = FI_DELIVERY_COMPLETE; /* what the library offers when that is asked for */
  }
  const struct fi_info *complete = list(2, 3);
  CHECK_INT(ofi_select(list(0, 2), complete, &prefs, got, MAX_ENTRIES), 2);
  CHECK(got[0].caps.delivery_complete && !got[1].caps.delivery_complete);
  SAYS(0, OFI_CHOSEN, "chosen; rma: writes that report their delivery");
  SAYS(1, OFI_CHOSEN, "chosen; tagged: neither");
  entries[2].info.caps &= ~FI_RMA; /* another one of that name, which can do less */
  CHECK_INT(ofi_select(list(0, 2), complete, &prefs, got, MAX_ENTRIES), 2);
  CHECK(!got[0].caps.delivery_complete);
}

TEST(entries_without_attributes_are_passed_over) {
  begin();
  for (int i = 0; i < 5; i++) add("cxi", "cxi0", NULL);
  entries[0].info.domain_attr = NULL;
  entries[1].fabric.prov_name = NULL;
  entries[2].domain.name = NULL;
  entries[3].info.tx_attr = NULL;
  CHECK_INT(ofi_select(list(0, 5), list(0, 5), &prefs, got, MAX_ENTRIES), 1);
  SAYS(0, OFI_CHOSEN, "");
  CHECK_INT(ofi_select(NULL, NULL, &prefs, got, MAX_ENTRIES), 0);
  CHECK_INT(ofi_select(list(4, 5), NULL, &prefs, got, 0), 0);
}

/* ---- providers -------------------------------------------------------------------------------- */

/* What is chosen of one domain of each of these. */
static const char *chosen_of(const char *named, const char *fi_provider, const char *const *providers) {
  const char *chosen = "none";
  begin();
  interface("eth0", "10.0.0.1");
  for (; *providers; providers++) {
    bool ip = ofi_provider_is_ip(*providers);
    add(*providers, ip ? "eth0" : "nic0", ip ? "10.0.0.1" : NULL);
  }
  prefs.provider = named;
  prefs.fi_provider = fi_provider;
  judge();
  for (unsigned int i = 0; i < nentries; i++)
    if (got[i].verdict == OFI_CHOSEN) chosen = entries[i].provider;
  return chosen;
}
#define CHOSEN(named, fi_provider, ...) chosen_of(named, fi_provider, (const char *const[]){__VA_ARGS__, NULL})

TEST(hardware_comes_first) {
  static const char *const order[] = {"cxi", "efa", "opx", "psm3", "psm2", "verbs;ofi_rxm", "tcp;ofi_rxm", "tcp",
                                      "sockets", "udp;ofi_rxd", NULL};
  const char *reversed[11];
  for (int i = 0; i < 10; i++) reversed[i] = order[9 - i];
  reversed[10] = NULL;
  for (int i = 0; i < 10; i++) {
    CHECK_INT(ofi_provider_rank(order[i]), i);
    reversed[10 - i] = NULL; /* without those that are better */
    CHECK_STR(chosen_of(NULL, NULL, reversed), order[i]);
    CHECK_STR(chosen_of(NULL, NULL, order + i), order[i]);
  }
}

TEST(others_only_when_they_are_named) {
  CHECK_STR(CHOSEN(NULL, NULL, "shm", "net", "net;ofi_rxm", "ucx", "tcp;ofi_mrail", "sm2"), "none");
  SAYS(0, OFI_FILTERED, "this host only");
  SAYS(1, OFI_FILTERED, "not used unless RAIL_OFI_PROVIDER names it");
  SAYS(3, OFI_FILTERED, "not used unless");
  SAYS(5, OFI_FILTERED, "this host only");
  CHECK_STR(CHOSEN("shm", NULL, "cxi", "shm", "tcp"), "shm");
  CHECK_STR(CHOSEN(NULL, "shm", "shm"), "shm");
  CHECK_STR(CHOSEN(NULL, "^tcp", "shm"), "none"); /* excluding others names none */
  CHECK_STR(CHOSEN(NULL, "shm,tcp", "shm", "tcp;ofi_rxm"), "tcp;ofi_rxm");
  CHECK_STR(CHOSEN(NULL, "net,shm", "shm", "net"), "net");
  CHECK_STR(CHOSEN("^tcp", NULL, "shm", "tcp;ofi_rxm"), "none");
}

TEST(a_list_of_providers_is_an_order) {
  CHECK_STR(CHOSEN("udp,tcp", NULL, "tcp;ofi_rxm", "udp;ofi_rxd"), "udp;ofi_rxd");
  CHECK_STR(CHOSEN("psm2,tcp", NULL, "cxi", "tcp;ofi_rxm"), "tcp;ofi_rxm");
  SAYS(0, OFI_FILTERED, "RAIL_OFI_PROVIDER=psm2,tcp");
  CHECK_STR(CHOSEN("tcp", NULL, "tcp;ofi_rxm", "tcp"), "tcp"); /* by its whole name first */
  CHECK_STR(CHOSEN("tcp;ofi_rxm", NULL, "tcp", "tcp;ofi_rxm"), "tcp;ofi_rxm");
  CHECK_STR(CHOSEN("tcp;ofi_rxm", NULL, "tcp"), "none");
  CHECK_STR(CHOSEN("net", NULL, "net;ofi_rxm", "net"), "net");
  CHECK_STR(CHOSEN("^tcp,verbs", NULL, "verbs;ofi_rxm", "tcp", "sockets"), "sockets");
  CHECK_STR(CHOSEN("tc", NULL, "tcp"), "none"); /* no prefix */
  CHECK_STR(CHOSEN("tcpx", NULL, "tcp"), "none");
  CHECK_STR(CHOSEN(",,tcp", NULL, "tcp"), "tcp");
  CHECK_STR(CHOSEN("", NULL, "tcp"), "tcp");
  CHECK(ofi_provider_is_ip("tcp;ofi_rxm") && ofi_provider_is_ip("udp;ofi_rxd") && ofi_provider_is_ip("sockets"));
  CHECK(!ofi_provider_is_ip("verbs;ofi_rxm") && !ofi_provider_is_ip("tcpx") && !ofi_provider_is_ip("shm"));
}

/* ---- interfaces --------------------------------------------------------------------------------- */

TEST(interfaces_are_nccls_choice) {
  begin();
  interface("eth1", "10.0.1.1");
  interface("eth0", "fd00::1");
  for (int i = 0; i < 3; i++) add("tcp;ofi_rxm", "eth0", (const char *const[]){"10.0.0.1", "fe80::1", "fd00::1"}[i]);
  add("tcp;ofi_rxm", "lo", "127.0.0.1");
  add("tcp;ofi_rxm", "eth1", "10.0.1.1");
  judge();
  SAYS(0, OFI_DUPLICATE, "another address of eth0");
  SAYS(1, OFI_DUPLICATE, "another address of eth0");
  SAYS(2, OFI_CHOSEN, "");
  SAYS(3, OFI_FILTERED, "lo is not among the interfaces");
  SAYS(4, OFI_CHOSEN, "");
  const struct ofi_candidate *nics[OFI_MAX_NICS];
  CHECK_INT(ofi_select_order(got, nentries, nics), 2);
  CHECK(nics[0] == &got[4] && nics[1] == &got[2]); /* as the interfaces are */
}

TEST(a_link_local_address_may_lack_its_scope) {
  begin();
  interface("eth0", "fe80::1");
  faces[0].addr.in6.sin6_scope_id = 4;
  add("tcp;ofi_rxm", "eth0", "fe80::1");
  judge();
  SAYS(0, OFI_CHOSEN, "");
  entries[0].from.in6.sin6_scope_id = 5;
  judge();
  SAYS(0, OFI_DUPLICATE, "another address");
}

TEST(without_an_address_the_domain_is_the_interface) {
  begin();
  interface("eth0", "10.0.0.1");
  add("udp;ofi_rxd", "eth1", NULL);
  add("udp;ofi_rxd", "eth0", NULL);
  struct entry *cut = add("udp;ofi_rxd", "eth0", "10.0.0.9");
  cut->info.src_addrlen = 3; /* no address either */
  judge();
  SAYS(0, OFI_FILTERED, "eth1 is not among");
  SAYS(1, OFI_CHOSEN, "");
  SAYS(2, OFI_DUPLICATE, "another entry");
}

TEST(domains_are_filtered_by_name) {
  begin();
  for (int i = 0; i < 12; i++) {
    char name[16];
    snprintf(name, sizeof name, "cxi%d", i);
    add("cxi", name, NULL);
  }
  prefs.domain = "cxi1";
  judge();
  for (int i = 0; i < 12; i++) CHECK_INT(got[i].verdict, i == 1 || i >= 10 ? OFI_CHOSEN : OFI_FILTERED);
  prefs.domain = "=cxi1";
  judge();
  for (int i = 0; i < 12; i++) CHECK_INT(got[i].verdict, i == 1 ? OFI_CHOSEN : OFI_FILTERED);
  prefs.domain = "^cxi1";
  judge();
  for (int i = 0; i < 12; i++) CHECK_INT(got[i].verdict, i == 1 || i >= 10 ? OFI_FILTERED : OFI_CHOSEN);
  SAYS(1, OFI_FILTERED, "RAIL_OFI_DOMAIN=^cxi1");
}

/* ---- NICs ---------------------------------------------------------------------------------------- */

/* Of two infos of one NIC the second is better, whichever is listed first. */
static void second_is_better(void (*harm)(struct entry *e)) {
  for (int worse = 0; worse < 2; worse++) {
    bool cuda = prefs.hmem_cuda;
    begin();
    prefs.hmem_cuda = cuda;
    for (int i = 0; i < 2; i++) add("verbs;ofi_rxm", "mlx5_0", i == worse ? "fd00::2" : "fd00::1");
    harm(&entries[worse]);
    judge();
    SAYS(worse, OFI_DUPLICATE, "another entry of mlx5_0 is better");
    SAYS(1 - worse, OFI_CHOSEN, "");
  }
}
static void worse_buffered(struct entry *e) { e->info.mode |= OFI_MODE_BUFFERED_RECV; }
static void worse_no_rma(struct entry *e) { e->info.caps &= ~FI_RMA; }
static void worse_hmem(struct entry *e) { e->info.caps |= FI_HMEM; }
static void worse_no_hmem(struct entry *e) {
  for (unsigned int i = 0; i < nentries; i++)
    if (&entries[i] != e) entries[i].info.caps |= FI_HMEM;
}
static void worse_size(struct entry *e) { e->ep.max_msg_size = 8192; }
static void worse_order(struct entry *e) { e->tx.msg_order = 0, e->tx.op_flags = FI_DELIVERY_COMPLETE; }
static void worse_read(struct entry *e) { e->info.caps &= ~FI_READ; }
static void worse_untagged(struct entry *e) { e->info.caps &= ~FI_TAGGED; }
static void worse_tag(struct entry *e) { e->ep.mem_tag_format >>= 1; }
static void worse_link_local(struct entry *e) { address(&e->from, "fe80::7"); }

TEST(of_one_nic_the_info_with_most) {
  begin();
  void (*const harms[])(struct entry *) = {worse_buffered, worse_no_rma, worse_hmem, worse_size, worse_order,
                                           worse_read, worse_untagged, worse_tag, worse_link_local};
  for (size_t i = 0; i < sizeof harms / sizeof harms[0]; i++) second_is_better(harms[i]);
  prefs.hmem_cuda = true;
  second_is_better(worse_no_hmem);
  begin();
  const char *const addresses[] = {"fe80::1", "fd00::1", "10.0.0.1", "10.0.0.1"};
  for (int i = 0; i < 4; i++) add("verbs;ofi_rxm", "mlx5_0", addresses[i]);
  judge();
  for (unsigned int i = 0; i < 4; i++) CHECK_INT(got[i].verdict, i == 2 ? OFI_CHOSEN : OFI_DUPLICATE);
  SAYS(3, OFI_DUPLICATE, "as good, and before it");
}

TEST(one_name_on_several_cards_is_several_nics) {
  const struct ofi_candidate *nics[OFI_MAX_NICS];
  begin();
  add("psm2", "psm2", NULL);
  add_pci("psm2", "psm2", 0xaf, 100000);
  add_pci("psm2", "psm2", 0x3b, 100000);
  add_pci("psm2", "psm2", 0x3b, 100000);
  judge();
  for (unsigned int i = 0; i < 4; i++) CHECK_INT(got[i].verdict, i == 3 ? OFI_DUPLICATE : OFI_CHOSEN);
  CHECK_INT(ofi_select_order(got, nentries, nics), 3);
  CHECK(nics[0] == &got[2] && nics[1] == &got[1] && nics[2] == &got[0]); /* by card, those without one behind */
}

TEST(more_than_fit_are_left_out) {
  const struct ofi_candidate *nics[OFI_MAX_NICS];
  begin();
  for (unsigned int i = 0; i < OFI_MAX_NICS + 2; i++) (void)add_pci("cxi", "cxi", (uint8_t)i, 200000);
  judge();
  SAYS(OFI_MAX_NICS - 1, OFI_CHOSEN, "");
  SAYS(OFI_MAX_NICS, OFI_FILTERED, "more than 32 NICs");
  CHECK_INT(ofi_select_order(got, nentries, nics), OFI_MAX_NICS);
}

TEST(the_table_says_it_in_columns) {
  char text[OFI_ROW_TEXT], pci[OFI_PCI_ADDRESS];
  begin();
  struct entry *e = add_pci("cxi", "cxi0", 0x3b, 200000);
  e->bus.attr.pci.domain_id = 1;
  e->bus.attr.pci.function_id = 7;
  e->domain.data_progress = FI_PROGRESS_MANUAL;
  judge();
  CHECK(ofi_info_pci_address(&e->info, pci));
  CHECK_STR(pci, "0001:3b:00.7");
  CHECK_INT(ofi_info_speed(&e->info), 200000);
  CHECK_STR(ofi_select_row(&got[0], 200000, "/sys/devices/pci0001:3a/0001:3b:00.7", text),
            "cxi            cxi0         rma      TWRO--M   200000  0001:3b:00.7  chosen; rma: writes, and sends that "
            "arrive behind them");
  e->info.caps &= ~(FI_TAGGED | FI_RMA);
  judge();
  CHECK_STR(ofi_select_row(&got[0], 0, "", text),
            "cxi            cxi0         -        ---O--M        -  -             neither FI_TAGGED nor FI_RMA");
  CHECK_STR(ofi_select_row(NULL, 0, NULL, text),
            "provider       domain       protocol caps        Mb/s  PCI           verdict");
  e->bus.bus_type = FI_BUS_UNKNOWN;
  CHECK(!ofi_info_pci_address(&e->info, pci));
  e->info.nic = NULL;
  CHECK(!ofi_info_pci_address(&e->info, pci) && ofi_info_speed(&e->info) == 0);
}

TEST_MAIN(TEST_CASE(capabilities_are_read), TEST_CASE(the_protocol_follows_from_them),
          TEST_CASE(each_lack_has_its_reason), TEST_CASE(modes_and_registrations_that_are_given_do_no_harm),
          TEST_CASE(a_wanted_protocol_is_a_filter), TEST_CASE(delivery_complete_is_known_by_asking),
          TEST_CASE(entries_without_attributes_are_passed_over), TEST_CASE(hardware_comes_first),
          TEST_CASE(others_only_when_they_are_named), TEST_CASE(a_list_of_providers_is_an_order),
          TEST_CASE(interfaces_are_nccls_choice), TEST_CASE(a_link_local_address_may_lack_its_scope),
          TEST_CASE(without_an_address_the_domain_is_the_interface), TEST_CASE(domains_are_filtered_by_name),
          TEST_CASE(of_one_nic_the_info_with_most), TEST_CASE(one_name_on_several_cards_is_several_nics),
          TEST_CASE(more_than_fit_are_left_out), TEST_CASE(the_table_says_it_in_columns))
