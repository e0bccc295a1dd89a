//! The host's side of a region.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use venice_memory::donor::SharedGrants;
use venice_memory::region::{REGION_GRANT, region_grants, serve_region_udp};
use venice_ports::seal::SealKeys;
use venice_ports::shm::{ShmServer, SlabMapping};
use venice_ports::udp::{UdpServer, UdpSocket};
use venice_service::{EndpointSpec, HostContext, SealSpec};
use venice_wire::{GrantKey, NodeSecret, SLAB_BYTES};

use super::ticket::{RegionKeys, Secrets, Tickets};
use super::{RegionSlot, SharedBytes};

/// Memory of a service host that its recipient reaches, mapped here in one piece. Pages become
/// resident at their first use; the host's memory limit covers them.
///
/// The recipient writes at any time: read each byte once, and check what was read.
#[derive(Debug)]
pub struct RegionHost {
    _shm: Option<ShmServer>,
    udp: Option<UdpServer>,
    mapping: SlabMapping,
    tickets: Tickets,
    /// Socket towards other hosts' regions; `None`: this host reaches no network.
    outgoing: Option<UdpSocket>,
}

impl RegionHost {
    /// Serves `bytes` of zeros, rounded up to 16 MiB, at the endpoints of the host: to be called
    /// where the service is made, while sockets can still be.
    ///
    /// The host needs 1 descriptor for each 16 MiB, and 32 more; a thread for shm and one for udp;
    /// and files of 16 MiB ([`venice_service::HostLimits::scratch_bytes`]).
    ///
    /// # Errors
    /// Says what failed: the limits of the host are too low, or the system refuses.
    pub fn serve(context: &HostContext<'_>, key: GrantKey, bytes: u64) -> Result<Self, String> {
        Self::serve_as(context, RegionSlot::First, key, bytes)
    }

    /// Serves a second region of the host, for a service beside its first one.
    ///
    /// # Errors
    /// The errors of [`RegionHost::serve`].
    pub fn serve_beside(context: &HostContext<'_>, bytes: u64) -> Result<Self, String> {
        let key = RegionSlot::Second.key(context.spec.secret.as_bytes());
        Self::serve_as(context, RegionSlot::Second, key, bytes)
    }

    fn serve_as(
        context: &HostContext<'_>,
        slot: RegionSlot,
        key: GrantKey,
        bytes: u64,
    ) -> Result<Self, String> {
        check_limits(context, bytes)?;
        let grants = region_grants(key, bytes).map_err(with_causes)?;
        let slabs = bytes.div_ceil(SLAB_BYTES) as usize;
        let mapping = SlabMapping::reserve(slabs).map_err(with_causes)?;
        for number in 0..slabs {
            let batch = grants.lock().slab_files(REGION_GRANT, key, number, 1)?;
            mapping.map(number, &batch.files[0]).map_err(with_causes)?;
        }
        let (mut shm, mut udp, mut outgoing) = (None, None, None);
        let mut secrets =
            Secrets { access: NodeSecret(*context.spec.secret.as_bytes()), seal: None };
        for endpoint in &context.spec.endpoints {
            match endpoint {
                EndpointSpec::Ring => {
                    let path = context.endpoint_dir.join(slot.socket());
                    // Recipients are other users.
                    let server = ShmServer::start_for_all(&path, grants.clone());
                    shm = Some(server.map_err(with_causes)?);
                }
                EndpointSpec::Udp { address, seal } => {
                    let address = SocketAddr::new(address.ip(), 0);
                    let keys = seal.as_ref().map(|seal| keys_of(slot, seal, &grants));
                    let server = serve_region_udp(address, keys, &grants).map_err(with_causes)?;
                    if udp.is_none() {
                        udp = Some(server);
                        secrets.seal = seal.as_ref().map(|seal| NodeSecret(seal.key));
                        outgoing = Some(UdpSocket::bind(address).map_err(with_causes)?);
                    }
                }
            }
        }
        let tickets = Tickets { grants, secrets };
        Ok(Self { _shm: shm, udp, mapping, tickets, outgoing })
    }

    /// Returns the port of the first UDP endpoint, to be told to recipients; `None` without one.
    pub fn udp_port(&self) -> Option<u16> {
        self.udp.as_ref().map(|server| server.local_addr().port())
    }

