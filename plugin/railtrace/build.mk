# SPDX-License-Identifier: Apache-2.0
# It loads the plugin that it wraps.
archives_railtrace := $(LOADER_A)
