/* SPDX-License-Identifier: Apache-2.0
 * Network namespaces, veth pairs and what happens to a link, by commands of ip and tc. */
#include "kit/fault/fault_net.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define WORDS 32
#define ADDRESS "198.18.77." /* 198.18.0.0/15 is for tests of networks */
#define UNUSED_MAC "02:00:5e:00:53:01"
#define CARRIER_MS 5000

extern char **environ;

/* Runs a command given as one line of words; its first line of output goes to `said`. 0: done. */
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
  if (!said) { /* the caller does not need it */
    said = nothing;
    size = sizeof nothing;
  }
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

/* `in` and name for a format; `tool` is ip or tc. */
#define AT(port) (port)->in, (port)->name

/* Everything this one sends is lost, without an error anywhere. */
static void silence(const struct kit_fault_port *port, int rank, bool on) {
  if (!port->ours && on) command(NULL, 0, "tc %s qdisc replace dev %s root netem loss 100%%", AT(port));
  else if (!port->ours) command(NULL, 0, "tc %s qdisc del dev %s root", AT(port));
  else if (on) /* to an address that no one has */
    command(NULL, 0, "ip %s neigh replace " ADDRESS "%d lladdr " UNUSED_MAC " dev %s nud permanent", port->in, 2 - rank,
            port->name);
  else command(NULL, 0, "ip %s neigh del " ADDRESS "%d dev %s", port->in, 2 - rank, port->name);
}

static void enter_own_netns(const struct kit_fault_port *port) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/net", (int)port->home);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!setns(fd, CLONE_NEWNET);
  close(fd);
}

void kit_fault_link(enum kit_link_act what, int rank, const struct kit_fault_port *port, bool on) {
  enter_own_netns(port);
  switch (what) {
  case KIT_LINK_DOWN: command(NULL, 0, "ip %s link set dev %s %s", AT(port), on ? "down" : "up"); break;
  case KIT_LINK_SILENCE: silence(port, rank, on); break;
  case KIT_LINK_MTU: command(NULL, 0, "ip %s link set dev %s mtu %d", AT(port), on ? 1280 : port->mtu); break;
  case KIT_LINK_SHAPE:
    if (on) command(NULL, 0, "tc %s qdisc replace dev %s root tbf rate 100mbit burst 64kb latency 20ms", AT(port));
    else command(NULL, 0, "tc %s qdisc del dev %s root", AT(port));
    break;
  case KIT_LINK_DELAY:
    if (on) command(NULL, 0, "tc %s qdisc replace dev %s root netem delay 3ms 1ms loss 1%%", AT(port));
    else command(NULL, 0, "tc %s qdisc del dev %s root", AT(port));
    break;
  }
}

/* ---- ports that are there ---- */

static bool read_port(const char *text, size_t n, struct kit_fault_port *port) {
  const char *colon = memchr(text, ':', n), *name = colon ? colon + 1 : text;
  size_t space = colon ? (size_t)(colon - text) : 0, left = n - (size_t)(name - text);
  if (left == 0 || left >= sizeof port->name || space > 60 || (colon && space == 0) || memchr(text, ' ', n) ||
      memchr(name, ':', left))
    return false;
  *port = (struct kit_fault_port){.home = (int32_t)getpid(), .mtu = 1500};
  if (colon) snprintf(port->in, sizeof port->in, "-n %.*s", (int)space, text);
  snprintf(port->name, sizeof port->name, "%.*s", (int)left, name);
  return true;
}

bool kit_fault_ports_read(const char *text, struct kit_fault_port ports[2]) {
  size_t n = strcspn(text, ",");
  return text[n] && !strchr(text + n + 1, ',') && read_port(text, n, &ports[0]) &&
         read_port(text + n + 1, strlen(text + n + 1), &ports[1]);
}

/* Is it there, with which MTU, and as the restoring leaves it: up, with the queueing discipline that the kernel gives?
 * Of those only one that was set has a number. */
static bool look_at(struct kit_fault_port *port, char *why, size_t size) {
  char said[400], number[16] = "0:";
  const char *mtu;
  if (command(said, sizeof said, "ip %s -o link show dev %s", AT(port)) != 0) {
    snprintf(why, size, "no interface %s: %.200s", port->name, said);
    return false;
  }
  if ((mtu = strstr(said, " mtu "))) port->mtu = atoi(mtu + 5);
  if (!strstr(said, "<UP,") && !strstr(said, ",UP,") && !strstr(said, ",UP>")) {
    snprintf(why, size, "the interface %s is down; --links would leave it up", port->name);
    return false;
  }
  if (command(said, sizeof said, "tc %s qdisc show dev %s", AT(port)) == 0) sscanf(said, "qdisc %*s %15s", number);
  if (strcmp(number, "0:") != 0) {
    snprintf(why, size, "the interface %s has a qdisc, which --links would take away: %.150s", port->name, said);
    return false;
  }
  return true;
}

