//! Layouts and numbers are those of rdma-core's header.

use super::*;
use std::collections::BTreeMap;
use std::mem::offset_of;

/// What a C program says that was compiled with the header.
const HEADER: &str = include_str!("../../../../../../tests/golden/cluster/verbs_layout.txt");

/// Sizes, offsets and numbers of this program by the header's names.
macro_rules! table {
    ($(size $of:ident = $sized:ident;)* $(at $owner:ident $(. $field:ident)+ = $name:literal;)*
     $(number $number:ident;)*) => {
        [
            $((stringify!($of).to_string(), size_of::<$sized>()),)*
            $(($name.to_string(), offset_of!($owner, $($field).+)),)*
            $((concat!("IBV_", stringify!($number)).to_string(),
               usize::try_from($number).expect("positive")),)*
        ]
        .into()
    };
}

type Table = Vec<(String, usize)>;

fn sizes() -> Table {
    table! {
        size ibv_gid_entry = GidEntry;
        size ibv_sge = Sge;
        size ibv_send_wr = SendWr;
        size ibv_recv_wr = RecvWr;
        size ibv_wc = Wc;
        size ibv_mr = Mr;
        size ibv_qp_cap = QpCap;
        size ibv_qp_init_attr = QpInitAttr;
        size ibv_ah_attr = AhAttr;
        size ibv_qp_attr = QpAttr;
        size ibv_device_attr = DeviceAttr;
        size ibv_port_attr = PortAttr;
        size ibv_context_ops = ContextOps;
    }
}

fn requests() -> Table {
    table! {
        at GidEntry.gid_type = "ibv_gid_entry.gid_type";
        at Sge.addr = "ibv_sge.addr";
        at Sge.length = "ibv_sge.length";
        at Sge.lkey = "ibv_sge.lkey";
        at SendWr.wr_id = "ibv_send_wr.wr_id";
        at SendWr.next = "ibv_send_wr.next";
        at SendWr.sg_list = "ibv_send_wr.sg_list";
        at SendWr.num_sge = "ibv_send_wr.num_sge";
        at SendWr.opcode = "ibv_send_wr.opcode";
        at SendWr.send_flags = "ibv_send_wr.send_flags";
        at SendWr.imm_data = "ibv_send_wr.imm_data";
        at SendWr.wr = "ibv_send_wr.wr";
        at RecvWr.wr_id = "ibv_recv_wr.wr_id";
        at RecvWr.next = "ibv_recv_wr.next";
        at RecvWr.sg_list = "ibv_recv_wr.sg_list";
        at RecvWr.num_sge = "ibv_recv_wr.num_sge";
        at Wc.wr_id = "ibv_wc.wr_id";
        at Wc.status = "ibv_wc.status";
        at Wc.opcode = "ibv_wc.opcode";
        at Wc.byte_len = "ibv_wc.byte_len";
        at Wc.qp_num = "ibv_wc.qp_num";
        at Wc.dlid_path_bits = "ibv_wc.dlid_path_bits";
        at Mr.addr = "ibv_mr.addr";
        at Mr.length = "ibv_mr.length";
        at Mr.lkey = "ibv_mr.lkey";
        at QpCap.max_send_wr = "ibv_qp_cap.max_send_wr";
        at QpCap.max_recv_wr = "ibv_qp_cap.max_recv_wr";
        at QpCap.max_send_sge = "ibv_qp_cap.max_send_sge";
        at QpCap.max_recv_sge = "ibv_qp_cap.max_recv_sge";
        at QpCap.max_inline_data = "ibv_qp_cap.max_inline_data";
        at QpInitAttr.qp_context = "ibv_qp_init_attr.qp_context";
        at QpInitAttr.send_cq = "ibv_qp_init_attr.send_cq";
        at QpInitAttr.recv_cq = "ibv_qp_init_attr.recv_cq";
        at QpInitAttr.srq = "ibv_qp_init_attr.srq";
        at QpInitAttr.cap = "ibv_qp_init_attr.cap";
        at QpInitAttr.qp_type = "ibv_qp_init_attr.qp_type";
        at QpInitAttr.sq_sig_all = "ibv_qp_init_attr.sq_sig_all";
    }
}

