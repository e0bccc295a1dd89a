//! The part of `infiniband/verbs.h` that the port uses, unchanged in rdma-core's libibverbs since
//! 2005.
//!
//! The library keeps its ABI by symbol versions: structures grow only at their ends, and only
//! behind members that announce it. `tests/it/verbs_abi.rs` compares every size and offset here with
//! the header installed on the machine. Names are the header's, without the prefix.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`; opaque.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`; opaque.
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    _opaque: [u8; 0],
}

/// `struct ibv_context_ops`: the provider's functions that the header calls inline. The other
/// fields belong to a past ABI.
#[repr(C)]
pub struct ContextOps {
    _before_poll_cq: [*mut c_void; 11],
    /// Takes completions; returns their number, or a negative error.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// Requests an event at the next completion; returns 0 or an error.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _before_post_send: [*mut c_void; 12],
    /// Posts a list of requests; returns 0 or an error's number.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// Posts a list of receive buffers; returns 0 or an error's number.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _after_post_recv: [*mut c_void; 5],
}

/// The front of `struct ibv_context`: an open device.
#[repr(C)]
pub struct Context {
    /// Opened device.
    pub device: *mut Device,
    /// Functions of its provider.
    pub ops: ContextOps,
    /// Descriptor between the library and the kernel's part of the driver.
    pub cmd_fd: c_int,
    /// Descriptor on which that part announces errors.
    pub async_fd: c_int,
}

/// `struct ibv_comp_channel`: channel on which completion queues announce events.
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    context: *mut Context,
    /// Descriptor that is readable if there is an event.
    pub fd: c_int,
    refcnt: c_int,
}

/// The front of `struct ibv_cq`.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    /// Device of the queue.
    pub context: *mut Context,
}

/// The front of `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub struct Qp {
    /// Device of the queue pair.
    pub context: *mut Context,
    _until_number: [u64; 5],
    _handle: u32,
    /// Number, unique on its device.
    pub qp_num: u32,
}

/// `struct ibv_mr`: memory the device may reach.
#[repr(C)]
#[derive(Debug)]
pub struct Mr {
    _context: *mut Context,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    /// Key of the memory in requests of this side.
    pub lkey: u32,
    /// Key of the memory in requests of the other side.
    pub rkey: u32,
}

/// `union ibv_gid`: an address on the fabric; with RoCE v2 an IPv6 or mapped IPv4 address.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GidEntry {
    /// Address.
    pub gid: Gid,
    /// Index in the port's table.
    pub gid_index: u32,
    /// Number of the port.
    pub port_num: u32,
    /// [`constants::GID_TYPE_ROCE_V2`] or another.
    pub gid_type: u32,
    /// Network interface of the address.
    pub ndev_ifindex: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct DeviceAttr {
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
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    _tables: [c_int; 13],
    _max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct PortAttr {
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

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`: route to the other side.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct QpAttr {
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

/// `struct ibv_sge`: a piece of registered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`, the union `wr` as `wr.atomic`, whose first member is `wr.rdma`'s too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub remote_addr: u64,
    /// `wr.atomic.compare_add`; its first half is `wr.rdma.rkey`.
    pub compare_add: u64,
    pub swap: u64,
    /// `wr.atomic.rkey`.
    pub atomic_rkey: u32,
    _qp_type_bind_mw_or_tso: [u64; 7],
}

impl SendWr {
    /// Returns an empty request.
    pub const fn zeroed() -> Self {
        Self {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            atomic_rkey: 0,
            _qp_type_bind_mw_or_tso: [0; 7],
        }
    }

    /// Sets `wr.rdma.rkey`, the half of `compare_add` that comes first in memory.
    pub const fn set_rdma_rkey(&mut self, rkey: u32) {
        let [a, b, c, d] = rkey.to_ne_bytes();
        self.compare_add = u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]);
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`: a completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "names of the C header")]
pub struct Wc {
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

/// Constants, by the enumeration they come from.
#[allow(missing_docs, reason = "names of the C header")]
pub mod constants {
    pub const PORT_ACTIVE: i32 = 4;
    pub const LINK_LAYER_ETHERNET: u8 = 2;
    pub const GID_TYPE_ROCE_V2: u32 = 2;

    pub const ACCESS_LOCAL_WRITE: i32 = 1;
    pub const ACCESS_REMOTE_WRITE: i32 = 1 << 1;
    pub const ACCESS_REMOTE_READ: i32 = 1 << 2;
    pub const ACCESS_REMOTE_ATOMIC: i32 = 1 << 3;

    pub const QPT_RC: i32 = 2;
    pub const QPS_RESET: i32 = 0;
    pub const QPS_INIT: i32 = 1;
    pub const QPS_RTR: i32 = 2;
    pub const QPS_RTS: i32 = 3;
    pub const QPS_ERR: i32 = 6;

    pub const QP_STATE: i32 = 1;
    pub const QP_ACCESS_FLAGS: i32 = 1 << 3;
    pub const QP_PKEY_INDEX: i32 = 1 << 4;
    pub const QP_PORT: i32 = 1 << 5;
    pub const QP_AV: i32 = 1 << 7;
    pub const QP_PATH_MTU: i32 = 1 << 8;
    pub const QP_TIMEOUT: i32 = 1 << 9;
    pub const QP_RETRY_CNT: i32 = 1 << 10;
    pub const QP_RNR_RETRY: i32 = 1 << 11;
    pub const QP_RQ_PSN: i32 = 1 << 12;
    pub const QP_MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const QP_MIN_RNR_TIMER: i32 = 1 << 15;
    pub const QP_SQ_PSN: i32 = 1 << 16;
    pub const QP_MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const QP_DEST_QPN: i32 = 1 << 20;

    pub const WR_RDMA_WRITE: i32 = 0;
    pub const WR_RDMA_READ: i32 = 4;
    pub const WR_ATOMIC_CMP_AND_SWP: i32 = 5;
    pub const WR_ATOMIC_FETCH_AND_ADD: i32 = 6;
    pub const SEND_FENCE: u32 = 1;
    pub const SEND_SIGNALED: u32 = 1 << 1;
    pub const SEND_INLINE: u32 = 1 << 3;

    pub const WC_SUCCESS: i32 = 0;
    pub const WC_WR_FLUSH_ERR: i32 = 5;
    pub const WC_REM_INV_REQ_ERR: i32 = 9;
    pub const WC_REM_ACCESS_ERR: i32 = 10;
    pub const WC_RETRY_EXC_ERR: i32 = 12;
}
