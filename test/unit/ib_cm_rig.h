/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that the RDMA CM sets up, both sides in this process, over the emulated device. What the plugin has of
 * librdmacm is a table (ib_rdmacm), so a test puts functions of its own into it.
 */
#ifndef IB_CM_RIG_H
#define IB_CM_RIG_H

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "plugin/ib/ib_connect.h"
#include "test/unit/ib_handshake.h"

#define EMU "device emuA ports=2; device emuB; device rnic transport=iwarp ports=2; device soft; " \
            "device plain transport=iwarp inline=0"
enum { A1, A2, B, RNIC1, RNIC2, SOFT, NO_INLINE, FUSED, FUSED_RNIC };

static struct ib_rdmacm real; /* ib_rdmacm, as it was loaded */

static int files_before;

static void begin(struct hs *h) {
  emu_do("reset; cm answer ms=68000");
  ib_rdmacm = real;
  files_before = kit_fd_count();
  hs_begin(h);
}

/* Nothing is left, no descriptor either. (The emulated CM's thread closes sockets that nobody has seen.) */
static void end(struct hs *h) {
  uint64_t deadline = rail_deadline_in_ms(TIMEOUT_MS);
  emu_do("reset");
  hs_end(h);
  ib_rdmacm = real; /* the thread that destroys comms, which reads it, has ended */
  while (kit_fd_count() > files_before && !rail_deadline_passed(deadline)) sched_yield();
  CHECK_INT(kit_fd_count(), files_before);
}

/* Once, so that what the emulated CM opens for the process is open. */
static void warm_up(void) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, RNIC1, RNIC2);
  hs_end(&h);
  hs_begin(&h);
  hs_pair(&h, SOFT, FUSED);
  hs_end(&h);
}

__attribute__((unused)) static int cm_rig_main(int argc, char **argv, const struct tap_case *cases,
                                               size_t n) {
  char folder[] = "/dev/shm/emu-test.XXXXXX";
  if (!mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  setenv("RAIL_IB_CM", "rdmacm", 1);
  ib_emu_use(EMU);
  if (!ib_handshake_load()) abort();
  ib_devices_load();
  ib_params.fuse_no_pci = 1;
  struct rail_net_vprops_v12 three = {.ndevs = 3, .devs = {A1, A2, B}}, two = {.ndevs = 2, .devs = {RNIC1, RNIC2}};
  int fused, fused_rnic;
  if (ib_device_count() != 7 || ib_device_fuse(&fused, &three) != RAIL_OK || fused != FUSED ||
      ib_device_fuse(&fused_rnic, &two) != RAIL_OK || fused_rnic != FUSED_RNIC) {
    fprintf(stderr, "no devices to test with\n");
    return 1;
  }
  real = ib_rdmacm;
  rail_log_set_sink(hs_log);
  warm_up();
  int failed = tap_main(argc, argv, cases, n);
  ib_devices_unload();
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return failed;
}

#endif
