//! Moves devices in use: when a donor wants one back, an equal device of another donor takes its
//! place, and the program goes on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use venice_cli::terminal::remark;
use venice_control::Want;
use venice_control::client::Access;
use venice_recipient::{AllocationSpec, Held, HeldEvent, HeldNews};
use venice_service::moves::Move;
use venice_wire::{ByteSize, GrantId};

use super::asking::{Answer, Drivers};

/// Pause before another attempt.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for the drivers, of a reclaim without an end.
const MOST: Duration = Duration::from_secs(600);

/// Receiver of the events of grants.
pub type Tell = Arc<dyn Fn(HeldNews) + Send + Sync>;

/// What a mover needs to get devices.
#[derive(Clone)]
pub struct Source {
    /// The rack.
    pub access: Access,
    /// Nodes to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Purpose, for the tables.
    pub purpose: String,
    /// Receiver of the events of new grants.
    pub tell: Tell,
}

/// Moves the devices of a run. It stops when it is dropped.
pub(super) struct Mover {
    shared: Arc<Shared>,
    moves: Mutex<Vec<(Sender<()>, JoinHandle<()>)>>,
}

struct Shared {
    source: Source,
    drivers: Drivers,
    /// Present grant of each device, by its number.
    devices: Mutex<BTreeMap<GrantId, Device>>,
}

/// A device in use.
#[derive(Clone)]
struct Device {
    /// Grant that the program began with.
    first: GrantId,
    held: Arc<Held>,
    is_moving: bool,
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
        let device =
            |first: &GrantId| Device { first: *first, held: held.clone(), is_moving: false };
        let devices = grants.iter().map(|grant| (*grant, device(grant))).collect();
        let shared = Arc::new(Shared { source, drivers, devices: Mutex::new(devices) });
        Ok(Self { shared, moves: Mutex::default() })
    }

    /// Returns the path of the socket.
    pub(super) fn socket(&self) -> &Path {
        self.shared.drivers.path()
    }

    /// Returns words for a device that took the place of another one.
    pub(super) fn name_of(&self, grant: GrantId) -> Option<String> {
        let devices = self.shared.devices();
        let granted = devices.get(&grant)?.held.grants().iter().find(|it| it.id == grant)?;
        Some(format!("{} of {}", granted.share.address, granted.donor))
    }

    /// Takes an event in: begins to move a device that is wanted back.
    pub(super) fn hear(&self, news: &HeldNews) {
        let HeldEvent::Wanted(_) = news.event else { return };
        let grant = news.grant;
        {
            let mut devices = self.shared.devices();
            let Some(device) = devices.get_mut(&grant) else { return };
            if std::mem::replace(&mut device.is_moving, true) {
                return;
            }
        }
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&self.shared);
        let moving = std::thread::spawn(move || {
            shared.move_away(grant, &stopped);
            if let Some(device) = shared.devices().get_mut(&grant) {
                device.is_moving = false;
            }
        });
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
    fn devices(&self) -> MutexGuard<'_, BTreeMap<GrantId, Device>> {
        lock(&self.devices)
    }

    /// Moves a device, as long as it is wanted back.
    fn move_away(&self, grant: GrantId, stopped: &Receiver<()>) {
        let Some(device) = self.devices().get(&grant).cloned() else { return };
        let Some(granted) = device.held.grants().iter().find(|it| it.id == grant).cloned() else {
            return;
        };
        let name = format!("{} of {}", granted.share.address, granted.donor);
        let mut told = String::new();
        let mut tell_once = |why: String| {
            if told != why {
                remark(format!("venice: {name} stays where it is: {why}"));
                told = why;
            }
        };
        let want = Want {
            count: 1,
            bytes: ByteSize(granted.share.bytes),
            capabilities: granted.share.capabilities.clone(),
            ..Want::device(granted.share.kind, 0)
        };
        while device.held.wanted_back(grant).is_some() {
            match self.get(want.clone()) {
                Ok(other) => {
                    let moved = self.move_to(grant, &device, &other, (stopped, &mut tell_once));
                    if moved {
                        let donor = &other.grants()[0].donor;
                        remark(format!("venice: {name} has moved to {donor}"));
                        return;
                    }
                }
                Err(why) => tell_once(format!("no equal device is free: {why:#}")),
            }
            if has_stopped(stopped, AGAIN) {
                return;
            }
        }
    }

    /// Gets another device.
    fn get(&self, want: Want) -> anyhow::Result<Arc<Held>> {
        let Source { access, donors, purpose, tell } = &self.source;
        let spec = AllocationSpec {
            devices: vec![want],
            donors: donors.clone(),
            purpose: purpose.clone(),
            ..AllocationSpec::default()
        };
        let tell = Arc::clone(tell);
        Ok(Arc::new(Held::allocate(access, &spec, move |news| tell(news))?))
    }

    /// Has the drivers go on with another device, until all do; true if they do.
    fn move_to(
        &self,
        grant: GrantId,
        device: &Device,
        other: &Arc<Held>,
        (stopped, tell_once): (&Receiver<()>, &mut impl FnMut(String)),
    ) -> bool {
        let Some(to) = other.services()[0].clone() else {
            tell_once(format!("{} has no service", other.grants()[0].share.address));
            return false;
        };
        let step = Move { grant: device.first, to };
        let mut some_moved = false;
        let is_usable = || other.lost().is_none() && other.wanted().is_none();
        while let Some(wanted) = device.held.wanted_back(grant).filter(|_| is_usable()) {
            let left = wanted.until.map(|until| until.saturating_duration_since(Instant::now()));
            match self.drivers.ask(&step, left.unwrap_or(MOST).min(MOST)) {
                Answer::Moved => {
                    self.note_moved(grant, device, other, step);
                    return true;
                }
                Answer::Kept(why, some) => {
                    some_moved |= some;
                    tell_once(why);
                }
            }
            if has_stopped(stopped, AGAIN) {
                break;
            }
        }
        self.drivers.give_up(device.first);
        if some_moved {
            // Programs use both.
            self.add(other, device.first);
        }
        false
    }

    fn note_moved(&self, grant: GrantId, device: &Device, other: &Arc<Held>, step: Move) {
        self.drivers.note_moved(step);
        self.add(other, device.first);
        self.devices().remove(&grant);
        device.held.release(grant);
    }

    /// Keeps a device that took the place of another one.
    fn add(&self, other: &Arc<Held>, first: GrantId) {
        let granted = &other.grants()[0];
        let device = Device { first, held: Arc::clone(other), is_moving: false };
        self.devices().insert(granted.id, device);
    }
}

/// Waits, unless the mover stops.
fn has_stopped(stopped: &Receiver<()>, within: Duration) -> bool {
    stopped.recv_timeout(within) != Err(RecvTimeoutError::Timeout)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
