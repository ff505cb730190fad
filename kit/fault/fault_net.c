/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/fault/fault_net.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"

#define WORDS 32
#define ADDRESS "198.18.77." /* 198.18.0.0/15 is for tests of networks */
#define NOBODY "02:00:5e:00:53:01"
#define CARRIER_MS 5000

extern char **environ;

/* Runs a command given as one line of words; what it complains about goes to `said`. 0: done. */
__attribute__((format(printf, 3, 4))) static int command(char *said, size_t size, const char *fmt, ...) {
  char line[400], *argv[WORDS + 1], *save = NULL;
  int argc = 0, fds[2], status = -1;
  pid_t pid;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  for (char *w = strtok_r(line, " ", &save); w && argc < WORDS; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
  argv[argc] = NULL;
  char nothing[1];
  if (!said) said = nothing, size = sizeof nothing; /* nobody wants to know */
  said[0] = 0;
  if (argc == 0 || pipe2(fds, O_CLOEXEC) != 0) return -1;
  posix_spawn_file_actions_t to;
  posix_spawn_file_actions_init(&to);
  posix_spawn_file_actions_adddup2(&to, fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&to, fds[1], STDERR_FILENO);
  int failed = posix_spawnp(&pid, argv[0], &to, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&to);
  close(fds[1]);
  if (failed) {
    snprintf(said, size, "%s: %s", argv[0], strerror(failed));
  } else {
    char text[4096];
    size_t have = 0;
    ssize_t n;
    while ((n = read(fds[0], text + have, sizeof text - 1 - have)) > 0) have += (size_t)n;
    text[have] = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    snprintf(said, size, "%.*s", (int)strcspn(text, "\n"), text);
  }
  close(fds[0]);
  return failed ? -1 : status;
}

void kit_fault_link(enum kit_link_act what, int rank, bool on) {
  const char *name = KIT_LINK_NAME;
  switch (what) {
  case KIT_LINK_DOWN: command(NULL, 0, "ip link set dev %s %s", name, on ? "down" : "up"); break;
  case KIT_LINK_SILENCE: /* to an address that nobody has: no error anywhere */
    if (on)
      command(NULL, 0, "ip neigh replace " ADDRESS "%d lladdr " NOBODY " dev %s nud permanent", 2 - rank, name);
    else
      command(NULL, 0, "ip neigh del " ADDRESS "%d dev %s", 2 - rank, name);
    break;
  case KIT_LINK_MTU: command(NULL, 0, "ip link set dev %s mtu %d", name, on ? 1280 : 1500); break;
  case KIT_LINK_SHAPE:
    if (on) command(NULL, 0, "tc qdisc replace dev %s root tbf rate 100mbit burst 64kb latency 20ms", name);
    else command(NULL, 0, "tc qdisc del dev %s root", name);
    break;
  case KIT_LINK_DELAY:
    if (on) command(NULL, 0, "tc qdisc replace dev %s root netem delay 3ms 1ms loss 1%%", name);
    else command(NULL, 0, "tc qdisc del dev %s root", name);
    break;
  }
}

static bool make(struct kit_fault_net *net) {
  char *why = net->why;
  size_t room = sizeof net->why;
  const char *a = net->space[0], *b = net->space[1], *name = KIT_LINK_NAME;
  net->made = true; /* enough to be taken away again */
  if (command(why, room, "ip netns add %s", a) || command(why, room, "ip netns add %s", b)) return false;
  if (command(why, room, "ip link add name %s netns %s type veth peer name %s netns %s", name, a, name, b))
    return false;
  for (int i = 0; i < 2; i++) {
    const char *s = net->space[i];
    if (command(why, room, "ip -n %s link set dev lo up", s)) return false;
    if (command(why, room, "ip -n %s link set dev %s addrgenmode none mtu 1500", s, name)) return false;
    if (command(why, room, "ip -n %s addr add " ADDRESS "%d/24 dev %s", s, 1 + i, name)) return false;
    if (command(why, room, "ip -n %s link set dev %s up", s, name)) return false;
  }
  return true;
}

/* Has the kernel, and tc, this queueing discipline? */
static void try_qdisc(const struct kit_fault_net *net, char *why, size_t size, const char *kind, const char *with) {
  char said[120];
  const char *s = net->space[0], *name = KIT_LINK_NAME;
  if (command(said, sizeof said, "tc -n %s qdisc replace dev %s root %s %s", s, name, kind, with) != 0)
    snprintf(why, size, "no %s here: %s", kind, said);
  command(NULL, 0, "tc -n %s qdisc del dev %s root", s, name);
}

bool kit_fault_net_open(struct kit_fault_net *net) {
  char said[300];
  if (net->made) return true;
  if (net->why[0]) return false;
  if (geteuid() != 0) {
    snprintf(net->why, sizeof net->why, "network namespaces need root");
    return false;
  }
  for (int i = 0; i < 2; i++) snprintf(net->space[i], sizeof net->space[i], "railkit%d%c", (int)getpid(), 'a' + i);
  if (!make(net)) {
    snprintf(said, sizeof said, "%s", net->why);
    kit_fault_net_close(net);
    snprintf(net->why, sizeof net->why, "network namespaces are not possible here: %.250s", said);
    return false;
  }
  try_qdisc(net, net->no_shape, sizeof net->no_shape, "tbf", "rate 100mbit burst 64kb latency 20ms");
  try_qdisc(net, net->no_delay, sizeof net->no_delay, "netem", "delay 3ms");
  return true;
}

/* Carrier is believed in after up to a second. */
static bool comes_up(const char *space) {
  uint64_t deadline = rail_deadline_in_ms(CARRIER_MS);
  char said[400];
  while (command(said, sizeof said, "ip -n %s -o link show dev " KIT_LINK_NAME " up", space) != 0 ||
         !strstr(said, "LOWER_UP") || strstr(said, "NO-CARRIER") || !strstr(said, "state UP")) {
    if (rail_deadline_passed(deadline)) return false;
    usleep(10000);
  }
  return true;
}

bool kit_fault_net_restore(struct kit_fault_net *net) {
  const char *name = KIT_LINK_NAME;
  for (int i = 0; i < 2; i++) {
    const char *s = net->space[i];
    command(NULL, 0, "ip -n %s link set dev %s mtu 1500 up", s, name);
    command(NULL, 0, "ip -n %s neigh flush dev %s nud all", s, name);
    command(NULL, 0, "tc -n %s qdisc del dev %s root", s, name);
  }
  return comes_up(net->space[0]) && comes_up(net->space[1]);
}

void kit_fault_net_close(struct kit_fault_net *net) {
  for (int i = 0; i < 2 && net->made; i++) command(NULL, 0, "ip netns del %s", net->space[i]);
  net->made = false;
}
