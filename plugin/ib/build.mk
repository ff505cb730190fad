# SPDX-License-Identifier: Apache-2.0
# Headers are all that it takes to build it: libibverbs and librdmacm are opened when they are used.
needs_ib := HAVE_VERBS HAVE_RDMACM
without_ib := no infiniband/verbs.h, or no rdma/rdma_cma.h; Debian: libibverbs-dev, librdmacm-dev
tests_need_ib := $(BUILD)/lib/emu/librdmacm.so.1
