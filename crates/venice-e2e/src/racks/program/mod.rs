//! The program of a node: executes the scenario's accesses, and notes all of them.

mod far;
mod streams;
mod talk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use anyhow::Result;
use venice_fabric::{AccessError, FabricError, Refusal};
use venice_ports::channels::ChannelError;
use venice_ports::monotonic_ns;
use venice_sim::checkers::{Change, WriteId, written};
use venice_sim::rack::Sabotage;
use venice_sim::scenario::{Access, Kind, Workload};
use venice_simkernel::random::Stream;
use venice_wire::{GrantId, GrantKey};

use self::far::{Far, Over};
use self::streams::{Streams, Tally};
use self::talk::{Talk, Todo};
use crate::racks::notes::{Bytes, Notebook, Role, Source, What, Why};
use crate::racks::orders::{Order, Reply, orders, reply};
use crate::racks::plan::{Plan, Service};

/// Longest sleep, since orders come at any time.
const NAP_NS: u64 = 2_000_000;
/// Delay before the next request for memory that could not be mapped.
const ASK_AGAIN_NS: u64 = 30_000_000;
/// Reads for one strike of sabotage.
const STRIKE_EVERY: u64 = 10;

/// Works until the parent closes the input.
///
/// # Errors
/// When the port fails.
pub fn run(
    plan: &Plan,
    node: u16,
    life: u32,
    accesses: u32,
    sabotage: Option<Sabotage>,
) -> Result<()> {
    let source = Source { role: Role::Program, node, life };
    let notebook = Arc::new(Notebook::create(&plan.folder, source)?);
    let talk = |(session, &donor): (usize, &u16)| {
        let (address, todo) = (plan.talks_at(node, donor, Service::Talk), Todo::default());
        let notebook = Arc::clone(&notebook);
        let talk = Talk { source, session, address, todo: todo.clone(), notebook, sabotage };
        std::thread::spawn(move || talk.run());
        todo
    };
    let stream = |(session, &donor): (usize, &u16)| {
        let address = plan.talks_at(node, donor, Service::Stream);
        let (notebook, tally) = (Arc::clone(&notebook), Tally::default());
        Arc::new(Streams { source, session, donor, address, notebook, sabotage, tally })
    };
    let donors = plan.scenario.donors_of(node);
    let todos: Vec<Todo> = donors.iter().enumerate().map(talk).collect();
    let streams = donors.iter().enumerate().map(stream).collect();
    let session = |_: &Todo| Session {
        region: None,
        latest: None,
        unmaps: 0,
        asks_at_ns: Some(0),
        is_probed: false,
    };
    let program = Program {
        far: Far::new(plan, node)?,
        workload: plan.scenario.workload,
        rng: plan.scenario.node_stream(node).split("program", &[life.into()]),
        notebook,
        sessions: todos.iter().map(session).collect(),
        todos,
        streams,
        accesses_left: accesses,
        regions: BTreeMap::new(),
        held: None,
        pending: BTreeMap::new(),
        posted: Vec::new(),
        next_token: 0,
        next_want_ns: 0,
        probes: false,
        was_content: false,
        sabotage,
        reads: 0,
    };
    reply(Reply::Ready);
    program.work(&orders())
}

struct Program {
    far: Far,
    workload: Workload,
    rng: Stream,
    notebook: Arc<Notebook>,
    sessions: Vec<Session>,
    /// Messages to be sent to each donor.
    todos: Vec<Todo>,
    /// Byte streams with each donor.
    streams: Vec<Arc<Streams>>,
    accesses_left: u32,
    regions: BTreeMap<u32, Region>,
    held: Option<Held>,
    pending: BTreeMap<u64, Pending>,
    /// Posted writes since the last fence.
    posted: Vec<u64>,
    next_token: u64,
    next_want_ns: u64,
    /// True if every region is read whole at the end.
    probes: bool,
    was_content: bool,
    sabotage: Option<Sabotage>,
    reads: u64,
}

