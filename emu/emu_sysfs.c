/* SPDX-License-Identifier: Apache-2.0
 *
 * A directory like /sys for devices that stand for a PCI device of this machine (device NAME pci=0000:00:03.0), for
 * programs that ask ibv_get_sysfs_path where it is: class/infiniband/NAME/device leads to that PCI device,
 * ports/P/gid_attrs/types/I says what a GID is. It is made when it is asked for, and goes with the process; those of
 * killed processes go when the next one makes its own. */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emu/emu.h"

static struct {
  char root[200];
  pid_t made_by; /* 0: there is none */
} sysfs;

bool emu_is_pci(const char *address) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%.40s", address);
  return strlen(address) == strlen("0000:00:03.0") && !strchr(address, '/') && access(path, F_OK) == 0;
}

static void make_dirs(const char *path) {
  char part[PATH_MAX];
  for (size_t i = 1; path[i] && i + 1 < sizeof part; i++)
    if (path[i + 1] == '/' || !path[i + 1]) {
      memcpy(part, path, i + 1);
      part[i + 1] = 0;
      (void)mkdir(part, 0700); /* what is missing at the end is seen when a file is made there */
    }
}

static bool put(const char *dir, const char *name, const char *text) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%.2000s/%s", dir, name);
  FILE *out = fopen(path, "we");
  if (!out) return false;
  bool good = fputs(text, out) >= 0;
  return fclose(out) == 0 && good;
}

static bool make_port(const char *dir, const struct emu_port *port) {
  char name[16];
  bool good = true;
  make_dirs(dir);
  for (int i = 0; i < EMU_GIDS && good; i++) {
    if (!port->gids[i].valid) continue;
    snprintf(name, sizeof name, "%d", i);
    good = put(dir, name, port->gids[i].type == 2 ? "RoCE v2\n" : "IB/RoCE v1\n");
  }
  return good;
}

static bool make_device(const struct emu_device *d) {
  char class[PATH_MAX], path[PATH_MAX], link[PATH_MAX], pci[PATH_MAX];
  snprintf(link, sizeof link, "/sys/bus/pci/devices/%s", d->pci);
  snprintf(class, sizeof class, "%s/class/infiniband/%s", sysfs.root, d->ibv.name);
  make_dirs(class);
  snprintf(path, sizeof path, "%.2000s/device", class);
  bool good = realpath(link, pci) && symlink(pci, path) == 0;
  for (unsigned int p = 1; p <= d->nports && good; p++) {
    snprintf(path, sizeof path, "%.2000s/ports/%u/gid_attrs/types", class, p);
    good = make_port(path, &d->ports[p - 1]);
  }
  return good;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st, (void)type, (void)ftw;
  (void)remove(path);
  return 0;
}

static void remove_tree(const char *root) { (void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* A process that lives may be of another PID namespace: then its directory looks as if nobody had it. Such processes
 * need a RAIL_EMU_DIR each. */
static void remove_stale(const char *dir, const char *prefix) {
  char path[PATH_MAX];
  DIR *all = opendir(dir);
  for (struct dirent *e; all && (e = readdir(all)) != NULL;) {
    if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
    pid_t pid = (pid_t)strtol(e->d_name + strlen(prefix), NULL, 10);
    snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) remove_tree(path);
  }
  if (all) closedir(all);
}

const char *emu_sysfs(void) {
  const char *dir = getenv("RAIL_EMU_DIR");
  char prefix[64];
  bool any = false, good = true;
  pthread_mutex_lock(&emu.lock);
  for (unsigned int i = 0; i < emu.ndevices; i++) any |= emu.devices[i].pci[0] != 0;
  if (any && sysfs.made_by != getpid()) {
    dir = dir && *dir ? dir : "/dev/shm";
    snprintf(prefix, sizeof prefix, "rail-emu.%u.sys.", (unsigned int)geteuid());
    remove_stale(dir, prefix);
    snprintf(sysfs.root, sizeof sysfs.root, "%.120s/%s%d", dir, prefix, (int)getpid());
    remove_tree(sysfs.root); /* of an earlier process with this number */
    sysfs.made_by = getpid();
    for (unsigned int i = 0; i < emu.ndevices && good; i++)
      if (emu.devices[i].pci[0]) good = make_device(&emu.devices[i]);
    if (!good) fprintf(stderr, "rail-emu: %s cannot be made: %s\n", sysfs.root, strerror(errno));
  }
  pthread_mutex_unlock(&emu.lock);
  return any ? sysfs.root : NULL;
}

/* Not by a child of the process that made it. */
void emu_sysfs_remove(void) {
  if (sysfs.made_by == getpid()) remove_tree(sysfs.root);
  sysfs.made_by = 0;
}
