/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake of both sides: steps of common/conn/setup.h, and the calls that run them. Each side opens its endpoint,
 * tells the other its addresses (OFFER), and sends a PING over each path of the fabric. When the other side's PINGs are
 * all there it says READY over the oob connection, and is through when the other has said so. So a connection that is
 * handed out has carried a message each way, and neither side needs the other's calls any more to get through.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/net_setup.h"
#include "plugin/ofi/ofi_progress.h"

struct ofi_setup {
  struct rail_setup base;
  struct rail_net_ctx *ctx;
  const struct ofi_device *device;
  struct ofi_endpoint *endpoint; /* a user of it, until the comm is taken */
  struct ofi_comm *comm;
  struct ofi_offer mine, theirs;
};

static struct ofi_setup *of(struct rail_setup *base) { return rail_container_of(base, struct ofi_setup, base); }

/* ---- endpoint, addresses --------------------------------------------------------- */

static rail_result_t step_endpoint(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  if (s->comm) return RAIL_OK; /* a connector that dials once more */
  if (ofi_endpoint_get(s->ctx, s->device, &ofi_progress_ops, &s->endpoint) != RAIL_OK)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR,
                           "there is no endpoint; an earlier line says why");
  ofi_endpoint_lock(s->endpoint);
  s->comm = ofi_comm_new(base->connector, s->endpoint);
  ofi_endpoint_unlock(s->endpoint);
  if (!s->comm)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "it cannot be made; an earlier line says why");
  rail_addr_text(&base->peer, s->comm->peer_text);
  if (ofi_stats_comm_begin(s->comm) != RAIL_OK)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory");
  return RAIL_OK;
}

/* Inside a control message as much as this side's receives hold, and as a provider takes from two places. */
static uint32_t max_inline(const struct ofi_device *device) {
  uint32_t max = ofi_device_inline(device);
  for (unsigned int i = 0; i < device->nrails; i++)
    if (device->rails[i]->caps.iov_limit < 2) max = 0;
  return max;
}

/* Places for messages that come before their receive, whose bytes are copied out of them: not where a receive may be in
 * memory of a device. */
static uint32_t max_eager(const struct ofi_device *device) {
  uint32_t max = max_inline(device) ? OFI_MAX_EAGER : 0;
  for (unsigned int i = 0; i < device->nrails; i++)
    if (device->rails[i]->caps.hmem_cuda) max = 0;
  return max;
}

static rail_result_t send_offer(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  struct ofi_offer_wire wire;
  s->mine = (struct ofi_offer){.process = rail_setup_process_id(), .token = s->comm->token, .comm = s->comm->index,
                               .max_inline = max_inline(s->device), .eager_count = max_eager(s->device),
                               .nnics = s->endpoint->nnics};
  snprintf(s->mine.provider, sizeof s->mine.provider, "%s", s->device->rails[0]->provider);
  snprintf(s->mine.domain, sizeof s->mine.domain, "%.63s", s->device->rails[0]->name);
  for (unsigned int i = 0; i < s->mine.nnics; i++) s->mine.addrs[i] = s->endpoint->nics[i].name;
  size_t size = ofi_offer_encode(&s->mine, &wire);
  return rail_handshake_send(&base->handshake, OFI_MESSAGE_OFFER, &wire, size);
}

static rail_result_t recv_offer(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(base, OFI_MESSAGE_OFFER, &message));
  const char *why = ofi_offer_decode(message.body, message.size, &s->theirs);
  if (why) return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  if (strcmp(s->theirs.provider, s->device->rails[0]->provider) == 0) return RAIL_OK;
  ofi_stats_count(s->device->name, OFI_DEVICE_REFUSED);
  return rail_setup_fail(base, OFI_REASON_PROVIDER, RAIL_REMOTE_ERROR,
                         "this side's provider is %s, the peer's %s (%s); check: the same libfabric and FI_PROVIDER or "
                         "RAIL_OFI_PROVIDER on both hosts",
                         s->device->rails[0]->provider, s->theirs.provider, s->theirs.domain);
}

/* Providers of one name may have addresses of several kinds: each is compared with that of the NIC that sends to it. */
static bool are_addresses_good(const struct ofi_setup *s) {
  unsigned int npaths = RAIL_MAX(s->endpoint->nnics, s->theirs.nnics);
  for (unsigned int i = 0; i < npaths; i++) {
    const struct ofi_endpoint_nic *nic = &s->endpoint->nics[i % s->endpoint->nnics];
    bool is_string = nic->device_nic->info->addr_format == FI_ADDR_STR;
    if (!ofi_address_fits(&s->theirs.addrs[i % s->theirs.nnics], &nic->name, is_string)) return false;
  }
  return true;
}

static rail_result_t step_resolve(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  if (!are_addresses_good(s))
    return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent an address that is none of provider "
                           "%s's; check: the same libfabric and FI_PROVIDER or RAIL_OFI_PROVIDER on both hosts",
                           s->device->rails[0]->provider);
  ofi_endpoint_lock(s->endpoint);
  int err = ofi_comm_connect(s->comm, &s->mine, &s->theirs);
  ofi_endpoint_unlock(s->endpoint);
  if (!err) return RAIL_OK;
  return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "provider %s does not take the peer's address: "
                         "fi_av_insert: %s; check: are the NICs of both sides of one network?",
                         s->device->rails[0]->provider, ofi_fabric_strerror(err));
}

