/* The part of the verbs interface that the fake provider implements: names, numbers and layouts of
 * libibverbs on 64-bit Linux. layout.c prints them; the real header must print the same
 * (`cargo xtask verbs-check`), and tests/golden/cluster/verbs_layout.txt is what it printed. */
#ifndef FAKE_ABI_H
#define FAKE_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_EEC_OP_ERR,
       IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR,
       IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
       IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_LOC_RDD_VIOL_ERR,
       IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_INV_EECN_ERR,
       IBV_WC_INV_EEC_STATE_ERR, IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR,
       IBV_WC_TM_ERR, IBV_WC_TM_RNDV_INCOMPLETE };
enum { IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RECV = 128 };
enum { IBV_WR_RDMA_WRITE = 0, IBV_WR_SEND = 2, IBV_WR_SEND_WITH_IMM = 3 };
enum { IBV_SEND_SIGNALED = 2, IBV_SEND_INLINE = 8 };
enum { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4 };
enum { IBV_QPT_RC = 2, IBV_QPT_UC = 3 };
enum { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
       IBV_QPS_ERR };
enum { IBV_QP_STATE = 1, IBV_QP_ACCESS_FLAGS = 1 << 3, IBV_QP_PKEY_INDEX = 1 << 4,
       IBV_QP_PORT = 1 << 5, IBV_QP_AV = 1 << 7, IBV_QP_PATH_MTU = 1 << 8, IBV_QP_TIMEOUT = 1 << 9,
       IBV_QP_RETRY_CNT = 1 << 10, IBV_QP_RNR_RETRY = 1 << 11, IBV_QP_RQ_PSN = 1 << 12,
       IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13, IBV_QP_MIN_RNR_TIMER = 1 << 15, IBV_QP_SQ_PSN = 1 << 16,
       IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17, IBV_QP_CAP = 1 << 19, IBV_QP_DEST_QPN = 1 << 20 };
enum { IBV_MTU_1024 = 3, IBV_MTU_4096 = 5 };
enum { IBV_PORT_DOWN = 1, IBV_PORT_ACTIVE = 4 };
enum { IBV_LINK_LAYER_INFINIBAND = 1, IBV_LINK_LAYER_ETHERNET = 2 };
enum { IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2 };
enum { IBV_NODE_CA = 1, IBV_TRANSPORT_IB = 0 };

union ibv_gid {
    uint8_t raw[16];
    struct { uint64_t subnet_prefix, interface_id; } global;
};
struct ibv_gid_entry {
    union ibv_gid gid;
    uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};
struct ibv_sge { uint64_t addr; uint32_t length, lkey; };
struct ibv_send_wr {
    uint64_t wr_id;
    struct ibv_send_wr *next;
    struct ibv_sge *sg_list;
    int num_sge, opcode;
    unsigned int send_flags;
    uint32_t imm_data;
    union { struct { uint64_t remote_addr; uint32_t rkey; } rdma; uint64_t words[4]; } wr;
    uint64_t rest[7];
};
struct ibv_recv_wr {
    uint64_t wr_id;
    struct ibv_recv_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
};
struct ibv_wc {
    uint64_t wr_id;
    int status, opcode;
    uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
    unsigned int wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
};
struct ibv_context;
struct ibv_pd { struct ibv_context *context; uint32_t handle; };
struct ibv_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle, lkey, rkey;
};
struct ibv_cq {
    struct ibv_context *context;
    void *channel, *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed;
};
struct ibv_qp_cap { uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
                    max_inline_data; };
struct ibv_qp_init_attr {
    void *qp_context;
    struct ibv_cq *send_cq, *recv_cq;
    void *srq;
    struct ibv_qp_cap cap;
    int qp_type, sq_sig_all;
};
struct ibv_qp {
    struct ibv_context *context;
    void *qp_context;
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, qp_num;
    int state, qp_type;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
};
struct ibv_global_route {
    union ibv_gid dgid;
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class;
};
struct ibv_ah_attr {
    struct ibv_global_route grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
struct ibv_qp_attr {
    int qp_state, cur_qp_state, path_mtu, path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    unsigned int qp_access_flags;
    struct ibv_qp_cap cap;
    struct ibv_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
    uint32_t rate_limit;
};
struct ibv_device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned int device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    int others[20];
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
};
struct ibv_port_attr {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed,
        phys_state, link_layer, flags;
    uint16_t port_cap_flags2;
};
struct ibv_device {
    void *ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
/* Old entry points keep their places; a provider fills those that have names here. */
struct ibv_context_ops {
    void *compat0[11];
    int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
    int (*req_notify_cq)(struct ibv_cq *, int);
    void *compat1[12];
    int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
    int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
    void *compat2[5];
};
struct ibv_context {
    struct ibv_device *device;
    struct ibv_context_ops ops;
    int cmd_fd, async_fd, num_comp_vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
};

#endif
