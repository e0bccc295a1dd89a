//! Replica repair and re-placement, for lost copies and for those whose donors reclaim their
//! memory. Memory is borrowed on nodes that have no part of the slab, and the slab copied there
//! while its program goes on ([`venice_memory::paged::rebuild`]). Coded slabs get fragments in the
//! same way, which are computed where they cannot be copied. Slabs that are mapped into the program are
//! moved by its processes ([`venice_memory::paged::slab_move`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use venice_control::Grant;
use venice_control::client::MonitorClient;
use venice_memory::paged::direct::FarMemory;
use venice_memory::paged::rebuild::{BuildError, Copier};
use venice_memory::paged::run_block::{Donor, Fate, RunBlock, RunBlockMap};
use venice_memory::paged::slab_move::{SlabMoveError, move_slab};
use venice_wire::SLAB_BYTES;

use crate::error::RecipientError;
use crate::holding::{Holding, NewGrant};
use crate::loan::release;
use crate::local_fallback::ReclaimTo;
use crate::news::News;
use crate::replacement::{self, Candidate};
use crate::spec::AllocationSpec;

/// Interval between two checks for lost copies.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time before a failed repair is retried.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Most slabs borrowed at a time, so that one program does not take what others need as badly.
const SLABS_AT_A_TIME: usize = 32;

/// The reason for a copy replacement, the more urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// The slab lost one.
    Lost,
    /// The donor of one reclaims its memory.
    Leaving,
}

/// A slab, and its fragment; 0 for a slab with copies.
type Part = (usize, usize);

/// The slabs that need a copy, by the nodes that have a part of the slab.
type Lacking = BTreeMap<(Need, BTreeSet<String>), Vec<Part>>;

/// Checks for lost and reclaimed copies, and builds others, until stopped.
pub(crate) fn run(holding: &Arc<Holding>, stop: &AtomicBool, news: &Sender<News>) {
    let block = holding.block().clone();
    let mut reported = Reported { done_before_loss: None, why: BTreeMap::new() };
    let mut retry_at = Instant::now();
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(LOOK_EVERY);
        let lacking = lacking(&block);
        reported.look(&block, &lacking, news);
        if lacking.is_empty() {
            holding.set_not_rebuilt(None);
        }
        if lacking.is_empty() || Instant::now() < retry_at {
            continue;
        }
        let outcome = rebuild(holding, lacking, stop, news);
        if let Err((need, error)) = &outcome {
            retry_at = Instant::now() + RETRY_AFTER;
            reported.fail(&block, *need, error, news);
        }
        // Losses come first: if only the rest fails, all lost copies are rebuilt.
        let of_lost = outcome.err().filter(|(need, _)| *need == Need::Lost);
        holding.set_not_rebuilt(of_lost.map(|(_, error)| error.to_string()));
    }
}

/// The reports on copies so far.
struct Reported {
    /// The copies rebuilt before those that are lost now; `None`: none is lost.
    done_before_loss: Option<u64>,
    /// The last error, by reason.
    why: BTreeMap<Need, String>,
}

impl Reported {
    /// Counts lost copies, and reports when all of them are rebuilt.
    fn look(&mut self, block: &RunBlockMap, lacking: &Lacking, news: &Sender<News>) {
        let count = |need| -> usize {
            lacking.iter().filter(|((of, _), _)| *of == need).map(|(_, slabs)| slabs.len()).sum()
        };
        let (lost, done) = (lost_copies(block), block.rebuilt.load(Ordering::Relaxed));
        if count(Need::Leaving) == 0 {
            self.why.remove(&Need::Leaving);
        }
        if lost > 0 {
            self.done_before_loss.get_or_insert(done);
            block.to_rebuild.store(done + lost, Ordering::Relaxed);
            return;
        }
        let Some(before) = self.done_before_loss.take() else { return };
        if (0..block.slab_count()).all(|slab| block.slab_is_alive(slab)) {
            let is_coded = block.coding().is_some();
            // A copy that was given back and not replaced leaves nothing to report.
            if done > before {
                let _ = news.send(News::Rebuilt { slabs: done - before, is_coded });
            }
            self.why.remove(&Need::Lost);
        }
    }

