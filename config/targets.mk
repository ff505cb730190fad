# SPDX-License-Identifier: Apache-2.0
# What a person types.

PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: all tests help clean setup demo test test-asan test-tsan bench docs lint install uninstall gpu-test
all: $(plugin_libs) $(core_lib) $(tool_bins)  ## build the plugins, the runtime and the tools
	@bash config/left-out.sh $(BUILD)/config.mk

tests: all $(test_bins) $(preload_libs)  ## build the test programs too

help:  ## this list
	@awk -F'## ' '/^[a-z-]+:.*## /{split($$1,a,":"); printf "  make %-12s %s\n", a[1], $$2}' config/targets.mk

clean:  ## remove everything built
	$(Q)rm -rf build
