/* SPDX-License-Identifier: Apache-2.0
 *
 * The host of several ranks, as a file for NCCL_TOPO_FILE: all GPUs and all of the plugin's NICs behind one PCI switch,
 * and NVLink from each GPU to each. There NCCL sends through the proxy of another rank of the host (PXN,
 * ncclTopoGetNetDev in src/graph/search.cc), so that messages of several ranks share one connection: it is the only
 * case in which NCCL receives into several buffers at once (recvProxyProgress in src/transport/net.cc).
 */
#include <string.h>

#include "kit/nccl/kit_nccl.h"

#define LINK " link_speed=\"32.0 GT/s PCIe\" link_width=\"16\""
#define NVLINKS 12 /* faster than any NIC: else NCCL takes the network within the host, too (ncclTopoCheckNet) */
#define FIRST_NIC 0x80

/* GPUs are where ghost's driver has them (cuDeviceGetPCIBusId), which NCCL writes in lower case. */
static void write_gpu(FILE *f, int gpu, int gpus) {
  fprintf(f, "<pci busid=\"ffff:%02x:00.0\" class=\"0x030200\"" LINK "><gpu>\n", (unsigned)gpu);
  for (int peer = 0; peer < gpus; peer++)
    if (peer != gpu)
      fprintf(f, "<nvlink target=\"ffff:%02x:00.0\" count=\"%d\" tclass=\"0x030200\"/>\n", (unsigned)peer, NVLINKS);
  fprintf(f, "</gpu></pci>\n");
}

/* NCCL finds a device by its name, and fills in the rest; its reader knows no way to write a quote. */
static void write_nic(FILE *f, int i, const char *name) {
  if (!name[0] || strchr(name, '"')) return;
  fprintf(f, "<pci busid=\"ffff:%02x:00.0\" class=\"0x020000\"" LINK "><nic><net name=\"%s\"/></nic></pci>\n",
          (unsigned)(FIRST_NIC + i), name);
}

void kit_nccl_write_topology(FILE *f, int gpus, const struct kit_probe *probe) {
  fprintf(f, "<system version=\"1\"><cpu numaid=\"-1\">\n<pci busid=\"ffff:f0:00.0\" class=\"0x060400\"" LINK ">\n");
  for (int gpu = 0; gpu < gpus; gpu++) write_gpu(f, gpu, gpus);
  for (int i = 0; i < KIT_PROBE_DEVICES; i++) write_nic(f, i, probe->devices[i]);
  fprintf(f, "</pci>\n</cpu></system>\n");
}
