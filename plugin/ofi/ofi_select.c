/* SPDX-License-Identifier: Apache-2.0
 * Choosing among what libfabric offers. Pure. */
#include "plugin/ofi/ofi_select.h"

#include <limits.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "plugin/ofi/ofi_fabric.h"

/* ---- providers ------------------------------------------------------------------------- */

static const char *const ranked[] = {
  "cxi", "efa", "opx", "psm3", "psm2", "verbs;ofi_rxm", /* hardware */
  "tcp;ofi_rxm", "tcp", "sockets", "udp;ofi_rxd",
};

/* Length of the first component: "tcp" of "tcp;ofi_rxm". */
static size_t core_len(const char *provider) { return strcspn(provider, ";"); }

static bool core_is(const char *provider, const char *core) {
  return strlen(core) == core_len(provider) && strncmp(provider, core, strlen(core)) == 0;
}

int ofi_provider_rank(const char *provider) {
  for (size_t i = 0; i < RAIL_COUNT_OF(ranked); i++)
    if (strcmp(ranked[i], provider) == 0) return (int)i;
  return -1;
}

bool ofi_provider_is_ip(const char *provider) {
  return core_is(provider, "tcp") || core_is(provider, "sockets") || core_is(provider, "udp") ||
         core_is(provider, "net") || core_is(provider, "xnet");
}

bool ofi_provider_is_tcp(const char *provider) { return core_is(provider, "tcp") || core_is(provider, "xnet"); }

/* Its endpoints have a connection to each peer, in whose order operations fail, too: tcp, and what ofi_rxm is over. Not
 * sockets: its target answers a write that it refuses, and goes on with what is behind it. */
static bool is_connected(const char *provider) {
  const char *layer = strchr(provider, ';');
  return ofi_provider_is_tcp(provider) || (layer && strcmp(layer, ";ofi_rxm") == 0);
}

bool ofi_provider_is_local(const char *provider) { return core_is(provider, "shm") || core_is(provider, "sm2"); }

/* Position in a list such as "tcp;ofi_rxm,verbs" or "^shm": an entry is a provider's whole name (*whole), or its first
 * component ("tcp" of "tcp;ofi_rxm"). 0 the first; -1: filtered out. NULL or empty: 0. */
static int find_position(const char *list, const char *provider, bool *whole) {
  int position = 0;
  *whole = false;
  if (!list || !*list) return 0;
  bool exclude = *list == '^';
  for (const char *item = list + exclude; *item; position++) {
    size_t len = strcspn(item, ",");
    *whole = len == strlen(provider) && strncmp(item, provider, len) == 0;
    bool core = len == core_len(provider) && strncmp(item, provider, len) == 0;
    if (*whole || core) return exclude ? -1 : position;
    item += len + (item[len] == ',');
  }
  return exclude ? 0 : -1;
}

static int position_in(const char *list, const char *provider) {
  bool whole;
  return find_position(list, provider, &whole);
}

static bool is_named(const char *list, const char *provider) {
  return list && *list && *list != '^' && position_in(list, provider) >= 0;
}

/* The order of providers: the smallest is taken. INT_MAX: none. */
static int order_of(const struct ofi_prefs *prefs, const char *provider) {
  enum { POSITIONS = 1000 };
  int rank = ofi_provider_rank(provider);
  int by_rank = rank >= 0 ? rank : POSITIONS / 2;
  if (is_named(prefs->provider, provider)) { /* "tcp" names tcp before tcp;ofi_rxm */
    bool whole;
    int position = find_position(prefs->provider, provider, &whole);
    return POSITIONS * position + (whole ? -1 : by_rank);
  }
  if (rank >= 0) return rank;
  if (is_named(prefs->fi_provider, provider)) return POSITIONS + position_in(prefs->fi_provider, provider);
  return INT_MAX;
}

/* ---- what an info can do ----------------------------------------------------------------- */

