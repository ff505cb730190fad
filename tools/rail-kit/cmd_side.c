/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit side`: one process of a world. Started by rail-kit, never by hand. */
#include "kit/bench/kit_bench.h"
#include "kit/conform/kit_conform.h"
#include "kit/fault/kit_fault.h"
#include "kit/inspect/kit_inspect.h"
#include "kit/kit_probe.h"
#include "kit/trace/kit_replay.h"
#include "tools/rail-kit/commands.h"

int rk_side(int argc, char **argv) {
  static const struct kit_role roles[] = {
      {"probe", kit_probe_side},
      {"inspect", kit_inspect_side},
      {"conform", kit_conform_side},
      {"bench", kit_bench_run_side},
      {"fault", kit_fault_side},
      {"replay", kit_replay_side},
      {NULL, NULL},
  };
  (void)argc;
  (void)argv;
  kit_side_main(roles);
}