    /// Reports an error, unless it was the last one reported.
    fn fail(
        &mut self,
        block: &RunBlockMap,
        need: Need,
        error: &RecipientError,
        news: &Sender<News>,
    ) {
        let (why, is_coded) = (error.to_string(), block.coding().is_some());
        if self.why.insert(need, why.clone()).as_ref() != Some(&why) {
            let _ = news.send(match need {
                Need::Lost => News::NotRebuilt { why, is_coded },
                Need::Leaving => News::NotMoved { why },
            });
        }
    }
}

/// Returns the readable slabs with too few copies that can stay. Of a coded slab it returns a
/// single fragment, so that no two come to lie on one node.
fn lacking(block: &RunBlockMap) -> Lacking {
    let mut lacking = Lacking::new();
    for slab in (0..block.slab_count()).filter(|&slab| block.slab_is_alive(slab)) {
        let lacks = (0..block.fragment_count()).filter_map(|at| Some((need(block, slab, at)?, at)));
        if let Some((need, fragment)) = lacks.min() {
            let donors = block.readable(slab).map(|(_, replica)| replica.donor());
            let nodes = donors.map(|donor| block.donors()[donor].name()).collect();
            lacking.entry((need, nodes)).or_default().push((slab, fragment));
        }
    }
    lacking
}

/// Returns the number of copies or fragments to build, of readable slabs.
fn lost_copies(block: &RunBlockMap) -> u64 {
    let alive = (0..block.slab_count()).filter(|&slab| block.slab_is_alive(slab));
    let parts = alive.flat_map(|slab| (0..block.fragment_count()).map(move |at| (slab, at)));
    let lacks = |(slab, at)| {
        block.wanted_copies(slab, at).saturating_sub(block.readable_of(slab, at).count()) as u64
    };
    parts.map(lacks).sum()
}

/// Returns the reason for a copy of a fragment replacement; `None`: it needs none.
fn need(block: &RunBlockMap, slab: usize, fragment: usize) -> Option<Need> {
    let copies = block.wanted_copies(slab, fragment);
    let there = block.readable_of(slab, fragment).count();
    if there < copies {
        return Some(Need::Lost);
    }
    // A surplus copy is about to be released.
    let is_leaving = there == copies && block.staying(slab, fragment).count() < copies;
    is_leaving.then_some(Need::Leaving)
}

fn rebuild(
    holding: &Arc<Holding>,
    lacking: Lacking,
    stop: &AtomicBool,
    news: &Sender<News>,
) -> Result<(), (Need, RecipientError)> {
    let first = lacking.keys().map(|(need, _)| *need).next().unwrap_or(Need::Lost);
    let mut builder = Builder::new(holding, stop, news).map_err(|error| (first, error))?;
    let mut outcome = Ok(());
    for ((need, nodes), slabs) in lacking {
        for slabs in slabs.chunks(SLABS_AT_A_TIME) {
            let built = builder.build(need, &nodes, slabs).map_err(|error| (need, error));
            outcome = outcome.and(built);
        }
    }
    outcome
}

/// The slabs yet to be copied.
type Slabs<'a> = std::slice::Iter<'a, Part>;

/// Builds copies, one at a time.
struct Builder<'a> {
    holding: &'a Arc<Holding>,
    stop: &'a AtomicBool,
    news: &'a Sender<News>,
    runtime: Runtime,
    /// The copier; `None` if the memory is mapped into the program, whose processes move it.
    copier: Option<Copier>,
    /// The last reported reason of a wait for these.
    waits: Option<&'static str>,
}

