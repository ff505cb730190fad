# SPDX-License-Identifier: Apache-2.0
# What a person types.

JOBS ?= $(shell nproc)

# A build inside a target: -j from the outer make if it had one, else all cores.
build_with = +$(MAKE) $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))
setup = @BUILD='$(BUILD)' bash config/setup.sh
runner := python3 test/run.py

.PHONY: all tests syntax products check-needs help clean setup demo check test test-asan test-tsan lab lab-shell \
  test-rdma bench bench-pytorch bench-socket bench-ib bench-ofi bench-emu bench-nccl bench-tls bench-tuning \
  ib-failures kit-proof kit-nccl-proof gpu-test docs docs-check lint fuzz fuzz-corpus

san_products := $(plugin_libs) $(core_lib) $(filter-out %/rail-train,$(tool_bins)) $(fault_lib) $(emu_lib) \
  $(emu_cm_lib) $(ghost_libs)
all: $(plugin_libs) $(core_lib) $(stand_in) $(tool_bins) $(fault_lib) \
  $(emu_lib) $(emu_cm_lib) $(ghost_libs)  ## build the plugins, the runtime and the tools
	@bash config/left-out.sh $(BUILD)/config.mk \
	  $(foreach p,$(left_out_plugins),'$(p): $(or $(without_$(p)),needs $(call missing_for,$(p)))')

bench_emu_needs := $(if $(emu_lib),$(BUILD)/bench/emu_rate $(BUILD)/bench/ib_peers) \
  $(if $(emu_cm_lib),$(BUILD)/bench/emu_peers)
test_needs := $(test_bins) $(bench_emu_needs) $(preload_libs) $(broken_libs) $(gpu_bins) $(BUILD)/gen-params

# Under a sanitizer: the programs that run there, the scripts' helpers, and no program that only documents or GPUs need.
san_needs = $(shell $(runner) --build '$(BUILD)' --needs) $(helper_bins) $(preload_libs) $(broken_libs)
tests: $(if $(SAN),$(san_products) $(san_needs),all $(test_needs))  ## build the test programs too

# What a script may use: all but the other tests. What make check runs, and what that needs.
products: all $(preload_libs) $(broken_libs) $(helper_bins) $(BUILD)/test/gpu/gpu_coll $(BUILD)/gen-params
unit_needs := $(plugin_libs) $(core_lib) $(preload_libs)
unit-needs: $(unit_needs)
check_needs := $(filter $(BUILD)/test/unit/%,$(test_bins)) $(unit_needs) $(fault_lib) $(emu_lib) $(emu_cm_lib) \
  $(patsubst %,$(BUILD)/bin/%,rail-kit rail-coll) $(BUILD)/test/broken/libnccl-net-ref.so
check-needs: $(check_needs)

help:  ## this list
	@awk -F'## ' '/^[a-z0-9-]+:.*## /{split($$1,a,":"); printf "  make %-12s %s\n", a[1], $$2}' \
	  config/targets.mk config/package.mk config/arm64.mk
	@echo "Variables: CC=clang  CROSS=prefix-  SAN=asan|tsan  DEBUG=1  V=1  WERROR=0  BUILD=dir  PREFIX=dir  DESTDIR=dir"

clean:  ## remove everything built
	$(Q)rm -rf build

setup:  ## install what building needs (apt, as root; else print the line to run); other targets bring theirs
	$(setup) build

demo:  ## 4 ranks all-reduce over the socket plugin, checked; then a small training run
	$(setup) build
	$(build_with) BUILD='$(BUILD)' all
	@bash demo/run.sh '$(BUILD)'

# Without kernels for GPUs, which take longer to compile than all the rest: what is there of them is left as it is.
check:  ## what to run between two edits: units, conformance, a collective; T=test_sock: just that one
	$(setup) build check
ifdef T
	+@needs=$$($(runner) --build '$(BUILD)' --one '$(T)' --needs) && \
	  $(subst @,,$(subst +,,$(build_with))) BUILD='$(BUILD)' HAVE_NVCC= $$needs && \
	  $(runner) --build '$(BUILD)' --one '$(T)' $(RUN)
