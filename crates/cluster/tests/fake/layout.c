/* Prints where things are: with -DREAL of the system's <infiniband/verbs.h>, else of abi.h. */
#include <stddef.h>
#include <stdio.h>
#ifdef REAL
#include <infiniband/verbs.h>
#else
#include "abi.h"
#endif

#define S(type) printf(#type " %zu\n", sizeof(struct type));
#define F(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field));
#define N(name) printf(#name " %lld\n", (long long)(name));

int main(void) {
    S(ibv_gid_entry) F(ibv_gid_entry, gid_index) F(ibv_gid_entry, port_num)
    F(ibv_gid_entry, gid_type)
    S(ibv_sge) F(ibv_sge, addr) F(ibv_sge, length) F(ibv_sge, lkey)
    S(ibv_send_wr) F(ibv_send_wr, wr_id) F(ibv_send_wr, next) F(ibv_send_wr, sg_list)
    F(ibv_send_wr, num_sge) F(ibv_send_wr, opcode) F(ibv_send_wr, send_flags)
    F(ibv_send_wr, imm_data) F(ibv_send_wr, wr)
    S(ibv_recv_wr) F(ibv_recv_wr, wr_id) F(ibv_recv_wr, next) F(ibv_recv_wr, sg_list)
    F(ibv_recv_wr, num_sge)
    S(ibv_wc) F(ibv_wc, wr_id) F(ibv_wc, status) F(ibv_wc, opcode) F(ibv_wc, vendor_err)
    F(ibv_wc, byte_len) F(ibv_wc, qp_num) F(ibv_wc, src_qp) F(ibv_wc, wc_flags)
    F(ibv_wc, pkey_index) F(ibv_wc, slid) F(ibv_wc, sl) F(ibv_wc, dlid_path_bits)
    S(ibv_pd) F(ibv_pd, context)
    S(ibv_mr) F(ibv_mr, pd) F(ibv_mr, addr) F(ibv_mr, length) F(ibv_mr, lkey) F(ibv_mr, rkey)
    F(ibv_cq, context) F(ibv_cq, handle) F(ibv_cq, cqe)
    S(ibv_qp_cap) F(ibv_qp_cap, max_send_wr) F(ibv_qp_cap, max_recv_wr)
    F(ibv_qp_cap, max_send_sge) F(ibv_qp_cap, max_recv_sge) F(ibv_qp_cap, max_inline_data)
    S(ibv_qp_init_attr) F(ibv_qp_init_attr, qp_context) F(ibv_qp_init_attr, send_cq)
    F(ibv_qp_init_attr, recv_cq) F(ibv_qp_init_attr, srq) F(ibv_qp_init_attr, cap)
    F(ibv_qp_init_attr, qp_type) F(ibv_qp_init_attr, sq_sig_all)
    F(ibv_qp, context) F(ibv_qp, pd) F(ibv_qp, send_cq) F(ibv_qp, recv_cq) F(ibv_qp, handle)
    F(ibv_qp, qp_num) F(ibv_qp, state) F(ibv_qp, qp_type)
    S(ibv_ah_attr) F(ibv_ah_attr, grh.dgid) F(ibv_ah_attr, grh.flow_label)
    F(ibv_ah_attr, grh.sgid_index) F(ibv_ah_attr, grh.hop_limit)
    F(ibv_ah_attr, grh.traffic_class) F(ibv_ah_attr, dlid) F(ibv_ah_attr, sl)
    F(ibv_ah_attr, src_path_bits) F(ibv_ah_attr, static_rate) F(ibv_ah_attr, is_global)
    F(ibv_ah_attr, port_num)
    S(ibv_qp_attr) F(ibv_qp_attr, qp_state) F(ibv_qp_attr, path_mtu) F(ibv_qp_attr, qkey)
    F(ibv_qp_attr, rq_psn) F(ibv_qp_attr, sq_psn) F(ibv_qp_attr, dest_qp_num)
    F(ibv_qp_attr, qp_access_flags) F(ibv_qp_attr, cap) F(ibv_qp_attr, ah_attr)
    F(ibv_qp_attr, alt_ah_attr) F(ibv_qp_attr, pkey_index) F(ibv_qp_attr, max_rd_atomic)
    F(ibv_qp_attr, max_dest_rd_atomic) F(ibv_qp_attr, min_rnr_timer) F(ibv_qp_attr, port_num)
    F(ibv_qp_attr, timeout) F(ibv_qp_attr, retry_cnt) F(ibv_qp_attr, rnr_retry)
    F(ibv_qp_attr, rate_limit)
    S(ibv_device_attr) F(ibv_device_attr, max_mr_size) F(ibv_device_attr, max_qp)
    F(ibv_device_attr, max_qp_wr) F(ibv_device_attr, max_sge) F(ibv_device_attr, max_cqe)
    F(ibv_device_attr, max_mr) F(ibv_device_attr, phys_port_cnt)
    S(ibv_port_attr) F(ibv_port_attr, state) F(ibv_port_attr, max_mtu)
    F(ibv_port_attr, active_mtu) F(ibv_port_attr, gid_tbl_len) F(ibv_port_attr, max_msg_sz)
    F(ibv_port_attr, lid) F(ibv_port_attr, link_layer) F(ibv_port_attr, port_cap_flags2)
    F(ibv_device, node_type) F(ibv_device, name)
    S(ibv_context_ops) F(ibv_context_ops, poll_cq) F(ibv_context_ops, req_notify_cq)
    F(ibv_context_ops, post_send) F(ibv_context_ops, post_recv)
    F(ibv_context, device) F(ibv_context, ops) F(ibv_context, cmd_fd) F(ibv_context, mutex)
    N(IBV_WC_SUCCESS) N(IBV_WC_LOC_LEN_ERR) N(IBV_WC_LOC_QP_OP_ERR) N(IBV_WC_LOC_EEC_OP_ERR)
    N(IBV_WC_LOC_PROT_ERR) N(IBV_WC_WR_FLUSH_ERR) N(IBV_WC_MW_BIND_ERR) N(IBV_WC_BAD_RESP_ERR)
    N(IBV_WC_LOC_ACCESS_ERR) N(IBV_WC_REM_INV_REQ_ERR) N(IBV_WC_REM_ACCESS_ERR)
    N(IBV_WC_REM_OP_ERR) N(IBV_WC_RETRY_EXC_ERR) N(IBV_WC_RNR_RETRY_EXC_ERR)
    N(IBV_WC_LOC_RDD_VIOL_ERR) N(IBV_WC_REM_INV_RD_REQ_ERR) N(IBV_WC_REM_ABORT_ERR)
    N(IBV_WC_INV_EECN_ERR) N(IBV_WC_INV_EEC_STATE_ERR) N(IBV_WC_FATAL_ERR)
    N(IBV_WC_RESP_TIMEOUT_ERR) N(IBV_WC_GENERAL_ERR) N(IBV_WC_TM_ERR) N(IBV_WC_TM_RNDV_INCOMPLETE)
    N(IBV_WC_SEND) N(IBV_WC_RECV) N(IBV_WR_SEND) N(IBV_WR_SEND_WITH_IMM)
    N(IBV_SEND_SIGNALED) N(IBV_SEND_INLINE) N(IBV_ACCESS_LOCAL_WRITE)
    N(IBV_ACCESS_REMOTE_WRITE) N(IBV_ACCESS_REMOTE_READ) N(IBV_QPT_RC) N(IBV_QPT_UC)
    N(IBV_QPS_RESET) N(IBV_QPS_INIT) N(IBV_QPS_RTR) N(IBV_QPS_RTS) N(IBV_QPS_ERR)
    N(IBV_QP_STATE) N(IBV_QP_ACCESS_FLAGS) N(IBV_QP_PKEY_INDEX) N(IBV_QP_PORT) N(IBV_QP_AV)
    N(IBV_QP_PATH_MTU) N(IBV_QP_TIMEOUT) N(IBV_QP_RETRY_CNT) N(IBV_QP_RNR_RETRY)
    N(IBV_QP_RQ_PSN) N(IBV_QP_MAX_QP_RD_ATOMIC) N(IBV_QP_MIN_RNR_TIMER) N(IBV_QP_SQ_PSN)
    N(IBV_QP_MAX_DEST_RD_ATOMIC) N(IBV_QP_CAP) N(IBV_QP_DEST_QPN) N(IBV_MTU_1024)
    N(IBV_MTU_4096) N(IBV_PORT_ACTIVE) N(IBV_LINK_LAYER_INFINIBAND)
    N(IBV_LINK_LAYER_ETHERNET) N(IBV_GID_TYPE_ROCE_V1) N(IBV_GID_TYPE_ROCE_V2)
    return 0;
}
