/* SPDX-License-Identifier: Apache-2.0
 *
 * The few calls of NVML that the runtime makes: libfakenvml.so, named in RAIL_NVML_LIB.
 * FAKENVML_LINKS="3b:00.0=5e:00.0,3b:00.0=switch": from which device an active NVLink goes where, in domain ffff.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, MOST = 18 };

struct pci_info {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

struct device {
  char name[16];
  int links;
  char to[MOST][16];
};
static struct device devices[8];
static int inits;

int nvmlInit_v2(void);
int nvmlInit_v2(void) {
  inits++;
  return SUCCESS;
}

int nvmlShutdown(void);
int nvmlShutdown(void) { return inits-- > 0 ? SUCCESS : NOT_SUPPORTED; }

static void add_link(struct device *d, const char *link) {
  if (strncasecmp(link, d->name, strlen(d->name)) != 0 || d->links == MOST) return;
  const char *to = link + strlen(d->name) + 1;
  snprintf(d->to[d->links++], sizeof d->to[0], "%.*s", (int)strcspn(to, ","), to);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
  struct device *d = devices;
  const char *name = strchr(bus_id, ':'), *list = getenv("FAKENVML_LINKS");
  if (inits <= 0 || !name || !list) return NOT_FOUND;
  while (d->name[0] && strcmp(d->name, name + 1) != 0) d++;
  snprintf(d->name, sizeof d->name, "%s", name + 1);
  d->links = 0;
  for (const char *at = list; at; at = strchr(at, ',')) add_link(d, at += *at == ',');
  *device = d;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active);
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
  const struct device *d = device;
  *active = (int)link < d->links;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) {
  const struct device *d = device;
  *type = strcmp(d->to[link], "switch") == 0 ? 2 : 0;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci_info *pci);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci_info *pci) {
  const struct device *d = device;
  memset(pci, 0, sizeof *pci);
  const char *to = strcmp(d->to[link], "switch") == 0 ? "C5:00.0" : d->to[link]; /* it is a device, too */
  snprintf(pci->bus_id, sizeof pci->bus_id, "0000FFFF:%s", to);
  return SUCCESS;
}
