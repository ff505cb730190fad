/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/kit_props.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kit_props_get(const struct rail_net_slots *s, int dev, union kit_props *p) {
  if (s->get_properties_v12) return s->get_properties_v12(dev, &p->v12);
  if (s->get_properties_v11) return s->get_properties_v11(dev, &p->v11);
  if (s->get_properties_v9) return s->get_properties_v9(dev, &p->v9);
  if (s->get_properties_v8) return s->get_properties_v8(dev, &p->v8);
  if (s->get_properties_v7) return s->get_properties_v7(dev, &p->v7);
  return s->get_properties_v6(dev, &p->v6);
}

bool kit_props_is_pci(const char *pci_path) {
  char link[PATH_MAX + 16];
  if (!pci_path || (size_t)snprintf(link, sizeof link, "%s/subsystem", pci_path) >= sizeof link) return false;
  char *subsystem = realpath(link, NULL);
  const char *kind = subsystem ? strrchr(subsystem, '/') : NULL;
  bool pci = kind && strcmp(kind, "/pci") == 0;
  free(subsystem);
  return pci;
}