/* ---- the fabric -------------------------------------------------------------------- */

static rail_result_t fabric_failed(struct rail_setup *base) {
  const struct ofi_setup *s = of(base);
  return rail_setup_fail(base, OFI_REASON_FABRIC, RAIL_REMOTE_ERROR, "provider %s cannot reach the peer's %s from "
                         "%s; an earlier line says why; check: the fabric between the two, fi_pingpong -p '%s'",
                         s->device->rails[0]->provider, s->theirs.domain, s->device->name,
                         s->device->rails[0]->provider);
}

static rail_result_t step_flush(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  ofi_endpoint_lock(s->endpoint);
  int err = ofi_flush_prepare(ofi_recv_comm_of(s->comm));
  ofi_endpoint_unlock(s->endpoint);
  if (!err) return RAIL_OK;
  return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "memory and address for flushes cannot be made: "
                         "%s; check: `ulimit -l` (memlock), RAIL_OFI_FLUSH", ofi_fabric_strerror(err));
}

static rail_result_t step_ping(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  rail_result_t result = RAIL_OK;
  ofi_endpoint_lock(s->endpoint);
  for (unsigned int i = 0; i < s->comm->npaths && result == RAIL_OK; i++) result = ofi_comm_ping(s->comm, i);
  ofi_endpoint_unlock(s->endpoint);
  return result == RAIL_OK ? RAIL_OK : fabric_failed(base);
}

static rail_result_t step_pinged(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  ofi_endpoint_lock(s->endpoint);
  (void)ofi_poll(s->endpoint);
  uint32_t paths = (1u << s->comm->npaths) - 1;
  bool all = (s->comm->verified & paths) == paths;
  ofi_endpoint_unlock(s->endpoint);
  if (rail_first_error(&s->comm->error) != RAIL_OK) return fabric_failed(base);
  if (all) return rail_handshake_send(&base->handshake, OFI_MESSAGE_READY, NULL, 0);
  if (!rail_setup_is_late(base)) return RAIL_IN_PROGRESS;
  return rail_setup_fail(base, OFI_REASON_FABRIC, RAIL_REMOTE_ERROR, "provider %s has carried no message from the "
                         "peer's %s to %s within %lld ms (RAIL_OFI_CONNECT_TIMEOUT), though TCP has; check: the fabric "
                         "between the two (fi_pingpong -p '%s'), how many connections the provider carries",
                         s->device->rails[0]->provider, s->theirs.domain, s->device->name,
                         (long long)ofi_params.connect_ms, s->device->rails[0]->provider);
}

/* Meanwhile the endpoint is polled: this side's PINGs may need that to go out. */
static rail_result_t recv_ready(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  struct rail_message message;
  ofi_endpoint_lock(s->endpoint);
  (void)ofi_poll(s->endpoint);
  ofi_endpoint_unlock(s->endpoint);
  if (rail_first_error(&s->comm->error) != RAIL_OK) return fabric_failed(base);
  RAIL_TRY(rail_setup_recv(base, OFI_MESSAGE_READY, &message));
  if (message.size == 0) return RAIL_OK;
  return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its READY has %zu bytes too many",
                         message.size);
}

/* ---- the tables ---------------------------------------------------------------------- */

static const char ready[] = "the peer to say that the fabric carries this side's messages";
static const char offer[] = "the peer's offer";
static const char pings[] = "the fabric to carry the peer's first messages";

static const struct rail_setup_row connector_rows[] = {
  {"dial", rail_setup_dial, "a TCP connection", false}, /* first: it goes on while the endpoint is opened */
  {"endpoint", step_endpoint, NULL, false},
  {"send offer", send_offer, NULL, false},
  {"recv answer", rail_setup_answer, "the peer's answer (it comes when its side calls accept)", true},
  {"recv offer", recv_offer, offer, false},
  {"resolve", step_resolve, NULL, false},
  {"ping", step_ping, NULL, false},
  {"pinged", step_pinged, pings, false},
  {"recv ready", recv_ready, ready, false},
  {"all sent", rail_setup_flushed, "the peer to read what was sent", false},
};

static const struct rail_setup_row acceptor_rows[] = {
  {"recv offer", recv_offer, offer, false},
  {"endpoint", step_endpoint, NULL, false},
  {"welcome", rail_setup_welcome, NULL, false},
  {"send offer", send_offer, NULL, false},
  {"resolve", step_resolve, NULL, false},
  {"flush", step_flush, NULL, false},
  {"ping", step_ping, NULL, false},
  {"pinged", step_pinged, pings, false},
  {"recv ready", recv_ready, ready, false},
  {"all sent", rail_setup_flushed, "the peer to read what was sent", false},
};

static rail_result_t refused(struct rail_setup *base, const struct rail_message *answer, char *text, size_t size) {
  (void)answer, (void)text, (void)size;
  ofi_stats_count(of(base)->device->name, OFI_DEVICE_REFUSED);
  return RAIL_OK;
}

