/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Lists of interfaces: NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY against the
 * interfaces of a machine. Input: the machine (a count, then a record each),
 * a hint's address, then "family NUL list".
 */
#include <stdlib.h>

#include "common/base/compiler.h"
#include "common/base/ifaddr.h"
#include "test/fuzz/lib/fuzz.h"

static const char *const names[] = {"lo", "eth0", "eth1", "ib0", "ib1", "docker0", "virbr0", "abcdefghijklmno"};
#define MAX_FACES 20

static bool read_addr(struct fuzz_in *in, union rail_addr *addr) {
  struct rail_addr_wire wire;
  uint8_t family = fuzz_u8(in);
  fuzz_fill(in, &wire, family & 1 ? 8 : sizeof wire);
  wire.family = family & 2 ? 6 : 4;
  if (family & 1) memset(wire.ip, family, sizeof wire.ip);
  return rail_addr_unpack(&wire, addr);
}

static int read_faces(struct fuzz_in *in, struct rail_interface *faces) {
  int n = fuzz_u8(in) % (MAX_FACES + 1);
  for (int i = 0; i < n; i++) {
    uint8_t flags = fuzz_u8(in);
    faces[i] = (struct rail_interface){.up = flags & 8, .prefix_len = fuzz_u8(in)};
    strcpy(faces[i].name, names[flags % RAIL_COUNT_OF(names)]);
    if (!read_addr(in, &faces[i].addr)) faces[i].addr.sa.sa_family = AF_INET;
  }
  return n;
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct rail_interface faces[MAX_FACES], chosen[MAX_FACES];
  struct fuzz_in in = {data, size};
  union rail_addr hint;
  int n = read_faces(&in, faces), cap = fuzz_u8(&in) % (MAX_FACES + 1);
  bool hinted = read_addr(&in, &hint);
  char *family_text = fuzz_text(in.at, in.left);
  size_t skip = strlen(family_text) < in.left ? strlen(family_text) + 1 : in.left;
  char *list = fuzz_text(in.at + skip, in.left - skip);
  int family = rail_family_from_text(family_text);
  FUZZ_CHECK(family == AF_UNSPEC || family == AF_INET || family == AF_INET6);
  int count = rail_interfaces_choose(faces, n, list, family, hinted ? &hint : NULL, chosen, cap);
  FUZZ_CHECK(count >= 0 && count <= cap && count <= n);
  for (int i = 0; i < count; i++) {
    FUZZ_CHECK(chosen[i].up && (family == AF_UNSPEC || chosen[i].addr.sa.sa_family == family));
    if (*list) FUZZ_CHECK(rail_name_filter(list, chosen[i].name));
    for (int k = 0; k < i; k++) FUZZ_CHECK(strcmp(chosen[k].name, chosen[i].name) != 0);
  }
  free(list);
  free(family_text);
}

static void put_addr(struct fuzz_out *out, const char *text) {
  struct rail_addr_wire wire;
  union rail_addr addr;
  FUZZ_CHECK(rail_addr_parse(text, &addr) == RAIL_OK);
  rail_addr_pack(&addr, &wire);
  fuzz_put8(out, wire.family == 6 ? 2 : 0);
  fuzz_put(out, &wire, sizeof wire);
}

static void seed(const char *name, const char *hint, const char *family, const char *list) {
  static const struct {
    uint8_t flags, prefix;
    const char *addr;
  } machine[] = {{8, 8, "127.0.0.1:0"}, {8, 128, "[::1]:0"},         {9, 24, "10.0.1.2:0"}, {9, 64, "[fe80::1%2]:0"},
                 {10, 16, "10.3.1.2:0"}, {11, 20, "192.168.5.6:0"}, {5, 24, "10.9.9.9:0"}, {13, 16, "172.17.0.1:0"}};
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, RAIL_COUNT_OF(machine));
  for (size_t i = 0; i < RAIL_COUNT_OF(machine); i++) {
    fuzz_put8(&out, machine[i].flags);
    fuzz_put8(&out, machine[i].prefix);
    put_addr(&out, machine[i].addr);
  }
  fuzz_put8(&out, 16);
  put_addr(&out, hint);
  fuzz_put(&out, family, strlen(family) + 1);
  fuzz_put(&out, list, strlen(list));
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  seed("default", "10.0.1.77:0", "", "");
  seed("exact", "10.0.1.77:0", "AF_INET", "=eth0,ib0");
  seed("prefix", "[2001:db8::1]:0", "AF_INET6", "eth,lo");
  seed("exclude", "10.0.1.77:0", "AF_UNIX", "^docker,lo,=virbr");
  seed("exclude-exact", "10.0.1.77:0", "", "^=eth0,,");
}
