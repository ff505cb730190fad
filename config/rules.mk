# SPDX-License-Identifier: Apache-2.0
# How things are built. What is built follows from where a file lies:
#   common/*/*.c          → librailcommon.a, linked into everything
#   common/net/abi*.c     → linked into each plugin, never into anything else
#   loader/*.c            → librailloader.a, for what loads plugins: the runtime, the kit, tools, plugin/railtrace
#   plugin/NAME/*.c       → lib/libnccl-net-NAME.so; libNAME.a for its unit tests, test/unit/test_PREFIX_*, and its fuzz
#                           targets. PREFIX is what its files begin with: plugin/NAME/PREFIX_main.c. build.mk beside it,
#                           if there is one, says what is special (below)
#   core/*/*.c            → lib/librailyard.so.VERSION with its links, and lib/nccl: the same under NCCL's names
#   kit/**.c              → librailkit.a, for tools and tests
#   emu/*.c               → lib/emu/libibverbs.so.1, for LD_LIBRARY_PATH and NCCL_IBVERBS_LIB
#   emu/cm/*.c            → lib/emu/librdmacm.so.1, for LD_LIBRARY_PATH
#   ghost/{driver,nccl}/*.c → lib/ghost/libcuda.so.1; there runtime/*.c → libcudart.so.12 and .13, nvml/*.c →
#                           libnvidia-ml.so.1
#   kit/preload/*.c       → lib/railyard/librail-fault.so, for LD_PRELOAD
#   tools/common/*.c      → linked into every tool that needs it
#   tools/NAME/*.c        → bin/NAME
#   test/KIND/*.c         → test/KIND/NAME, one program a file
#   test/fuzz/lib/*.c     → linked into each fuzz target; SAN=fuzz leaves main to clang's libFuzzer
#   test/preload/*.c      → test/libNAME.so, for LD_PRELOAD; test/preload/fakefabric/*.c → test/libfakefabric.so
#   core/device/*.cu      → device/core/device/NAME.o, where there is nvcc
#   test/gpu/*.cu         → test/gpu/NAME, where there is nvcc; test/gpu/coll/*.c → test/gpu/gpu_coll, everywhere
#   test/device/*.c, .cc  → linked into unit tests that name them: connections, the device's sources on the CPU
#   test/device/gpu/*.c   → test/libfakegpu.so, ghost's CUDA driver with the runtime's own kernel
#   test/broken/*.c       → test/broken/libnccl-net-ref.so, and a copy of it for each defect