else
	$(build_with) BUILD='$(BUILD)' HAVE_NVCC= check-needs
	@$(runner) --build '$(BUILD)' --check $(RUN)
endif

syntax: $(syntax_ok)

# All builds first, so that a warning shows before a long run; then one run over
# all of them, so that the last line is the sum. Of clang only the warnings are wanted.
test:  ## run every test: plain, ASAN+UBSAN and TSAN builds; clang's warnings are errors, too
	$(setup) build test
	$(build_with) BUILD='$(BUILD)' SAN= tests
	$(build_with) BUILD='$(BUILD)/clang' CC=clang SAN= syntax
	$(build_with) BUILD='$(BUILD)/asan' SAN=asan tests
	$(build_with) BUILD='$(BUILD)/tsan' SAN=tsan tests
	@$(runner) --build '$(BUILD)' --build '$(BUILD)/asan' --build '$(BUILD)/tsan' $(if $(JUNIT),--junit '$(JUNIT)') $(RUN)

test-asan test-tsan: test-%:
	$(setup) build test
	$(build_with) BUILD='$(BUILD)/$*' SAN=$* tests
	@$(runner) --build '$(BUILD)/$*' $(RUN)

test-asan:  ## the tests that run under the address and undefined-behaviour sanitizers
test-tsan:  ## the tests that run under the thread sanitizer

HOSTS ?= 4
NICS ?= 3
MTU ?= 1500
OUT ?= $(BUILD)/lab/out
LIMIT ?= 600
lab_boot = @python3 test/lab/boot.py \
  --hosts '$(HOSTS)' --nics '$(NICS)' --mtu '$(MTU)' --out '$(OUT)' --limit '$(LIMIT)'
lab_needs := all $(filter $(BUILD)/test/lab/% $(BUILD)/test/verbs/% $(BUILD)/test/fault/traffic,$(test_bins))

# The command through the environment: it may have quotes of any kind.
lab:  ## a guest with RDMA: the lab's tests, or CMD='…' with HOSTS=4 NICS=3 MTU=1500 OUT=dir LIMIT=s
	$(setup) build lab rdma
	$(build_with) BUILD='$(BUILD)' SAN= $(lab_needs)
	$(if $(CMD),$(lab_boot) -- "$$CMD",@$(runner) --build '$(BUILD)' --kind lab $(RUN))

lab-shell:  ## a shell in there
	$(setup) build lab rdma
	$(build_with) BUILD='$(BUILD)' SAN= $(lab_needs)
	$(lab_boot) --shell

test-rdma:  ## the lab's tests on RDMA devices of this machine: DEV=mlx5_0 or DEV=mlx5_0,mlx5_1
	$(if $(DEV),,$(error DEV=device[,device], as ibv_devices names them))
	$(setup) build rdma
	$(build_with) BUILD='$(BUILD)' SAN= $(lab_needs)
	@python3 test/lab/devices.py '$(DEV)' $(runner) --build '$(BUILD)' --kind lab $(RUN)

