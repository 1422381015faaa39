//! The library, its devices, and what a link has of one. All calls into libibverbs are here.
//!
//! The library is loaded when it is first wanted and never unloaded: a driver may have threads in
//! it. What it gives is owned by [`Device`] and [`Endpoint`], which give it back in the order that
//! cards want: queue pair, completion queue, region, domain, device.

use super::super::Taken;
use super::super::map::SharedMap;
use super::abi::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AhAttr, Context, DeviceAttr, Gid,
    GidEntry, LINK_LAYER_ETHERNET, MTU_1024, MTU_4096, Mr, Opaque, PORT_ACTIVE, PortAttr,
    QP_ACCESS_FLAGS, QP_AV, QP_CAP, QP_DEST_QPN, QP_MAX_DEST_RD_ATOMIC, QP_MAX_QP_RD_ATOMIC,
    QP_MIN_RNR_TIMER, QP_PATH_MTU, QP_PKEY_INDEX, QP_PORT, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN,
    QP_SQ_PSN, QP_STATE, QP_TIMEOUT, QPS_ERR, QPS_INIT, QPS_RTR, QPS_RTS, QPT_RC, QPT_UC, Qp,
    QpAttr, QpCap, QpInitAttr, RecvWr, SEND_SIGNALED, SendWr, Sge, WR_SEND, Wc,
};
use super::choice::{GidKind, GidPlace, Port};
use crate::error::Error;
use crate::message::HEADER_BYTES;
use ironstar_device::library_functions;
use libloading::Library;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the library is when nobody says.
#[cfg(target_os = "macos")]
const LIBRARY: &str = "/usr/lib/librdma.dylib";
#[cfg(not(target_os = "macos"))]
const LIBRARY: &str = "libibverbs.so.1";
/// Devices, ports and addresses beyond these are not looked at.
const DEVICES_MAX: usize = 64;
const PORTS_MAX: u8 = 8;
const GIDS_MAX: u32 = 512;
/// How long what is under way may take when a link ends.
const DRAIN: Duration = Duration::from_millis(100);
/// Fewest messages that a queue must hold for a link.
pub(super) const SLOTS_MIN: usize = 4;
/// What cards count queue depths and match messages in, on Thunderbolt.
pub(super) const FRAME: usize = 4096;

library_functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut Opaque;
    ibv_free_device_list: fn(*mut Opaque);
    ibv_get_device_name: fn(Opaque) -> *const c_char;
    ibv_open_device: fn(Opaque) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> Opaque;
    ibv_dealloc_pd: fn(Opaque) -> c_int;
    ibv_reg_mr: fn(Opaque, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, Opaque, Opaque, c_int) -> Opaque;
    ibv_destroy_cq: fn(Opaque) -> c_int;
    ibv_create_qp: fn(Opaque, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_query_qp: fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
}

// SAFETY: for a caller: the device is open and the entry is as large as is said.
type QueryGidEx = unsafe extern "C" fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;

/// The library.
pub(crate) struct Verbs {
    functions: Functions,
    /// Says whether an address is RoCE v1 or v2; not every library has it.
    query_gid_ex: Option<QueryGidEx>,
}

impl Verbs {
    /// Loads the library at `path`, or where systems have it.
    pub(crate) fn load(path: Option<&Path>) -> Result<Arc<Self>, Error> {
        let name = path.map_or_else(|| OsString::from(LIBRARY), OsString::from);
        let shown = name.to_string_lossy().into_owned();
        let failed = |error: libloading::Error| Error::System {
            doing: format!("loading the RDMA library {shown}"),
            found: format!(
                "{error}; install it (Debian: libibverbs1 and ibverbs-providers; macOS 26.2 or \
                 later has it) or choose another transport"
            ),
        };
        // SAFETY: whoever names the library runs it; the system's own is trusted as the kernel's
        // interface is.
        let library = unsafe { Library::new(&name) }.map_err(failed)?;
        let library = ManuallyDrop::new(library);
        let functions = Functions::find(&library).map_err(failed)?;
        // SAFETY: as for the others.
        let query_gid_ex = unsafe { library.get::<QueryGidEx>(b"_ibv_query_gid_ex\0") };
        Ok(Arc::new(Self { functions, query_gid_ex: query_gid_ex.ok().map(|found| *found) }))
    }

