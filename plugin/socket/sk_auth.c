/* SPDX-License-Identifier: Apache-2.0
 * The key, HMAC, and the memory of a listener. */
#include "plugin/socket/sk_auth.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/compiler.h"
#include "common/log.h"
#include "plugin/socket/sk_param.h"

#define KEY_MIN 16
#define KEY_MAX 4096

/* Keep a mac of one kind from passing for one of another, in whatever protocol the key is used for. */
static const char hello_label[32] = "RailSocket 2 hello";
static const char answer_label[32] = "RailSocket 2 answer";

static struct {
  bool loaded, good, on;
  const void *(*sha256)(void);
  unsigned char *(*hmac)(const void *md, const void *key, int key_len, const unsigned char *data, size_t len,
                         unsigned char *mac, unsigned int *mac_len);
  int key_len;
  uint8_t key[KEY_MAX + 1];
} auth;

/* ---- loading ---------------------------------------------------------- */

static bool open_crypto(void) {
  static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
  void *dl = NULL;
  /* Never closed: it has exit handlers of its own. */
  for (size_t i = 0; i < RAIL_COUNT_OF(names) && !dl; i++) dl = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (dl) {
    *(void **)&auth.sha256 = dlsym(dl, "EVP_sha256");
    *(void **)&auth.hmac = dlsym(dl, "HMAC");
  }
  if (auth.sha256 && auth.hmac) return true;
  RAIL_WARN("RailSocket: RAIL_SOCKET_AUTH_FILE is set and OpenSSL's libcrypto (libcrypto.so.3 or .so.1.1) cannot be "
            "used: %s; install it (Debian: libssl3), or unset the parameter on all sides; no devices",
            dl ? "it lacks HMAC" : "it is not installed");
  return false;
}

