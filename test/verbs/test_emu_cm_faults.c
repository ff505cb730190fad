/* SPDX-License-Identifier: Apache-2.0
 * The emulated RDMA CM: statements that lose, delay and reject, processes that end, nonsense. TEST-LIMIT: 240 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "emu/cm/cm.h"
#include "test/verbs/cm.h"

/* The name of the Unix socket that stands for this port, and its size. */
static socklen_t name_of_port(uint16_t port, struct sockaddr_un *to) {
  char line[512], part[32];
  size_t len = 0;
  FILE *in = fopen("/proc/net/unix", "re");
  CHECK(in);
  *to = (struct sockaddr_un){.sun_family = AF_UNIX};
  snprintf(part, sizeof part, ".%u.::ffff:", port);
  while (fgets(line, sizeof line, in)) {
    char *name = strstr(line, "@rail-emu-cm.");
    if (!name || !strstr(name, part) || !strstr(name, "10.77.0.1")) continue;
    name[strcspn(name, "\n")] = 0;
    len = strlen(name);
    memcpy(to->sun_path + 1, name + 1, len - 1);
  }
  fclose(in);
  CHECK_MSG(len, "no socket has port %u", port);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

/* ---- faults -------------------------------------------------------------------------------- */

TEST(ports_that_are_down) {
  struct side listener, client;
  struct sockaddr_in src = address("10.77.0.1", 0), dst = address("10.77.1.1", 0);
  side_open(&listener, RDMA_PS_TCP);
  dst.sin_port = htons(side_listen(&listener, "10.77.1.1", 4));
  CHECK(emu_command("cm answer ms=300; port emu1 1 state=down"));
  side_open(&client, RDMA_PS_TCP); /* its own port is up: it waits in vain */
  CHECK_OK(rdma_resolve_addr(client.id, any_address(&src), any_address(&dst), 1000));
  expect(client.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK_OK(rdma_resolve_route(client.id, 1000));
  expect(client.channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  expect(client.channel, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  CHECK(!has_event(listener.channel));
  side_close(&client);
  side_open(&client, RDMA_PS_TCP);
  CHECK_OK(rdma_resolve_addr(client.id, NULL, any_address(&dst), 1000));
  expect(client.channel, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
  side_close(&client);
  side_close(&listener);
  CHECK(emu_command("port emu1 1 state=active; reset"));
}

TEST(an_address_or_a_route_that_does_not_resolve) {
  struct sockaddr_in dst = address("10.77.1.1", 9);
  struct side s;
  side_open(&s, RDMA_PS_TCP);
  CHECK(emu_command("cm lost event=addr_resolved; cm late event=addr_resolved us=1000"));
  CHECK(emu_command("cm reject event=route_resolved"));
  CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&dst), 50));
  expect(s.channel, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
  CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&dst), 50));
  expect(s.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK_OK(rdma_resolve_route(s.id, 50));
  expect(s.channel, RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH);
  CHECK_OK(rdma_resolve_route(s.id, 50));
  expect(s.channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  side_close(&s);
  CHECK(emu_command("reset"));
}

/* The events that a statement leads to; -1: none. */
struct outcome {
  const char *statement;
  int client, client_status, server, server_status;
};

static void check_outcome(const struct outcome *o) {
  struct side listener, client, server = {0};
  side_open(&listener, RDMA_PS_TCP);
  side_open(&client, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK(emu_command("cm answer ms=400"));
  CHECK(emu_command(o->statement));
  long began = now_ms();
  CHECK_OK(side_connect(&client, NULL));
  if (!strstr(o->statement, "request") || strstr(o->statement, "late")) {
    side_take(&server, &listener);
    side_make_qp(&server);
    struct rdma_conn_param p = param_with(NULL);
    CHECK_OK(rdma_accept(server.id, &p));
  }
  if (o->client >= 0) expect(client.channel, (enum rdma_cm_event_type)o->client, o->client_status);
  if (o->server >= 0) expect(listener.channel, (enum rdma_cm_event_type)o->server, o->server_status);
  if (strstr(o->statement, "late")) CHECK(now_ms() - began >= 29); /* all of them together: one was 30 ms late */
  CHECK(emu_command("reset"));
  close_all(&listener, &client, &server);
}

TEST(messages_that_are_lost_late_or_rejected) {
  static const struct outcome outcomes[] = {
    {"cm lost event=connect_request", RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, -1, 0},
    {"cm reject event=connect_request", RDMA_CM_EVENT_REJECTED, 28, -1, 0},
    {"cm late event=connect_request us=30000", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_ESTABLISHED, 0},
    /* The server waits as long; it may hear of the client's giving up before. */
    {"cm lost event=connect_response", RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, -1, 0},
    {"cm reject event=connect_response", RDMA_CM_EVENT_REJECTED, 28, RDMA_CM_EVENT_REJECTED, 28},
    {"cm late event=connect_response us=30000", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_ESTABLISHED, 0},
    {"cm lost event=established", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT},
    {"cm late event=established us=30000", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_ESTABLISHED, 0}};
  for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++) {
    printf("# %s\n", outcomes[i].statement);
    check_outcome(&outcomes[i]);
  }
}

TEST(a_goodbye_that_is_lost) {
  struct side listener, client, server;
  connect_all(&listener, &client, &server, "10.77.0.1");
  CHECK(emu_command("cm answer ms=200; cm lost event=disconnected"));
  CHECK_OK(rdma_disconnect(client.id));
  expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT);
  CHECK(!has_event(listener.channel));
  CHECK(emu_command("reset"));
  close_all(&listener, &client, &server);
}

/* A listener whose queue stays full: it is tried as long as an answer is waited for. */
TEST(a_queue_that_stays_full) {
  struct side holder, client;
  struct sockaddr_un name;
  side_open(&holder, RDMA_PS_TCP);
  struct sockaddr_in a = address("10.77.0.1", 0);
  CHECK_OK(rdma_bind_addr(holder.id, any_address(&a)));
  uint16_t port = ntohs(rdma_get_src_port(holder.id));
  socklen_t size = name_of_port(port, &name);
  side_close(&holder);
  int busy = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), waiting[8];
  CHECK(busy >= 0);
  CHECK_OK(bind(busy, (struct sockaddr *)(void *)&name, size));
  CHECK_OK(listen(busy, 0));
  size_t n = 0;
  for (; n < 8; n++) {
    waiting[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connect(waiting[n], (struct sockaddr *)(void *)&name, size) != 0) break;
  }
  CHECK(n < 8 && errno == EAGAIN);
  CHECK(emu_command("cm answer ms=300"));
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  long began = now_ms();
  CHECK_OK(side_connect(&client, NULL));
  expect(client.channel, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  CHECK(now_ms() - began >= 299);
  side_close(&client);
  for (size_t i = 0; i <= n; i++) close(waiting[i]);
  close(busy);
  CHECK(emu_command("reset"));
}

static void on_signal(int number) { (void)number; }

struct reader {
  struct rdma_event_channel *channel;
  atomic_int thread; /* its number, once it runs */
  int error;         /* of rdma_get_cm_event; 0: it read an event */
  atomic_bool is_done;
};

static void *read_one_event(void *arg) {
  struct reader *r = arg;
  struct rdma_cm_event *event;
  atomic_store(&r->thread, (int)syscall(SYS_gettid));
  if (rdma_get_cm_event(r->channel, &event) == 0)
    rdma_ack_cm_event(event);
  else
    r->error = errno;
  atomic_store(&r->is_done, true);
  return NULL;
}

/* Whether the thread sleeps in poll, which the C library makes a ppoll on some machines. */
static bool is_in_poll(int thread) {
  char path[64];
  int number = -1;
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
  FILE *in = fopen(path, "re");
  CHECK(in);
  int n = fscanf(in, "%d", &number);
  fclose(in);
#ifdef SYS_poll
  if (n == 1 && number == SYS_poll) return true;
#endif
  return n == 1 && number == SYS_ppoll;
}

/* The reader wakes up for an event that is withdrawn before it has the lock, and the channel is destroyed. Which of the
 * two threads is first is chance: hence the rounds. */
TEST(a_channel_is_destroyed_while_a_thread_reads_it) {
  struct sigaction interrupt = {.sa_handler = on_signal};
  CHECK(sigaction(SIGUSR1, &interrupt, NULL) == 0);
  for (int round = 0; round < 300; round++) {
    struct side s;
    pthread_t thread;
    side_open(&s, RDMA_PS_TCP);
    struct reader r = {.channel = s.channel};
    CHECK_OK(pthread_create(&thread, NULL, read_one_event, &r));
    while (!atomic_load(&r.thread) || !is_in_poll(r.thread)) sched_yield();
    struct sockaddr_in a = address("10.77.0.1", 9);
    CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&a), 1000));
    while (!atomic_load(&r.is_done) && !has_event(s.channel)) continue;
    side_close(&s);
    while (!atomic_load(&r.is_done)) {
      CHECK_OK(pthread_kill(thread, SIGUSR1));
      poll(NULL, 0, 1);
    }
    CHECK_OK(pthread_join(thread, NULL));
    CHECK_MSG(!r.error || r.error == EINTR, "%s", strerror(r.error));
  }
}