    /// Opens every device that can be opened.
    pub(super) fn devices(self: &Arc<Self>) -> Result<Vec<Device>, Error> {
        let mut count: c_int = 0;
        // SAFETY: the count is a live number; the list is freed below.
        let list = unsafe { (self.functions.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(system("asking for RDMA devices"));
        }
        let mut devices = Vec::new();
        for at in 0..usize::try_from(count).unwrap_or(0).min(DEVICES_MAX) {
            // SAFETY: the list has `count` places, each a device until the list is freed; an open
            // device stays when it is.
            let (name, context) = unsafe {
                let device = *list.add(at);
                let name = (self.functions.ibv_get_device_name)(device);
                (name, (self.functions.ibv_open_device)(device))
            };
            if context.is_null() {
                continue;
            }
            let name = if name.is_null() {
                String::new()
            } else {
                // SAFETY: a name of the library, which ends with a zero and lives as the list.
                unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
            };
            devices.push(Device { verbs: Arc::clone(self), context, name });
        }
        // SAFETY: the list came from the library and is not used again.
        unsafe { (self.functions.ibv_free_device_list)(list) };
        Ok(devices)
    }
}

/// What the system says of the last failed call, as the error of `doing`.
fn system(doing: &str) -> Error {
    let found = std::io::Error::last_os_error().to_string();
    Error::System { doing: doing.into(), found }
}

/// The error of a call that gives its number.
fn numbered(doing: &str, number: c_int) -> Error {
    let found = std::io::Error::from_raw_os_error(number.abs()).to_string();
    Error::System { doing: doing.into(), found }
}

/// An open device.
pub(super) struct Device {
    verbs: Arc<Verbs>,
    context: *mut Context,
    name: String,
}

// SAFETY: the library may be called from any thread.
unsafe impl Send for Device {}

impl Device {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ports with their addresses.
    pub fn ports(&self) -> Vec<Port> {
        // SAFETY: all bytes zero are a value of this type of numbers.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and the structure is as large as the library's.
        let failed = unsafe { (self.functions().ibv_query_device)(self.context, &raw mut attr) };
        let ports = if failed == 0 { attr.phys_port_cnt.min(PORTS_MAX) } else { 1 };
        (1..=ports.max(1)).filter_map(|number| self.port(number)).collect()
    }

    fn port(&self, number: u8) -> Option<Port> {
        let mut attr = PortAttr::default();
        // SAFETY: the device is open; the library fills this structure or an older, shorter one.
        let failed =
            unsafe { (self.functions().ibv_query_port)(self.context, number, &raw mut attr) };
        if failed != 0 {
            return None;
        }
        let gids = u32::try_from(attr.gid_tbl_len).unwrap_or(0).min(GIDS_MAX).min(256);
        Some(Port {
            device: self.name.clone(),
            number,
            active: attr.state == PORT_ACTIVE,
            ethernet: attr.link_layer == LINK_LAYER_ETHERNET,
            lid: attr.lid,
            mtu: attr.active_mtu.clamp(1, MTU_4096),
            message_bytes_max: attr.max_msg_sz,
            gids: (0..gids).filter_map(|index| self.gid(number, index)).collect(),
        })
    }

    fn gid(&self, port: u8, index: u32) -> Option<GidPlace> {
        let mut kind = GidKind::Unknown;
        if let Some(query) = self.verbs.query_gid_ex {
            let mut entry = GidEntry::default();
            let bytes = size_of::<GidEntry>();
            let port = u32::from(port);
            // SAFETY: the device is open and the entry is as large as is said.
            let failed = unsafe { query(self.context, port, index, &raw mut entry, 0, bytes) };
            if failed != 0 {
                return None;
            }
            kind = GidKind::of(entry.gid_type);
        }
        let mut gid = Gid::default();
        let at = c_int::try_from(index).ok()?;
        // SAFETY: the device is open and a GID has sixteen bytes.
        let failed =
            unsafe { (self.functions().ibv_query_gid)(self.context, port, at, &raw mut gid) };
        let index = u8::try_from(index).ok()?;
        (failed == 0 && gid != Gid::default()).then_some(GidPlace { index, gid, kind })
    }

    fn functions(&self) -> &Functions {
        &self.verbs.functions
    }