static const char *read_key(int fd) {
  struct stat st;
  size_t have = 0;
  if (fstat(fd, &st) != 0) return strerror(errno);
  if (!S_ISREG(st.st_mode)) return "it is not a file";
  if (st.st_mode & S_IRWXO)
    return "everybody may use it; take that away (chmod o=), and make a new key if somebody could have read it";
  while (have < sizeof auth.key) {
    ssize_t n = read(fd, auth.key + have, sizeof auth.key - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return strerror(errno);
    if (n == 0) break;
    have += (size_t)n;
  }
  if (have > KEY_MAX) return "it has more than 4096 bytes";
  if (have && auth.key[have - 1] == '\n') have--;
  if (have < KEY_MIN) return "a key has at least 16 bytes (openssl rand -hex 32)";
  auth.key_len = (int)have;
  return NULL;
}

static bool load_key(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const char *why = fd < 0 ? strerror(errno) : read_key(fd);
  rail_sock_close(&fd);
  if (why) RAIL_WARN("RailSocket: RAIL_SOCKET_AUTH_FILE=%s cannot be used: %s; no devices", path, why);
  return !why;
}

bool sk_auth_load(void) {
  if (auth.loaded) return auth.good;
  auth.loaded = true;
  bool wanted = sk_params.auth_file != NULL;
  auth.good = !wanted || (load_key(sk_params.auth_file) && open_crypto());
  auth.on = wanted && auth.good;
  if (auth.on)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: connections are authenticated (%s)", sk_params.auth_file);
  return auth.good;
}

bool sk_auth_on(void) { return auth.on; }

/* ---- macs ------------------------------------------------------------- */

static rail_result_t mac_of(const uint8_t *message, size_t size, uint8_t mac[SK_MAC_SIZE]) {
  unsigned int len = 0;
  if (auth.on && auth.hmac(auth.sha256(), auth.key, auth.key_len, message, size, mac, &len) && len == SK_MAC_SIZE)
    return RAIL_OK;
  RAIL_WARN("RailSocket: libcrypto cannot make an HMAC-SHA-256; does a policy (FIPS) forbid it?");
  return RAIL_SYSTEM_ERROR;
}

static rail_result_t mac_of_hello(const struct sk_handle *listener, const struct sk_hello_wire *hello,
                                  uint8_t mac[SK_MAC_SIZE]) {
  uint8_t message[sizeof hello_label + RAIL_NET_HANDLE_SIZE + offsetof(struct sk_hello_wire, mac)];
  struct sk_handle handle = *listener;
  handle.attempt = 0;
  memcpy(message, hello_label, sizeof hello_label);
  sk_handle_encode(&handle, message + sizeof hello_label);
  memcpy(message + sizeof hello_label + RAIL_NET_HANDLE_SIZE, hello, offsetof(struct sk_hello_wire, mac));
  return mac_of(message, sizeof message, mac);
}

rail_result_t sk_auth_sign_hello(const struct sk_handle *listener, struct sk_hello_wire *hello) {
  hello->flags |= htole32(SK_HELLO_AUTH);
  RAIL_TRY(rail_random_bytes(hello->nonce, sizeof hello->nonce));
  return mac_of_hello(listener, hello, hello->mac);
}

bool sk_auth_check_hello(const struct sk_handle *listener, const struct sk_hello_wire *hello) {
  uint8_t mac[SK_MAC_SIZE];
  return mac_of_hello(listener, hello, mac) == RAIL_OK && sk_same_bytes(mac, hello->mac, sizeof mac);
}

rail_result_t sk_auth_sign_answer(const uint8_t *hello_mac, struct sk_answer_wire *answer) {
  uint8_t message[sizeof answer_label + SK_MAC_SIZE + offsetof(struct sk_answer_wire, mac)];
  memcpy(message, answer_label, sizeof answer_label);
  memcpy(message + sizeof answer_label, hello_mac, SK_MAC_SIZE);
  memcpy(message + sizeof answer_label + SK_MAC_SIZE, answer, offsetof(struct sk_answer_wire, mac));
  return mac_of(message, sizeof message, answer->mac);
}

/* ---- what was heard --------------------------------------------------- */

/* Its place, or the free one where it would be. Comm ids are random, and here
 * those of peers that have the key: no need to mix them. */
static struct sk_seen_entry *place_of(const struct sk_seen *seen, const uint8_t *comm_id) {
  uint32_t at;
  memcpy(&at, comm_id, sizeof at);
  for (at &= seen->cap - 1;; at = (at + 1) & (seen->cap - 1)) {
    struct sk_seen_entry *e = &seen->entries[at];
    if (!e->streams || memcmp(e->comm_id, comm_id, sizeof e->comm_id) == 0) return e;
  }
}

static bool grow(struct sk_seen *seen) {
  struct sk_seen bigger = {.cap = seen->cap ? 2 * seen->cap : 8, .count = seen->count};
  bigger.entries = calloc(bigger.cap, sizeof *bigger.entries);
  if (!bigger.entries) return false;
  for (uint32_t i = 0; i < seen->cap; i++)
    if (seen->entries[i].streams) *place_of(&bigger, seen->entries[i].comm_id) = seen->entries[i];
  free(seen->entries);
  *seen = bigger;
  return true;
}

enum sk_reason sk_seen_note(struct sk_seen *seen, const uint8_t *comm_id, unsigned int stream) {
  if (2 * seen->count >= seen->cap && !grow(seen)) return SK_REASON_BUSY;
  struct sk_seen_entry *e = place_of(seen, comm_id);
  if (e->streams & (1u << stream)) return SK_REASON_REPLAY;
  if (!e->streams) {
    if (seen->count == SK_SEEN_MAX) return SK_REASON_BUSY;
    seen->count++;
    memcpy(e->comm_id, comm_id, sizeof e->comm_id);
  }
  e->streams |= 1u << stream;
  return SK_REASON_NONE;
}

void sk_seen_free(struct sk_seen *seen) {
  free(seen->entries);
  *seen = (struct sk_seen){0};
}
