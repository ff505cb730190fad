/* SPDX-License-Identifier: Apache-2.0
 * The ofi plugin's parameters: defaults, the names that aws-ofi-nccl has for some; a library that is none. */
#include <sys/wait.h>
#include <unistd.h>

#include "plugin/ofi/ofi_fabric.h"
#include "plugin/ofi/ofi_param.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static void load(const char *name, const char *value) {
  if (name) setenv(name, value, 1);
  log_forget();
  rail_log_set_sink(log_capture);
  ofi_params_load();
  rail_log_set_sink(NULL);
  if (name) unsetenv(name);
}

TEST(defaults) {
  load(NULL, NULL);
  const struct ofi_params *p = &ofi_params;
  CHECK_INT(log_warnings(), 0);
  CHECK(!p->library && !p->provider && !p->domain && !p->auth_file && !p->ports && !p->bind);
  CHECK(p->protocol == OFI_WANT_AUTO && p->flush == OFI_FLUSH_AUTO && p->flush_disable == 0 && p->fuse_no_pci == 0);
  CHECK(p->inline_bytes == -1 && p->min_part == 128 << 10 && p->close_ms == 700);
  CHECK(p->connect_ms == 30000 && p->handshake_ms == 10000 && p->deadline_ms == 30000 && p->peer_ms == 300000);
}

TEST(protocols_have_two_names) {
  static const struct { const char *name, *value; enum ofi_wanted wanted; } rows[] = {
    {"RAIL_OFI_PROTOCOL", "tagged", OFI_WANT_TAGGED}, {"RAIL_OFI_PROTOCOL", "rma", OFI_WANT_RMA},
    {"OFI_NCCL_PROTOCOL", "SENDRECV", OFI_WANT_TAGGED}, {"OFI_NCCL_PROTOCOL", "rdma", OFI_WANT_RMA},
    {"OFI_NCCL_PROTOCOL", "", OFI_WANT_AUTO},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    load(rows[i].name, rows[i].value);
    CHECK_INT(log_warnings(), 0);
    CHECK_MSG(ofi_params.protocol == (int64_t)rows[i].wanted, "row %zu: %d", i, (int)ofi_params.protocol);
  }
  load("OFI_NCCL_PROTOCOL", "EAGER");
  CHECK_INT(log_warnings(), 1);
  CHECK(log_said("OFI_NCCL_PROTOCOL=EAGER is no protocol; allowed: SENDRECV or RDMA"));
  CHECK_INT(ofi_params.protocol, OFI_WANT_AUTO);
  setenv("RAIL_OFI_PROTOCOL", "tagged", 1); /* ours wins */
  load("OFI_NCCL_PROTOCOL", "RDMA");
  unsetenv("RAIL_OFI_PROTOCOL");
  CHECK_INT(ofi_params.protocol, OFI_WANT_TAGGED);
}

TEST(parts_have_two_names) {
  load("OFI_NCCL_MIN_STRIPE_SIZE", "1M");
  CHECK_INT(ofi_params.min_part, 1 << 20);
  load("OFI_NCCL_MIN_STRIPE_SIZE", "0"); /* all is split there */
  CHECK_INT(ofi_params.min_part, 4096);
  setenv("RAIL_OFI_MIN_PART", "64K", 1);
  load("OFI_NCCL_MIN_STRIPE_SIZE", "1M");
  unsetenv("RAIL_OFI_MIN_PART");
  CHECK_INT(ofi_params.min_part, 64 << 10);
  CHECK_INT(log_warnings(), 0);
}

/* In a process of its own, for a process opens it once: is it refused, again too, with one line that has these words?
 */
static bool is_refused(const char *library, const char *words) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) {
    load("RAIL_OFI_LIBRARY", library);
    rail_log_set_sink(log_capture);
    bool opened = ofi_fabric_open();
    opened |= ofi_fabric_open();
    if (opened || log_warnings() != 1 || !log_said(words)) fprintf(stderr, "# %d, %s", opened, log_lines);
    _exit(opened || log_warnings() != 1 || !log_said(words));
  }
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(a_library_that_is_none_is_one_line) {
  CHECK(is_refused("/none/libfabric.so.1", "RAIL_OFI_LIBRARY=/none/libfabric.so.1 cannot be opened"));
  CHECK(is_refused("libc.so.6", "libc.so.6 has no fi_getinfo"));
}

TEST_MAIN(TEST_CASE(defaults), TEST_CASE(protocols_have_two_names), TEST_CASE(parts_have_two_names),
          TEST_CASE(a_library_that_is_none_is_one_line))