void ofi_caps_of(const struct fi_info *info, bool hmem_cuda, struct ofi_caps *caps) {
  const uint64_t one_way[] = {FI_WRITE, FI_REMOTE_WRITE, FI_READ, FI_REMOTE_READ};
  const struct fi_domain_attr *domain = info->domain_attr;
  bool has[RAIL_COUNT_OF(one_way)];
  uint64_t mr = (uint64_t)domain->mr_mode;
  for (size_t i = 0; i < RAIL_COUNT_OF(one_way); i++) has[i] = (info->caps & one_way[i]) != 0;
  *caps = (struct ofi_caps){
    .tagged = (info->caps & FI_TAGGED) != 0,
    .rma = (info->caps & FI_RMA) && has[0] && has[1],
    .rma_read = (info->caps & FI_RMA) && has[2] && has[3],
    .send_after_write = (info->tx_attr->msg_order & info->rx_attr->msg_order & FI_ORDER_SAW) != 0,
    .delivery_complete = (info->tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0,
    .hmem = (info->caps & FI_HMEM) != 0,
    .hmem_cuda = hmem_cuda && (info->caps & FI_HMEM),
    .buffered_recv = (info->mode & OFI_MODE_BUFFERED_RECV) != 0,
    .mr_local = (mr & FI_MR_LOCAL) != 0,
    .mr_virt_addr = (mr & FI_MR_VIRT_ADDR) != 0,
    .mr_prov_key = (mr & FI_MR_PROV_KEY) != 0,
    .mr_endpoint = (mr & FI_MR_ENDPOINT) != 0,
    .manual_progress = domain->data_progress == FI_PROGRESS_MANUAL,
    .inject_size = info->tx_attr->inject_size,
    .max_msg_size = info->ep_attr->max_msg_size,
    .mr_key_size = domain->mr_key_size,
    .iov_limit = info->tx_attr->iov_limit,
    .rx_size = info->rx_attr->size,
    .tag_format = info->ep_attr->mem_tag_format,
  };
  /* The order alone says nothing of what follows a write that fails. */
  caps->fin_at_once = caps->send_after_write && is_connected(info->fabric_attr->prov_name);
  /* Bits before the first one that is set are not carried. */
  caps->tag_bits = caps->tag_format ? 64 - (unsigned int)__builtin_clzll(caps->tag_format) : 0;
}

/* ---- the protocol ------------------------------------------------------------------------ */

const char *ofi_protocol_name(enum ofi_protocol protocol) {
  static const char *const names[] = {"none", "tagged", "rma"};
  return names[protocol];
}

#define LEAST_RECEIVES 16 /* half of them for control messages, half for the buffers of one irecv */

/* NULL: it can. */
static const char *no_tagged(const struct ofi_caps *caps) {
  if (!caps->tagged) return "no FI_TAGGED";
  if (caps->rx_size && caps->rx_size < LEAST_RECEIVES) return "room for fewer than 16 receives";
  return caps->tag_bits < OFI_TAG_BITS ? "its tags have too few bits (mem_tag_format)" : NULL;
}

static const char *no_rma(const struct ofi_caps *caps) {
  if (!caps->rma) return "no FI_RMA with FI_WRITE and FI_REMOTE_WRITE";
  if (caps->send_after_write || caps->delivery_complete) return NULL;
  return "neither FI_ORDER_SAW nor FI_DELIVERY_COMPLETE";
}

enum ofi_protocol ofi_protocol_choose(const char *provider, const struct ofi_caps *caps, enum ofi_wanted wanted,
                                      const char **why) {
  const char *tagged = no_tagged(caps), *rma = no_rma(caps);
  if (wanted == OFI_WANT_TAGGED || wanted == OFI_WANT_RMA) {
    *why = wanted == OFI_WANT_TAGGED ? tagged : rma;
    if (*why) return OFI_PROTOCOL_NONE;
    *why = "RAIL_OFI_PROTOCOL asks for it";
    return wanted == OFI_WANT_TAGGED ? OFI_PROTOCOL_TAGGED : OFI_PROTOCOL_RMA;
  }
  if (!tagged && ofi_provider_is_local(provider)) {
    /* A process writes into its peer's memory by itself, even behind the peer's deregistration. */
    *why = "writes of a peer in shared memory do not end with a registration";
    return OFI_PROTOCOL_TAGGED;
  }
  if (!rma) {
    *why = caps->send_after_write ? "writes, and sends that arrive behind them"
                                  : "writes that report their delivery";
    return OFI_PROTOCOL_RMA;
  }
  *why = rma;
  if (!tagged) return OFI_PROTOCOL_TAGGED;
  if (caps->tagged) *why = tagged;
  else if (!caps->rma) *why = "neither FI_TAGGED nor FI_RMA";
  return OFI_PROTOCOL_NONE;
}

/* ---- judging one info -------------------------------------------------------------------- */

#define GIVEN_MODES (FI_CONTEXT | FI_CONTEXT2 | OFI_MODE_BUFFERED_RECV) /* the last is an offer, not taken */
#define GIVEN_MR_MODES \
  ((uint64_t)(FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM))

static const struct need {
  uint64_t bit;
  const char *name;
} modes[] = {
  {FI_MSG_PREFIX, "FI_MSG_PREFIX"},
  {FI_ASYNC_IOV, "FI_ASYNC_IOV"},
  {FI_RX_CQ_DATA, "FI_RX_CQ_DATA"},
  {OFI_MODE_LOCAL_MR, "FI_LOCAL_MR"},
  {OFI_MODE_NOTIFY_FLAGS_ONLY, "FI_NOTIFY_FLAGS_ONLY"},
  {OFI_MODE_RESTRICTED_COMP, "FI_RESTRICTED_COMP"},
}, mr_modes[] = {
  {FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT"},
  {FI_MR_RAW, "FI_MR_RAW"},
  {FI_MR_MMU_NOTIFY, "FI_MR_MMU_NOTIFY"},
  {FI_MR_COLLECTIVE, "FI_MR_COLLECTIVE"},
  {OFI_MR_BASIC, "FI_MR_BASIC"},
  {OFI_MR_SCALABLE, "FI_MR_SCALABLE"},
};

static void say(struct ofi_candidate *c, enum ofi_verdict verdict, const char *fmt, ...) RAIL_PRINTF(3, 4);
static void say(struct ofi_candidate *c, enum ofi_verdict verdict, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  c->verdict = verdict;
  vsnprintf(c->why, sizeof c->why, fmt, args);
  va_end(args);
}

/* The plugin does not do what the info needs. */
static bool asks_too_much(struct ofi_candidate *c, uint64_t needed, const struct need *names, size_t n,
                          const char *what) {
  if (!needed) return false;
  for (size_t i = 0; i < n; i++) {
    if (!(needed & names[i].bit)) continue;
    say(c, OFI_LACKING, "needs %s", names[i].name);
    return true;
  }
  say(c, OFI_LACKING, "needs %s 0x%llx", what, (unsigned long long)needed);
  return true;
}

static const char *type_name(enum fi_ep_type type) {
  return type == FI_EP_MSG ? "FI_EP_MSG" : type == FI_EP_DGRAM ? "FI_EP_DGRAM" : "of another kind";
}

static bool is_down(const struct fi_info *info) {
  return info->nic && info->nic->link_attr && info->nic->link_attr->state == FI_LINK_DOWN;
}

/* True: it can be used, by c->protocol. Else the verdict is written. */
static bool is_capable(struct ofi_candidate *c, const struct ofi_prefs *prefs) {
  const struct fi_info *info = c->info;
  const char *why;
  if (strstr(info->fabric_attr->prov_name, "ofi_hook_") || strstr(info->fabric_attr->name, "ofi_hook_"))
    say(c, OFI_LACKING, "is a hook, for debugging");
  else if (info->ep_attr->type != FI_EP_RDM)
    say(c, OFI_LACKING, "endpoints are %s, not FI_EP_RDM", type_name(info->ep_attr->type));
  else if (!(info->caps & FI_MSG) || !(info->caps & FI_SEND) || !(info->caps & FI_RECV))
    say(c, OFI_LACKING, "no FI_MSG, for control messages");
  else if (is_down(info))
    say(c, OFI_LACKING, "its link is down");
  else if (asks_too_much(c, info->mode & ~GIVEN_MODES, modes, RAIL_COUNT_OF(modes), "mode"))
    return false;
  else if (asks_too_much(c, (uint64_t)info->domain_attr->mr_mode & ~GIVEN_MR_MODES, mr_modes, RAIL_COUNT_OF(mr_modes),
                         "mr_mode"))
    return false;
  else if (info->domain_attr->resource_mgmt == FI_RM_DISABLED)
    say(c, OFI_LACKING, "no resource management (FI_RM_DISABLED): its queues would overrun");
  else if (info->domain_attr->mr_key_size > sizeof(uint64_t))
    say(c, OFI_LACKING, "keys of %zu bytes; 8 are carried", info->domain_attr->mr_key_size);
  else {
    c->protocol = ofi_protocol_choose(info->fabric_attr->prov_name, &c->caps, prefs->protocol, &why);
    if (c->protocol != OFI_PROTOCOL_NONE) {
      say(c, OFI_USABLE, "%s", why);
      return true;
    }
    if (prefs->protocol == OFI_WANT_AUTO) say(c, OFI_LACKING, "%s", why);
    else
      say(c, OFI_FILTERED, "RAIL_OFI_PROTOCOL=%s is impossible: %s",
          prefs->protocol == OFI_WANT_TAGGED ? "tagged" : "rma", why);
  }
  return false;
}

/* ---- interfaces, filters ----------------------------------------------------------------- */

/* False: it has no IP address. */
static bool source_address(const struct fi_info *info, union rail_addr *addr) {
  memset(addr, 0, sizeof *addr);
  if (!info->src_addr) return false;
  const struct sockaddr *from = info->src_addr;
  if (info->addr_format == FI_SOCKADDR_IN && info->src_addrlen >= sizeof addr->in) {
    memcpy(&addr->in, from, sizeof addr->in);
  } else if (info->addr_format == FI_SOCKADDR_IN6 && info->src_addrlen >= sizeof addr->in6) {
    memcpy(&addr->in6, from, sizeof addr->in6);
  } else if (info->addr_format == FI_SOCKADDR && info->src_addrlen >= sizeof addr->in) {
    memcpy(addr, from, RAIL_MIN(info->src_addrlen, sizeof *addr));
  }
  return addr->sa.sa_family == AF_INET || addr->sa.sa_family == AF_INET6;
}

/* The scope of a link-local address is not always filled in. */
static bool same_address(const union rail_addr *a, const union rail_addr *b) {
  union rail_addr scoped = *a;
  if (a->sa.sa_family == AF_INET6 && b->sa.sa_family == AF_INET6 && !a->in6.sin6_scope_id)
    scoped.in6.sin6_scope_id = b->in6.sin6_scope_id;
  return rail_addr_same_host(&scoped, b);
}

/* True: c->interface is the one that it runs over. */
static bool passes_interfaces(struct ofi_candidate *c, const struct ofi_prefs *prefs) {
  const char *domain = c->info->domain_attr->name;
  union rail_addr addr;
  bool addressed = source_address(c->info, &addr), listed = false;
  for (int i = 0; i < prefs->ninterfaces; i++) {
    const struct rail_interface *face = &prefs->interfaces[i];
    bool named = strcmp(face->name, domain) == 0;
    listed |= named;
    if (addressed ? !same_address(&addr, &face->addr) : !named) continue;
    c->interface = i;
    return true;
  }
  if (listed) say(c, OFI_DUPLICATE, "another address of %s is used", domain);
  else say(c, OFI_FILTERED, "%s is not among the interfaces of NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY", domain);
  return false;
}

static bool passes_filters(struct ofi_candidate *c, const struct ofi_prefs *prefs) {
  const char *provider = c->info->fabric_attr->prov_name;
  if (position_in(prefs->provider, provider) < 0)
    say(c, OFI_FILTERED, "RAIL_OFI_PROVIDER=%s", prefs->provider);
  else if (order_of(prefs, provider) == INT_MAX)
    say(c, OFI_FILTERED, "%s", ofi_provider_is_local(provider) ? "reaches this host only; RAIL_OFI_PROVIDER may name it"
                                                               : "not used unless RAIL_OFI_PROVIDER names it");
  else if (prefs->domain && !rail_name_filter(prefs->domain, c->info->domain_attr->name))
    say(c, OFI_FILTERED, "RAIL_OFI_DOMAIN=%s", prefs->domain);
  else
    return !ofi_provider_is_ip(provider) || passes_interfaces(c, prefs);
  return false;
}

/* ---- choosing ---------------------------------------------------------------------------- */

static bool same_nic(const struct ofi_candidate *a, const struct ofi_candidate *b) {
  char pci_a[OFI_PCI_ADDRESS] = "", pci_b[OFI_PCI_ADDRESS] = "";
  if (a->interface >= 0 || b->interface >= 0) return a->interface == b->interface;
  (void)ofi_info_pci_address(a->info, pci_a);
  (void)ofi_info_pci_address(b->info, pci_b);
  return strcmp(a->info->domain_attr->name, b->info->domain_attr->name) == 0 && strcmp(pci_a, pci_b) == 0;
}

/* Of infos of one NIC: IPv4, then other IPv6, then link-local, which needs the right link's scope. */
static int address_rank(const struct fi_info *info) {
  union rail_addr addr;
  if (!source_address(info, &addr) || addr.sa.sa_family == AF_INET) return 0;
  return IN6_IS_ADDR_LINKLOCAL(&addr.in6.sin6_addr) ? 2 : 1;
}

/* Does a have more that is used? What is worth more stands first. Equal: the one that is listed first. */
static bool is_better(const struct ofi_candidate *a, const struct ofi_candidate *b, bool hmem_cuda) {
  const struct ofi_caps *x = &a->caps, *y = &b->caps;
  if (x->buffered_recv != y->buffered_recv) return y->buffered_recv;
  if (a->protocol != b->protocol) return a->protocol > b->protocol;
  /* Where it is not used it costs: memory is looked at before it is touched, nothing is injected. */
  if (x->hmem != y->hmem) return x->hmem == hmem_cuda;
  if (x->max_msg_size != y->max_msg_size) return x->max_msg_size > y->max_msg_size;
  if (x->send_after_write != y->send_after_write) return x->send_after_write;
  if (x->rma_read != y->rma_read) return x->rma_read;
  if (x->tagged != y->tagged) return x->tagged;
  if (x->tag_bits != y->tag_bits) return x->tag_bits > y->tag_bits; /* a bit less: with FI_COLLECTIVE */
  return address_rank(a->info) < address_rank(b->info);
}

/* Of the usable ones of this provider, one for each NIC. */
static void choose(struct ofi_candidate *all, unsigned int n, const char *provider, bool hmem_cuda) {
  unsigned int nics = 0;
  for (unsigned int i = 0; i < n; i++) {
    struct ofi_candidate *best = &all[i];
    if (best->verdict != OFI_USABLE) continue;
    if (strcmp(best->info->fabric_attr->prov_name, provider) != 0) {
      say(best, OFI_USABLE, "usable; all devices are of one provider, %s", provider);
      continue;
    }
    for (unsigned int k = i + 1; k < n; k++) {
      struct ofi_candidate *other = &all[k];
      if (other->verdict != OFI_USABLE || strcmp(other->info->fabric_attr->prov_name, provider) != 0 ||
          !same_nic(best, other))
        continue;
      struct ofi_candidate *worse = is_better(other, best, hmem_cuda) ? best : other;
      if (worse == best) best = other;
      say(worse, OFI_DUPLICATE, "another entry of %s is %s", best->info->domain_attr->name,
          is_better(best, worse, hmem_cuda) ? "better" : "as good, and before it");
    }
    if (nics++ < OFI_MAX_NICS) {
      char why[sizeof best->why];
      memcpy(why, best->why, sizeof why);
      say(best, OFI_CHOSEN, "chosen; %s: %.150s", ofi_protocol_name(best->protocol), why);
    } else {
      say(best, OFI_FILTERED, "more than %d NICs; RAIL_OFI_DOMAIN chooses", OFI_MAX_NICS);
    }
  }
}

static const char *best_provider(const struct ofi_candidate *all, unsigned int n, const struct ofi_prefs *prefs) {
  const char *best = NULL;
  for (unsigned int i = 0; i < n; i++) {
    const char *provider = all[i].info->fabric_attr->prov_name;
    if (all[i].verdict != OFI_USABLE) continue;
    if (!best || order_of(prefs, provider) < order_of(prefs, best)) best = provider;
  }
  return best;
}

/* What a provider must fill in. */
static bool is_complete(const struct fi_info *info) {
  return info->fabric_attr && info->fabric_attr->prov_name && info->fabric_attr->name && info->domain_attr &&
         info->domain_attr->name && info->ep_attr && info->tx_attr && info->rx_attr;
}

/* Is it offered with FI_DELIVERY_COMPLETE, too? */
static bool is_among(const struct fi_info *list, const struct fi_info *info) {
  for (; list; list = list->next)
    if (is_complete(list) && strcmp(list->fabric_attr->prov_name, info->fabric_attr->prov_name) == 0 &&
        strcmp(list->domain_attr->name, info->domain_attr->name) == 0 && (list->caps & info->caps) == info->caps &&
        list->ep_attr->type == info->ep_attr->type)
      return true;
  return false;
}

unsigned int ofi_select(const struct fi_info *offered, const struct fi_info *complete, const struct ofi_prefs *prefs,
                        struct ofi_candidate *out, unsigned int cap) {
  unsigned int n = 0;
  for (const struct fi_info *info = offered; info && n < cap; info = info->next) {
    if (!is_complete(info)) continue;
    struct ofi_candidate *c = &out[n++];
    *c = (struct ofi_candidate){.info = info, .interface = -1};
    ofi_caps_of(info, prefs->hmem_cuda, &c->caps);
    c->caps.delivery_complete |= is_among(complete, info);
    if (is_capable(c, prefs)) (void)passes_filters(c, prefs);
  }
  const char *provider = best_provider(out, n, prefs);
  if (provider) choose(out, n, provider, prefs->hmem_cuda);
  return n;
}

static int compare_places(const struct ofi_candidate *a, const struct ofi_candidate *b) {
  char pci_a[OFI_PCI_ADDRESS], pci_b[OFI_PCI_ADDRESS];
  if (a->interface != b->interface) return a->interface < b->interface ? -1 : 1;
  bool has_a = ofi_info_pci_address(a->info, pci_a), has_b = ofi_info_pci_address(b->info, pci_b);
  if (has_a != has_b) return has_a ? -1 : 1;
  return has_a ? strcmp(pci_a, pci_b) : 0;
}

unsigned int ofi_select_order(const struct ofi_candidate *candidates, unsigned int n,
                              const struct ofi_candidate *chosen[OFI_MAX_NICS]) {
  unsigned int count = 0;
  for (unsigned int i = 0; i < n; i++) {
    if (candidates[i].verdict != OFI_CHOSEN) continue;
    unsigned int at = count++;
    for (; at > 0 && compare_places(chosen[at - 1], &candidates[i]) > 0; at--) chosen[at] = chosen[at - 1];
    chosen[at] = &candidates[i];
  }
  return count;
}

/* ---- what the table says ----------------------------------------------------------------- */

bool ofi_info_pci_address(const struct fi_info *info, char text[OFI_PCI_ADDRESS]) {
  const struct fi_bus_attr *bus = info->nic ? info->nic->bus_attr : NULL;
  if (!bus || bus->bus_type != FI_BUS_PCI) return false;
  snprintf(text, OFI_PCI_ADDRESS, "%04x:%02x:%02x.%x", bus->attr.pci.domain_id, bus->attr.pci.bus_id,
           bus->attr.pci.device_id, bus->attr.pci.function_id);
  return true;
}

int ofi_info_speed(const struct fi_info *info) {
  const struct fi_link_attr *link = info->nic ? info->nic->link_attr : NULL;
  size_t mbps = link ? link->speed / 1000000 : 0;
  return (int)RAIL_MIN(mbps, (size_t)INT_MAX);
}

static const char *caps_text(const struct ofi_caps *caps, char text[8]) {
  snprintf(text, 8, "%c%c%c%c%c%c%c", caps->tagged ? 'T' : '-', caps->rma ? 'W' : '-', caps->rma_read ? 'R' : '-',
           caps->send_after_write ? 'O' : '-', caps->delivery_complete ? 'D' : '-', caps->hmem ? 'H' : '-',
           caps->manual_progress ? 'M' : '-');
  return text;
}

const char *ofi_select_row(const struct ofi_candidate *c, int speed, const char *pci_path, char text[OFI_ROW_TEXT]) {
  static const char form[] = "%-14s %-12s %-8s %-7s %8s  %-12s  %s";
  char caps[8], mbps[16] = "-";
  if (!c) {
    snprintf(text, OFI_ROW_TEXT, form, "provider", "domain", "protocol", "caps", "Mb/s", "PCI", "verdict");
    return text;
  }
  if (speed > 0) snprintf(mbps, sizeof mbps, "%d", speed);
  const char *slash = pci_path ? strrchr(pci_path, '/') : NULL;
  const char *pci = slash ? slash + 1 : pci_path;
  snprintf(text, OFI_ROW_TEXT, form, c->info->fabric_attr->prov_name, c->info->domain_attr->name,
           c->protocol ? ofi_protocol_name(c->protocol) : "-", caps_text(&c->caps, caps), mbps, pci && *pci ? pci : "-",
           c->why);
  return text;
}