static const char *port_key(int rank) { return rank == 0 ? "port0" : "port1"; }

void kit_fault_port_put(const struct kit_fault_port *port, int rank, struct kit_job *job) {
  kit_job_add(job, port_key(rank), "%d,%d,%d,%s,%s", (int)port->home, (int)port->mtu, (int)port->ours, port->name,
              port->in);
}

struct kit_fault_port kit_fault_port_get(const struct kit_job *job, int rank) {
  struct kit_fault_port port = {.home = 0};
  const char *text = kit_job_arg(job, port_key(rank));
  int fields = text ? sscanf(text, "%" SCNd32 ",%" SCNd32 ",%" SCNd32 ",%15[^,],%67[^\n]", &port.home, &port.mtu,
                             &port.ours, port.name, port.in) : 0;
  ENSURE(fields >= 4 && port.home > 0, "the job's %s is %s", port_key(rank), text ? text : "missing");
  return port;
}

/* ---- ports made for this ---- */

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
    net->port[i] = (struct kit_fault_port){.ours = true, .home = (int32_t)getpid(), .mtu = 1500};
    memcpy(net->port[i].in, "-n ", 3);
    memcpy(net->port[i].in + 3, s, sizeof net->space[i]);
    snprintf(net->port[i].name, sizeof net->port[i].name, "%s", name);
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
  const struct kit_fault_port *p = &net->port[0];
  if (command(said, sizeof said, "tc %s qdisc replace dev %s root %s %s", AT(p), kind, with) != 0)
    snprintf(why, size, "no %s here: %s", kind, said);
  command(NULL, 0, "tc %s qdisc del dev %s root", AT(p));
}

static bool open_given(struct kit_fault_net *net) {
  for (int i = 0; i < 2; i++)
    if (!look_at(&net->port[i], net->why, sizeof net->why)) return false;
  return true;
}

static bool open_own(struct kit_fault_net *net) {
  char said[300];
  for (int i = 0; i < 2; i++) snprintf(net->space[i], sizeof net->space[i], "railkit%d%c", (int)getpid(), 'a' + i);
  if (make(net)) return true;
  snprintf(said, sizeof said, "%s", net->why);
  kit_fault_net_close(net);
  snprintf(net->why, sizeof net->why, "network namespaces are not possible here: %.250s", said);
  return false;
}

bool kit_fault_net_open(struct kit_fault_net *net) {
  if (net->open) return true;
  if (net->why[0]) return false;
  if (geteuid() != 0) {
    snprintf(net->why, sizeof net->why, "network namespaces need root");
    return false;
  }
  if (!(net->given ? open_given(net) : open_own(net))) return false;
  net->open = true;
  try_qdisc(net, net->no_shape, sizeof net->no_shape, "tbf", "rate 100mbit burst 64kb latency 20ms");
  try_qdisc(net, net->no_delay, sizeof net->no_delay, "netem", "delay 3ms");
  return true;
}

/* Carrier is believed in after up to a second. */
static bool comes_up(const struct kit_fault_port *port) {
  uint64_t deadline = rail_deadline_in_ms(CARRIER_MS);
  char said[400];
  while (command(said, sizeof said, "ip %s -o link show dev %s up", AT(port)) != 0 || !strstr(said, "LOWER_UP") ||
         strstr(said, "NO-CARRIER") || !strstr(said, "state UP")) {
    if (rail_deadline_passed(deadline)) return false;
    usleep(10000);
  }
  return true;
}

bool kit_fault_net_restore(struct kit_fault_net *net) {
  for (int i = 0; i < 2; i++) {
    const struct kit_fault_port *p = &net->port[i];
    command(NULL, 0, "ip %s link set dev %s mtu %d up", AT(p), (int)p->mtu);
    if (p->ours) command(NULL, 0, "ip %s neigh flush dev %s nud all", AT(p));
    command(NULL, 0, "tc %s qdisc del dev %s root", AT(p));
  }
  return comes_up(&net->port[0]) && comes_up(&net->port[1]);
}

void kit_fault_net_close(struct kit_fault_net *net) {
  if (net->open && net->given) kit_fault_net_restore(net);
  for (int i = 0; i < 2 && net->made; i++) command(NULL, 0, "ip netns del %s", net->space[i]);
  net->made = net->open = false;
}
