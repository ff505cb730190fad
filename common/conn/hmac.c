/* SPDX-License-Identifier: Apache-2.0
 * Key files, and libcrypto by dlopen. */
#include "common/conn/hmac.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/sock.h"

/* ---- loading ---------------------------------------------------------- */

static bool open_crypto(struct rail_key *key) {
  static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
  void *dl = NULL;
  /* Never closed: it has exit handlers of its own. */
  for (size_t i = 0; i < RAIL_COUNT_OF(names) && !dl; i++) dl = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (dl) {
    *(void **)&key->sha256 = dlsym(dl, "EVP_sha256");
    *(void **)&key->hmac = dlsym(dl, "HMAC");
  }
  if (key->sha256 && key->hmac) return true;
  RAIL_WARN("%s: %s is set and OpenSSL's libcrypto (libcrypto.so.3 or .so.1.1) cannot be used: %s; install it (Debian: "
            "libssl3), or unset the parameter on all sides; no devices", key->plugin, key->param,
            dl ? "it lacks HMAC" : "it is not installed");
  return false;
}

static const char *read_key(struct rail_key *key, int fd) {
  struct stat st;
  size_t have = 0;
  if (fstat(fd, &st) != 0) return strerror(errno);
  if (!S_ISREG(st.st_mode)) return "it is not a file";
  if (st.st_mode & S_IRWXO)
    return "all users may read or write it; remove that (chmod o=), and make a new key if others could have read it";
  while (have < sizeof key->bytes) {
    ssize_t n = read(fd, key->bytes + have, sizeof key->bytes - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return strerror(errno);
    if (n == 0) break;
    have += (size_t)n;
  }
  if (have > RAIL_KEY_MAX) return "it has more than 4096 bytes";
  if (have && key->bytes[have - 1] == '\n') have--;
  if (have < RAIL_KEY_MIN) return "a key has at least 16 bytes (openssl rand -hex 32)";
  key->size = (int)have;
  return NULL;
}

static bool load_file(struct rail_key *key, const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const char *why = fd < 0 ? strerror(errno) : read_key(key, fd);
  rail_sock_close(&fd);
  if (why) RAIL_WARN("%s: %s=%s cannot be used: %s; no devices", key->plugin, key->param, path, why);
  return !why;
}

bool rail_key_load(struct rail_key *key, const char *path) {
  if (key->loaded) return key->good;
  key->loaded = true;
  key->good = !path || (load_file(key, path) && open_crypto(key));
  key->on = path && key->good;
  if (key->on) RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "%s: connections are authenticated (%s)", key->plugin, path);
  return key->good;
}

/* ---- macs ------------------------------------------------------------- */

rail_result_t rail_key_mac(const struct rail_key *key, const void *message, size_t size, uint8_t mac[RAIL_MAC_SIZE]) {
  unsigned int len = 0;
  if (key->on && key->hmac(key->sha256(), key->bytes, key->size, message, size, mac, &len) && len == RAIL_MAC_SIZE)
    return RAIL_OK;
  RAIL_WARN("%s: libcrypto cannot make an HMAC-SHA-256; does a policy (FIPS) forbid it?", key->plugin);
  return RAIL_SYSTEM_ERROR;
}

rail_result_t rail_key_mac_of(const struct rail_key *key, const char label[RAIL_LABEL_SIZE],
                              const struct rail_mac_part *parts, unsigned int n, uint8_t mac[RAIL_MAC_SIZE]) {
  uint8_t message[RAIL_MAC_INPUT_MAX];
  size_t at = RAIL_LABEL_SIZE;
  memcpy(message, label, RAIL_LABEL_SIZE);
  for (unsigned int i = 0; i < n; i++) {
    if (parts[i].size > sizeof message - at) return RAIL_INTERNAL_ERROR;
    memcpy(message + at, parts[i].data, parts[i].size);
    at += parts[i].size;
  }
  return rail_key_mac(key, message, at, mac);
}
