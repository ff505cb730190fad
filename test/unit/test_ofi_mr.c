/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations of the ofi plugin over a scripted libfabric: keys that the provider leaves to the plugin, however short.
 */
#include "test/unit/ofi_rig.h"

static struct rig r;
static uint8_t in[128 << 10];

/* ---- keys -------------------------------------------------------------------------------- */

#define PAGE 64
static void *mhandles[300];

/* Registers until it is refused or there are `most`; returns how many. Some keys are those of the plugin's own memory. */
static int register_all(void *comm, int most) {
  int n = 0;
  while (n < most && net->reg_mr(comm, in + n * PAGE, PAGE, RAIL_PTR_HOST, &mhandles[n]) == RAIL_OK) n++;
  return n;
}

TEST(keys_have_as_many_bytes_as_the_domain_says) {
  static const char *const modes[] = {"mr_mode=virt_addr", "mr_mode=local,virt_addr", "mr_mode=none"};
  for (size_t m = 0; m < RAIL_COUNT_OF(modes); m++) {
    char script[100];
    snprintf(script, sizeof script, "nic=fake0 mr_key=1 %s", modes[m]);
    rig_start(script);
    rig_open(&r, 1, 1);
    int n = register_all(r.rc, RAIL_COUNT_OF(mhandles));
    CHECK_MSG(n > 200 && n <= 255, "%d registrations with keys of a byte", n);
    CHECK(log_said("all keys of this domain are taken (mr_key_size)"));
    for (int i = 0; i < n; i++) /* no two are the same */
      for (int k = 0; k < i; k++)
        CHECK(((struct ofi_mhandle *)mhandles[i])->keys[0] != ((struct ofi_mhandle *)mhandles[k])->keys[0]);
    /* What is given back is found again, wherever it is. */
    uint64_t key = ((struct ofi_mhandle *)mhandles[n / 2])->keys[0];
    CHECK_OK(net->dereg_mr(r.rc, mhandles[n / 2]));
    mhandles[n / 2] = rig_reg(r.rc, in, PAGE);
    CHECK_INT(((struct ofi_mhandle *)mhandles[n / 2])->keys[0], key);
    for (int i = 0; i < n; i++) CHECK_OK(net->dereg_mr(r.rc, mhandles[i]));
    for (int i = 0; i < 1000; i++) CHECK_OK(net->dereg_mr(r.rc, rig_reg(r.rc, in, PAGE)));
    rig_close(&r);
    rig_end();
  }
}

/* A key that was given back is used again as late as possible: a peer may still know it. */
TEST(keys_are_taken_in_turn) {
  rig_start("nic=fake0 mr_key=1 mr_mode=virt_addr");
  rig_open(&r, 1, 1);
  uint8_t last[256] = {0};
  for (int i = 1; i <= 600; i++) {
    struct ofi_mhandle *mr = rig_reg(r.rc, in, PAGE);
    uint64_t key = mr->keys[0];
    CHECK(key >= 1 && key <= 255);
    CHECK_OK(net->dereg_mr(r.rc, mr));
    CHECK_MSG(i < 256 ? !last[key] : true, "key %d again after %d", (int)key, i);
    last[key] = 1;
  }
  rig_close(&r);
  rig_end();
}

RIG_MAIN(TEST_CASE(keys_have_as_many_bytes_as_the_domain_says), TEST_CASE(keys_are_taken_in_turn))
