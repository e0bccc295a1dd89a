//! Moves devices in use: when a donor wants one back, an equal device of another donor takes its
//! place, and the program goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use venice_cli::terminal::remark;
use venice_control::Want;
use venice_control::client::Access;
use venice_recipient::runs::RunDevices;
use venice_recipient::{AllocationSpec, Held, HeldEvent, HeldNews, Waiting};
use venice_service::moves::Move;
use venice_wire::{ByteSize, GrantId};

use super::asking::{Answer, Drivers};

/// Pause before another attempt.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for the drivers, of a reclaim without an end.
const MOST: Duration = Duration::from_secs(600);

/// Time in which a run ends whose last program has ended.
const ENDING: Duration = Duration::from_millis(500);

/// User of a device that has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Programs.
    Drivers,
    /// No program at present.
    Nobody,
}

/// Receiver of the events of grants.
pub type Tell = Arc<dyn Fn(HeldNews) + Send + Sync>;

/// Source of the devices that take the place of others.
#[derive(Clone)]
pub struct Source {
    /// The rack.
    pub access: Access,
    /// Nodes to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Purpose, for the tables.
    pub purpose: String,
    /// Priority of the grants.
    pub priority: u8,
    /// Receiver of the events of new grants.
    pub tell: Tell,
    /// The devices as `venice ps` shows them.
    pub devices: RunDevices,
}

impl Source {
    /// Gets devices as the first ones were got.
    pub fn of(access: &Access, spec: &AllocationSpec, devices: RunDevices, tell: Tell) -> Self {
        Self {
            access: access.clone(),
            donors: spec.donors.clone(),
            purpose: spec.purpose.clone(),
            priority: spec.waiting.priority,
            tell,
            devices,
        }
    }
}

/// Moves the devices of a run. It stops when it is dropped.
pub(super) struct Mover {
    shared: Arc<Shared>,
    moves: Mutex<Vec<(Sender<()>, JoinHandle<()>)>>,
}

struct Shared {
    source: Source,
    drivers: Drivers,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Grants in use, by number. Programs that have not moved use a former one of their device.
    grants: BTreeMap<GrantId, InUse>,
    /// Devices that a thread is moving, by the grants that programs began with.
    moving: BTreeSet<GrantId>,
}

/// A grant in use.
#[derive(Clone)]
struct InUse {
    /// Grant that programs began with.
    first: GrantId,
    held: Arc<Held>,
}

impl InUse {
    fn is_wanted(&self, grant: GrantId) -> bool {
        self.held.wanted_back(grant).is_some()
    }
}

impl State {
    /// Returns the grants of a device.
    fn of(&self, first: GrantId) -> Vec<(GrantId, InUse)> {
        let of_it = self.grants.iter().filter(|(_, grant)| grant.first == first);
        of_it.map(|(id, grant)| (*id, grant.clone())).collect()
    }
}

impl Mover {
    /// Moves these grants when they are wanted back; drivers are to connect at `path`.
    ///
    /// # Errors
    /// Fails if the socket cannot be made.
    pub(super) fn new(
        source: Source,
        held: &Arc<Held>,
        grants: &[GrantId],
        path: PathBuf,
    ) -> anyhow::Result<Self> {
        let named = || format!("listening at {}", path.display());
        let drivers = Drivers::listen(path.clone()).with_context(named)?;
        let in_use = |first: &GrantId| (*first, InUse { first: *first, held: Arc::clone(held) });
        let grants = grants.iter().map(in_use).collect();
        let state = Mutex::new(State { grants, moving: BTreeSet::new() });
        let shared = Arc::new(Shared { source, drivers, state });
        Ok(Self { shared, moves: Mutex::default() })
    }

    /// Returns the path of the socket.
    pub(super) fn socket(&self) -> &Path {
        self.shared.drivers.path()
    }

    /// Returns words for a device that took the place of another one.
    pub(super) fn name_of(&self, grant: GrantId) -> Option<String> {
        let state = self.shared.state();
        Some(name_of(&state.grants.get(&grant)?.held, grant))
    }

