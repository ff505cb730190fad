#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config/emu_symbols.sh OUT.map OUT.c
# The version script of the emulated libibverbs.so.1, and entries for what other libraries use of the installed one.
#
# libmlx5, libefa and librdmacm, which perftest links, ask at load for private names of rdma-core's library, whose
# version changes with its release (IBVERBS_PRIVATE_34 in Debian 12). They are looked up in the installed library. Here
# they fail with EOPNOTSUPP: there is no kernel device for them to use.
set -euo pipefail
map=$1 source=$2
cat >"$map" <<'END'
IBVERBS_1.0 {
  global:
    ibv_get_sysfs_path; ibv_read_sysfs_file; ibv_create_comp_channel; ibv_destroy_comp_channel;
    ibv_rate_to_mult; mult_to_ibv_rate; ibv_copy_path_rec_from_kern; ibv_copy_path_rec_to_kern;
    ibv_copy_qp_attr_from_kern;
  local: *;
};
IBVERBS_1.1 {
  global:
    ibv_get_device_list; ibv_free_device_list; ibv_get_device_name; ibv_get_device_guid; ibv_open_device;
    ibv_close_device; ibv_get_async_event; ibv_ack_async_event; ibv_query_device; ibv_query_port; ibv_query_gid;
    ibv_query_pkey; ibv_alloc_pd; ibv_dealloc_pd; ibv_reg_mr; ibv_rereg_mr; ibv_dereg_mr; ibv_create_cq;
    ibv_resize_cq; ibv_destroy_cq; ibv_get_cq_event; ibv_ack_cq_events; ibv_create_srq; ibv_modify_srq;
    ibv_query_srq; ibv_destroy_srq; ibv_create_qp; ibv_query_qp; ibv_modify_qp; ibv_destroy_qp; ibv_create_ah;
    ibv_destroy_ah; ibv_init_ah_from_wc; ibv_create_ah_from_wc; ibv_attach_mcast; ibv_detach_mcast;
    ibv_fork_init; ibv_dontfork_range; ibv_dofork_range; ibv_rate_to_mbps; mbps_to_ibv_rate;
    ibv_node_type_str; ibv_port_state_str; ibv_event_type_str; ibv_wc_status_str; ibv_copy_ah_attr_from_kern;
    ibv_resolve_eth_l2_from_gid;
} IBVERBS_1.0;
IBVERBS_1.5 { global: ibv_get_pkey_index; } IBVERBS_1.1;
IBVERBS_1.6 { global: ibv_qp_to_qp_ex; } IBVERBS_1.5;
IBVERBS_1.7 { global: ibv_reg_mr_iova; } IBVERBS_1.6;
IBVERBS_1.8 { global: ibv_reg_mr_iova2; } IBVERBS_1.7;
IBVERBS_1.9 { global: ibv_get_device_index; } IBVERBS_1.8;
IBVERBS_1.10 { global: ibv_query_ece; ibv_set_ece; } IBVERBS_1.9;
IBVERBS_1.11 { global: _ibv_query_gid_ex; _ibv_query_gid_table; } IBVERBS_1.10;
IBVERBS_1.12 { global: ibv_reg_dmabuf_mr; } IBVERBS_1.11;
IBVERBS_1.13 { global: ibv_is_fork_initialized; } IBVERBS_1.12;
IBVERBS_1.14 { global: ibv_query_qp_data_in_order; } IBVERBS_1.13;
RAIL_EMU_1 {
  global: rail_emu_command; rail_emu_live; rail_emu_calls; rail_emu_now; rail_emu_cm_fault;
    rail_emu_cm_answer_ms; rail_emu_quiesce; rail_emu_qp;
};
END

# name, version, kind (F: function, O: data)
private() {
  local lib
  for lib in /usr/lib/*/libibverbs.so.1 /usr/lib64/libibverbs.so.1; do
    [[ -r $lib ]] || continue
    objdump -T "$lib" | awk '/IBVERBS_PRIVATE_/ && $0 !~ /UND/ {
      kind = $0 ~ / DF / ? "F" : "O"; if ($NF !~ /^IBVERBS_PRIVATE/) print $NF, $(NF-1), kind }' | tr -d '()'
    return
  done
}
names=$(private)
defined=' ibv_query_gid_type '
{
  echo '/* Made by config/emu_symbols.sh. */'
  echo '#include <errno.h>'
  echo 'int emu_no_kernel(void);'
  echo 'int emu_no_kernel(void) { return -EOPNOTSUPP; }'
  for name in ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern \
    ibv_copy_ah_attr_from_kern ibv_resolve_eth_l2_from_gid; do
    echo "int $name(void) __attribute__((alias(\"emu_no_kernel\")));"
  done
  while read -r name version kind; do
    [[ -n $name && $defined != *" $name "* ]] || continue
    if [[ $kind == F ]]; then echo "int $name(void) __attribute__((alias(\"emu_no_kernel\")));"
    else echo "extern char $name[64]; char $name[64];"; fi
  done <<<"$names"
} >"$source"
version=$(awk 'NR == 1 {print $2}' <<<"$names")
[[ -n $version ]] || version=IBVERBS_PRIVATE_34
{ echo "$version { global: ibv_query_gid_type;"; awk 'NF {print "  " $1 ";"}' <<<"$names"; echo '};'; } >>"$map"
