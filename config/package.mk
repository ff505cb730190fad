# SPDX-License-Identifier: Apache-2.0
# What is installed where, and packages.

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
MANDIR ?= $(DATADIR)/man
DOCDIR ?= $(DATADIR)/doc/railyard
DESTDIR ?=

.PHONY: install uninstall deb rpm test-packages FORCE

# rail-train is the demonstration's: it wants its data, which lies in the source tree.
installed_tools := $(filter-out rail-train,$(tools))

# Programs find their libraries and scripts by the way from their own folder. That is ../lib and ../share in the build
# tree and under a PREFIX, and they are installed as they are. For other folders they are linked once more.
from_bin = $(shell realpath -m -s --relative-to='$(BINDIR)' '$(1)')
places_differ = $(filter-out ../lib ../share,$(call from_bin,$(LIBDIR)) $(call from_bin,$(DATADIR)))
# The loader looks there by itself; distributions want no other path in a program then.
triplet = $(shell $(CC) -print-multiarch 2>/dev/null)
loader_dirs = /lib /usr/lib /lib64 /usr/lib64 /lib/$(triplet) /usr/lib/$(triplet)
relinked := $(addprefix $(BUILD)/relinked/,$(installed_tools))

$(O)/relinked/install_dirs.o: loader/install_dirs.c FORCE
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -DRAIL_LIB_FROM_BIN='"$(call from_bin,$(LIBDIR))"' \
	  -DRAIL_DATA_FROM_BIN='"$(call from_bin,$(DATADIR))"' -c $< -o $@
$(relinked): rpath = $(if $(filter $(LIBDIR),$(loader_dirs)),,-Wl,-rpath,'$$ORIGIN/$(call from_bin,$(LIBDIR))')
$(foreach t,$(installed_tools),$(eval $(call tool_rule,$(BUILD)/relinked/$(t),$(t),$(O)/relinked/install_dirs.o)))
FORCE:

install_sh = @BUILD='$(BUILD)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' BINDIR='$(BINDIR)' LIBDIR='$(LIBDIR)' \
  INCLUDEDIR='$(INCLUDEDIR)' DATADIR='$(DATADIR)' MANDIR='$(MANDIR)' DOCDIR='$(DOCDIR)' VERSION='$(VERSION)' \
  PLUGINS='$(installed_plugins)' bash config/install.sh

install: all  ## copy everything under DESTDIR; PREFIX, BINDIR, LIBDIR, INCLUDEDIR, DATADIR, MANDIR, DOCDIR say where to
	$(if $(places_differ),+$(Q)$(MAKE) BUILD='$(BUILD)' $(relinked))
	$(install_sh) install $(addprefix $(BUILD)/$(if $(places_differ),relinked,bin)/,$(installed_tools))

uninstall:  ## remove what install put there, with the same variables
	$(install_sh) uninstall

deb:  ## Debian packages, in build/deb
	$(setup) build deb
	$(Q)bash config/package.sh deb '$(BUILD)/deb' '$(VERSION)' '$(JOBS)'

rpm:  ## RPM packages, in build/rpm
	$(setup) build rpm
	$(Q)bash config/package.sh rpm '$(BUILD)/rpm' '$(VERSION)' '$(JOBS)'

# Beside make test: building them takes more than a minute of CPU each, without a compiler cache.
test-packages: deb rpm  ## build both kinds and try them: lintian, installed in a minimal Debian, the RPMs' contents
	@bash test/package/test_deb.sh '$(BUILD)/deb'
	@bash test/package/test_rpm.sh '$(BUILD)/rpm'
