/* SPDX-License-Identifier: Apache-2.0
 * Has the caller write its figures into a temporary file, and runs kit/plot.py on it. */
#include "kit/kit_plot.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "loader/install_dirs.h"

#define LIMIT_S 120

bool kit_plot_can_write(const char *target) {
  size_t n = strlen(target);
  return n > 4 && (strcmp(target + n - 4, ".svg") == 0 || strcmp(target + n - 4, ".png") == 0);
}

static bool find_script(char path[PATH_MAX]) {
  char installed[PATH_MAX];
  snprintf(installed, sizeof installed, "%s/railyard/plot.py", rail_data_from_bin);
  const char *const places[] = {installed, "../../kit/plot.py", "../../../kit/plot.py"};
  for (size_t i = 0; i < RAIL_COUNT_OF(places); i++)
    if (rail_path_from_bin(path, places[i]) && access(path, R_OK) == 0) return true;
  return false;
}

/* The script reports what it lacks. */
static bool draw(const char *script, const char *figure, const char *target) {
  int status = 0;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(LIMIT_S);
    /* The distribution's first: its matplotlib is not seen by a python from elsewhere. By its whole name: from that it
     * finds its modules. */
    execl("/usr/bin/python3", "/usr/bin/python3", script, figure, target, (char *)NULL);
    execlp("python3", "python3", script, figure, target, (char *)NULL);
    fprintf(stderr, "rail-kit: --plot needs python3 with matplotlib (Debian: python3-matplotlib)\n");
    _exit(127);
  }
  while (pid > 0 && waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return false;
  return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool kit_plot(bool (*write)(FILE *f, const void *arg), const void *arg, const char *target) {
  char script[PATH_MAX], figure[] = "/tmp/rail-kit-plot.XXXXXX";
  if (!find_script(script)) {
    fprintf(stderr, "rail-kit: --plot: plot.py is not in %s/railyard, seen from the program's folder\n",
            rail_data_from_bin);
    return false;
  }
  int fd = mkstemp(figure);
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  bool ok = false;
  if (f) {
    ok = write(f, arg);
    ok &= fclose(f) == 0;
    if (ok) ok = draw(script, figure, target);
    else fprintf(stderr, "rail-kit: --plot: %s could not be written\n", figure);
  } else {
    fprintf(stderr, "rail-kit: --plot: %s: %s\n", figure, strerror(errno));
    if (fd >= 0) close(fd);
  }
  if (fd >= 0) unlink(figure);
  return ok;
}
