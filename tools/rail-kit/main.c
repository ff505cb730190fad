/* SPDX-License-Identifier: Apache-2.0
 *
 * rail-kit: tests any network plugin for NCCL. A subcommand is a line below and a file cmd_NAME.c, which reads its
 * arguments and calls kit/NAME/.
 */
#include "kit/bench/kit_bench.h"
#include "kit/conform/kit_conform.h"
#include "kit/fault/kit_fault.h"
#include "kit/inspect/kit_inspect.h"
#include "kit/kit_probe.h"
#include "kit/nccl/kit_nccl.h"
#include "kit/trace/kit_replay.h"
#include "rail/version.h"
#include "tools/rail-kit/commands.h"

/* `rail-kit side`: one peer process of a test. Only the kit starts it. */
static int run_side(int argc, char **argv) {
  static const struct kit_role roles[] = {
      {"probe", kit_probe_process},
      {"inspect", kit_inspect_process},
      {"conform", kit_conform_process},
      {"bench", kit_bench_process_main},
      {"fault", kit_fault_process},
      {"nccl", kit_nccl_process},
      {"replay", kit_replay_process},
      {NULL, NULL},
  };
  (void)argc;
  (void)argv;
  kit_process_main(roles);
}

static const struct tool_sub subs[] = {
    {"inspect", "show what NCCL makes of a plugin's file", rk_inspect},
    {"conform", "check the contract, each check in processes of its own", rk_conform},
    {"bench", "bandwidth, latency, connections; several plugins side by side", rk_bench},
    {"fault", "kill, stop, starve and disturb it while data flows", rk_fault},
    {"nccl", "run NCCL's own host code over it, with no GPU", rk_nccl},
    {"replay", "make recorded calls again, on any plugin, and compare", rk_replay},
    {"trace", "print, sum up and draw what railtrace recorded", rk_trace},
    {"side", NULL, run_side},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
  static const struct tool_program program = {
      .name = RK_NAME,
      .version = RAIL_VERSION,
      .about = "Tests a network plugin for NCCL (ncclNetPlugin_v6 to _v12): what NCCL makes of it, whether it keeps\n"
               "the contract, how fast it is, what it does when things fail.",
      .subs = subs,
      .tail = RK_EXIT_STATUS,
  };
  return tool_program_run(&program, argc, argv);
}
