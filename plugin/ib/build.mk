# SPDX-License-Identifier: Apache-2.0
# verbs.h is all that it takes to build it: libibverbs is opened when it is used.
needs_ib := HAVE_VERBS
without_ib := no infiniband/verbs.h; Debian: libibverbs-dev
tests_need_ib := $(BUILD)/test/libfakeverbs.so
params_ib := ib_param.c ib_gid.c