fuzz_names := $(filter-out %.h,$(basename $(notdir $(wildcard test/fuzz/*.c))))
TARGET ?= $(fuzz_names)
TIME ?= 60

# What libFuzzer finds goes to build/fuzz/found, what it learns to build/fuzz/corpus; the committed corpus stays.
fuzz:  ## clang's libFuzzer, one target after the other: TARGET=addr TIME=seconds each
	$(setup) build fuzz
	$(build_with) BUILD='$(BUILD)/fuzz' CC=clang SAN=fuzz $(patsubst %,$(BUILD)/fuzz/test/fuzz/%,$(TARGET))
	@BUILD='$(BUILD)/fuzz' bash test/fuzz/run.sh $(TIME) $(TARGET)

fuzz-corpus:  ## write test/fuzz/corpus anew, after a message's layout changed
	$(build_with) BUILD='$(BUILD)' $(patsubst %,$(BUILD)/test/fuzz/%,$(TARGET))
	$(Q)for t in $(TARGET); do $(BUILD)/test/fuzz/$$t --write-corpus || exit; done

bench:  ## all-reduce over shared memory and sockets against Open MPI and memcpy
	$(setup) build bench
	$(build_with) BUILD='$(BUILD)' all
	@bash bench/run.sh '$(BUILD)' $(RUN)

bench-tuning:  ## which algorithm and protocol is faster from which size on: what core/plan/rt_tune.c goes by
	$(setup) build bench
	$(build_with) BUILD='$(BUILD)' $(BUILD)/bin/rail-coll $(BUILD)/lib/libnccl-net-socket.so
	@CC='$(CC)' python3 bench/tuning.py --build '$(BUILD)' $(RUN)

bench_socket_needs := $(BUILD)/lib/libnccl-net-socket.so $(BUILD)/bin/rail-kit $(BUILD)/test/libcongestion.so

bench-socket:  ## the socket plugin against UCX, plain TCP streams and any plugin given
	$(setup) build bench
	$(build_with) BUILD='$(BUILD)' $(bench_socket_needs)
	@CC='$(CC)' python3 bench/transports.py socket --build '$(BUILD)' $(RUN)

bench_ib_needs := $(BUILD)/lib/libnccl-net-ib.so $(BUILD)/bin/rail-kit $(BUILD)/bench/exchange $(emu_lib)

bench-ib:  ## the ib plugin against perftest and any plugin given, in the lab, or DEV=mlx5_0,mlx5_1; RUN=--quick
	$(setup) build bench rdma $(if $(DEV),,lab)
	$(build_with) BUILD='$(BUILD)' $(bench_ib_needs)
	@CC='$(CC)' python3 bench/transports.py ib --build '$(BUILD)' $(if $(DEV),--dev '$(DEV)') $(RUN)

bench_ofi_needs := $(BUILD)/lib/libnccl-net-ofi.so $(BUILD)/bin/rail-kit $(BUILD)/test/libcongestion.so

bench-ofi:  ## the ofi plugin against fi_pingpong, fabtests, UCX and any plugin given; RUN='--fabtests DIR'
	$(setup) build bench
	$(build_with) BUILD='$(BUILD)' $(bench_ofi_needs)
	@CC='$(CC)' python3 bench/transports.py ofi --build '$(BUILD)' $(RUN)

bench_pytorch_needs := $(BUILD)/lib/librailyard.so $(BUILD)/lib/libnccl-net-socket.so $(BUILD)/test/libcongestion.so

bench-pytorch:  ## all_reduce of torch.distributed: backend railyard beside Gloo; RUN='--ranks N'
	$(setup) build bench
	$(build_with) BUILD='$(BUILD)' $(bench_pytorch_needs)
	@CC='$(CC)' python3 bench/pytorch.py --build '$(BUILD)' $(RUN)

bench_nccl_needs := $(BUILD)/bin/rail-kit $(plugin_libs) $(emu_lib) $(ghost_libs)

bench-nccl:  ## every plugin under NCCL's own host code, with no GPU: RUN='--nccl libnccl.so.2 --plugin NAME=FILE'
	$(build_with) BUILD='$(BUILD)' $(bench_nccl_needs)
	@python3 bench/nccl.py --build '$(BUILD)' $(RUN)

bench_tls_needs := $(BUILD)/lib/libnccl-net-socket.so $(BUILD)/bin/rail-kit

bench-tls:  ## the socket plugin with RAIL_SOCKET_TLS beside itself without, and beside plain TCP and AES-GCM
	$(setup) build bench
	$(build_with) BUILD='$(BUILD)' $(bench_tls_needs)
	@python3 bench/tls.py --build '$(BUILD)' $(RUN)

bench-emu:  ## the emulated verbs device: messages and bytes per second between two processes, what connections cost
	$(setup) build
	$(build_with) BUILD='$(BUILD)' $(bench_emu_needs)
	@$(BUILD)/bench/emu_rate
	@echo 'ring 1024:' && RAIL_EMU='device emu0; device emu1; ring 1024' $(BUILD)/bench/emu_rate
	@$(if $(emu_cm_lib),$(BUILD)/bench/emu_peers,:)
	@$(if $(emu_lib),$(BUILD)/bench/ib_peers,:)

ib_failures_needs := $(BUILD)/test/fault/test_ib_every_index $(BUILD)/test/fault/test_ib_hours

ib-failures:  ## the ib plugin loses a port, a QP, a device at each of 10,000 messages, an hour; CASE=a_port_goes_down
	$(setup) build
	$(build_with) BUILD='$(BUILD)' $(BUILD)/lib/libnccl-net-ib.so $(emu_lib) $(ib_failures_needs)
	@RAIL_TEST_INDICES=0-9999 $(BUILD)/test/fault/test_ib_every_index $(CASE)
	@$(if $(CASE),:,$(BUILD)/test/fault/test_ib_hours)

kit-proof:  ## docs/results/kit-proof.md: planted defects and what rail-kit says of each
	$(setup) build
	$(build_with) BUILD='$(BUILD)' $(BUILD)/bin/rail-kit $(broken_libs)
	@RAIL_BUILD='$(BUILD)' python3 test/broken/proof.py --write docs/results/kit-proof.md $(RUN)

kit_nccl_proof_needs := $(patsubst %,$(BUILD)/%,bin/rail-kit lib/libnccl-net-socket.so test/libdefectnet.so) \
  $(ghost_libs)

kit-nccl-proof:  ## docs/results/kit-nccl-proof.md: the same of rail-kit nccl: RUN='--nccl libnccl.so.2', once a release
	$(build_with) BUILD='$(BUILD)' $(kit_nccl_proof_needs)
	@RAIL_BUILD='$(BUILD)' python3 test/broken/nccl_proof.py --write docs/results/kit-nccl-proof.md $(RUN)

# Also where nothing can be installed: what is there is built, or was built elsewhere. A machine with a GPU may be lent
# for minutes, and its compiler may be one that was never tried: the suite's time counts from here (make expands all of
# a recipe's lines before it runs the first); warnings are none of its business; what cannot be built is a failed step,
# and the rest is run. OUT is make lab's, too.
gpu_out = $(if $(filter file,$(origin OUT)),$(BUILD)/gpu-test,$(OUT))
gpu-test:  ## everything that wants a GPU; OUT=dir NCCL_TESTS=dir RUN='--only "3 NCCL"'; emulation where there is none
	@BUILD='$(BUILD)' timeout 60 bash config/setup.sh build || echo 'gpu-test: going on with what there is'
	+@mkdir -p '$(gpu_out)' && echo 0 >'$(gpu_out)/build.status' && echo 'building, see $(gpu_out)/build.log'; \
	  timeout --foreground -k 10 300 $(subst +,,$(build_with)) -k BUILD='$(BUILD)' SAN= WERROR=0 tests \
	  >'$(gpu_out)/build.log' 2>&1 || { echo $$? >'$(gpu_out)/build.status'; tail -n 20 '$(gpu_out)/build.log'; }
	@python3 test/gpu/suite.py --build '$(BUILD)' --out '$(gpu_out)' --began $(shell date +%s) \
	  --build-status "$$(cat '$(gpu_out)/build.status')" --nccl-tests '$(NCCL_TESTS)' $(RUN)

docs:  ## write the generated documents: docs/parameters.md and the man pages
	$(build_with) BUILD='$(BUILD)' all $(BUILD)/gen-params
	@bash config/docs.sh '$(BUILD)'

docs-check:  ## fail when a generated document is stale
	$(build_with) BUILD='$(BUILD)' all $(BUILD)/gen-params
	@bash config/docs.sh '$(BUILD)' check

lint:  ## headers alone, lengths, layers, clang-tidy, cppcheck
	$(setup) build lint
	@python3 config/lint.py
