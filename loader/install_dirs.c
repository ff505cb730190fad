/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/install_dirs.h"

#ifndef RAIL_LIB_FROM_BIN
#define RAIL_LIB_FROM_BIN "../lib"
#define RAIL_DATA_FROM_BIN "../share"
#endif

const char rail_lib_from_bin[] = RAIL_LIB_FROM_BIN;
const char rail_data_from_bin[] = RAIL_DATA_FROM_BIN;