/* ---- other processes --------------------------------------------------------------------------- */

static void say(int fd, const void *what, size_t size) { CHECK(write(fd, what, size) == (ssize_t)size); }
static void hear(int fd, void *what, size_t size) { CHECK(read(fd, what, size) == (ssize_t)size); }

struct process {
  pid_t pid;
  int fd;
};

static struct process start(void (*body)(int fd)) {
  int fds[2];
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
  fflush(stdout);
  struct process p = {.pid = fork(), .fd = fds[0]};
  CHECK(p.pid >= 0);
  if (p.pid == 0) {
    close(fds[0]);
    if (setjmp(tap_end_) != 0) _exit(1);
    body(fds[1]);
    _exit(0);
  }
  close(fds[1]);
  return p;
}

/* Accepts one connection, and sees its end. */
static void serve_one(int fd) {
  struct side listener, server;
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  say(fd, &port, sizeof port);
  side_take(&server, &listener);
  side_make_qp(&server);
  struct rdma_conn_param p = param_with(NULL);
  CHECK_OK(rdma_accept(server.id, &p));
  expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  say(fd, "c", 1);
  expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
  side_close(&server);
  side_close(&listener);
}

static void connect_one(int fd) {
  struct side client;
  uint16_t port;
  hear(fd, &port, sizeof port);
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  expect(client.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  for (;;) pause();
}

/* The first case: its parent has no device open and no threads, so that ThreadSanitizer can follow the others. */
TEST(a_killed_process_disconnects) {
  struct process server = start(serve_one), client = start(connect_one);
  uint16_t port;
  char c;
  int status;
  hear(server.fd, &port, sizeof port);
  say(client.fd, &port, sizeof port);
  hear(server.fd, &c, 1);
  kill(client.pid, SIGKILL);
  CHECK(waitpid(client.pid, NULL, 0) == client.pid);
  CHECK(waitpid(server.pid, &status, 0) == server.pid);
  CHECK_INT(status, 0);
  close(server.fd);
  close(client.fd);
}

/* A socket that is connected with the one that listens for this port. */
static int dial_raw(uint16_t port) {
  struct sockaddr_un to;
  socklen_t size = name_of_port(port, &to);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0);
  CHECK_OK(connect(fd, (struct sockaddr *)(void *)&to, size));
  return fd;
}

