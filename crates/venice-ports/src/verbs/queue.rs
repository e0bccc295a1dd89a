//! Completion queues and queue pairs.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{
    AhAttr, CompChannel, Cq, DeviceAttr, GlobalRoute, Qp, QpAttr, QpCap, QpInitAttr, SendWr, Wc,
    constants,
};
use super::device::PortAddress;
use super::memory::Domain;
use super::{Device, VerbsError};

/// Acknowledgement time-out of 4.096 µs × 2^16 = 268 ms, seven times: a dead peer is detected in
/// two seconds if no other event reveals its death.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;
/// Delay of 0.64 ms before a sender retries whose receiver had no buffer.
const RNR_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;
/// Longest write that travels inside the request, if the device can, in bytes.
const INLINE_BYTES: u32 = 128;

/// A completion queue, and the channel on which it announces completions.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    device: Arc<Device>,
    cq: NonNull<Cq>,
    channel: NonNull<CompChannel>,
}

// SAFETY: libibverbs may be called from any thread; only the owner frees it.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(super) fn new(device: &Arc<Device>, depth: usize) -> Result<Arc<Self>, VerbsError> {
        let library = device.library();
        // SAFETY: the device is open.
        let channel = unsafe { (library.create_comp_channel)(device.context()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| device.failed("making a completion channel"))?;
        // SAFETY: the device is open, the channel is of it.
        let cq = unsafe {
            let (none, depth) = (std::ptr::null_mut(), depth as i32);
            (library.create_cq)(device.context(), depth, none, channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.failed("making a completion queue");
            // SAFETY: nothing uses the channel.
            unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let this = Self { device: Arc::clone(device), cq, channel };
        rustix::io::ioctl_fionbio(this.fd(), true).map_err(|errno| VerbsError::System {
            step: "setting up a completion channel",
            source: errno.into(),
        })?;
        Ok(Arc::new(this))
    }

    /// Takes as many completions as there are and fit.
    pub(super) fn poll<'a>(&self, into: &'a mut [Wc]) -> &'a [Wc] {
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is alive; the provider filled in its functions when the device was
        // opened.
        let taken = unsafe {
            let poll = (*(*cq).context).ops.poll_cq.expect("every provider polls");
            poll(cq, into.len() as i32, into.as_mut_ptr())
        };
        assert!(taken >= 0, "a completion queue that is large enough cannot fail");
        &into[..taken as usize]
    }

    /// Makes [`CompletionQueue::fd`] readable at the next completion. Poll once more before
    /// sleeping: an earlier completion is not announced.
    pub(super) fn arm(&self) {
        let cq = self.cq.as_ptr();
        // SAFETY: as for `poll`.
        let code = unsafe {
            let arm = (*(*cq).context).ops.req_notify_cq.expect("every provider notifies");
            arm(cq, 0)
        };
        assert!(code == 0, "a completion queue that is alive can be armed");
    }

    /// Takes pending announcements.
    pub(super) fn take_events(&self) {
        let library = self.device.library();
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and does not block; each event is acknowledged once.
        unsafe {
            while (library.get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) == 0 {
                (library.ack_cq_events)(cq, 1);
            }
        }
    }

    /// Returns a descriptor that is readable once a completion was announced.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    pub(super) fn as_ptr(&self) -> *mut Cq {
        self.cq.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let library = self.device.library();
        // SAFETY: queue pairs hold their completion queue alive, so none is left; every event was
        // acknowledged where it was taken.
        unsafe {
            (library.destroy_cq)(self.cq.as_ptr());
            (library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// Properties of a queue pair that its peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePairAddress {
    pub port: PortAddress,
    pub number: u32,
    /// Number of the first packet it sends.
    pub first_packet: u32,
    /// Most outstanding reads and atomics of a requester, or most answered at once by a responder.
    pub reads: u8,
}

/// End of a reliable connection (RC queue pair).
#[derive(Debug)]
pub(super) struct QueuePair {
    domain: Arc<Domain>,
    _completions: Arc<CompletionQueue>,
    qp: NonNull<Qp>,
    inline_bytes: u32,
    depth: u32,
}

// SAFETY: libibverbs may be called from any thread; only the owner frees it.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a queue pair of `depth` outstanding requests, without receive buffers.
    pub(super) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        depth: u32,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        let depth = depth.min(device.limits().max_qp_wr.max(1) as u32);
        let mut setup = QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.as_ptr(),
            recv_cq: completions.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: QpCap {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: INLINE_BYTES,
            },
            qp_type: constants::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue are alive; the structure is read and filled here only.
        let mut qp = unsafe { (device.library().create_qp)(domain.as_ptr(), &mut setup) };
        if qp.is_null() {
            setup.cap.max_inline_data = 0;
            // SAFETY: as above.
            qp = unsafe { (device.library().create_qp)(domain.as_ptr(), &mut setup) };
        }
        let qp = NonNull::new(qp).ok_or_else(|| device.failed("making a queue pair"))?;
        Ok(Self {
            domain: Arc::clone(domain),
            _completions: Arc::clone(completions),
            qp,
            inline_bytes: setup.cap.max_inline_data,
            depth,
        })
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Returns the limits of its device.
    pub(super) fn limits(&self) -> &DeviceAttr {
        self.domain.device().limits()
    }

    /// Returns the most requests that may be outstanding.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the longest inline write in bytes.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Joins it to `theirs`. With `remote_access`, the other side reaches the regions of its
    /// domain.
    pub(super) fn connect(
        &self,
        ours: &QueuePairAddress,
        theirs: &QueuePairAddress,
        remote_access: bool,
    ) -> Result<(), VerbsError> {
        let device = self.domain.device();
        let access = match remote_access {
            true => {
                constants::ACCESS_REMOTE_READ
                    | constants::ACCESS_REMOTE_WRITE
                    | constants::ACCESS_REMOTE_ATOMIC
            }
            false => 0,
        };
        let mut attributes = QpAttr {
            qp_state: constants::QPS_INIT,
            qp_access_flags: access as u32,
            port_num: device.port_number(),
            ..QpAttr::default()
        };
        let mask = constants::QP_STATE
            | constants::QP_PKEY_INDEX
            | constants::QP_PORT
            | constants::QP_ACCESS_FLAGS;
        self.modify("initialising a queue pair", &mut attributes, mask)?;

        attributes.qp_state = constants::QPS_RTR;
        attributes.path_mtu = i32::from(ours.port.mtu.min(theirs.port.mtu));
        attributes.dest_qp_num = theirs.number;
        attributes.rq_psn = theirs.first_packet;
        attributes.max_dest_rd_atomic = ours.reads.min(theirs.reads);
        attributes.min_rnr_timer = RNR_TIMER;
        attributes.ah_attr = AhAttr {
            grh: GlobalRoute {
                dgid: theirs.port.gid,
                sgid_index: ours.port.gid_index,
                hop_limit: HOP_LIMIT,
                ..GlobalRoute::default()
            },
            dlid: theirs.port.lid,
            is_global: u8::from(device.is_ethernet()),
            port_num: device.port_number(),
            ..AhAttr::default()
        };
        let mask = constants::QP_STATE
            | constants::QP_AV
            | constants::QP_PATH_MTU
            | constants::QP_DEST_QPN
            | constants::QP_RQ_PSN
            | constants::QP_MAX_DEST_RD_ATOMIC
            | constants::QP_MIN_RNR_TIMER;
        self.modify("connecting a queue pair", &mut attributes, mask)?;

        attributes.qp_state = constants::QPS_RTS;
        attributes.timeout = TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RETRIES;
        attributes.sq_psn = ours.first_packet;
        attributes.max_rd_atomic = ours.reads.min(theirs.reads);
        let mask = constants::QP_STATE
            | constants::QP_TIMEOUT
            | constants::QP_RETRY_CNT
            | constants::QP_RNR_RETRY
            | constants::QP_SQ_PSN
            | constants::QP_MAX_QP_RD_ATOMIC;
        self.modify("readying a queue pair", &mut attributes, mask)
    }

    /// Resets it for another connection. Nothing may be outstanding.
    pub(super) fn reset(&self) -> Result<(), VerbsError> {
        let mut attributes = QpAttr { qp_state: constants::QPS_RESET, ..QpAttr::default() };
        self.modify("resetting a queue pair", &mut attributes, constants::QP_STATE)
    }

    /// Ends the connection: outstanding requests complete with an error.
    pub(super) fn cut(&self) {
        let mut attributes = QpAttr { qp_state: constants::QPS_ERR, ..QpAttr::default() };
        let _ = self.modify("ending a queue pair", &mut attributes, constants::QP_STATE);
    }

    fn modify(
        &self,
        step: &'static str,
        attributes: &mut QpAttr,
        mask: i32,
    ) -> Result<(), VerbsError> {
        let device = self.domain.device();
        // SAFETY: the queue pair is alive; the structure is only read, as far as the mask allows.
        let code = unsafe { (device.library().modify_qp)(self.qp.as_ptr(), attributes, mask) };
        device.check(step, code)
    }

    /// Posts one request.
    ///
    /// # Errors
    /// The provider's error number, if it refuses the request.
    ///
    /// # Safety
    /// The memory that the request names must be registered in this domain, and must stay so until
    /// its completion.
    pub(super) unsafe fn post(&self, request: &mut SendWr) -> Result<(), i32> {
        let qp = self.qp.as_ptr();
        let mut refused = std::ptr::null_mut();
        // SAFETY: the queue pair is alive, the provider filled in its functions; the caller answers
        // for the memory.
        let code = unsafe {
            let post = (*(*qp).context).ops.post_send.expect("every provider posts");
            post(qp, request, &mut refused)
        };
        if code == 0 { Ok(()) } else { Err(code) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: our own queue pair, destroyed once.
        unsafe { (self.domain.device().library().destroy_qp)(self.qp.as_ptr()) };
    }
}
