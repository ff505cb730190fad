/* SPDX-License-Identifier: Apache-2.0
 * TEST-HELPER
 *
 * Listens or connects as perftest does, under the name of one of its programs, and prints perftest's line of figures:
 * FAKE_RATE messages a second, a latency of FAKE_LATENCY us. Moves nothing.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *option(int argc, char **argv, const char *name) {
  for (int i = 1; i + 1 < argc; i++)
    if (!strcmp(argv[i], name)) return argv[i + 1];
  fprintf(stderr, "fake_perftest: no %s\n", name);
  exit(2);
}

static double number(const char *variable) {
  const char *text = getenv(variable);
  if (!text) fprintf(stderr, "fake_perftest: no %s\n", variable), exit(2);
  return strtod(text, NULL);
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "--version")) return puts("Version: none") < 0;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  at.sin_port = htons((uint16_t)strtol(option(argc, argv, "-p"), NULL, 10));
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (strcmp(argv[argc - 1], "127.0.0.1") != 0) { /* the server, which names no peer */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1) || accept(fd, NULL, NULL) < 0) return 1;
    return 0;
  }
  if (connect(fd, (struct sockaddr *)&at, sizeof at)) return 1;
  double size = strtod(option(argc, argv, "-s"), NULL), n = strtod(option(argc, argv, "-n"), NULL);
  double rate = number("FAKE_RATE"), latency = number("FAKE_LATENCY");
  size_t length = strlen(argv[0]);
  if (length > 4 && !strcmp(argv[0] + length - 4, "_lat"))
    printf(" %.0f %.0f 1.00 9.00 %g 2.20 0.10 3.00 4.00\n", size, n, latency);
  else
    printf(" %.0f %.0f 0.00 %.2f %.6f\n", size, n, rate * size / (1 << 20), rate / 1e6);
  return 0;
}
