# SPDX-License-Identifier: Apache-2.0
# Headers are all that it takes to build it: libfabric is opened when it is used.
needs_ofi := HAVE_LIBFABRIC
without_ofi := no rdma/fabric.h; Debian: libfabric-dev
tests_need_ofi := $(BUILD)/test/libfakefabric.so
