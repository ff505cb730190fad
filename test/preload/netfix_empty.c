/* SPDX-License-Identifier: Apache-2.0
 * A library that is no plugin. */
int netfix_empty_is_no_plugin(void);
int netfix_empty_is_no_plugin(void) { return 1; }
