/* SPDX-License-Identifier: Apache-2.0
 * NCCL's file before it is opened: one with a static CUDA runtime insists on NVIDIA's driver, and ends in there. */
#include <stdio.h>
#include <string.h>

#include "kit/inspect/inspect.h"
#include "kit/nccl/kit_nccl.h"

bool kit_nccl_file(const char *path, char *why, size_t size) {
  struct kit_elf elf;
  bool ours = false, other = false;
  why[0] = 0;
  kit_elf_read(path, &elf);
  for (size_t i = 0; i < elf.nneeded; i++) {
    bool runtime = strncmp(elf.needed[i], "libcudart.so", 12) == 0;
    ours |= strcmp(elf.needed[i], "libcudart.so.12") == 0 || strcmp(elf.needed[i], "libcudart.so.13") == 0;
    other |= runtime;
  }
  if (!elf.read) snprintf(why, size, "%s: %s", path, elf.why);
  else if (elf.bits != 64 || !elf.shared) snprintf(why, size, "%s is no shared library of 64 bits", path);
  else if (strcmp(elf.soname, "libnccl.so.2") != 0)
    snprintf(why, size, "%s is not NCCL: its soname is '%s', not libnccl.so.2", path, elf.soname);
  else if (!ours && other) snprintf(why, size, "%s wants a CUDA runtime other than libcudart.so.12 and .13", path);
  else if (!ours)
    snprintf(why, size,
             "%s has CUDA's runtime linked in statically, which works with NVIDIA's own driver only: build NCCL "
             "with CUDARTLIB=cudart (docs/nccl.md)",
             path);
  kit_elf_free(&elf);
  return elf.read && ours && why[0] == 0;
}