static const struct rail_setup_ops connector_ops = {.protocol = &ofi_protocol, .rows = connector_rows,
                                                    .nrows = RAIL_COUNT_OF(connector_rows), .refused = refused};
static const struct rail_setup_ops acceptor_ops = {.protocol = &ofi_protocol, .rows = acceptor_rows,
                                                   .nrows = RAIL_COUNT_OF(acceptor_rows), .refused = refused};

/* ---- begun, taken, freed --------------------------------------------------------------- */

/* No provider's way to set a traffic class is common to all. */
static rail_result_t begin(struct rail_net_ctx *ctx, const void *device_arg, const union rail_addr *peer,
                           const struct rail_handle *listener, int traffic_class, struct rail_setup **out) {
  const struct ofi_device *device = device_arg;
  struct ofi_setup *s = calloc(1, sizeof *s);
  (void)traffic_class;
  if (!s) {
    RAIL_WARN("RailOFI: %s: out of memory", listener ? "connect" : "accept");
    return RAIL_SYSTEM_ERROR;
  }
  s->ctx = ctx;
  s->device = device;
  const struct rail_connector_limits limits = {
    .connect_ms = ofi_params.connect_ms, .connect_param = "RAIL_OFI_CONNECT_TIMEOUT",
    .deadline_ms = ofi_params.deadline_ms, .deadline_param = "RAIL_OFI_DEADLINE", .warn_ms = ofi_params.peer_warn_ms};
  rail_setup_init(&s->base, listener ? &connector_ops : &acceptor_ops, device->name, listener != NULL, peer, &limits);
  *out = &s->base;
  return RAIL_OK;
}

static void free_setup(struct rail_setup *base) {
  struct ofi_setup *s = of(base);
  if (s->comm) ofi_comm_destroy(s->comm);
  else if (s->endpoint) ofi_endpoint_put(s->endpoint);
  rail_setup_close(base);
  free(s);
}

/* The comm, watched, is the caller's. */
static rail_result_t take(struct rail_setup *base, void **out) {
  struct ofi_setup *s = of(base);
  struct ofi_comm *comm = s->comm;
  char from[RAIL_ADDR_TEXT];
  comm->oob_fd = base->handshake.fd;
  base->handshake.fd = -1;
  RAIL_TRY(ofi_watch_add(comm)); /* on failure free_setup frees it */
  RAIL_INFO(RAIL_SUB_NET, "RailOFI: %s %s over %s (%s, %s) and its %s, %u path%s%s",
            base->connector ? "connected to" : "accepted", rail_addr_text(&base->peer, from), comm->device->name,
            comm->device->rails[0]->provider, ofi_protocol_name(comm->device->rails[0]->protocol), s->theirs.domain,
            comm->npaths, comm->npaths > 1 ? "s" : "", base->handshake.session.keyed ? ", authenticated" : "");
  ofi_stats_count(comm->device->name, base->connector ? OFI_DEVICE_CONNECTED : OFI_DEVICE_ACCEPTED);
  s->comm = NULL;
  s->endpoint = NULL;
  *out = comm;
  return RAIL_OK;
}

/* ---- listen, accept, closeListen, connect ----------------------------------------------- */

static struct rail_ports tcp_ports = {.plugin = "RailOFI", .range_param = "RAIL_OFI_PORTS",
                                      .bind_param = "RAIL_OFI_BIND"};

bool ofi_handshake_load(void) {
  rail_ports_load(&tcp_ports, ofi_params.ports, ofi_params.bind);
  return ofi_protocol_load();
}

static uint64_t hello_ms(void) { return (uint64_t)ofi_params.handshake_ms; }

static void count(const char *device, enum rail_listener_event event) {
  ofi_stats_count(device, event == RAIL_LISTENER_DROPPED ? OFI_DEVICE_DROPPED : OFI_DEVICE_REFUSED);
}

static const struct rail_net_setup_ops setup_ops = {
  .protocol = &ofi_protocol, .ports = &tcp_ports, .hello_ms = hello_ms, .oob_interface = ofi_oob_interface,
  .begin = begin, .take = take, .free = free_setup, .count = count};

rail_result_t ofi_listen(void *ctx, int dev, void *handle, void **listen_comm) {
  const struct ofi_device *device = ofi_device_at(dev, "listen");
  if (!device) return RAIL_BAD_ARGUMENT;
  return rail_net_setup_listen(&setup_ops, ctx, device, device->name, handle, listen_comm);
}

rail_result_t ofi_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  return rail_net_setup_accept(&setup_ops, listen_comm, recv_comm);
}

rail_result_t ofi_close_listen(void *listen_comm) { return rail_net_setup_close_listen(&setup_ops, listen_comm); }

rail_result_t ofi_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle) {
  const struct ofi_device *device = ofi_device_at(dev, "connect");
  (void)dev_handle;
  if (!device) return RAIL_BAD_ARGUMENT;
  return rail_net_setup_connect(&setup_ops, ctx, device, device->name, handle, traffic_class, send_comm);
}
