//! Layouts and numbers of libibverbs, as far as links use them.
//!
//! They are written down here because the library is found at run time: a machine without it
//! builds and runs everything else. `tests.rs` compares every offset and number with what
//! rdma-core's own header says (`tests/golden/cluster/verbs_layout.txt`, from a C program that
//! `cargo xtask verbs-check` compiles against the installed header).

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A pointer to something of the library that is never looked into.
pub(super) type Opaque = *mut c_void;

pub(super) const WC_RECV: c_int = 128;
pub(super) const WR_SEND: c_int = 2;
pub(super) const SEND_SIGNALED: c_uint = 2;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;
pub(super) const QPT_RC: c_int = 2;
pub(super) const QPT_UC: c_int = 3;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_CAP: c_int = 1 << 19;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;
pub(super) const MTU_1024: c_int = 3;
pub(super) const MTU_4096: c_int = 5;
pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const GID_TYPE_ROCE_V1: u32 = 1;
pub(super) const GID_TYPE_ROCE_V2: u32 = 2;

/// Sixteen bytes that name a port.
pub(super) type Gid = [u8; 16];

/// `ibv_gid_entry`
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `ibv_sge`: bytes of a registered region.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `ibv_send_wr`
#[repr(C)]
pub(super) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    /// Remote addresses and what follows them, for other operations than a send.
    pub wr: [u64; 11],
}

/// `ibv_recv_wr`
#[repr(C)]
pub(super) struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `ibv_wc`: how a request ended.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `ibv_mr`
#[repr(C)]
pub(super) struct Mr {
    pub context: *mut Context,
    pub pd: Opaque,
    pub addr: Opaque,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `ibv_qp_init_attr`
#[repr(C)]
pub(super) struct QpInitAttr {
    pub qp_context: Opaque,
    pub send_cq: Opaque,
    pub recv_cq: Opaque,
    pub srq: Opaque,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// The beginning of `ibv_qp`; locks of the C library follow.
#[repr(C)]
pub(super) struct Qp {
    pub context: *mut Context,
    pub qp_context: Opaque,
    pub pd: Opaque,
    pub send_cq: Opaque,
    pub recv_cq: Opaque,
    pub srq: Opaque,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
}

/// `ibv_global_route` within [`AhAttr`].
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `ibv_ah_attr`: where a peer is.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `ibv_device_attr`; the counts that no link asks for are one array.
#[repr(C)]
pub(super) struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub others: [c_int; 20],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `ibv_port_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

// SAFETY: for a caller: the queue is live, and the array has as many places as are said.
pub(super) type PollCq = unsafe extern "C" fn(Opaque, c_int, *mut Wc) -> c_int;
// SAFETY: for a caller: the queue pair and the chain of requests are live.
pub(super) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
// SAFETY: for a caller: the queue pair and the chain of requests are live.
pub(super) type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `ibv_context_ops`: the library has no functions for posting and polling; each device fills
/// these.
#[repr(C)]
pub(super) struct ContextOps {
    pub old_0: [Opaque; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Opaque,
    pub old_1: [Opaque; 12],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    pub old_2: [Opaque; 5],
}

/// The beginning of `ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub device: Opaque,
    pub ops: ContextOps,
}

/// Name of a completion's status, and what it means for a link.
pub(super) fn status(status: c_int) -> (&'static str, &'static str) {
    let unknown = ("IBV_WC unknown", "the device gives a number that the interface has not");
    let at = usize::try_from(status).ok();
    at.and_then(|at| STATUS.get(at)).copied().unwrap_or(unknown)
}

/// By number.
const STATUS: [(&str, &str); 24] = [
    ("IBV_WC_SUCCESS", "no error"),
    ("IBV_WC_LOC_LEN_ERR", "a message and its receive have different sizes (in frames of 4 KiB)"),
    ("IBV_WC_LOC_QP_OP_ERR", "the device found the queue pair inconsistent"),
    ("IBV_WC_LOC_EEC_OP_ERR", "the device found its end-to-end context inconsistent"),
    ("IBV_WC_LOC_PROT_ERR", "the device does not see the registered memory"),
    ("IBV_WC_WR_FLUSH_ERR", "the queue pair had failed before"),
    ("IBV_WC_MW_BIND_ERR", "a memory window could not be bound"),
    ("IBV_WC_BAD_RESP_ERR", "the peer's device answered in an unknown way"),
    ("IBV_WC_LOC_ACCESS_ERR", "the registered memory may not be written"),
    ("IBV_WC_REM_INV_REQ_ERR", "the peer's receive is too small for the message"),
    ("IBV_WC_REM_ACCESS_ERR", "the peer's memory may not be used"),
    ("IBV_WC_REM_OP_ERR", "the peer's device could not do it"),
    ("IBV_WC_RETRY_EXC_ERR", "the peer does not answer: it has gone, or the cable is cut"),
    ("IBV_WC_RNR_RETRY_EXC_ERR", "the peer had no receive posted for too long"),
    ("IBV_WC_LOC_RDD_VIOL_ERR", "the datagram domains do not match"),
    ("IBV_WC_REM_INV_RD_REQ_ERR", "the peer refused a datagram"),
    ("IBV_WC_REM_ABORT_ERR", "the peer aborted the operation"),
    ("IBV_WC_INV_EECN_ERR", "an end-to-end context number is wrong"),
    ("IBV_WC_INV_EEC_STATE_ERR", "an end-to-end context is in the wrong state"),
    ("IBV_WC_FATAL_ERR", "the device has failed"),
    ("IBV_WC_RESP_TIMEOUT_ERR", "the peer did not answer in time"),
    ("IBV_WC_GENERAL_ERR", "the device reports an error without a kind"),
    ("IBV_WC_TM_ERR", "tag matching failed"),
    ("IBV_WC_TM_RNDV_INCOMPLETE", "a rendezvous was not finished"),
];

#[cfg(test)]
mod tests;
