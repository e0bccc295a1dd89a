//! Renewal of leases, and detection of lost donors.
//!
//! Leases are renewed at the donors, so a dead Monitor Node stops nothing. A donor is marked as
//! lost in the run block if its shm connection ended, its address refuses, the grant is unknown to
//! it, or for a whole lease it did not admit this process or was not reached. An agent that stands
//! still counts that time to no lease: its donor is lost if others have all its contents, else it is
//! waited for ([`Donor::judge_silence`]). The pagers check these marks before every access, and set
//! those they find themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use venice_control::Notice;
use venice_memory::paged::run_block::{Donor, Fate, RunBlockMap};
use venice_rack::lease_holder::Renewed;

use crate::error::RecipientError;
use crate::holding::Holding;
use crate::leaving::Leaving;
use crate::loan::{RELEASE_WITHIN, release_now, runtime};
use crate::news::{LostDonor, News};
use crate::rebuild;
use crate::renewals::{Renewal, Renewals};
use crate::suspend::{SuspendDetector, Suspended};
use crate::suspicion::Suspicions;

/// Interval between two checks of the shm connections.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest delay of the report of a loss, for the donor's reason.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// The threads of a holding: one for leases, one for copies, one for the write-behind. Dropping it
/// releases the memory.
#[derive(Debug)]
pub struct Leases {
    stop: Arc<AtomicBool>,
    rebuilder: Option<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Leases {
    /// Starts the threads. `tell` receives the events, on the keeper's thread.
    ///
    /// # Errors
    /// [`RecipientError::System`]: no thread could be started; then the memory is released.
    pub fn keep(
        holding: Arc<Holding>,
        tell: impl FnMut(News) + Send + 'static,
    ) -> Result<Leases, RecipientError> {
        Leases::start(holding.clone(), tell)
            .inspect_err(|_| release_now(&holding.access, &holding.grants()))
    }

    fn start(
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
            let mut reporter = Reporter { told: Vec::new(), suspended: None, rebuilder, tell };
            keep(&runtime, &holding, &stop, &mut reporter);
            // What does not get through ends with its lease.
            let _ = runtime
                .block_on(async { tokio::time::timeout(RELEASE_WITHIN, holding.release()).await });
        })?;
        leases.keeper = Some(keeper);
        Ok(leases)
    }

    /// Releases the grants: at the Monitor Node, or if it is gone at the donors. Returns when that
    /// is done, or abandoned after seconds: the leases end by themselves.
    pub fn give_back(self) {
        drop(self);
    }
}

/// Starts the thread of the write-behind, if there is one.
fn write_behind(
    holding: &Arc<Holding>,
    stop: &Arc<AtomicBool>,
    news: &Sender<News>,
) -> Result<Option<JoinHandle<()>>, RecipientError> {
    let (Some(behind), Some(drain)) = (holding.memory().write_behind.clone(), holding.take_drain())
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
        doing: "starting a thread for the leases",
        source,
    })
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Slabs being rebuilt are part of what is released.
        for thread in
            [self.rebuilder.take(), self.writer.take(), self.keeper.take()].into_iter().flatten()
        {
            let _ = thread.join();
        }
    }
}

fn keep(runtime: &Runtime, holding: &Holding, stop: &AtomicBool, reporter: &mut Reporter) {
    let block = holding.block();
    let mut suspicions = Suspicions::default();
    let mut donors = Donors::new(holding);
    let mut leaving = Leaving::default();
    let mut suspend_detector = SuspendDetector::new(block.lease(), Instant::now());
    while !stop.load(Ordering::Acquire) {
        // A donor that does not answer must delay neither the others nor the reports.
        runtime.block_on(async {
            let awaits_reason = !donors.awaiting_reasons(block).is_empty();
            donors.begin(holding, awaits_reason || suspicions.wait_for_answers());
            tokio::time::sleep(LOOK_EVERY).await;
            let now = Instant::now();
            reporter.suspended = suspend_detector.check(now);
            if suspend_detector.woke_at(now) {
                donors.restart_silence(now);
            }
            donors.take_answers(block, |donor, notice| leaving.take_notice(holding, donor, notice));
            leaving.give_back(holding);
        });
        // A loss is reported at once: a program ended by it is asked for the reason next.
        for held in holding.lock_held().iter() {
            if held.connection.as_ref().is_some_and(|connection| connection.is_closed()) {
                block.donors()[held.donor].lose(Fate::Died);
            }
        }
        let answered = |donor| donors.answered(donor);
        suspicions.judge(block, answered).into_iter().for_each(&mut reporter.tell);
        leaving.news(holding).into_iter().for_each(&mut reporter.tell);
        reporter.look(block, &donors.awaiting_reasons(block));
    }
    leaving.end(block);
    // The cause of the program's end may have come since.
    runtime.block_on(async {
        while !donors.awaiting_reasons(block).is_empty() {
            donors.begin(holding, true);
            tokio::time::sleep(LOOK_EVERY).await;
            donors.take_answers(block, |_, _| {});
        }
    });
    reporter.look(block, &[]);
}

/// The state of the donors, from their answers to renewals.
struct Donors {
    lease: Duration,
    next: Instant,
    grants: Vec<Heard>,
    renewals: Renewals,
}