impl Builder<'_> {
    fn new<'a>(
        holding: &'a Arc<Holding>,
        stop: &'a AtomicBool,
        news: &'a Sender<News>,
    ) -> Result<Builder<'a>, RecipientError> {
        let runtime = crate::loan::runtime()?;
        let (copier, waits) = (Builder::copier(holding)?, None);
        Ok(Builder { holding, stop, news, runtime, copier, waits })
    }

    fn copier(holding: &Arc<Holding>) -> Result<Option<Copier>, RecipientError> {
        if holding.block().is_window() {
            return Ok(None);
        }
        let slabs = holding.clone();
        let source = Box::new(move |replica| slabs.slab(replica));
        let memory =
            FarMemory::new(holding.block().clone(), source).map_err(RecipientError::Map)?;
        let file = holding.memory().write_behind.as_ref().map(|behind| behind.file().as_raw_fd());
        Ok(Some(Copier::new(&memory)?.with_disk(file)))
    }

    /// Builds a copy of each of `slabs` on a node outside `nodes`; of reclaimed slabs, at the
    /// destinations in the recipient's order.
    fn build(
        &mut self,
        need: Need,
        nodes: &BTreeSet<String>,
        slabs: &[Part],
    ) -> Result<(), RecipientError> {
        self.holding.block().has_room()?;
        let places = match &self.holding.memory().reclaim_to[..] {
            chosen if need == Need::Leaving && !chosen.is_empty() => chosen,
            _ => &[ReclaimTo::Donors],
        };
        let is_coded = self.holding.block().coding().is_some();
        let (mut slabs, mut why) = (slabs.iter(), Vec::new());
        for place in places {
            let built = match place {
                // A second copy in one place is useless, another fragment is not.
                _ if !is_coded && nodes.contains(place.name()) => {
                    why.push(format!("{} has one already", place.name()));
                    continue;
                }
                ReclaimTo::Donors => self.build_on_donors(need, nodes, &mut slabs),
                _ => self.build_locally(place, &mut slabs),
            };
            let Err(error) = built else { return Ok(()) };
            why.push(error.to_string());
        }
        Err(RecipientError::Nowhere { why: why.join(", and ") })
    }

    fn build_on_donors(
        &mut self,
        need: Need,
        nodes: &BTreeSet<String>,
        slabs: &mut Slabs<'_>,
    ) -> Result<(), RecipientError> {
        while self.are_wanted(slabs) && !self.stop.load(Ordering::Acquire) {
            let asked = borrow_elsewhere(self.holding, nodes, slabs.len() as u64);
            let grants = self.runtime.block_on(asked)?;
            let before = slabs.len();
            self.fill_all(need, &grants, slabs)?;
            if slabs.len() == before {
                let why = "the new memory is lost again".into();
                return Err(RecipientError::NobodyElse { why });
            }
        }
        Ok(())
    }

    /// True if copies of these are still needed. A reclaim may have been cancelled, or refused.
    fn are_wanted(&self, slabs: &Slabs<'_>) -> bool {
        let block = self.holding.block();
        self.holding.anchored().is_none()
            && slabs.as_slice().iter().any(|&(slab, at)| need(block, slab, at).is_some())
    }

    /// Builds copies in the new grants. A grant that has no data afterwards is released: the next
    /// attempt borrows anew.
    fn fill_all(
        &mut self,
        need: Need,
        grants: &[Grant],
        slabs: &mut Slabs<'_>,
    ) -> Result<(), RecipientError> {
        let (holding, mut outcome, mut unused) = (self.holding, Ok(()), Vec::new());
        for grant in grants {
            if outcome.is_ok() {
                let new = holding.add_grant(grant);
                outcome = new.and_then(|new| self.fill(need, new, slabs));
            }
            unused.extend((!holding.uses(grant)).then(|| grant.clone()));
        }
        if !unused.is_empty() {
            self.runtime.block_on(release(&holding.access, &unused));
        }
        outcome
    }

    fn build_locally(
        &mut self,
        place: &ReclaimTo,
        slabs: &mut Slabs<'_>,
    ) -> Result<(), RecipientError> {
        let count = slabs.len();
        let new = self.holding.add_local(place, count)?;
        let _ = self.news.send(News::FallsBack { place: place.clone(), slabs: count });
        self.fill(Need::Leaving, new, slabs)
    }

    /// Builds copies of the first of `slabs` in a new grant, as many as fit.
    fn fill(
        &mut self,
        need: Need,
        mut new: NewGrant,
        slabs: &mut Slabs<'_>,
    ) -> Result<(), RecipientError> {
        while !self.stop.load(Ordering::Acquire)
            && let Some(&part) = slabs.as_slice().first()
            && let Some(replica) = self.holding.add_copy(part, &mut new)?
        {
            slabs.next();
            match self.build_one(replica) {
                Built::Done if need == Need::Lost => {
                    self.holding.block().rebuilt.fetch_add(1, Ordering::Relaxed);
                }
                // The next check finds it again.
                Built::Done | Built::Not => {}
                Built::NoMore => break,
            }
        }
        Ok(())
    }

    fn build_one(&mut self, replica: usize) -> Built {
        if let Some(copier) = &mut self.copier {
            return match copier.build(replica, self.stop) {
                Ok(()) => Built::Done,
                Err(BuildError::NoSource | BuildError::Stopped) => Built::Not,
                Err(BuildError::Lost) => Built::NoMore,
            };
        }
        let rehomed = move_slab(self.holding.block(), replica, self.stop, |why| {
            if self.waits.replace(why) != Some(why) {
                let _ = self.news.send(News::NotMoved { why: why.to_owned() });
            }
        });
        match rehomed {
            Ok(()) => Built::Done,
            Err(SlabMoveError::Stopped) => Built::Not,
            Err(SlabMoveError::Lost | SlabMoveError::Unmovable | SlabMoveError::Unwanted) => {
                Built::NoMore
            }
        }
    }
}

