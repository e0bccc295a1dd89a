//! Borrowed memory behind one handle.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use venice_control::client::Access;
use venice_memory::paged::FarError;
use venice_memory::paged::direct::{FarMemory, Lane};
use venice_memory::paged::run_block::{Fate, PortKind};

use crate::copies::Copies;
use crate::error::RecipientError;
use crate::held::Held;
use crate::holding::Holding;
use crate::home;
use crate::leases::Leases;
use crate::loan::{Loan, Shortage, borrow_in_line, random_word};
use crate::news::News;
use crate::spec::AllocationSpec;
use crate::waiting::{Told, ignore_wait};

/// A request for memory.
#[derive(Clone, Debug)]
pub struct Request {
    /// The Monitor Node: `host:port`, or several separated by commas.
    pub access: Access,
    /// The port to the donors.
    pub port: PortKind,
    /// The recipient's relay node, where nodes relay for each other; `None`: the first.
    pub node: Option<String>,
    /// Size, donors and purpose. [`AllocationSpec::home`] is filled in.
    pub spec: AllocationSpec,
}

/// Borrowed memory: bytes `0..len_bytes()`, zeros at first, kept until this is dropped.
///
/// ```no_run
/// use venice_recipient::{AllocationSpec, MemorySpec, PortKind, RemoteMemory, Request};
///
/// let memory = MemorySpec { remote_bytes: Some(64 << 20), ..MemorySpec::default() };
/// let spec = AllocationSpec { purpose: "notes".into(), ..AllocationSpec::of_memory(memory) };
/// let access = venice_recipient::local_rack::access("127.0.0.1:7700");
/// let request = Request { access, port: PortKind::Udp, node: None, spec };
/// let memory = RemoteMemory::borrow(&request, |news| eprintln!("{news}"))?;
/// let mut lane = memory.lane()?;
/// lane.write(1000, b"far away")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RemoteMemory {
    memory: Arc<FarMemory>,
    holding: Arc<Holding>,
    leases: Option<Leases>,
    devices: Vec<Held>,
    shortage: Option<Shortage>,
}

impl RemoteMemory {
    /// Borrows memory. `tell` receives events of donors and copies, on another thread.
    ///
    /// # Errors
    /// [`RecipientError`]; nothing is borrowed then.
    pub fn borrow(
        request: &Request,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<RemoteMemory, RecipientError> {
        RemoteMemory::borrow_in_line(request, &mut ignore_wait, tell)
    }

    /// The same, where `told` receives reports on a wait in the queue.
    ///
    /// # Errors
    /// The errors of [`borrow`](RemoteMemory::borrow); [`RecipientError::WaitCancelled`] if `told`
    /// cancels the wait.
    pub fn borrow_in_line(
        request: &Request,
        told: &mut Told<'_>,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<RemoteMemory, RecipientError> {
        let home = home::find(&request.access, request.port, request.node.as_deref())?;
        let (name, relay_addr) = home.map(|home| (home.name, home.relay_addr)).unzip();
        let home = name.unwrap_or_default();
        let spec = AllocationSpec { home, ..request.spec.clone() };
        let loan = borrow_in_line(&request.access, &spec, request.port, told)?;
        RemoteMemory::over(loan, request.port, relay_addr.as_deref(), tell)
    }

    /// Takes over a loan made for `port`. With `home`, the address of a relay, its donors are
    /// reached through that.
    ///
    /// # Errors
    /// [`RecipientError`]; the loan is released then.
    pub fn over(
        mut loan: Loan,
        port: PortKind,
        home: Option<&str>,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<RemoteMemory, RecipientError> {
        let devices = Held::each_device_of(&mut loan)?;
        let (_fd, block) = loan.run_block(port)?;
        block.fingerprint_seed.store(random_word()?, Ordering::Relaxed);
        if let Some(link) = loan.link() {
            block.set_link(&link);
        }
        let (block, shortage) = (Arc::new(block), loan.shortage.take());
        let holding = Holding::new(loan, block.clone(), home)?;
        let slabs = holding.clone();
        let source = Box::new(move |replica| slabs.slab(replica));
        // Before anything else that can fail: this releases the memory from here on.
        let leases = Leases::keep(holding.clone(), tell)?;
        let memory = Arc::new(FarMemory::new(block, source).map_err(RecipientError::Map)?);
        Ok(RemoteMemory { memory, holding, leases: Some(leases), devices, shortage })
    }

    /// Returns the number of devices granted with it and not taken.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// Takes the devices that were granted with it; what is left ends with it.
    pub fn take_devices(&mut self) -> Vec<Held> {
        std::mem::take(&mut self.devices)
    }

    /// Returns the state of the copies. With one copy, the loss of a node loses its data.
    pub fn copies(&self) -> Copies {
        self.holding.copies()
    }

    /// Returns the grants behind it.
    pub fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    /// Returns what is known of the lack of room, if there was none for two copies, and the caller
    /// had not asked for one.
    pub fn shortage(&self) -> Option<&Shortage> {
        self.shortage.as_ref()
    }

    /// Returns its size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// True if its size is 0.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Opens a lane for one thread. A lane may outlive this handle; its accesses fail then.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn lane(&self) -> Result<Lane, FarError> {
        self.memory.lane()
    }

    /// Returns the layer below the lanes: the run block with the donors, and the slabs where they
    /// are mapped.
    pub fn memory(&self) -> &Arc<FarMemory> {
        &self.memory
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        drop(self.leases.take());
        // Later accesses of lanes must fail: the memory is no longer borrowed.
        for donor in self.memory.block().donors() {
            donor.lose(Fate::Revoked);
        }
    }
}