#[derive(Debug)]
struct Session {
    region: Option<u32>,
    /// The region mapped last, whether its link is up or not.
    latest: Option<u32>,
    /// Number of times the window was unmapped.
    unmaps: u32,
    /// Time of the next request for memory to the parent; `None`: it is outstanding, or not needed.
    asks_at_ns: Option<u64>,
    is_probed: bool,
}

#[derive(Debug)]
struct Region {
    salt: u64,
    next_write: u32,
    /// Likely values of the words for atomics.
    words: Vec<u64>,
}

/// Noted, and not yet accepted by the fabric.
#[derive(Debug)]
struct Held {
    token: u64,
    access: Access,
    region: u32,
    /// Bytes of a write.
    bytes: Vec<u8>,
    /// Change of an atomic.
    change: Option<Change>,
    is_probe: bool,
}

#[derive(Debug)]
struct Pending {
    access: Access,
    /// Number of times the window had been unmapped.
    unmaps: u32,
    is_probe: bool,
}

impl Program {
    fn work(mut self, orders: &Receiver<Order>) -> Result<()> {
        loop {
            loop {
                match orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
            let mut busy = self.collect()?;
            self.take_stock();
            self.draw();
            busy |= self.issue();
            self.tell();
            if !busy {
                let now_ns = monotonic_ns();
                let wants = self.held.is_none() && self.accesses_left > 0;
                let nap_ns = if wants { self.next_want_ns.saturating_sub(now_ns) } else { NAP_NS };
                self.far.wait(nap_ns.clamp(100_000, NAP_NS))?;
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            // It was requested twice.
            Order::Connect { session, .. } if self.sessions[session].region.is_some() => {}
            Order::Connect { session, grant, key, region, salt } => {
                match self.far.connect(session, GrantId(grant), GrantKey(key)) {
                    Ok(()) => {
                        self.regions.entry(region).or_insert_with(|| Region {
                            salt,
                            next_write: 1,
                            words: vec![0; self.workload.counters.into()],
                        });
                        self.sessions[session].region = Some(region);
                        self.sessions[session].latest = Some(region);
                    }
                    Err(error) => self.lose(session, error.to_string()),
                }
            }
            Order::Probe => self.probes = true,
            Order::Report => {
                for session in &self.sessions {
                    if let Some(region) = session.latest {
                        self.notebook.note(What::Uses { region });
                    }
                }
                reply(Reply::Reported);
            }
            Order::Lend { .. } | Order::End { .. } | Order::Begin { .. } | Order::Over { .. } => {}
        }
    }

    /// Handles a session without memory: requests some from the parent.
    fn lose(&mut self, session: usize, text: String) {
        self.notebook.note(What::Down { text });
        self.far.unmap(session);
        self.sessions[session].unmaps += 1;
        self.sessions[session].region = None;
        self.sessions[session].asks_at_ns.get_or_insert(monotonic_ns() + ASK_AGAIN_NS);
    }

    /// Handles the donors' revocations.
    fn take_revoked(&mut self) {
        while let Some(session) = self.far.next_revoked() {
            if let Some(region) = self.sessions[session].region {
                self.notebook.note(What::Revoked { region });
            }
            self.lose(session, "the donor has taken it back".into());
        }
    }

    fn take_stock(&mut self) {
        self.take_revoked();
        while let Some((session, text)) = self.far.next_down() {
            self.lose(session, text);
        }
        let now_ns = monotonic_ns();
        for (n, session) in self.sessions.iter_mut().enumerate() {
            if session.asks_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                session.asks_at_ns = None;
                reply(Reply::Want { session: n });
            }
        }
    }

    /// Handles completions; returns true if there were any.
    fn collect(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(Over { token, result, mut data }) = self.far.poll()? {
            any = true;
            let pending = self.pending.remove(&token);
            let Some(pending) = pending else {
                let (why, text) = (Why::Wrong, "completed twice".into());
                self.notebook.note(What::Failed { token, why, text });
                continue;
            };
            match result {
                Ok(()) => {
                    self.spoil(pending.access.kind, &mut data);
                    if is_write(pending.access.kind) {
                        data.clear();
                    }
                    self.notebook.note(What::Done { token, data: Bytes(data) });
                    self.sessions[pending.access.session].is_probed |= pending.is_probe;
                }
                Err(error) => self.fail(token, &pending, error),
            }
        }
        Ok(any)
    }

    fn fail(&mut self, token: u64, pending: &Pending, error: AccessError) {
        // A revocation may be the cause of a missing window.
        self.take_revoked();
        let why = match error {
            AccessError::Refused(Refusal::UnknownGrant) | AccessError::Revoked => Why::UnknownGrant,
            AccessError::Refused(_) => Why::Refused,
            AccessError::PeerDown(venice_fabric::DownReason::Protocol) => Why::Wrong,
            AccessError::PeerDown(_) => Why::Down,
            // The window was unmapped before a bulk transfer began.
            AccessError::NotMapped => {
                let is_unmapped = self.sessions[pending.access.session].unmaps != pending.unmaps;
                if is_unmapped { Why::Unmapped } else { Why::Wrong }
            }
        };
        let text = error.to_string();
        self.notebook.note(What::Failed { token, why, text: text.clone() });
        let session = pending.access.session;
        let is_of_now = self.sessions[session].unmaps == pending.unmaps;
        if is_of_now && self.far.is_mapped(session) {
            self.lose(session, text);
        }
    }

    /// Draws the next access, if it is time for one.
    fn draw(&mut self) {
        let now_ns = monotonic_ns();
        let has_room = self.pending.len() < usize::from(self.workload.depth);
        if self.held.is_some() || !has_room || now_ns < self.next_want_ns {
            return;
        }
        if self.accesses_left == 0 {
            if !self.posted.is_empty() {
                self.fence();
            }
            return self.draw_probe();
        }
        let usable: Vec<usize> =
            (0..self.sessions.len()).filter(|&n| self.sessions[n].region.is_some()).collect();
        if usable.is_empty() {
            return;
        }
        let access = self.workload.draw_access(&mut self.rng, &usable);
        self.next_want_ns = now_ns + self.workload.draw_pause_ns(&mut self.rng);
        self.accesses_left -= 1;
        match access.kind {
            Kind::Message => self.todos[access.session].add_one(),
            Kind::Stream => self.streams[access.session].begin(),
            Kind::Fence => self.fence(),
            Kind::Unmap => self.give_back(access.session),
            _ => self.hold(access, false),
        }
    }

    /// Waits until all posted writes are executed.
    fn fence(&mut self) {
        let result = self.far.fence();
        for token in std::mem::take(&mut self.posted) {
            self.notebook.note(match &result {
                Ok(()) => What::Done { token, data: Bytes(Vec::new()) },
                Err(error) => {
                    let (why, text) = (Why::Uncertain, error.to_string());
                    What::Failed { token, why, text }
                }
            });
        }
    }

    /// Gives a window back, to be requested again.
    fn give_back(&mut self, session: usize) {
        self.far.unmap(session);
        self.sessions[session].unmaps += 1;
        self.sessions[session].region = None;
        self.sessions[session].asks_at_ns = Some(monotonic_ns());
    }

    fn draw_probe(&mut self) {
        let is_due = |n: &usize| {
            let is_asked = self.pending.values().any(|it| it.is_probe && it.access.session == *n);
            let session = &self.sessions[*n];
            !session.is_probed && !is_asked && session.region.is_some()
        };
        if self.probes
            && let Some(session) = (0..self.sessions.len()).find(is_due)
        {
            let len = self.workload.region_bytes;
            self.hold(Access { session, kind: Kind::BulkRead, at: 0, len }, true);
        }
    }

    /// Notes an access, to be requested as soon as there is room.
    fn hold(&mut self, access: Access, is_probe: bool) {
        let Access { session, kind, at, len } = access;
        let number = self.sessions[session].region.expect("it was drawn for that");
        let region = self.regions.get_mut(&number).expect("mapped");
        let (mut write, mut bytes) = (0, Vec::new());
        if is_write(kind) {
            write = region.next_write;
            region.next_write += 1;
            bytes.resize(len as usize, 0);
            written(region.salt, WriteId(write), at, &mut bytes);
        }
        let (token, lane) = (self.next_token, self.far.lane(session));
        self.next_token += 1;
        let change = match kind {
            Kind::FetchAdd | Kind::CompareSwap => {
                let word = (at - self.workload.counter_at(0)) / 8;
                let change = draw_change(kind, &mut self.rng, &mut region.words[word as usize]);
                let (expected, operand) = match change {
                    Change::Add(add) => (None, add),
                    Change::Swap { expected, new } => (Some(expected), new),
                };
                let region = number;
                self.notebook.note(What::AskedAtomic {
                    token,
                    region,
                    lane,
                    word,
                    expected,
                    operand,
                });
                Some(change)
            }
            _ => {
                let region = number;
                self.notebook.note(What::Asked { token, region, lane, kind, at, len, write });
                None
            }
        };
        self.held = Some(Held { token, access, region: number, bytes, change, is_probe });
    }

    /// Requests the held access; returns true if it was accepted.
    fn issue(&mut self) -> bool {
        let Some(held) = self.held.take() else { return false };
        let Held { token, access, region, is_probe, .. } = held;
        let session = access.session;
        let mut error = None;
        if self.sessions[session].region == Some(region) {
            match self.ask(&held) {
                Ok(()) => return true,
                Err(ChannelError::NotTaken(FabricError::WouldBlock)) => {
                    self.held = Some(held);
                    return false;
                }
                Err(refused) => error = Some(refused),
            }
        }
        self.notebook.note(What::Withdrawn { token });
        self.accesses_left += u32::from(!is_probe);
        if let Some(error) = error {
            self.lose(session, error.to_string());
        }
        false
    }

    fn ask(&mut self, held: &Held) -> Result<(), ChannelError> {
        let &Held { token, access, ref bytes, change, is_probe, .. } = held;
        if access.kind == Kind::Post {
            self.far.post(&access, bytes)?;
            self.posted.push(token);
            return Ok(());
        }
        self.far.start(token, &access, bytes, change)?;
        let unmaps = self.sessions[access.session].unmaps;
        self.pending.insert(token, Pending { access, unmaps, is_probe });
        Ok(())
    }

    /// Reports the state to the parent, if it has changed.
    fn tell(&mut self) {
        let has_all = self.sessions.iter().all(|session| session.region.is_some());
        let is_idle = self.pending.is_empty() && self.held.is_none() && self.posted.is_empty();
        let is_done = is_idle && self.accesses_left == 0;
        let talks_are_over = self.todos.iter().all(Todo::is_empty)
            && self.streams.iter().all(|streams| streams.are_over());
        let is_so = has_all && is_done && talks_are_over;
        if is_so != self.was_content {
            self.was_content = is_so;
            reply(Reply::Content { is_so });
        }
        if self.probes && is_so && self.sessions.iter().all(|session| session.is_probed) {
            self.probes = false;
            reply(Reply::Probed);
        }
    }

    fn spoil(&mut self, kind: Kind, data: &mut [u8]) {
        if self.sabotage == Some(Sabotage::SwapReads) && matches!(kind, Kind::Read | Kind::BulkRead)
        {
            self.reads += 1;
            if self.reads.is_multiple_of(STRIKE_EVERY) {
                data.reverse();
            }
        }
    }
}

fn is_write(kind: Kind) -> bool {
    matches!(kind, Kind::Write | Kind::BulkWrite | Kind::Post)
}

/// Draws an atomic's change of a word. Two swaps in three find the expected value, if nothing has
/// failed.
fn draw_change(kind: Kind, rng: &mut Stream, word: &mut u64) -> Change {
    let operand = rng.draw();
    let change = match kind {
        Kind::FetchAdd => Change::Add(operand),
        _ if operand.is_multiple_of(3) => Change::Swap { expected: operand, new: !operand },
        _ => Change::Swap { expected: *word, new: operand },
    };
    *word = change.apply(*word);
    change
}