common_src := $(filter-out common/net/abi%,$(wildcard common/*/*.c))
abi_src := $(wildcard common/net/abi*.c)
loader_src := $(wildcard loader/*.c)
core_src := $(filter-out %_impl.c,$(wildcard core/*/*.c))
fault_src := $(wildcard kit/preload/*.c)
# The kit reads the traces that plugin/railtrace writes.
kit_src := $(filter-out $(fault_src),$(wildcard kit/*.c kit/*/*.c)) $(wildcard plugin/railtrace/trace_*.c)
harness_src := $(wildcard test/harness/*.c)
fuzz_src := $(filter-out test/fuzz/lib/driver.c,$(wildcard test/fuzz/lib/*.c))
obj = $(patsubst %.c,$(O)/%.o,$(1))

# The vector reductions are one source compiled per instruction set, and every
# set must give the same bits: no fusing of a*b+c. The floating-point
# exception flags are not used; without -fno-trapping-math gcc does not vectorise selections between floats.
reduce_flags := -ffp-contract=off -fno-trapping-math
simd_x86_64 := avx2 avx512
simd := base $(simd_$(machine))
simd_flags_base :=
simd_flags_avx2 := -mavx2 -mfma -mf16c
simd_flags_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
simd_obj := $(if $(wildcard core/host/rt_reduce_impl.c),$(foreach s,$(simd),$(O)/core/host/rt_reduce_$(s).o))

COMMON_A := $(O)/librailcommon.a
LOADER_A := $(O)/librailloader.a
BASE_A := $(LOADER_A) $(COMMON_A)
CORE_A := $(O)/librailcore.a
KIT_A := $(if $(kit_src),$(O)/librailkit.a)
HARNESS_A := $(if $(harness_src),$(O)/libharness.a)
FUZZ_A := $(O)/libfuzz.a
FUZZ_MAIN := $(if $(filter fuzz,$(SAN)),,$(O)/test/fuzz/lib/driver.o)

# A plugin is whole when its operations table is there. What its build.mk may set, each optional:
#   needs_NAME       what config/probe.sh must have found: HAVE_VERBS. Else the plugin and its tests are left out
#   without_NAME     what is said then
#   libs_NAME        more for the linker: libraries
#   archives_NAME    archives of ours besides librailcommon.a: $(LOADER_A)
#   tests_need_NAME  what its unit tests and fuzz targets open
#   install_NAME     no: for this tree only
known_plugins := $(patsubst plugin/%/,%,$(sort $(dir $(wildcard plugin/*/*_main.c))))
include $(wildcard plugin/*/build.mk)
prefix_of = $(patsubst plugin/$(1)/%_main.c,%,$(wildcard plugin/$(1)/*_main.c))
missing_for = $(strip $(foreach n,$(needs_$(1)),$(if $($(n)),,$(n))))
left_out_plugins := $(foreach p,$(known_plugins),$(if $(call missing_for,$(p)),$(p)))
left_out_src := $(foreach p,$(left_out_plugins),plugin/$(p)/% \
  $(foreach x,$(call prefix_of,$(p)),test/unit/test_$(x)_% test/fuzz/$(x)_%))
plugins := $(filter-out $(left_out_plugins),$(known_plugins))
plugin_libs := $(foreach p,$(plugins),$(BUILD)/lib/libnccl-net-$(p).so)
installed_plugins := $(foreach p,$(plugins),$(if $(filter no,$(install_$(p))),,$(p)))
plugin_archives := $(foreach p,$(plugins),$(O)/plugin/lib$(p).a)
core_lib := $(if $(core_src),$(BUILD)/lib/librailyard.so)
stand_in := $(if $(core_lib),$(BUILD)/lib/nccl/libnccl.so.2 $(BUILD)/lib/nccl/libnccl.so)
tool_common_src := $(wildcard tools/common/*.c)
TOOL_A := $(if $(tool_common_src),$(O)/libtool.a)
runtime_tools := rail-coll rail-train
tools := $(foreach d,$(filter-out tools/common,$(wildcard tools/*)),$(if $(wildcard $(d)/*.c),$(notdir $(d))))
tool_bins := $(foreach t,$(tools),$(BUILD)/bin/$(t))
test_src := $(wildcard $(foreach k,unit contract verbs e2e fault fuzz lab gpu,test/$(k)/*.c))
test_src := $(filter-out $(if $(HAVE_VERBS),,test/verbs/%),$(test_src))
test_src := $(filter-out $(if $(HAVE_RDMACM),,test/verbs/test_emu_cm%),$(test_src))
test_src := $(filter-out $(left_out_src),$(test_src))
test_src := $(filter-out $(if $(HAVE_LIBFABRIC),,test/unit/test_fakefabric%),$(test_src))
test_src := $(filter-out $(if $(HAVE_CXX),,test/unit/test_device_% test/e2e/test_device_%),$(test_src))
test_bins := $(patsubst test/%.c,$(BUILD)/test/%,$(test_src))
helper_bins = $(patsubst test/%.c,$(BUILD)/test/%,$(shell grep -l 'TEST-HELPER' $(test_src)))
# Tests of the runtime's modules see internals: they link its objects, not the library.
core_tests := $(if $(core_src)$(simd_obj),$(if $(test_src),$(shell grep -lE '"(core/|rail/railyard)' $(test_src))))
fault_lib := $(BUILD)/lib/railyard/librail-fault.so
ghost_driver_src := $(wildcard ghost/driver/*.c)
ghost_libs := $(addprefix $(BUILD)/lib/ghost/,libcuda.so libcuda.so.1 libcudart.so.12 libcudart.so.13 libnvidia-ml.so.1)
emu_src := $(wildcard emu/*.c)
emu_lib := $(if $(HAVE_VERBS),$(BUILD)/lib/emu/libibverbs.so.1)
emu_cm_src := $(wildcard emu/cm/*.c)
emu_cm_lib := $(if $(HAVE_VERBS),$(if $(HAVE_RDMACM),$(BUILD)/lib/emu/librdmacm.so.1))
preload_src := $(wildcard test/preload/*.c)
preload_libs := $(patsubst test/preload/%.c,$(BUILD)/test/lib%.so,$(preload_src))
preload_libs += $(if $(HAVE_CXX),$(BUILD)/test/libfakegpu.so)
preload_libs += $(if $(HAVE_LIBFABRIC),$(BUILD)/test/libfakefabric.so)
# The defects are the rows of a table: X(NAME, "what", "where from").
defects := $(shell sed -n 's/^ *X.\([a-z0-9_]*\), ".*/\1/p' test/broken/ref_defects.h 2>/dev/null)
broken_libs := $(BUILD)/test/broken/libnccl-net-ref.so \
  $(patsubst %,$(BUILD)/test/broken/libnccl-net-broken-%.so,$(defects))

# A public header, so it is in the tree; make lint and those who only read need no build.
include/rail/version.h: VERSION config/version.sh
	$(Q)bash config/version.sh $@

$(BUILD)/config.mk: config/probe.sh include/rail/version.h
	@mkdir -p $(@D)
	$(Q)CC='$(CC)' SAN='$(SAN)' bash config/probe.sh > $@.tmp && mv $@.tmp $@

# What the probe found is in the flags: when a package that was missing is there, objects are made anew.
$(O)/%.o: %.c config/flags.mk $(BUILD)/config.mk
	@mkdir -p $(@D)
	@$(if $(V),,echo "  CC      $<")
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(cflags_$(firstword $(subst /, ,$<))) -MMD -MP -c $< -o $@

$(O)/%.o: %.cc config/flags.mk $(BUILD)/config.mk
	@mkdir -p $(@D)
	@$(if $(V),,echo "  CXX     $<")
	$(Q)$(CC) -x c++ $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) -MMD -MP -c $< -o $@

