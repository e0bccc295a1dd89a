//! Giving slabs back the copies that they lost: memory is borrowed on nodes that have none of the
//! slab, and the slab copied there while its program goes on
//! ([`venice_memory::paged::rebuild`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use venice_control::client::MonitorClient;
use venice_memory::paged::direct::FarMemory;
use venice_memory::paged::rebuild::{BuildError, Copier};
use venice_memory::paged::run_block::{PortKind, RunBlockMap};
use venice_wire::SLAB_BYTES;

use crate::error::RecipientError;
use crate::holding::Holding;
use crate::loan::{Wish, ask};
use crate::news::News;

/// How often lost copies are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long it waits before it tries again what failed.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Most slabs borrowed at a time, lest one program takes what others need as badly.
const SLABS_AT_A_TIME: usize = 32;

/// Slabs that lack a copy, by the nodes that have one.
type Lacking = BTreeMap<BTreeSet<String>, Vec<usize>>;

/// Looks for lost copies and builds them anew, until it is told to stop.
pub(crate) fn run(holding: &Arc<Holding>, stop: &AtomicBool, news: &Sender<News>) {
    let block = holding.block().clone();
    let (mut has_told_why, mut is_whole) = (false, true);
    let mut retry_at = Instant::now();
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(LOOK_EVERY);
        let lacking = lacking(&block);
        let count: usize = lacking.values().map(Vec::len).sum();
        let done = block.rebuilt.load(Ordering::Relaxed);
        if count == 0 {
            if !std::mem::replace(&mut is_whole, true)
                && (0..block.slab_count()).all(|slab| block.readable(slab).next().is_some())
            {
                let _ = news.send(News::Rebuilt { slabs: done });
                has_told_why = false;
            }
            continue;
        }
        is_whole = false;
        block.to_rebuild.store(done + count as u64, Ordering::Relaxed);
        if Instant::now() < retry_at {
            continue;
        }
        holding.forget_lost_slabs();
        if let Err(error) = rebuild(holding, lacking, stop) {
            retry_at = Instant::now() + RETRY_AFTER;
            if !std::mem::replace(&mut has_told_why, true) {
                let _ = news.send(News::NotRebuilt { why: error.to_string() });
            }
        }
    }
}

/// Slabs that have a copy, and fewer than they should.
fn lacking(block: &RunBlockMap) -> Lacking {
    let copies = block.copies.load(Ordering::Relaxed) as usize;
    let mut lacking = Lacking::new();
    for slab in 0..block.slab_count() {
        let there = block.readable(slab).count();
        if there > 0 && there < copies {
            let donors = block.readable(slab).map(|(_, replica)| replica.donor());
            let nodes = donors.map(|donor| block.donors()[donor].name()).collect();
            lacking.entry(nodes).or_default().push(slab);
        }
    }
    lacking
}

fn rebuild(
    holding: &Arc<Holding>,
    lacking: Lacking,
    stop: &AtomicBool,
) -> Result<(), RecipientError> {
    if holding.block().port() == PortKind::Verbs {
        return Err(RecipientError::NoRebuild);
    }
    let runtime = crate::loan::runtime()?;
    let slabs = holding.clone();
    let source = Box::new(move |replica| slabs.slab(replica));
    let memory = FarMemory::new(holding.block().clone(), source).map_err(RecipientError::Map)?;
    let mut copier = Copier::new(&memory)?;
    let mut outcome = Ok(());
    for (nodes, slabs) in lacking {
        for slabs in slabs.chunks(SLABS_AT_A_TIME) {
            let built = build_some(holding, &runtime, &mut copier, &nodes, slabs, stop);
            outcome = outcome.and(built);
        }
    }
    outcome
}

/// Builds a copy of each of `slabs` on a node that is none of `nodes`.
fn build_some(
    holding: &Arc<Holding>,
    runtime: &Runtime,
    copier: &mut Copier,
    nodes: &BTreeSet<String>,
    slabs: &[usize],
    stop: &AtomicBool,
) -> Result<(), RecipientError> {
    let mut slabs = slabs.iter();
    while slabs.len() > 0 && !stop.load(Ordering::Acquire) {
        let grants = runtime.block_on(borrow_elsewhere(holding, nodes, slabs.len() as u64))?;
        for grant in &grants {
            let mut new = holding.add_grant(grant)?;
            while let Some(&slab) = slabs.as_slice().first()
                && let Some(replica) = holding.add_copy(slab, &mut new)?
            {
                slabs.next();
                match copier.build(replica, stop) {
                    Ok(()) => {
                        holding.block().rebuilt.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(BuildError::Stopped) => return Ok(()),
                    // It is looked for again.
                    Err(BuildError::NoSource) => {}
                    Err(BuildError::Lost) => break,
                }
            }
        }
    }
    Ok(())
}

/// Asks for so many slabs on other nodes than `nodes`, or for as many as these have.
async fn borrow_elsewhere(
    holding: &Holding,
    nodes: &BTreeSet<String>,
    slabs: u64,
) -> Result<Vec<venice_control::Grant>, RecipientError> {
    let mut client = MonitorClient::connect(&holding.monitor).await?;
    let wished = &holding.wish.donors;
    let rows = client.nodes().await?;
    let others = rows.iter().filter(|row| {
        let is_wished = wished.is_empty() || wished.contains(&row.name);
        let is_lending = row.state == "up" && !row.draining && row.free_bytes >= SLAB_BYTES;
        is_lending && is_wished && !nodes.contains(&row.name)
    });
    let others: Vec<(String, u64)> =
        others.map(|row| (row.name.clone(), row.free_bytes / SLAB_BYTES)).collect();
    let free: u64 = others.iter().map(|(_, free)| free).sum();
    if free == 0 {
        return Err(RecipientError::NobodyElse);
    }
    let donors = others.into_iter().map(|(name, _)| name).collect();
    let wish = Wish { donors, ..holding.wish.clone() };
    ask(&mut client, &wish, slabs.min(free) * SLAB_BYTES, 1).await
}