    /// Whether a queue pair of this kind can be made, or what the device says.
    pub fn probe(&self, reliable: bool) -> Result<(), Error> {
        let mut parts = Parts::new(self)?;
        parts.queue_pair(self, reliable, [1, 1], 4).map(|_| ())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the device is open, and everything that was made on it is gone: `Parts` are
        // dropped before their device.
        unsafe { (self.functions().ibv_close_device)(self.context) };
    }
}

/// What was made on a device, as far as it was; none of it is null but where it was not made.
struct Parts {
    verbs: Arc<Verbs>,
    pd: Opaque,
    mr: *mut Mr,
    cq: Opaque,
    qp: *mut Qp,
}

impl Parts {
    fn new(device: &Device) -> Result<Self, Error> {
        // SAFETY: the device is open.
        let pd = unsafe { (device.functions().ibv_alloc_pd)(device.context) };
        if pd.is_null() {
            return Err(system("making a protection domain"));
        }
        let verbs = Arc::clone(&device.verbs);
        Ok(Self { verbs, pd, mr: null_mut(), cq: null_mut(), qp: null_mut() })
    }

    /// Registers memory for the device. Some want remote access named though nobody uses it;
    /// whether this one does comes back.
    fn register(&mut self, memory: &SharedMap) -> Result<c_int, Error> {
        for remote in [0, ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ] {
            let (at, bytes) = (memory.address(), memory.len());
            let access = ACCESS_LOCAL_WRITE | remote;
            // SAFETY: the range is a map that outlives the region: `Endpoint` drops it last.
            self.mr = unsafe { (self.verbs.functions.ibv_reg_mr)(self.pd, at, bytes, access) };
            if !self.mr.is_null() {
                return Ok(remote);
            }
        }
        let error = std::io::Error::last_os_error();
        Err(Error::System {
            doing: format!("registering {} bytes of memory for the device", memory.len()),
            found: format!("{error}; the limit of locked memory may be too low (`ulimit -l`)"),
        })
    }

    /// Makes a completion queue and a queue pair for so many sends and receives; how many were
    /// granted.
    fn queue_pair(
        &mut self,
        device: &Device,
        reliable: bool,
        [sends, receives]: [u32; 2],
        completions: c_int,
    ) -> Result<[u32; 2], Error> {
        let create = device.functions().ibv_create_cq;
        // SAFETY: the device is open; no channel and no context are wanted.
        self.cq = unsafe { create(device.context, completions, null_mut(), null_mut(), 0) };
        if self.cq.is_null() {
            return Err(system("making a completion queue"));
        }
        let (max_send_wr, max_recv_wr) = (sends, receives);
        let cap = QpCap {
            max_send_wr,
            max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap,
            qp_type: if reliable { QPT_RC } else { QPT_UC },
            sq_sig_all: 1,
        };
        // SAFETY: domain and queue are live and the structure is as large as the library's.
        self.qp = unsafe { (device.functions().ibv_create_qp)(self.pd, &raw mut init) };
        if self.qp.is_null() {
            let kind = if reliable { "reliable" } else { "unreliable" };
            let error = std::io::Error::last_os_error();
            let full = error.kind() == std::io::ErrorKind::ResourceBusy;
            let advice = "; it may have none left: Thunderbolt allows 10, for all programs";
            return Err(Error::System {
                doing: format!(
                    "making a queue pair ({kind} connection, {sends} sends, {receives} receives)"
                ),
                found: format!("{error}{}", if full { advice } else { "" }),
            });
        }
        // What is granted may be less or more than was asked for, and only this call tells
        // everywhere.
        let mut attr = QpAttr::default();
        let query = device.functions().ibv_query_qp;
        // SAFETY: the queue pair is live and both structures are as large as the library's.
        let failed = unsafe { query(self.qp, &raw mut attr, QP_CAP, &raw mut init) };
        let cap = if failed == 0 && attr.cap.max_recv_wr > 0 { attr.cap } else { init.cap };
        Ok([cap.max_send_wr, cap.max_recv_wr])
    }

