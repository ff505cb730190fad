/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of the infos that libfabric offers become NICs, and why the others do not: pure functions over lists of
 * fi_info, so that tests pass lists that no machine here returns.
 *
 *   offered   an info of fi_getinfo's list
 *   judged    usable, or the reason why not: what the plugin needs and the info lacks, parameters, interface rules
 *   provider  of those that are usable, one: what a parameter names first, else by rank
 *   NIC       a domain of that provider; of several infos the one with most that is used
 */
#ifndef OFI_SELECT_H
#define OFI_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/ifaddr.h"
#include "plugin/ofi/ofi_param.h"

struct fi_info;

#define OFI_MAX_NICS 32
#define OFI_MAX_OFFERED 1024 /* infos that are looked at */
#define OFI_TAG_BITS 44      /* that the tagged protocol uses, from bit 0 */

/* ---- what an info can do ------------------------------------------------------------ */

struct ofi_caps {
  bool tagged;
  bool rma;       /* fi_write, and being written to */
  bool rma_read;  /* fi_read, and being read from */
  bool send_after_write;  /* FI_ORDER_SAW of both sides: a send arrives behind the writes before it */
  bool fin_at_once;       /* … and does not arrive if one of them fails */
  bool delivery_complete; /* FI_DELIVERY_COMPLETE may be asked for with a write */
  bool hmem;              /* FI_HMEM: memory of devices may be registered */
  bool hmem_cuda;         /* with CUDA, as far as the library can */
  bool buffered_recv;     /* mode FI_BUFFERED_RECV */
  bool mr_local, mr_virt_addr, mr_prov_key, mr_endpoint;
  bool manual_progress; /* data moves while the caller reads the CQ */
  size_t inject_size, max_msg_size, mr_key_size, iov_limit;
  size_t rx_size; /* receives outstanding; 0: not said */
  uint64_t tag_format;
  unsigned int tag_bits;
};

/* `hmem_cuda`: the library and this machine have CUDA. delivery_complete is what the info says by itself; an info says
 * so only if it was asked for (ofi_select). */
void ofi_caps_of(const struct fi_info *info, bool hmem_cuda, struct ofi_caps *caps);

/* ---- the protocol -------------------------------------------------------------------- */

enum ofi_protocol { OFI_PROTOCOL_NONE = 0, OFI_PROTOCOL_TAGGED = 1, OFI_PROTOCOL_RMA = 2 }; /* on the wire */

const char *ofi_protocol_name(enum ofi_protocol protocol); /* "tagged", "rma" */

/* The protocol of an info of this provider, with the reason in words. NONE: the wanted one, or any, is impossible. */
enum ofi_protocol ofi_protocol_choose(const char *provider, const struct ofi_caps *caps, enum ofi_wanted wanted,
                                      const char **why);

/* ---- providers ----------------------------------------------------------------------- */

/* Place of a provider among those that are taken without being named, 0 the best; -1: only when it is named (shm and
 * net, utilities, hooks, and what is not known here). */
int ofi_provider_rank(const char *provider);
/* Its domains are network interfaces, to which NCCL's rules apply: tcp, sockets, udp, net, with what is layered over
 * them. */
bool ofi_provider_is_ip(const char *provider);
/* tcp, with what is layered over it. */
bool ofi_provider_is_tcp(const char *provider);
/* Processes of one host only: shm. */
bool ofi_provider_is_local(const char *provider);

/* ---- selecting ----------------------------------------------------------------------- */

struct ofi_prefs {
  const char *fi_provider; /* FI_PROVIDER: the library has applied it; what it names counts as named */
  const char *provider;    /* RAIL_OFI_PROVIDER; NULL: none named */
  const char *domain;      /* RAIL_OFI_DOMAIN */
  enum ofi_wanted protocol;
  bool hmem_cuda;
  /* Those that NCCL's rules choose on this machine, in their order. */
  const struct rail_interface *interfaces;
  int ninterfaces;
};

enum ofi_verdict {
  OFI_USABLE,    /* nothing speaks against it, but another provider is taken */
  OFI_CHOSEN,    /* a NIC */
  OFI_LACKING,   /* lacks what the plugin needs, or needs what the plugin does not do */
  OFI_FILTERED,  /* a parameter, or the interface rules */
  OFI_DUPLICATE, /* of a NIC that another info describes better, or as well and before it */
};

struct ofi_candidate {
  const struct fi_info *info; /* of the list */
  struct ofi_caps caps;
  enum ofi_protocol protocol;
  enum ofi_verdict verdict;
  int interface; /* of a provider over IP: in ofi_prefs.interfaces; else -1 */
  char why[200]; /* the verdict in words */
};

/* Judges every info of `offered` and chooses. `complete`: what the library offers when FI_DELIVERY_COMPLETE is asked
 * for, too; may be NULL. Writes at most `cap` candidates in the order of the list, returns how many. */
unsigned int ofi_select(const struct fi_info *offered, const struct fi_info *complete, const struct ofi_prefs *prefs,
                        struct ofi_candidate *out, unsigned int cap);

/* The chosen ones in the order of devices: of interfaces, as NCCL's rules order them; else by PCI path, those without
 * one behind, as the library lists them. Returns how many, at most OFI_MAX_NICS. */
unsigned int ofi_select_order(const struct ofi_candidate *candidates, unsigned int n,
                              const struct ofi_candidate *chosen[OFI_MAX_NICS]);

/* "0000:3b:00.0" of the info's nic attributes; false if it has none. */
#define OFI_PCI_ADDRESS 32
bool ofi_info_pci_address(const struct fi_info *info, char text[OFI_PCI_ADDRESS]);
/* Mb/s of them; 0: not said. */
int ofi_info_speed(const struct fi_info *info);

/* The letters of a row's caps. */
#define OFI_CAPS_LEGEND \
  "T tagged, W write, R read, O sends in order behind writes, D delivery is reported, H FI_HMEM, M manual progress"
/* One line of the table: provider, domain, protocol, caps, speed, PCI path, verdict; of NULL its head. Returns `text`.
 */
#define OFI_ROW_TEXT 400
const char *ofi_select_row(const struct ofi_candidate *candidate, int speed, const char *pci_path,
                           char text[OFI_ROW_TEXT]);

#endif