    /// Takes an event in: begins to move a device that is wanted back.
    pub(super) fn hear(&self, news: &HeldNews) {
        let HeldEvent::Wanted(_) = news.event else { return };
        let first = {
            let mut state = self.shared.state();
            let Some(InUse { first, .. }) = state.grants.get(&news.grant) else { return };
            let first = *first;
            if !state.moving.insert(first) {
                return;
            }
            first
        };
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&self.shared);
        let moving = std::thread::spawn(move || shared.move_away(first, &stopped));
        let mut moves = lock(&self.moves);
        moves.retain(|(_, moving)| !moving.is_finished());
        moves.push((stop, moving));
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.shared.drivers.close();
        let moves = self.moves.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (stop, moving) in std::mem::take(moves) {
            drop(stop);
            let _ = moving.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Moves a device as long as one of its grants is wanted back.
    fn move_away(&self, first: GrantId, stopped: &Receiver<()>) {
        let mut told = String::new();
        loop {
            let wanted = {
                let mut state = self.state();
                let mut grants = state.of(first);
                grants.retain(|(id, grant)| grant.is_wanted(*id));
                if grants.is_empty() {
                    state.moving.remove(&first);
                    return;
                }
                grants
            };
            let (grant, InUse { held, .. }) = &wanted[0];
            let name = name_of(held, *grant);
            let tell_once = &mut |why: String| {
                if told != why {
                    remark(format!("venice: {name} stays where it is: {why}"));
                    told = why;
                }
            };
            match self.get(held, *grant) {
                Ok(other) => {
                    let moved = self.move_to(first, &wanted, &other, (stopped, tell_once));
                    // A program that ends leaves its device before its run ends.
                    if moved == Some(By::Nobody) && has_stopped(stopped, ENDING) {
                        return;
                    }
                    if moved.is_some() {
                        remark(format!("venice: {name} has moved to {}", other.grants()[0].donor));
                        continue;
                    }
                }
                Err(why) => tell_once(format!("no equal device is free: {why:#}")),
            }
            if has_stopped(stopped, AGAIN) {
                self.state().moving.remove(&first);
                return;
            }
        }
    }

    /// Gets a device equal to that of a grant.
    fn get(&self, held: &Held, grant: GrantId) -> anyhow::Result<Arc<Held>> {
        let granted = held.grants().iter().find(|it| it.id == grant);
        let share = &granted.context("the grant is over")?.share;
        let want = Want {
            count: 1,
            bytes: ByteSize(share.bytes),
            capabilities: share.capabilities.clone(),
            ..Want::device(share.kind, 0)
        };
        let Source { access, donors, purpose, priority, tell, devices: _ } = &self.source;
        let waiting = Waiting { priority: *priority, ..Waiting::default() };
        let spec = AllocationSpec {
            devices: vec![want],
            donors: donors.clone(),
            waiting,
            purpose: purpose.clone(),
            ..AllocationSpec::default()
        };
        let tell = Arc::clone(tell);
        Ok(Arc::new(Held::allocate(access, &spec, move |news| tell(news))?))
    }

    /// Has the drivers go on with another device, until all do; `None` if they do not.
    fn move_to(
        &self,
        first: GrantId,
        wanted: &[(GrantId, InUse)],
        other: &Arc<Held>,
        (stopped, tell_once): (&Receiver<()>, &mut impl FnMut(String)),
    ) -> Option<By> {
        let Some(to) = other.services()[0].clone() else {
            tell_once(format!("{} has no service", other.grants()[0].share.address));
            return None;
        };
        let (id, step) = (other.grants()[0].id, Move { grant: first, to });
        self.state().grants.insert(id, InUse { first, held: Arc::clone(other) });
        let (mut some_moved, wanted_first) = (false, wanted[0].0);
        let is_usable = || other.lost().is_none() && other.wanted().is_none();
        while is_usable() {
            let wanted = wanted.iter().filter_map(|(id, grant)| grant.held.wanted_back(*id));
            // The first of them that ends; those without an end last.
            let Some(until) = wanted.map(|it| (it.until.is_none(), it.until)).min() else { break };
            let left = until.1.map(|until| until.saturating_duration_since(Instant::now()));
            let slow = || {
                let number = wanted_first.0;
                tell_once(format!("grant {number} waits for its running commands"));
            };
            match self.drivers.ask(&step, left.unwrap_or(MOST).min(MOST), slow) {
                Answer::Moved => {
                    self.note_moved(other, step);
                    return Some(By::Drivers);
                }
                Answer::Unused => {
                    self.note_moved(other, step);
                    return Some(By::Nobody);
                }
                Answer::Kept(why, some) => {
                    some_moved |= some;
                    tell_once(why);
                }
                Answer::Ended(some) => {
                    some_moved |= some;
                    break;
                }
            }
            if has_stopped(stopped, AGAIN) {
                break;
            }
        }
        self.drivers.give_up(first);
        if !some_moved {
            // Nobody uses it.
            self.state().grants.remove(&id);
        }
        None
    }

    /// Releases all other grants of a device: nobody uses them any more.
    fn note_moved(&self, other: &Held, step: Move) {
        let (first, now) = (step.grant, &other.grants()[0]);
        self.drivers.note_moved(step);
        let mut state = self.state();
        for (former, grant) in state.of(first) {
            if former != now.id {
                self.source.devices.replace(former, now);
                state.grants.remove(&former);
                grant.held.release(former);
            }
        }
    }
}

fn name_of(held: &Held, grant: GrantId) -> String {
    let granted = held.grants().iter().find(|it| it.id == grant);
    granted.map_or_else(
        || format!("grant {}", grant.0),
        |granted| format!("{} of {}", granted.share.address, granted.donor),
    )
}

/// Waits, unless the mover stops.
fn has_stopped(stopped: &Receiver<()>, within: Duration) -> bool {
    stopped.recv_timeout(within) != Err(RecvTimeoutError::Timeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