/// The last answer about one grant.
struct Heard {
    donor: usize,
    /// Time of the donor's last answer.
    heard: Instant,
    /// Time of the call that it answered.
    answered: Instant,
    /// Time by which its donor's reason of its loss is to come; `None`: it is not lost.
    why_until: Option<Instant>,
    /// True once the donor has said that it does not have it.
    is_disowned: bool,
}

impl Heard {
    fn new(donor: usize, now: Instant) -> Heard {
        Heard { donor, heard: now, answered: now, why_until: None, is_disowned: false }
    }

    /// True while its donor may say why it is lost: its port found out before a renewal did.
    fn may_be_explained(&mut self, donor: &Donor, now: Instant) -> bool {
        let until = *self.why_until.get_or_insert(now + REASON_WITHIN);
        donor.fate() == Some(Fate::Revoked) && !self.is_disowned && now < until
    }
}

impl Donors {
    fn new(holding: &Holding) -> Donors {
        let (lease, renewals) = (holding.block().lease(), Renewals::new(holding.access.clone()));
        Donors { lease, next: Instant::now(), grants: Vec::new(), renewals }
    }

    /// Sends the renewals that are due, or all at once, except those of lost donors.
    fn begin(&mut self, holding: &Holding, at_once: bool) {
        let now = Instant::now();
        if now < self.next && !at_once {
            return;
        }
        self.next = now + (self.lease / 4).min(Duration::from_secs(1));
        for (index, held) in holding.lock_held().iter().enumerate() {
            if index == self.grants.len() {
                self.grants.push(Heard::new(held.donor, now));
            }
            let donor = &holding.block().donors()[held.donor];
            if !donor.is_gone() || self.grants[index].may_be_explained(donor, now) {
                self.renewals.begin(index, &held.grant);
            }
        }
    }

    /// Returns the lost donors that may still say why: their ports found out before a renewal did.
    fn awaiting_reasons(&mut self, block: &RunBlockMap) -> Vec<usize> {
        let now = Instant::now();
        let lost = self.grants.iter_mut().filter(|grant| block.donors()[grant.donor].is_lost());
        let may_be = |grant: &mut Heard| {
            let may_be = grant.may_be_explained(&block.donors()[grant.donor], now);
            may_be.then_some(grant.donor)
        };
        lost.filter_map(may_be).collect()
    }

    /// Counts the silence of all donors from `now` on: this process was suspended, and could not
    /// hear them. Its leases may have been renewed by another ([`crate::LeaseList`]).
    fn restart_silence(&mut self, now: Instant) {
        self.grants.iter_mut().for_each(|grant| grant.heard = now);
    }

    /// Returns the time of the call that a donor answered last; `None`: it is not called.
    fn answered(&self, donor: usize) -> Option<Instant> {
        self.grants.iter().find(|grant| grant.donor == donor).map(|grant| grant.answered)
    }

    /// Takes the answers. `hear` receives the notice of each donor that answered.
    fn take_answers(&mut self, block: &RunBlockMap, mut hear: impl FnMut(usize, Option<Notice>)) {
        while let Some(Renewal { index, sent, outcome }) = self.renewals.poll() {
            let grant = &mut self.grants[index];
            let donor = &block.donors()[grant.donor];
            let silence = grant.heard.elapsed();
            match outcome {
                Renewed::Live(notice) => {
                    (grant.heard, grant.answered) = (Instant::now(), sent);
                    donor.note_admission(true);
                    hear(grant.donor, notice);
                }
                Renewed::Transferred(owner) => {
                    grant.is_disowned = true;
                    donor.lose_to(&owner);
                }
                Renewed::Unknown => {
                    grant.is_disowned = true;
                    donor.lose(Fate::Revoked);
                }
                Renewed::Refused => donor.lose(Fate::Died),
                Renewed::NotAdmitted => {
                    donor.note_admission(false);
                    donor.judge_silence(silence, self.lease, false);
                }
                Renewed::Silent => donor.judge_silence(silence, self.lease, true),
                Renewed::Unreachable => donor.judge_silence(silence, self.lease, false),
            }
        }
    }
}

/// The reports to the observer, and which losses have been reported.
struct Reporter {
    told: Vec<bool>,
    /// The suspension that explains a loss at this moment, if any.
    suspended: Option<Suspended>,
    rebuilder: Receiver<News>,
    tell: Box<dyn FnMut(News)>,
}

impl Reporter {
    /// Reports each lost donor once, whoever found out, except `awaited` ones; then the events of
    /// copies.
    fn look(&mut self, block: &RunBlockMap, awaited: &[usize]) {
        self.told.resize(block.donors().len(), false);
        for index in 0..self.told.len() {
            let donor = &block.donors()[index];
            if let Some(fate) = donor.fate().filter(|_| !self.told[index]) {
                // All grants of one node are reported together.
                let same: Vec<usize> = (0..self.told.len())
                    .filter(|&other| !self.told[other] && block.donors()[other].is_lost())
                    .filter(|&other| block.donors()[other].name() == donor.name())
                    .collect();
                if same.iter().any(|other| awaited.contains(other)) {
                    continue;
                }
                same.iter().for_each(|&other| self.told[other] = true);
                (self.tell)(News::Lost(LostDonor::of(block, &same, fate, self.suspended)));
            }
        }
        self.rebuilder.try_iter().for_each(&mut self.tell);
    }
}
