/* SPDX-License-Identifier: Apache-2.0
 *
 * --plugin: this plugin and no other. It is tried before the job begins, in a process of its own, because a plugin must
 * not be loaded before ranks are forked, and a plugin that crashes is an answer as well.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/netload.h"
#include "tools/rail-coll/coll.h"

/* What the plugin itself warns of is part of the answer. */
RAIL_PRINTF(5, 6)
static void plugin_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt,
                       ...) {
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN) return;
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
}

static int try_plugin(const char *name) {
  const struct rail_net_init args = {.traffic_class = -1, .log = plugin_log};
  struct rail_net *net;
  void *ctx;
  char why[1024];
  if (setenv("RAIL_TRACE_FILE", "none", 1) != 0) return TOOL_EXIT_FAILED; /* railtrace is to record ranks alone */
  if (rail_net_try(name, &args, &net, &ctx, why, sizeof why) != RAIL_OK) {
    fprintf(stderr, RC_NAME ": --plugin %s cannot be used: %s\n", name, why);
    return TOOL_EXIT_FAILED;
  }
  (void)rail_net_finalize(net, ctx);
  rail_net_unload(net);
  return TOOL_EXIT_OK;
}

int rc_plugin_check(const char *name) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) _exit(try_plugin(name));
  pid_t ended = -1;
  while (pid > 0 && (ended = waitpid(pid, &status, 0)) < 0 && errno == EINTR) continue;
  if (ended < 0) return rc_report_error("a process that tries the plugin", errno);
  if (WIFEXITED(status)) return WEXITSTATUS(status) == TOOL_EXIT_OK ? 0 : -1;
  fprintf(stderr, RC_NAME ": --plugin %s cannot be used: it ends the process that starts it: %s\n", name,
          strsignal(WTERMSIG(status)));
  return -1;
}
