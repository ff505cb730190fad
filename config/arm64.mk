# SPDX-License-Identifier: Apache-2.0
# Everything for arm64, by Debian's cross compiler; its tests run under qemu-user.

.PHONY: arm64 test-arm64

ARM64 := $(BUILD)/arm64
arm64_sysroot := $(ARM64)/sysroot
arm64_packages := libc6-dev linux-libc-dev libgcc-12-dev libibverbs-dev librdmacm-dev libfabric-dev libelf-dev \
  libjansson-dev libssl3 libssl-dev
arm64_make = $(build_with) BUILD='$(ARM64)' SAN= CROSS=aarch64-linux-gnu- \
  CC='aarch64-linux-gnu-gcc --sysroot=$(abspath $(arm64_sysroot))'

arm64:  ## build everything for arm64 (Debian: cross compiler, libraries unpacked into build/arm64/sysroot)
	$(setup) arm64
	@bash config/sysroot.sh '$(arm64_sysroot)' arm64 $(arm64_packages)
	$(arm64_make) tests

# Beside make test: building takes two minutes of CPU and running nearly as long.
test-arm64: arm64  ## under qemu-user: unit tests, the socket plugin's conformance, collectives; RUN='--only stats'
	@QEMU_LD_PREFIX='$(abspath $(arm64_sysroot))' bash test/arm64/qemu-user.sh '$(abspath $(ARM64))/bin/rail-kit' \
	  python3 test/arm64/run.py '$(ARM64)' $(RUN) || \
	  { rc=$$?; [ $$rc = 77 ] && echo 'test-arm64: skipped, see above' || exit $$rc; }