# What another compiler says of every source, without compiling it.
syntax_src := $(filter-out %_impl.c $(left_out_src) $(if $(HAVE_VERBS),,emu/% test/verbs/%) \
  $(if $(emu_cm_lib),,emu/cm/% test/verbs/test_emu_cm%), \
  $(shell find common loader core kit plugin tools test config emu ghost -name '*.c'))
syntax_src += $(if $(HAVE_CXX),$(wildcard test/device/*.cc))
syntax_ok := $(addsuffix .ok,$(addprefix $(O)/,$(syntax_src))) $(foreach s,$(simd),$(O)/core/host/rt_reduce_$(s).ok)
$(O)/%.c.ok: %.c config/flags.mk | $(BUILD)/config.mk
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(cflags_$(firstword $(subst /, ,$<))) -fsyntax-only \
	  -MMD -MP -MF $(@:.ok=.d) -MT $@ $< && touch $@
$(O)/%.cc.ok: %.cc config/flags.mk | $(BUILD)/config.mk
	@mkdir -p $(@D)
	$(Q)$(CC) -x c++ $(ALL_CPPFLAGS) $(ALL_CXXFLAGS) -fsyntax-only -MMD -MP -MF $(@:.ok=.d) -MT $@ $< && touch $@
$(O)/core/host/rt_reduce_%.ok: core/host/rt_reduce_impl.c config/flags.mk | $(BUILD)/config.mk
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(simd_flags_$*) $(reduce_flags) -DRT_SIMD=$* -fsyntax-only \
	  -MMD -MP -MF $(@:.ok=.d) -MT $@ $< && touch $@

# Kernels for GPUs, once, in the plain build.
device_src := $(wildcard core/device/*.cu test/device/*.cu test/gpu/*.cu)
device_objs := $(if $(HAVE_NVCC),$(if $(SAN)$(filter-out gcc,$(notdir $(CC))),,$(device_src:%.cu=$(BUILD)/device/%.o)))
$(BUILD)/device/%.o: %.cu config/flags.mk | $(BUILD)/config.mk
	@mkdir -p $(@D)
	@$(if $(V),,echo "  NVCC    $<")
	$(Q)$(NVCC_CACHE) $(NVCC) $(ALL_NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

# Programs with kernels bring CUDA's runtime along: where they run there needs to be a driver only.
gpu_bins := $(if $(device_objs),$(patsubst %.cu,$(BUILD)/%,$(wildcard test/gpu/*.cu))) $(BUILD)/test/gpu/gpu_coll
gpu_kernels := $(patsubst %.cu,$(BUILD)/device/%.o,$(wildcard core/device/*.cu test/device/*.cu))
gpu_objs_kernels := $(addprefix test/device/,bulk.o cases.o pairs.o)
gpu_objs_blocks := $(addprefix test/device/,block_case.o link.o)
define gpu_rule
$(BUILD)/test/gpu/$(1): $(BUILD)/device/test/gpu/$(1).o $$(gpu_kernels) \
  $(addprefix $(O)/,$(gpu_objs_$(1))) $(CORE_A) $(BASE_A)
	@mkdir -p $$(@D)
	@$$(if $$(V),,echo "  NVLINK  $$@")
	$$(Q)$(NVCC) $$(filter %.o,$$^) $(CORE_A) $(BASE_A) -lm -ldl -lrt -lpthread -o $$@
endef
$(foreach p,$(if $(device_objs),$(basename $(notdir $(wildcard test/gpu/*.cu)))),$(eval $(call gpu_rule,$(p))))

$(BUILD)/test/gpu/gpu_coll: $(call obj,$(wildcard test/gpu/coll/*.c)) $(HARNESS_A) $(KIT_A) $(BASE_A)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -ldl -lm -o $@

# The kernels as bytes of the runtime's library: what nvcc put into the object for the linker of CUDA programs.
image_obj := $(O)/core/gpu/rt_image.o
image := $(if $(device_objs),$(BUILD)/device/kernels.fatbin)
$(BUILD)/device/kernels.fatbin: $(BUILD)/device/core/device/rd_kernels.o
	$(Q)$(OBJCOPY) -O binary --only-section=.nv_fatbin $< $@
$(image_obj): core/gpu/rt_image.S $(image) | $(BUILD)/config.mk
	@mkdir -p $(@D)
	@$(if $(V),,echo "  AS      $<")
	$(Q)$(CC) $(if $(image),-DRT_IMAGE='"$(image)"') -c $< -o $@

$(O)/core/host/%.o: OPT := $(if $(DEBUG),-O1,-O3)

$(O)/core/host/rt_reduce_%.o: core/host/rt_reduce_impl.c config/flags.mk $(BUILD)/config.mk
	@mkdir -p $(@D)
	@$(if $(V),,echo "  CC      $< ($*)")
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(simd_flags_$*) $(reduce_flags) -DRT_SIMD=$* -MMD -MP -c $< -o $@

$(O)/librailcommon.a: $(call obj,$(common_src))
$(O)/librailloader.a: $(call obj,$(loader_src))
$(O)/librailcore.a: $(call obj,$(core_src)) $(simd_obj) $(image_obj)
$(O)/librailkit.a: $(call obj,$(kit_src))
$(O)/libharness.a: $(call obj,$(harness_src))
# libFuzzer is to learn from the product and from the targets, not from what they share.
not_fuzzed := $(fuzz_src) $(emu_src) $(emu_cm_src)
$(call obj,$(not_fuzzed)): private CFLAGS += $(if $(filter fuzz,$(SAN)),-fno-sanitize=fuzzer-no-link)
$(O)/libtool.a: $(call obj,$(tool_common_src))
$(O)/libfuzz.a: $(call obj,$(fuzz_src))
$(foreach p,$(plugins),$(eval $(O)/plugin/lib$(p).a: $(call obj,$(wildcard plugin/$(p)/*.c) $(abi_src))))
$(O)/%.a:
	@mkdir -p $(@D)
	@$(if $(V),,echo "  AR      $@")
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# A plugin: its own files, the shims, what it needs of common. The version
# script leaves only ncclNetPlugin_v6 … _v12 visible.
define plugin_rule
$(BUILD)/lib/libnccl-net-$(1).so: $(call obj,$(wildcard plugin/$(1)/*.c) $(abi_src)) $(archives_$(1)) $(COMMON_A) \
  config/plugin.map
	@mkdir -p $$(@D)
	@$$(if $$(V),,echo "  LD      $$@")
	$$(Q)$$(CC) $$(ALL_LDFLAGS) $$(SO_LDFLAGS) -Wl,--version-script=config/plugin.map -Wl,-soname,$$(@F) \
	  $$(filter %.o,$$^) $(archives_$(1)) $(COMMON_A) $(libs_$(1)) -ldl -o $$@
endef
$(foreach p,$(plugins),$(eval $(call plugin_rule,$(p))))

# RAIL_NAME_* of any plugin in the tree is never warned about as an unknown parameter.
plugin_prefixes := $(foreach p,$(shell echo '$(known_plugins)' | tr a-z A-Z),"RAIL_$(p)_*",)
$(O)/common/base/param_names.o $(O)/common/base/param_names.c.ok: \
  CPPFLAGS += -DRAIL_PLUGIN_PREFIXES='$(plugin_prefixes)'
$(O)/common/base/param_names.o: plugin

# librailyard.so is what the linker looks for, librailyard.so.0 what programs then ask for. The number in it is the
# version's first one.
soname := librailyard.so.$(firstword $(subst ., ,$(VERSION)))
$(BUILD)/lib/librailyard.so.$(VERSION): $(call obj,$(core_src)) $(simd_obj) $(image_obj) $(BASE_A) config/railyard.map
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $(SO_LDFLAGS) -Wl,--version-script=config/railyard.map -Wl,-soname,$(soname) \
	  $(filter %.o,$^) $(BASE_A) -ldl -lm -lrt -o $@
$(BUILD)/lib/$(soname): $(BUILD)/lib/librailyard.so.$(VERSION)
	$(Q)ln -sfn $(<F) $@
$(BUILD)/lib/librailyard.so: $(BUILD)/lib/$(soname)
	$(Q)ln -sfn $(<F) $@

# A folder of its own, for LD_LIBRARY_PATH and -L: without them it is not taken for libnccl.
$(BUILD)/lib/nccl/libnccl.so.2: | $(core_lib)
	@mkdir -p $(@D)
	$(Q)ln -sfn ../$(soname) $@
$(BUILD)/lib/nccl/libnccl.so: | $(BUILD)/lib/nccl/libnccl.so.2
	$(Q)ln -sfn libnccl.so.2 $@

# Static, as above; the one file that reads JSON says what is missing without it.
libs_tool_rail-kit = $(if $(HAVE_JANSSON),-l:libjansson.a)
$(O)/kit/bench/bench_compare.o: CPPFLAGS += $(if $(HAVE_JANSSON),-DRAIL_HAVE_JANSSON)
$(BUILD)/bin/rail-kit: | $(BUILD)/share/railyard/plot.py

$(BUILD)/share/railyard/plot.py: kit/plot.py
	@mkdir -p $(@D)
	$(Q)install -m 755 $< $@

# The file, the tool's name, more objects.
rpath = -Wl,-rpath,'$$ORIGIN/../lib'
define tool_rule
$(1): $(call obj,$(wildcard tools/$(2)/*.c)) $(3) $(TOOL_A) $(KIT_A) $(BASE_A) | $(core_lib)
	@mkdir -p $$(@D)
	@$$(if $$(V),,echo "  LD      $$@")
	$$(Q)$$(CC) $$(ALL_LDFLAGS) $$(filter %.o,$$^) $(TOOL_A) $(KIT_A) $(BASE_A) \
	  $$(if $$(filter $(2),$(runtime_tools)),-L$(BUILD)/lib -lrailyard $$(rpath)) \
	  $$(libs_tool_$(2)) -ldl -lm -o $$@
endef
comma := ,
$(foreach t,$(tools),$(eval $(call tool_rule,$(BUILD)/bin/$(t),$(t))))

# A driver of its own, for programs that have device buffers. Sanitized as what it runs in: its threads are the kernels.
fakegpu_src := $(ghost_driver_src) $(wildcard test/device/gpu/*.c)
$(BUILD)/test/libfakegpu.so: $(call obj,$(fakegpu_src)) $(O)/test/device/emu_collective.o
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -shared $(filter %.o,$^) -lm -o $@

# End-to-end programs use the public library as a user would.
$(BUILD)/test/e2e/%: $(O)/test/e2e/%.o $(HARNESS_A) $(KIT_A) $(BASE_A) | $(core_lib)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(TEST_LDFLAGS) $< $(HARNESS_A) $(KIT_A) $(BASE_A) \
	  $(if $(core_lib),-L$(BUILD)/lib -lrailyard -Wl$(comma)-rpath$(comma)'$$ORIGIN/../../lib') -ldl -lm -o $@

$(patsubst test/%.c,$(BUILD)/test/%,$(filter-out test/e2e/% test/fuzz/%,$(core_tests))): $(CORE_A)

# Fuzz targets see the runtime's internals, the kit's, and those of the plugin whose prefix their name begins with.
$(BUILD)/test/fuzz/%: $(O)/test/fuzz/%.o $(FUZZ_MAIN) $(FUZZ_A) $(CORE_A) $(KIT_A) $(BASE_A)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(TEST_LDFLAGS) $(if $(FUZZ_MAIN),,-fsanitize=fuzzer) $(filter %.o,$^) $(FUZZ_A) \
	  $(filter $(plugin_archives),$^) $(CORE_A) $(KIT_A) $(BASE_A) $(test_libs) -ldl -lm -lrt -o $@

# test_objs_NAME: objects outside the libraries that the unit or fault test NAME needs.
test_objs_test_abi := $(patsubst %.c,%.o,$(abi_src))
test_objs_test_tools := tools/common/fork.o tools/rail-stat/snapshot.o
test_objs_test_coll_check := tools/rail-coll/verify.o tools/rail-coll/types.o tools/common/options.o
test_objs_test_device_reduce := $(addprefix test/device/,bulk.o cases.o pairs.o emu_reduce.o)
test_objs_test_device_fifo := test/device/emu_fifo.o
test_objs_test_ghost := ghost/nccl/gh_layout.o
test_objs_test_ghost_releases := ghost/nccl/gh_layout.o
test_objs_test_device_native := $(addprefix test/device/,native.o pairs.o)
test_objs_test_device_block := $(addprefix test/device/,emu_collective.o block_case.o link.o)
test_objs_test_program := test/device/link.o
test_objs_test_tree := test/device/link.o
$(foreach t,$(filter test/unit/% test/fault/%,$(test_src)),$(eval \
  $(patsubst test/%.c,$(BUILD)/test/%,$(t)): $(addprefix $(O)/,$(test_objs_$(basename $(notdir $(t)))))))

# Unit tests and fuzz targets of a plugin see all of it. No program sees two: each defines rail_plugin_ops.
define plugin_tests_rule
plugin_tests_$(1) := $(patsubst test/%.c,$(BUILD)/test/%,$(filter test/unit/test_$(2)_% test/fuzz/$(2)_%,$(test_src)))
$$(plugin_tests_$(1)): $(O)/plugin/lib$(1).a $(archives_$(1)) | $(tests_need_$(1))
$$(plugin_tests_$(1)): test_libs := $(libs_$(1))
endef
$(foreach p,$(plugins),$(foreach x,$(call prefix_of,$(p)),$(eval $(call plugin_tests_rule,$(p),$(x)))))

# Linked with the emulated library; the library path chooses another one.
$(filter $(BUILD)/test/verbs/test_emu_cm%,$(test_bins)): $(emu_cm_lib)
$(BUILD)/test/verbs/%: $(O)/test/verbs/%.o $(HARNESS_A) $(BASE_A) $(emu_lib)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(TEST_LDFLAGS) $(filter %.o,$^) $(filter %/librdmacm.so.1,$^) $(emu_lib) \
	  -Wl,-rpath,'$$ORIGIN/../../lib/emu' $(HARNESS_A) $(BASE_A) \
	  -ldl -o $@

$(BUILD)/test/%: $(O)/test/%.o $(KIT_A) $(HARNESS_A) $(BASE_A)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(TEST_LDFLAGS) $(filter %.o,$^) $(filter $(CORE_A) $(plugin_archives),$^) $(HARNESS_A) $(KIT_A) $(BASE_A) \
	  $(test_libs) -ldl -lm -lrt -o $@

# Opened, not linked.
$(addprefix $(BUILD)/test/unit/test_,ghost ghost_driver ghost_releases): | $(ghost_libs) $(BUILD)/test/libghostnccl.so
$(BUILD)/test/verbs/test_emu_gpu: | $(ghost_libs)

# Little plugins that test_netload opens.
$(BUILD)/test/unit/test_netload: | $(filter $(BUILD)/test/libnetfix_%,$(preload_libs))

# What callgrind looks at: one plugin, driven by a fixed list of calls.
$(BUILD)/bench/exchange: $(O)/bench/exchange.o $(KIT_A) $(BASE_A)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -ldl -lm -o $@

# It opens plugin and device by their paths.
$(BUILD)/bench/ib_peers: $(O)/bench/ib_peers.o $(KIT_A) $(BASE_A) | $(BUILD)/lib/libnccl-net-ib.so $(emu_lib)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -ldl -lm -o $@

# A libibverbs.so.1 without hardware. Its names are versioned as rdma-core's, and it never calls the installed library.
cflags_emu := -fvisibility=default
$(O)/emu/symbols.map: config/emu_symbols.sh
	@mkdir -p $(@D)
	$(Q)bash config/emu_symbols.sh $@ $(@D)/symbols.c
$(O)/emu/symbols.o: $(O)/emu/symbols.map
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(cflags_emu) -c $(@D)/symbols.c -o $@
$(BUILD)/lib/emu/libibverbs.so.1: $(call obj,$(emu_src)) $(O)/emu/symbols.o $(O)/emu/symbols.map
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $(SO_LDFLAGS) -Wl,--version-script=$(O)/emu/symbols.map -Wl,-Bsymbolic \
	  -Wl,-soname,$(@F) $(filter %.o,$^) -o $@ && ln -sf $(@F) $(@:.1=)  # which NCCL's own transport asks for first

# A librdmacm.so.1 on top of it.
$(BUILD)/lib/emu/librdmacm.so.1: $(call obj,$(emu_cm_src)) $(emu_lib) config/emu_cm.map
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $(SO_LDFLAGS) -Wl,--version-script=config/emu_cm.map -Wl,-Bsymbolic -Wl,-soname,$(@F) \
	  $(filter %.o,$^) $(emu_lib) -Wl,-rpath,'$$ORIGIN' -o $@

$(BUILD)/bench/emu_peers: $(emu_cm_lib)
$(BUILD)/bench/emu_rate $(BUILD)/bench/emu_peers: $(BUILD)/bench/%: $(O)/bench/%.o $(emu_lib)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(filter %.so.1,$^) -Wl,-rpath,'$$ORIGIN/../lib/emu' -ldl -o $@

# A GPU without a GPU, for the library path of programs that open or were linked with CUDA's libraries.
ghost_ld = @mkdir -p $(@D); $(if $(V),,echo "  LD      $@";) $(CC) $(ALL_LDFLAGS) $(SO_LDFLAGS) -Wl,-soname,$(@F)
$(BUILD)/lib/ghost/libcuda.so.1: $(call obj,$(ghost_driver_src) $(wildcard ghost/nccl/*.c))
	$(ghost_ld) $^ -ldl -lm -o $@
# The name that aws-ofi-nccl opens.
$(BUILD)/lib/ghost/libcuda.so: | $(BUILD)/lib/ghost/libcuda.so.1
	$(Q)ln -sfn libcuda.so.1 $@
$(BUILD)/lib/ghost/libnvidia-ml.so.1: $(call obj,$(wildcard ghost/nvml/*.c)) $(BUILD)/lib/ghost/libcuda.so.1
	$(ghost_ld) $^ -Wl,-rpath,'$$ORIGIN' -o $@
# Two releases of one source: what the calls write differs. Programs name the symbols with the library's name.
define cudart_rule
$(O)/ghost/runtime.$(1)/%.o: ghost/runtime/%.c config/flags.mk $(BUILD)/config.mk
	@mkdir -p $$(@D)
	@$$(if $$(V),,echo "  CC      $$< ($(1))")
	$$(Q)$$(CC) $$(ALL_CPPFLAGS) $$(ALL_CFLAGS) -DGH_RT_VERSION=$(2) -MMD -MP -c $$< -o $$@
$(O)/ghost/runtime.$(1)/symbols.map: config/rules.mk
	@mkdir -p $$(@D)
	$$(Q)echo 'libcudart.so.$(1) { global: cuda*; __cuda*; local: *; };' >$$@
$(BUILD)/lib/ghost/libcudart.so.$(1): \
  $(patsubst ghost/runtime/%.c,$(O)/ghost/runtime.$(1)/%.o,$(wildcard ghost/runtime/*.c)) \
  $(BUILD)/lib/ghost/libcuda.so.1 $(O)/ghost/runtime.$(1)/symbols.map
	$$(ghost_ld) -Wl,--version-script=$(O)/ghost/runtime.$(1)/symbols.map $$(filter-out %.map,$$^) \
	  -Wl,-rpath,'$$$$ORIGIN' -ldl -o $$@
endef
$(eval $(call cudart_rule,12,12080))
$(eval $(call cudart_rule,13,13000))

# Beside any program, sanitized or not: never sanitized itself, and alone.
$(fault_lib): $(fault_src) $(wildcard kit/preload/*.h) config/flags.mk
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) -D_GNU_SOURCE -I. -std=c11 -O2 -g -fPIC -fvisibility=hidden $(warnings) -shared $(fault_src) \
	  -Wl,-soname,$(@F) -ldl -o $@

# A wrapper and the plugin that it wraps.
$(BUILD)/test/unit/test_railtrace $(BUILD)/test/unit/test_railtrace_record: \
  | $(BUILD)/lib/libnccl-net-railtrace.so $(BUILD)/test/libtracefix.so

# Opened as a libfabric by the ofi plugin (RAIL_OFI_LIBRARY), and by tests that script its failures. It has copying
# functions of its own, so that no sanitizer of the program sees what it moves; ff.h says what it tells them.
$(BUILD)/test/libfakefabric.so: $(wildcard test/preload/fakefabric/*.c) $(wildcard test/preload/fakefabric/*.h) \
  test/preload/fakefabric/ff.map
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_CPPFLAGS) -std=c11 -O2 -g -fPIC -fno-builtin -pthread $(warnings) -shared -Wl,-z,defs \
	  -Wl,--version-script=test/preload/fakefabric/ff.map $(filter %.c,$^) -o $@
$(BUILD)/test/unit/test_fakefabric $(BUILD)/test/unit/test_fakefabric_faults: | $(BUILD)/test/libfakefabric.so

# By this name a program that has opened it finds it again as the driver.
$(BUILD)/test/libfakecuda.so: ldflags_preload := -Wl,-soname,libcuda.so.1
$(BUILD)/test/lib%.so: test/preload/%.c $(wildcard test/preload/*.h)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_CPPFLAGS) -std=c11 -O2 -g -fPIC $(warnings) -shared $(ldflags_preload) $< -ldl -o $@

# The reference plugin stands alone, as one from elsewhere would: nothing of common/.
$(BUILD)/test/broken/libnccl-net-ref.so: $(call obj,$(wildcard test/broken/*.c)) config/plugin.map
	@mkdir -p $(@D)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $(SO_LDFLAGS) -Wl,--version-script=config/plugin.map $(filter %.o,$^) -ldl -o $@

# Copies, not links: a process that opens two of them must get two.
$(BUILD)/test/broken/libnccl-net-broken-%.so: $(BUILD)/test/broken/libnccl-net-ref.so
	$(Q)cp $< $@

# The parameter tables of every module, for docs/parameters.md.
# Those of plugins that are left out, too.
gen_params_obj := config/gen_params.o core/comm/rt_param.o core/comm/rt_conf.o \
  $(foreach p,$(known_plugins),plugin/$(p)/$(call prefix_of,$(p))_param.o)
$(O)/config/gen_params.o $(O)/config/gen_params.c.ok: CPPFLAGS += \
  -DPLUGIN_TABLES='$(foreach p,$(known_plugins),TABLE($(call prefix_of,$(p))_param_table))'
$(O)/config/gen_params.o: plugin
$(BUILD)/gen-params: $(addprefix $(O)/,$(gen_params_obj)) $(BASE_A)
	@$(if $(V),,echo "  LD      $@")
	$(Q)$(CC) $(ALL_LDFLAGS) $^ -o $@

# Without it make looks for ways to remake the lists below, and finds rt_reduce_%.o.
$(O)/%.d $(BUILD)/device/%.d: ;

.SECONDARY:
-include $(shell find $(O) $(BUILD)/device -name '*.d' 2>/dev/null)