TEST(nonsense_hurts_nobody) {
  struct side listener, client, server = {0};
  uint64_t random = 88172645463325252u;
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 64);
  for (int round = 0; round < 200; round++) {
    _Alignas(struct cm_message) unsigned char bytes[600];
    int fd = dial_raw(port);
    for (size_t i = 0; i < sizeof bytes; i++) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      bytes[i] = (unsigned char)(random >> 32);
    }
    struct cm_message *m = (struct cm_message *)(void *)bytes; /* what is looked at first is right in some */
    m->magic = 0x316d6372;
    m->type = (uint8_t)(round % 8);
    m->udp = 0;
    m->mtu = m->retry_count = m->rnr_retry_count = 3;
    size_t size = round % 3 ? sizeof *m : 1 + random % (sizeof bytes - 1);
    CHECK(send(fd, bytes, size, MSG_NOSIGNAL) > 0);
    close(fd);
  }
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, "good"));
  for (;;) { /* some of the nonsense may have been a request */
    struct rdma_cm_event *event;
    CHECK_OK(rdma_get_cm_event(listener.channel, &event));
    bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    bool good = is_request && strcmp(event->param.conn.private_data, "good") == 0;
    server.id = event->id;
    CHECK_OK(rdma_ack_cm_event(event));
    if (good) break;
    if (is_request) CHECK_OK(rdma_destroy_id(server.id));
  }
  close_all(&listener, &client, &server);
}

static const struct tap_case cases[] = {
  TEST_CASE(a_killed_process_disconnects),
  TEST_CASE(ports_that_are_down),
  TEST_CASE(an_address_or_a_route_that_does_not_resolve),
  TEST_CASE(messages_that_are_lost_late_or_rejected),
  TEST_CASE(a_goodbye_that_is_lost),
  TEST_CASE(a_queue_that_stays_full),
  TEST_CASE(a_channel_is_destroyed_while_a_thread_reads_it),
  TEST_CASE(nonsense_hurts_nobody)};

int main(int argc, char **argv) { return cm_test_main(argc, argv, cases, sizeof cases / sizeof cases[0]); }
