//! Borrowed memory behind one handle.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use venice_control::client::Access;
use venice_memory::paged::FarError;
use venice_memory::paged::direct::{FarMemory, Lane};
use venice_memory::paged::run_block::{Fate, PortKind};

use crate::copies::Copies;
use crate::error::RecipientError;
use crate::holding::Holding;
use crate::home;
use crate::leases::Leases;
use crate::loan::{Loan, Wish, borrow_in_line, drawn};
use crate::news::News;
use crate::waiting::{Told, unheard};

/// What memory is wanted.
#[derive(Clone, Debug)]
pub struct Request {
    /// The Monitor Node: `host:port`, or several with commas between.
    pub access: Access,
    /// How the donors are reached.
    pub port: PortKind,
    /// The node this recipient belongs to, where nodes relay for each other; `None`: the first.
    pub node: Option<String>,
    /// How much, from whom, what for. [`Wish::home`] is filled in.
    pub wish: Wish,
}

/// Borrowed memory: bytes `0..len_bytes()`, zeros at first, kept until this is dropped.
///
/// ```no_run
/// use venice_recipient::{PortKind, RemoteMemory, Request, Wish};
///
/// let wish = Wish { remote_bytes: Some(64 << 20), purpose: "notes".into(), ..Wish::default() };
/// let access = venice_recipient::local_rack::access("127.0.0.1:7700");
/// let request = Request { access, port: PortKind::Udp, node: None, wish };
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
    is_short: bool,
}

impl RemoteMemory {
    /// Borrows. `tell` hears of donors that are lost and of copies, on a thread of its own.
    ///
    /// # Errors
    /// [`RecipientError`]; nothing is borrowed then.
    pub fn borrow(
        request: &Request,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<RemoteMemory, RecipientError> {
        RemoteMemory::borrow_in_line(request, &mut unheard, tell)
    }

    /// The same, where `told` hears how a wish stands that waits in line.
    ///
    /// # Errors
    /// As [`borrow`](RemoteMemory::borrow); [`RecipientError::LeftLine`] where `told` has said so.
    pub fn borrow_in_line(
        request: &Request,
        told: &mut Told<'_>,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<RemoteMemory, RecipientError> {
        let home = home::find(&request.access, request.port, request.node.as_deref())?;
        let (name, relay_addr) = home.map(|home| (home.name, home.relay_addr)).unzip();
        let wish = Wish { home: name.unwrap_or_default(), ..request.wish.clone() };
        let loan = borrow_in_line(&request.access, &wish, request.port, told)?;
        RemoteMemory::over(loan, request.port, relay_addr.as_deref(), tell)
    }

    /// Takes over a loan made for `port`; with `home`, the address of a relay, its donors are
    /// reached through that.
    ///
    /// # Errors
    /// [`RecipientError`]; the loan's leases end by themselves then.
    pub fn over(
        loan: Loan,
        port: PortKind,
        home: Option<&str>,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<RemoteMemory, RecipientError> {
        let (_fd, block) = loan.run_block(port)?;
        block.fingerprint_seed.store(drawn()?, Ordering::Relaxed);
        if let Some(link) = loan.link() {
            block.set_link(&link);
        }
        let (block, is_short) = (Arc::new(block), loan.is_short);
        let holding = Holding::new(loan, block.clone(), home)?;
        let slabs = holding.clone();
        let source = Box::new(move |replica| slabs.slab(replica));
        let memory = Arc::new(FarMemory::new(block, source).map_err(RecipientError::Map)?);
        let leases = Leases::keep(holding.clone(), tell)?;
        Ok(RemoteMemory { memory, holding, leases: Some(leases), is_short })
    }

    /// How many copies are kept of each slab, on different nodes, and which are missing just now.
    /// With one, a node that dies takes with it what it holds.
    pub fn copies(&self) -> Copies {
        self.holding.copies()
    }

    /// What is held of the rack for it.
    pub fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    /// There was no room for two copies, and nobody had asked for one.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// How much there is.
    pub fn len_bytes(&self) -> u64 {
        self.memory.len_bytes()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// A way there for one thread. A lane may outlive this handle; what it accesses is lost then.
    ///
    /// # Errors
    /// [`FarError`].
    pub fn lane(&self) -> Result<Lane, FarError> {
        self.memory.lane()
    }

    /// What lies below the lanes: the run block with the donors, and the slabs where they are
    /// mapped.
    pub fn memory(&self) -> &Arc<FarMemory> {
        &self.memory
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        drop(self.leases.take());
        // Lanes that live on must not take for memory what is nobody's.
        for donor in self.memory.block().donors() {
            donor.lose(Fate::Revoked);
        }
    }
}