    /// Makes a ticket for bytes of the region valid; false if its number is taken, or they are beyond
    /// the end.
    #[must_use]
    pub fn admit(&self, number: u64, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len).filter(|end| *end <= self.len_bytes());
        end.is_some_and(|end| self.tickets.admit(number, &(offset..end)))
    }

    /// Makes a ticket void: accesses under way are refused.
    pub fn revoke(&self, number: u64) {
        self.tickets.revoke(number);
    }

    /// Returns a socket by which this host may reach the regions of others, one at a time; `None`: it
    /// reaches no network.
    pub fn outgoing(&self) -> Option<UdpSocket> {
        self.outgoing.as_ref().and_then(|socket| socket.try_clone().ok())
    }

    /// Returns the address of the first byte, valid as long as this value lives. Recipients write to
    /// it at any time: use raw copies and atomics, or hand it to a device.
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Returns the size in bytes, a multiple of 16 MiB.
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len_bytes() as u64
    }

    /// Returns the address of `len` bytes at `offset`; `None` beyond the end.
    pub fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        self.bytes().at(offset, len)
    }

    /// Fills `into` from `offset` on; false, and nothing is read, beyond the end.
    #[must_use]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.bytes().read(offset, into)
    }

    /// Stores `from` at `offset`; false, and nothing is stored, beyond the end.
    #[must_use]
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        self.bytes().write(offset, from)
    }

    /// Returns the word at `offset`, and all that the recipient wrote before it; `None` beyond the
    /// end, or if `offset` is no multiple of eight.
    pub fn load_word(&self, offset: u64) -> Option<u64> {
        Some(u64::from_le(self.bytes().word(offset)?.load(Ordering::Acquire)))
    }

    /// Stores a word after all that was written before; false beyond the end, or if `offset` is no
    /// multiple of eight.
    #[must_use]
    pub fn store_word(&self, offset: u64, word: u64) -> bool {
        let bytes = self.bytes();
        bytes.word(offset).inspect(|at| at.store(word.to_le(), Ordering::Release)).is_some()
    }

    /// Replaces bytes by zeros and gives the memory of whole pages back to the system; false beyond
    /// the end. Nothing may use the bytes meanwhile.
    #[must_use]
    pub fn discard(&self, offset: u64, len: usize) -> bool {
        let Some(start) = self.at(offset, len) else { return false };
        let page = page_bytes();
        let ahead = (start.addr().next_multiple_of(page) - start.addr()).min(len);
        let pages = (len - ahead) / page * page;
        self.zero(offset, ahead);
        self.zero(offset + (ahead + pages) as u64, len - ahead - pages);
        if !self.remove_pages(offset + ahead as u64, pages) {
            self.zero(offset + ahead as u64, pages);
        }
        true
    }

    #[expect(unsafe_code, reason = "the memory is shared with recipients")]
    fn bytes(&self) -> SharedBytes {
        // SAFETY: mapped as long as `self`, from a slab's boundary on; no reference is formed.
        unsafe { SharedBytes::new(self.mapping.base(), self.mapping.len_bytes()) }
    }

    #[expect(unsafe_code, reason = "the memory is shared with recipients")]
    fn zero(&self, offset: u64, len: usize) {
        let at = self.at(offset, len).expect("the caller checked the range");
        // SAFETY: `len` bytes of the mapping, to which no reference exists.
        unsafe { std::ptr::write_bytes(at, 0, len) };
    }

    /// Punches a hole of whole pages; false if the kernel refuses.
    #[expect(unsafe_code, reason = "changes our own mapping")]
    fn remove_pages(&self, offset: u64, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let at = self.at(offset, len).expect("the caller checked the range");
        // SAFETY: whole pages of our own mapping of files that are sealed against resizing only: they
        // read as zeros afterwards.
        unsafe { rustix::mm::madvise(at.cast(), len, rustix::mm::Advice::LinuxRemove) }.is_ok()
    }
}

/// Returns the page size. The host sees no /proc: the C library has it from the kernel.
#[expect(unsafe_code, reason = "calls C")]
fn page_bytes() -> usize {
    // SAFETY: reads a constant.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Refuses a region that the host's limits would end the host for.
fn check_limits(context: &HostContext<'_>, bytes: u64) -> Result<(), String> {
    let limits = &context.spec.limits;
    if bytes == 0 {
        return Err("region of 0 bytes: expected at least 1".to_owned());
    }
    if bytes >= limits.memory_bytes {
        let most = limits.memory_bytes;
        return Err(format!("region of {bytes} bytes: the memory limit of the host is {most}"));
    }
    let file_bytes = limits.scratch_bytes.max(1 << 20);
    if file_bytes < SLAB_BYTES {
        return Err(format!(
            "region: files of {SLAB_BYTES} bytes, the host's limit is {file_bytes}"
        ));
    }
    Ok(())
}

fn keys_of(
    slot: RegionSlot,
    seal: &SealSpec,
    grants: &SharedGrants,
) -> Arc<dyn SealKeys + Send + Sync> {
    let (own, service_key) = (slot.seal(seal.grant, seal.key), NodeSecret(seal.key));
    Arc::new(RegionKeys { own, service_key, grants: grants.clone() })
}

fn with_causes(error: impl std::error::Error) -> String {
    let mut text = format!("region: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
