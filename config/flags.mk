# SPDX-License-Identifier: Apache-2.0
# Compiler flags, a reason for each that is not obvious.

WERROR ?= 1
# Sanitized code has -O2, too. -O1 compiles a third faster, but makes each memcmp a call that the sanitizer intercepts:
# unit/test_replay takes 271 s under the thread sanitizer instead of 4.
OPT := $(if $(DEBUG),-O1,-O2)
# The tests' own sources, half of what is compiled for a sanitizer, have -O1 there, with the pass that compares a few
# bytes in place. clang has no such option.
san_opt := -O1 -foptimize-strlen
ifneq ($(if $(SAN),$(shell $(CC) -Werror $(san_opt) -x c -fsyntax-only /dev/null 2>/dev/null && echo 1)),)
$(O)/test/%.o: OPT := $(san_opt)
endif
# So have the test programs' in the plain build, half of its sources, with lines for a debugger; DEBUG=1 has all.
test_programs := $(foreach k,unit contract verbs e2e fault fuzz,$(O)/test/$(k)/%.o)
ifeq ($(SAN)$(DEBUG),)
$(test_programs): OPT := -O1
$(test_programs): debug_info := -g1
endif

warnings := -Wall -Wextra
warnings += -Wshadow              # a second `ret` in an inner block hides an error
warnings += -Wmissing-prototypes  # every function is static or in a header
warnings += -Wstrict-prototypes
warnings += -Wformat=2            # formats from variables
warnings += -Wwrite-strings
warnings += -Wcast-function-type  # vtable slots must match exactly
warnings += -Wvla                 # stack use stays bounded
warnings += -Wpointer-arith
warnings += -Wundef
warnings += -Wimplicit-fallthrough
warnings += $(if $(filter 1,$(WERROR)),-Werror)

san_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
san_tsan := -fsanitize=thread -fno-omit-frame-pointer
# What make fuzz builds with clang; libFuzzer itself is linked into the targets alone.
san_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
san_flags := $(if $(SAN),$(san_$(SAN)))

# _GNU_SOURCE: accept4, pipe2, sched affinity. -fvisibility=hidden: a shared
# object exports what its version script names and RAIL_EXPORT marks, nothing else.
have_flags = $(if $(HAVE_LIBELF),-DRAIL_HAVE_LIBELF) $(if $(HAVE_OPENSSL),-DRAIL_HAVE_OPENSSL)
ALL_CPPFLAGS = -D_GNU_SOURCE -Iinclude -I. $(have_flags) $(CPPFLAGS)
# Lines are what a sanitizer's report needs; all of it takes a tenth of the time.
debug_info := $(if $(SAN),$(if $(DEBUG),-g,-g1),-g)
ALL_CFLAGS = -std=c11 $(OPT) $(debug_info) -fPIC -fvisibility=hidden -pthread $(warnings) $(san_flags) $(CFLAGS)
# C++ is for the device's sources only. They name CUDA's pragmas, read memory of any type in words of any size, round as
# the host's kernels do, and use nothing of C++'s runtime library: programs are linked by the C compiler.
c_only := -std=c11 -Wmissing-prototypes -Wstrict-prototypes
ALL_CXXFLAGS = $(filter-out $(c_only),$(ALL_CFLAGS)) -std=c++17 -Wno-unknown-pragmas -Wno-pass-failed \
  -fno-strict-aliasing -ffp-contract=off -fno-exceptions -fno-rtti -fno-threadsafe-statics
# SASS for three generations of GPUs, PTX for those to come. From two PTXs, making which is most of the time: only the
# second has instructions for fp8. -fmad=false is nvcc's -ffp-contract=off.
device_arch := -gencode 'arch=compute_80,code=[sm_80,compute_80]' \
  -gencode 'arch=compute_90,code=[sm_90,sm_100,compute_90]'
ALL_NVCCFLAGS = -std=c++17 -O3 -fmad=false -Xcompiler -fPIC,-Wall $(if $(filter 1,$(WERROR)),-Werror all-warnings) \
  $(device_arch) -D_GNU_SOURCE -Iinclude -I.
ALL_LDFLAGS = -pthread $(san_flags) $(LDFLAGS)
# Hundreds of test programs, each with the static libraries: ld takes 0.2 s of a processor for one, gold 0.07.
TEST_LDFLAGS = $(TEST_LD) $(ALL_LDFLAGS)
SO_LDFLAGS = -shared -Wl,-z,relro,-z,now $(if $(SAN),,-Wl,-z,defs)
