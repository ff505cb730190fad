# SPDX-License-Identifier: Apache-2.0
# Railyard. `make help` lists the targets. Plain GNU make, no configure step:
# config/probe.sh looks once at what the machine has and writes build/config.mk.
#
#   CC=clang  SAN=asan|tsan  DEBUG=1  V=1  WERROR=0
#
# Every variant builds in a directory of its own (build, build/asan, …).

.DEFAULT_GOAL := all
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
VERSION := $(file <VERSION)

SAN ?=
# CROSS=aarch64-linux-gnu- picks another machine's compiler and binutils; a CC with such a prefix picks its binutils.
ifeq ($(origin CC),default)
CC := $(CROSS)gcc
endif
CROSS ?= $(patsubst %gcc,%,$(filter %-gcc,$(notdir $(firstword $(CC)))))
AR := $(CROSS)ar
OBJCOPY := $(CROSS)objcopy
# The machine that is built for, as compilers call it: x86_64, aarch64.
machine := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
variant := $(strip $(if $(SAN),$(SAN))$(if $(filter-out gcc,$(notdir $(CC))),$(if $(SAN),-)$(notdir $(CC)))$(if $(DEBUG),$(if $(SAN),-)debug))
BUILD ?= build$(if $(variant),/$(variant))
O := $(BUILD)/obj
Q := $(if $(V),,@)

include config/flags.mk
-include $(BUILD)/config.mk
include config/rules.mk
include config/targets.mk
include config/package.mk
include config/arm64.mk
