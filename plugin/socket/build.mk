# SPDX-License-Identifier: Apache-2.0
# Static, so that the plugin loads where there is no liburing.so.
libs_socket := $(if $(HAVE_URING),-l:liburing.a)
