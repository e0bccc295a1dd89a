//! Keeping what was borrowed: renewals at the donors, and an eye on whether they live.
//!
//! Leases are renewed at the donors themselves, so a dead Monitor Node stops nothing. A donor
//! that is lost (its shm connection ended, its address refuses, it does not know the grant any
//! more, or it has been silent for a whole lease) is marked so in the run block; the pagers look
//! there before every access, and mark those themselves that they find lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use venice_control::Grant;
use venice_control::client::{Access, AgentClient};
use venice_control::{ControlError, LeaseState, Notice};
use venice_memory::paged::run_block::{Fate, RunBlockMap};

use crate::error::RecipientError;
use crate::holding::Holding;
use crate::leaving::Leaving;
use crate::loan::{agent_of, runtime};
use crate::news::{LostDonor, News};
use crate::oversleep::{Overslept, Wakefulness};
use crate::rebuild;
use crate::silence::Silences;

/// How often the shm connections are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long giving back may take, all in all.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// The threads that keep a holding: one the leases, one the copies, one what is written behind. Dropped, they give the memory
/// back.
#[derive(Debug)]
pub struct Leases {
    stop: Arc<AtomicBool>,
    rebuilder: Option<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Leases {
    /// Starts keeping. `tell` hears the news, on the keeper's thread.
    ///
    /// # Errors
    /// [`RecipientError::System`]: no thread can be had; then the leases end by themselves.
    pub fn keep(
        holding: Arc<Holding>,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<Leases, RecipientError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (to_tell, told) = mpsc::channel();
        let runtime = runtime()?;
        let writer = write_behind(&holding, &stop, &to_tell)?;
        let (stopped, held) = (stop.clone(), holding.clone());
        let rebuilder = thread("venice-copies", move || rebuild::run(&held, &stopped, &to_tell))?;
        let mut leases =
            Leases { stop: stop.clone(), rebuilder: Some(rebuilder), writer, keeper: None };
        let keeper = thread("venice-leases", move || {
            let (rebuilder, tell) = (told, Box::new(tell));
            let mut telling = Telling { told: Vec::new(), overslept: None, rebuilder, tell };
            keep(&runtime, &holding, &stop, &mut telling);
            // What does not get through ends with its lease.
            let _ = runtime.block_on(async {
                tokio::time::timeout(GIVE_BACK_WITHIN, holding.release()).await
            });
        })?;
        leases.keeper = Some(keeper);
        Ok(leases)
    }

    /// Ends the grants: at the Monitor Node, or where it is gone at the donors. Returns when that
    /// is done, or given up after seconds: the leases end by themselves.
    pub fn give_back(self) {
        drop(self);
    }
}

/// Starts the thread that takes pages to the disk, where somebody wants that.
fn write_behind(
    holding: &Arc<Holding>,
    stop: &Arc<AtomicBool>,
    news: &Sender<News>,
) -> Result<Option<JoinHandle<()>>, RecipientError> {
    let (Some(behind), Some(drain)) = (holding.wish.write_behind.clone(), holding.take_drain())
    else {
        return Ok(None);
    };
    let (block, stop, news) = (holding.block().clone(), stop.clone(), news.clone());
    thread("venice-behind", move || behind.run(drain, &block, &stop, &news)).map(Some)
}

pub(crate) fn thread(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, RecipientError> {
    let started = std::thread::Builder::new().name(name.into()).spawn(body);
    started.map_err(|source| RecipientError::System {
        doing: "starting a thread that keeps what was borrowed",
        source,
    })
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // What is being rebuilt is part of what is given back.
        for thread in
            [self.rebuilder.take(), self.writer.take(), self.keeper.take()].into_iter().flatten()
        {
            let _ = thread.join();
        }
    }
}

fn keep(runtime: &Runtime, holding: &Holding, stop: &AtomicBool, telling: &mut Telling) {
    let block = holding.block();
    let mut silences = Silences::default();
    let mut renewals = Renewals::new(block.lease());
    let mut leaving = Leaving::default();
    let mut awake = Wakefulness::new(block.lease(), Instant::now());
    while !stop.load(Ordering::Acquire) {
        // A donor that does not answer must hold up neither the others nor what is told.
        runtime.block_on(async {
            renewals.begin(holding, silences.wait_for_answers());
            tokio::time::sleep(LOOK_EVERY).await;
            renewals.take_answers(block, |donor, notice| leaving.heed(holding, donor, notice));
            leaving.give_back(holding);
        });
        telling.overslept = awake.look(Instant::now());
        // What is found is told at once: who it ends asks for the reason next.
        for held in holding.lock_held().iter() {
            if held.connection.as_ref().is_some_and(|connection| connection.is_closed()) {
                block.donors()[held.donor].lose(Fate::Died);
            }
        }
        let answered = |donor| renewals.answered(donor);
        silences.judge(block, answered).into_iter().for_each(&mut telling.tell);
        leaving.news(holding).into_iter().for_each(&mut telling.tell);
        telling.look(block);
    }
    leaving.end(block);
    // What ended the program may have come since.
    telling.look(block);
}

/// The renewals of all grants, at all donors at a time.
struct Renewals {
    lease: Duration,
    next: Instant,
    grants: Vec<Renewal>,
    /// Connections, by address: a handshake costs more than a renewal.
    agents: BTreeMap<String, AgentClient>,
    asked: JoinSet<Answer>,
}

/// One grant's.
struct Renewal {
    donor: usize,
    /// When the donor was last heard.
    heard: Instant,
    /// When it was asked what it answered then.
    answered: Instant,
    /// When it was asked what it has not answered yet.
    asked: Option<Instant>,
}

/// What came of asking for a grant's lease, and over which connection.
struct Answer {
    index: usize,
    outcome: Result<(LeaseState, AgentClient), ControlError>,
    addr: String,
}

impl Renewals {
    fn new(lease: Duration) -> Renewals {
        let (grants, agents, asked) = (Vec::new(), BTreeMap::new(), JoinSet::new());
        Renewals { lease, next: Instant::now(), grants, agents, asked }
    }