fn objects() -> Table {
    table! {
        at Qp.context = "ibv_qp.context";
        at Qp.qp_num = "ibv_qp.qp_num";
        at Qp.state = "ibv_qp.state";
        at Qp.qp_type = "ibv_qp.qp_type";
        at AhAttr.grh.dgid = "ibv_ah_attr.grh.dgid";
        at AhAttr.grh.flow_label = "ibv_ah_attr.grh.flow_label";
        at AhAttr.grh.sgid_index = "ibv_ah_attr.grh.sgid_index";
        at AhAttr.grh.hop_limit = "ibv_ah_attr.grh.hop_limit";
        at AhAttr.grh.traffic_class = "ibv_ah_attr.grh.traffic_class";
        at AhAttr.dlid = "ibv_ah_attr.dlid";
        at AhAttr.sl = "ibv_ah_attr.sl";
        at AhAttr.is_global = "ibv_ah_attr.is_global";
        at AhAttr.port_num = "ibv_ah_attr.port_num";
        at QpAttr.qp_state = "ibv_qp_attr.qp_state";
        at QpAttr.path_mtu = "ibv_qp_attr.path_mtu";
        at QpAttr.rq_psn = "ibv_qp_attr.rq_psn";
        at QpAttr.sq_psn = "ibv_qp_attr.sq_psn";
        at QpAttr.dest_qp_num = "ibv_qp_attr.dest_qp_num";
        at QpAttr.qp_access_flags = "ibv_qp_attr.qp_access_flags";
        at QpAttr.cap = "ibv_qp_attr.cap";
        at QpAttr.ah_attr = "ibv_qp_attr.ah_attr";
        at QpAttr.alt_ah_attr = "ibv_qp_attr.alt_ah_attr";
        at QpAttr.pkey_index = "ibv_qp_attr.pkey_index";
        at QpAttr.max_rd_atomic = "ibv_qp_attr.max_rd_atomic";
        at QpAttr.max_dest_rd_atomic = "ibv_qp_attr.max_dest_rd_atomic";
        at QpAttr.min_rnr_timer = "ibv_qp_attr.min_rnr_timer";
        at QpAttr.port_num = "ibv_qp_attr.port_num";
        at QpAttr.timeout = "ibv_qp_attr.timeout";
        at QpAttr.retry_cnt = "ibv_qp_attr.retry_cnt";
        at QpAttr.rnr_retry = "ibv_qp_attr.rnr_retry";
        at QpAttr.rate_limit = "ibv_qp_attr.rate_limit";
    }
}

fn devices() -> Table {
    table! {
        at DeviceAttr.max_mr_size = "ibv_device_attr.max_mr_size";
        at DeviceAttr.max_qp = "ibv_device_attr.max_qp";
        at DeviceAttr.max_qp_wr = "ibv_device_attr.max_qp_wr";
        at DeviceAttr.phys_port_cnt = "ibv_device_attr.phys_port_cnt";
        at PortAttr.state = "ibv_port_attr.state";
        at PortAttr.active_mtu = "ibv_port_attr.active_mtu";
        at PortAttr.gid_tbl_len = "ibv_port_attr.gid_tbl_len";
        at PortAttr.max_msg_sz = "ibv_port_attr.max_msg_sz";
        at PortAttr.lid = "ibv_port_attr.lid";
        at PortAttr.link_layer = "ibv_port_attr.link_layer";
        at PortAttr.port_cap_flags2 = "ibv_port_attr.port_cap_flags2";
        at ContextOps.poll_cq = "ibv_context_ops.poll_cq";
        at ContextOps.post_send = "ibv_context_ops.post_send";
        at ContextOps.post_recv = "ibv_context_ops.post_recv";
        at Context.device = "ibv_context.device";
        at Context.ops = "ibv_context.ops";
    }
}

fn numbers() -> Table {
    table! {
        number WC_RECV;
        number WR_SEND;
        number SEND_SIGNALED;
        number ACCESS_LOCAL_WRITE;
        number ACCESS_REMOTE_WRITE;
        number ACCESS_REMOTE_READ;
        number QPT_RC;
        number QPT_UC;
        number QPS_INIT;
        number QPS_RTR;
        number QPS_RTS;
        number QPS_ERR;
        number QP_STATE;
        number QP_ACCESS_FLAGS;
        number QP_PKEY_INDEX;
        number QP_PORT;
        number QP_AV;
        number QP_PATH_MTU;
        number QP_TIMEOUT;
        number QP_RETRY_CNT;
        number QP_RNR_RETRY;
        number QP_RQ_PSN;
        number QP_MAX_QP_RD_ATOMIC;
        number QP_MIN_RNR_TIMER;
        number QP_SQ_PSN;
        number QP_MAX_DEST_RD_ATOMIC;
        number QP_CAP;
        number QP_DEST_QPN;
        number MTU_1024;
        number MTU_4096;
        number PORT_ACTIVE;
        number LINK_LAYER_ETHERNET;
        number GID_TYPE_ROCE_V1;
        number GID_TYPE_ROCE_V2;
    }
}

#[test]
fn layouts_and_numbers_are_the_headers() {
    let lines = HEADER.lines().filter(|line| !line.starts_with('#'));
    let header: BTreeMap<&str, usize> = lines
        .map(|line| {
            let (name, number) = line.split_once(' ').expect("a name and a number");
            (name, number.parse().expect("a number"))
        })
        .collect();
    for (name, number) in [sizes(), requests(), objects(), devices(), numbers()].concat() {
        assert_eq!(header.get(name.as_str()), Some(&number), "{name}");
    }
}

#[test]
fn every_status_has_its_number_as_place() {
    let mut seen = 0;
    for line in HEADER.lines().filter(|line| line.starts_with("IBV_WC_")) {
        let (name, number) = line.split_once(' ').expect("a name and a number");
        let number: c_int = number.parse().expect("a number");
        // The kinds of completions have numbers too.
        if !["IBV_WC_SEND", "IBV_WC_RECV"].contains(&name) {
            assert_eq!(status(number).0, name);
            seen += 1;
        }
    }
    assert_eq!(seen, STATUS.len(), "all of them");
    assert_eq!(status(-1).0, status(99).0);
}