    /// Gives back queue pair and completion queue; whether the device has let go of them.
    fn drop_queues(&mut self) -> bool {
        let functions = &self.verbs.functions;
        let (qp, cq) = (self.qp, self.cq);
        self.qp = null_mut();
        self.cq = null_mut();
        let mut gone = true;
        // SAFETY: both are live or null, and not used again.
        unsafe {
            gone &= qp.is_null() || (functions.ibv_destroy_qp)(qp) == 0;
            gone &= cq.is_null() || (functions.ibv_destroy_cq)(cq) == 0;
        }
        gone
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.drop_queues();
        let functions = &self.verbs.functions;
        // SAFETY: region and domain are live or null and not used again; the queues are gone.
        unsafe {
            if !self.mr.is_null() {
                (functions.ibv_dereg_mr)(self.mr);
            }
            (functions.ibv_dealloc_pd)(self.pd);
        }
    }
}

/// What a link wants of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Reliable connection, or unreliable with the rules of frames.
    pub reliable: bool,
    /// Messages that each direction holds.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
}

impl Wanted {
    /// What a message counts for in the depth of a queue: frames on unreliable connections, where
    /// a device may count so.
    fn weight(self) -> usize {
        if self.reliable { 1 } else { self.slot_bytes.div_ceil(FRAME) }
    }

    fn depth(self) -> u32 {
        u32::try_from(self.slots * self.weight()).unwrap_or(u32::MAX)
    }
}

/// Where a peer's queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Number of the queue pair.
    pub qpn: u32,
    /// Number of its first packet.
    pub psn: u32,
    /// Its port's number in an InfiniBand subnet.
    pub lid: u16,
    /// Its port's address.
    pub gid: Gid,
}

/// A queue pair of a device with registered memory: `slots` for sending, then as many for
/// receiving. Fields are dropped in this order.
pub(super) struct Endpoint {
    parts: Parts,
    device: Device,
    /// Given back by hand, once the device has let go of it.
    memory: ManuallyDrop<SharedMap>,
    wanted: Wanted,
    access: c_int,
    lkey: u32,
    under_way: usize,
}