/// The result of building a copy.
enum Built {
    Done,
    Not,
    /// The grant is of no more use.
    NoMore,
}

/// Returns the names of the donors that died, stopped answering, or admit this process no more.
fn dead_nodes(block: &RunBlock) -> BTreeSet<String> {
    let is_dead = |donor: &&Donor| match donor.fate() {
        Some(Fate::Died | Fate::Unresponsive | Fate::NotAdmitted) => true,
        Some(Fate::Revoked) | None => false,
    };
    block.donors().iter().filter(is_dead).map(|donor| donor.name()).collect()
}

/// Requests slabs on nodes outside `nodes`, or as many as those have.
async fn borrow_elsewhere(
    holding: &Holding,
    nodes: &BTreeSet<String>,
    slabs: u64,
) -> Result<Vec<Grant>, RecipientError> {
    let mut client = MonitorClient::connect(&holding.access).await?;
    let rows = client.nodes().await?;
    let dead = dead_nodes(holding.block());
    let candidates = rows.iter().map(|row| Candidate::from(row).among(&dead));
    let others = replacement::find(candidates, nodes, &holding.spec.donors)
        .map_err(|why| RecipientError::NobodyElse { why })?;
    let free: u64 = others.iter().map(|(_, free)| free).sum();
    let donors = others.into_iter().map(|(name, _)| name).collect();
    let spec = AllocationSpec { donors, ..holding.spec.clone() };
    let request = spec.more_memory(slabs.min(free) * SLAB_BYTES, 1)?;
    Ok(client.allocate(request).await?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use venice_memory::paged::coding::Coding;
    use venice_memory::paged::run_block::{Fate, PortKind, ReplicaAt, ReplicaState};

    use super::*;

    #[test]
    fn progress_counts_fragments() {
        let (_fd, block) =
            RunBlockMap::create_coded(PortKind::Shm, 1, Coding::new(4, 2).unwrap()).unwrap();
        block.copies.store(1, Ordering::Relaxed);
        let at = |donor| ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 };
        for donor in 0..6 {
            block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
            match donor {
                0 => drop(block.add_slab(at(0)).unwrap()),
                _ => drop(block.add_fragment(0, donor, at(donor), ReplicaState::Live).unwrap()),
            }
        }
        let (news, _) = channel();
        let mut reported = Reported { done_before_loss: None, why: BTreeMap::new() };
        reported.look(&block, &lacking(&block), &news);
        assert_eq!(block.to_rebuild.load(Ordering::Relaxed), 0);
        for donor in [1, 4] {
            block.donors()[donor].lose(Fate::Died);
        }
        reported.look(&block, &lacking(&block), &news);
        assert_eq!(block.to_rebuild.load(Ordering::Relaxed), 2, "two fragments of one slab");
    }
}
