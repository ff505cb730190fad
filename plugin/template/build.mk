# SPDX-License-Identifier: Apache-2.0
# An example for those who write a plugin (docs/write-a-plugin.md): built and tested with the rest, not installed.
install_template := no