// SAFETY: the library may be called from any thread, and the memory is this value's own.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Registers memory and makes a queue pair. A device that grants less than is wanted gets
    /// fewer slots, down to [`SLOTS_MIN`].
    pub fn open(device: Device, mut wanted: Wanted) -> Result<Self, Error> {
        let mut parts = Parts::new(&device)?;
        let (memory, access) = loop {
            let memory = SharedMap::private(2 * wanted.slots * wanted.slot_bytes);
            let memory = memory.map_err(|e| Error::System {
                doing: "making memory for messages".into(),
                found: e.to_string(),
            })?;
            match parts.register(&memory) {
                Ok(access) => break (memory, access),
                Err(error) if wanted.slots <= SLOTS_MIN => return Err(error),
                Err(_) => wanted.slots = (wanted.slots / 2).max(SLOTS_MIN),
            }
        };
        // SAFETY: the region is live.
        let lkey = unsafe { (*parts.mr).lkey };
        let memory = ManuallyDrop::new(memory);
        let mut made = Self { parts, device, memory, wanted, access, lkey, under_way: 0 };
        made.queues()?;
        Ok(made)
    }

    /// Makes the queues, with fewer slots where the device grants less.
    fn queues(&mut self) -> Result<(), Error> {
        loop {
            let depth = self.wanted.depth();
            let completions = c_int::try_from(2 * self.wanted.slots + 8).unwrap_or(c_int::MAX);
            let made = self.parts.queue_pair(
                &self.device,
                self.wanted.reliable,
                [depth, depth],
                completions,
            );
            match made {
                Ok([sends, receives]) => {
                    let granted = usize::try_from(sends.min(receives)).unwrap_or(usize::MAX);
                    let slots = granted / self.wanted.weight();
                    if slots < SLOTS_MIN {
                        return Err(Error::Settings {
                            found: format!("{} grants {granted} requests", self.device.name),
                            wanted: format!("a link needs {}", SLOTS_MIN * self.wanted.weight()),
                        });
                    }
                    self.wanted.slots = self.wanted.slots.min(slots);
                    return Ok(());
                }
                Err(error) => {
                    self.parts.drop_queues();
                    if self.wanted.slots <= SLOTS_MIN {
                        return Err(error);
                    }
                    self.wanted.slots = (self.wanted.slots / 2).max(SLOTS_MIN);
                }
            }
        }
    }

    /// New queues on the same memory: a direction may have died with the old ones.
    pub fn rebuild(&mut self) -> Result<(), Error> {
        self.end();
        self.under_way = 0;
        self.queues()
    }

    /// How many messages each direction holds.
    pub fn slots(&self) -> usize {
        self.wanted.slots
    }

    /// Uses fewer slots, since the peer has fewer.
    pub fn lower_slots(&mut self, slots: usize) {
        self.wanted.slots = self.wanted.slots.min(slots);
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.wanted.slot_bytes
    }

    /// Whether sends and receives must span equally many frames.
    pub fn frames(&self) -> bool {
        !self.wanted.reliable
    }

    /// Number of the queue pair.
    pub fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.parts.qp).qp_num }
    }

    /// From reset to a state in which receives may be posted.
    pub fn init(&mut self, port: u8) -> Result<(), Error> {
        let access = u32::try_from(self.access).expect("flags are positive");
        let mut attr = QpAttr {
            qp_state: QPS_INIT,
            port_num: port,
            qp_access_flags: access,
            ..QpAttr::default()
        };
        let mask = QP_STATE | QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS;
        self.modify("preparing the queue pair", &mut attr, mask)
    }

    /// Connects with the peer's queue pair.
    pub fn connect(
        &mut self,
        port: u8,
        gid: Option<u8>,
        mtu: c_int,
        own_psn: u32,
        peer: &Route,
    ) -> Result<(), Error> {
        let reliable = self.wanted.reliable;
        let mac = cfg!(target_os = "macos");
        let mut ah_attr = AhAttr { dlid: peer.lid, port_num: port, ..AhAttr::default() };
        if let Some(index) = gid {
            ah_attr.is_global = 1;
            ah_attr.grh.dgid = peer.gid;
            ah_attr.grh.sgid_index = index;
            // One cable on Thunderbolt; elsewhere there may be routers.
            ah_attr.grh.hop_limit = if mac { 1 } else { 64 };
        }
        let mut attr = QpAttr {
            qp_state: QPS_RTR,
            // Everybody's working code on Thunderbolt says 1024.
            path_mtu: if mac { MTU_1024 } else { mtu },
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            ah_attr,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        let mut mask = QP_STATE | QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
        if reliable {
            mask |= QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
        }
        self.modify(
            "connecting the queue pair (the GID may be wrong: give its index)",
            &mut attr,
            mask,
        )?;
        let mut attr = QpAttr {
            qp_state: QPS_RTS,
            sq_psn: own_psn,
            // 4.096 us * 2^14 = 67 ms, seven times.
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 3,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        let mut mask = QP_STATE | QP_SQ_PSN;
        if reliable {
            mask |= QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC;
        }
        self.modify("starting the queue pair", &mut attr, mask)
    }

    fn modify(&mut self, doing: &str, attr: &mut QpAttr, mask: c_int) -> Result<(), Error> {
        let modify = self.device.functions().ibv_modify_qp;
        // SAFETY: the queue pair is live and the structure is as large as the library's.
        match unsafe { modify(self.parts.qp, attr, mask) } {
            0 => Ok(()),
            number => Err(numbered(doing, number)),
        }
    }

    fn sge(&self, offset: usize, bytes: usize) -> Sge {
        let addr = self.memory.address() as u64 + offset as u64;
        let length = u32::try_from(bytes).expect("a slot is far below 4 GiB");
        Sge { addr, length, lkey: self.lkey }
    }

    fn receive_at(&self, slot: usize) -> usize {
        assert!(slot < self.wanted.slots, "a slot of the endpoint");
        (self.wanted.slots + slot) * self.wanted.slot_bytes
    }

    fn send_at(&self, slot: usize) -> usize {
        assert!(slot < self.wanted.slots, "a slot of the endpoint");
        slot * self.wanted.slot_bytes
    }

    /// Posts the receive of a slot; the number of the error if it was refused.
    pub fn post_receive(&mut self, slot: usize) -> Result<(), c_int> {
        let mut sge = self.sge(self.receive_at(slot), self.wanted.slot_bytes);
        let mut request =
            RecvWr { wr_id: slot as u64, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let (qp, mut bad) = (self.parts.qp, null_mut());
        // SAFETY: the device is open and its table of operations is filled once.
        let post = unsafe { (*self.device.context).ops.post_recv };
        // SAFETY: the queue pair and the request are live; the library copies the request, and the
        // memory that it names is registered until the queues are gone.
        self.posted(post.map(|post| unsafe { post(qp, &raw mut request, &raw mut bad) }))
    }

    /// Posts the send of a slot's first `bytes`; the number of the error if it was refused.
    pub fn post_send(&mut self, slot: usize, bytes: usize) -> Result<(), c_int> {
        assert!(bytes <= self.wanted.slot_bytes, "a message fits its slot");
        let mut sge = self.sge(self.send_at(slot), bytes);
        let mut request = SendWr {
            wr_id: SEND | slot as u64,
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: WR_SEND,
            send_flags: SEND_SIGNALED,
            imm_data: 0,
            wr: [0; 11],
        };
        let (qp, mut bad) = (self.parts.qp, null_mut());
        // SAFETY: the device is open and its table of operations is filled once.
        let post = unsafe { (*self.device.context).ops.post_send };
        // SAFETY: as for receives.
        self.posted(post.map(|post| unsafe { post(qp, &raw mut request, &raw mut bad) }))
    }

    /// Counts what the device took; a device without the operation refuses with number 0.
    fn posted(&mut self, answer: Option<c_int>) -> Result<(), c_int> {
        match answer {
            Some(0) => {
                self.under_way += 1;
                Ok(())
            }
            refused => Err(refused.unwrap_or(0)),
        }
    }

    /// What has ended since the last call, at most as many as there are places.
    pub fn poll(&mut self, ended: &mut [Wc]) -> Result<usize, c_int> {
        // SAFETY: the device is open and its table of operations is filled once.
        let poll = unsafe { (*self.device.context).ops.poll_cq };
        let Some(poll) = poll else { return Err(0) };
        let places = c_int::try_from(ended.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is live and `ended` has that many places.
        let count = unsafe { poll(self.parts.cq, places, ended.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| count)?.min(ended.len());
        self.under_way = self.under_way.saturating_sub(count);
        Ok(count)
    }

    /// Writes to a slot for sending, which nothing is under way from.
    pub fn write(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.wanted.slot_bytes, "a range of the slot");
        self.memory.write(self.send_at(slot) + offset, bytes);
    }

    /// [`SharedMap::take`] from a slot that a message has come to and that is not posted again.
    pub fn take(
        &self,
        (slot, offset): (usize, usize),
        length: usize,
        head: &mut [u8; HEADER_BYTES],
        body: &mut [u8],
    ) -> Taken {
        assert!(offset + length <= self.wanted.slot_bytes, "a range of the slot");
        self.memory.take(self.receive_at(slot) + offset, length, head, body)
    }

    /// Reads from such a slot.
    pub fn read(&self, slot: usize, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.wanted.slot_bytes, "a range of the slot");
        self.memory.read(self.receive_at(slot) + offset, into);
    }

    /// Ends the queues: error state, so that everything under way comes back, then away. Whether
    /// the device has let go of the memory.
    fn end(&mut self) -> bool {
        if self.parts.qp.is_null() {
            return true;
        }
        let mut attr = QpAttr { qp_state: QPS_ERR, ..QpAttr::default() };
        // A queue pair that cannot even fail is destroyed all the same.
        let _ = self.modify("ending the queue pair", &mut attr, QP_STATE);
        let start = Instant::now();
        let mut ended = [Wc::default(); 16];
        while self.under_way > 0 && start.elapsed() < DRAIN {
            match self.poll(&mut ended) {
                Ok(0) => std::thread::yield_now(),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.parts.drop_queues()
    }
}

/// In the number of a request: it is a send.
pub(super) const SEND: u64 = 1 << 32;

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.end() {
            // SAFETY: the memory is dropped once, here; the device has let go of it, since its
            // queues are gone and the region has no other user.
            unsafe {
                if !self.parts.mr.is_null() {
                    (self.parts.verbs.functions.ibv_dereg_mr)(self.parts.mr);
                    self.parts.mr = null_mut();
                }
                ManuallyDrop::drop(&mut self.memory);
            }
        } else {
            // The device may still write there: the memory stays for the life of the process.
            self.parts.mr = null_mut();
        }
    }
}