    /// Asks for what is due and not lost, or at once; for use within the runtime.
    fn begin(&mut self, holding: &Holding, at_once: bool) {
        let now = Instant::now();
        if now < self.next && !at_once {
            return;
        }
        self.next = now + (self.lease / 4).min(Duration::from_secs(1));
        for (index, held) in holding.lock_held().iter().enumerate() {
            if index == self.grants.len() {
                let (donor, heard, answered) = (held.donor, now, now);
                self.grants.push(Renewal { donor, heard, answered, asked: None });
            }
            let renewal = &mut self.grants[index];
            if !holding.block().donors()[renewal.donor].is_gone() && renewal.asked.is_none() {
                renewal.asked = Some(now);
                let (access, grant) = (holding.access.clone(), held.grant.clone());
                let known = self.agents.get(&grant.control_addr).cloned();
                self.asked.spawn(async move {
                    let outcome = renew(&access, &grant, known).await;
                    Answer { index, outcome, addr: grant.control_addr }
                });
            }
        }
    }

    /// When a donor was asked what it last answered; `None`: it is not asked.
    fn answered(&self, donor: usize) -> Option<Instant> {
        self.grants.iter().find(|renewal| renewal.donor == donor).map(|renewal| renewal.answered)
    }

    /// Keeps a connection that answers, and no other.
    fn remember(
        &mut self,
        addr: String,
        outcome: Result<(LeaseState, AgentClient), ControlError>,
    ) -> Result<LeaseState, ControlError> {
        match outcome {
            Ok((state, agent)) => {
                self.agents.insert(addr, agent);
                Ok(state)
            }
            Err(error) => {
                self.agents.remove(&addr);
                Err(error)
            }
        }
    }

    /// `hear` is given what each donor that answers has to say about its memory.
    fn take_answers(&mut self, block: &RunBlockMap, mut hear: impl FnMut(usize, Option<Notice>)) {
        while let Some(answer) = self.asked.try_join_next() {
            let Ok(Answer { index, outcome, addr }) = answer else { continue };
            let outcome = self.remember(addr, outcome);
            let renewal = &mut self.grants[index];
            let asked = renewal.asked.take().expect("it was asked");
            let donor = &block.donors()[renewal.donor];
            match outcome {
                Ok(LeaseState::Live { notice, .. }) => {
                    (renewal.heard, renewal.answered) = (Instant::now(), asked);
                    hear(renewal.donor, notice);
                }
                Ok(LeaseState::Unknown) => donor.lose(Fate::Revoked),
                Err(ControlError::Unreachable { refused: true, .. }) => donor.lose(Fate::Died),
                Err(_) if renewal.heard.elapsed() > self.lease => donor.lose(Fate::Unresponsive),
                Err(_) => {}
            }
        }
    }
}

/// Over the connection that is known, if there is one.
pub(crate) async fn renew(
    access: &Access,
    grant: &Grant,
    known: Option<AgentClient>,
) -> Result<(LeaseState, AgentClient), ControlError> {
    let mut agent = match known {
        Some(agent) => agent,
        None => agent_of(access, grant).await?,
    };
    let states = agent.renew(&[(grant.id, grant.key)]).await?;
    Ok((states.into_iter().next().unwrap_or(LeaseState::Unknown), agent))
}

/// Who hears the news, and of which donors that is known.
struct Telling {
    told: Vec<bool>,
    /// Why what is lost at the moment is, if that is why.
    overslept: Option<Overslept>,
    rebuilder: Receiver<News>,
    tell: Box<dyn FnMut(News)>,
}

impl Telling {
    /// Says once of each donor that is lost, whoever found out, that it is; then what there is to
    /// say of copies.
    fn look(&mut self, block: &RunBlockMap) {
        self.told.resize(block.donors().len(), false);
        for index in 0..self.told.len() {
            let donor = &block.donors()[index];
            if let Some(fate) = donor.fate().filter(|_| !self.told[index]) {
                // All that a node had lent in this life of it is told together.
                let same: Vec<usize> = (0..self.told.len())
                    .filter(|&other| !self.told[other] && block.donors()[other].is_lost())
                    .filter(|&other| block.donors()[other].name() == donor.name())
                    .collect();
                same.iter().for_each(|&other| self.told[other] = true);
                (self.tell)(News::Lost(LostDonor::of(block, &same, fate, self.overslept)));
            }
        }
        self.rebuilder.try_iter().for_each(&mut self.tell);
    }
}
