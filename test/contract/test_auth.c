/* SPDX-License-Identifier: Apache-2.0
 * RAIL_SOCKET_AUTH_FILE through the vtable: messages with the same key, none without.
 * TEST-LIMIT: 60 */
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

static char dir[] = "/tmp/rail-auth-XXXXXX", right[sizeof dir + 8], wrong[sizeof dir + 8];

static void write_key(const char *path, const char *key, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && write(fd, key, strlen(key)) == (ssize_t)strlen(key) && fchmod(fd, mode) == 0);
  close(fd);
}

static void make_keys(void) {
  strcpy(dir + sizeof dir - 7, "XXXXXX");
  CHECK(mkdtemp(dir));
  snprintf(right, sizeof right, "%s/right", dir);
  snprintf(wrong, sizeof wrong, "%s/wrong", dir);
  write_key(right, "sixteen bytes or more\n", 0600);
  write_key(wrong, "sixteen bytes and more\n", 0600);
}

static void remove_keys(void) {
  unlink(right);
  unlink(wrong);
  rmdir(dir);
}

static void use_key(const char *path) {
  if (path) setenv("RAIL_SOCKET_AUTH_FILE", path, 1);
  else unsetenv("RAIL_SOCKET_AUTH_FILE");
}

static int one_connect(struct kit_net *n, void *handle, void **comm) {
  struct rail_net_device_handle *dh = NULL;
  return n->vt->connect(n->ctx, n->dev, handle, comm, &dh);
}

/* The result of connecting with the key in arg, and if there is a connection of sending over it. */
static void sender(struct pipes *io, void *arg) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  static uint8_t data[200000];
  void *comm = NULL;
  int rc = 0;
  use_key(arg);
  kit_net_open(&n);
  pipe_read(io, handle, sizeof handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (rc == 0 && !comm) {
    rc = one_connect(&n, handle, &comm);
    ENSURE(!rail_deadline_passed(deadline), "neither connected nor refused");
    sched_yield();
  }
  if (comm) {
    kit_pattern_fill(data, sizeof data, 5);
    struct kit_op op = kit_op_send(comm, data, sizeof data, 1);
    kit_ops_run(&n, &op, 1, (struct kit_ops_options){.errors_are_fine = true});
    rc = op.error;
    ENSURE_INT(n.vt->close_send(comm), 0);
  }
  pipe_write(io, &rc, sizeof rc);
  kit_net_close(&n);
}

struct keys { const char *listener, *sender; };

/* Accepts a sender of its own, or none, and passes on what that one got. */
static void listener(struct pipes *io, void *arg) {
  static uint8_t data[200000];
  const struct keys *k = arg;
  struct proc p = proc_start(sender, (void *)(uintptr_t)k->sender);
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  void *comm = NULL;
  int rc;
  use_key(k->listener);
  kit_net_open(&n);
  void *listen = kit_net_listen(&n, handle);
  pipe_write(&p.io, handle, sizeof handle);
  if (k->listener && k->sender && strcmp(k->listener, k->sender) == 0) {
    comm = kit_net_accept(&n, listen);
    struct kit_op op = kit_op_recv(comm, data, sizeof data, 1);
    kit_op_finish(&n, &op);
    ENSURE(kit_pattern_check(data, sizeof data, 5) < 0, "other bytes came");
  } else {
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(500));
    while (!rail_deadline_passed(deadline)) ENSURE(!kit_accept_step(&n, listen, &comm), "accepted");
  }
  pipe_read(&p.io, &rc, sizeof rc);
  ENSURE_INT(n.vt->close_recv(comm), 0);
  ENSURE_INT(n.vt->close_listen(listen), 0);
  kit_net_close(&n);
  proc_join(&p);
  pipe_write(io, &rc, sizeof rc);
}

/* Both sides in processes of their own, where the parameter has not been read before; what the sender got. */
static int meet(const char *listener_key, const char *sender_key) {
  struct keys keys = {listener_key, sender_key};
  struct proc p = proc_start(listener, &keys);
  int rc;
  pipe_read(&p.io, &rc, sizeof rc);
  proc_join(&p);
  return rc;
}

TEST(messages_with_a_key) {
  make_keys();
  CHECK_OK(meet(right, right));
  setenv("RAIL_SOCKET_STREAMS", "3", 1);
  CHECK_OK(meet(right, right));
  unsetenv("RAIL_SOCKET_STREAMS");
  remove_keys();
}

TEST(none_with_another) {
  make_keys();
  CHECK_INT(meet(right, wrong), RAIL_REMOTE_ERROR);
  remove_keys();
}

TEST(none_with_one) {
  make_keys();
  CHECK_INT(meet(right, NULL), RAIL_BAD_USAGE);
  CHECK_INT(meet(NULL, right), RAIL_BAD_USAGE);
  remove_keys();
}

/* A key that cannot be used is no reason to go on without. */
static void no_devices(struct pipes *io, void *arg) {
  struct rail_net_config config = {.traffic_class = -1};
  struct kit_net n;
  void *ctx = NULL;
  int ndev = -1;
  (void)io;
  use_key(arg);
  int before = kit_net_warnings();
  kit_net_load(&n, 12);
  const struct rail_net_v12 *vt = n.vt;
  ENSURE_INT(vt->init(&ctx, 1, &config, kit_net_log, NULL), 0);
  ENSURE_INT(vt->devices(&ndev), 0);
  ENSURE_INT(ndev, 0);
  ENSURE(kit_net_warnings() > before, "no line says why");
  n.ctx = ctx;
  kit_net_close(&n);
}

TEST(a_key_that_cannot_be_used) {
  make_keys();
  write_key(wrong, "sixteen bytes and more\n", 0644);
  const char *paths[] = {wrong, "/nonexistent/key"};
  for (int i = 0; i < 2; i++) {
    struct proc p = proc_start(no_devices, (void *)(uintptr_t)paths[i]);
    proc_join(&p);
  }
  remove_keys();
}

TEST_MAIN(TEST_CASE(messages_with_a_key), TEST_CASE(none_with_another), TEST_CASE(none_with_one),
          TEST_CASE(a_key_that_cannot_be_used))
