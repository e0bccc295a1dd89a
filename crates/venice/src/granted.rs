//! Grants that a command has: their description, and what happens when one is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use venice_control::{Grant, ServiceAccess};
use venice_recipient::{Held, HeldEvent, HeldNews};
use venice_wire::{GrantId, PortId};

use crate::client_drivers::Installed;
use venice_cli::terminal;

/// Interval between two checks whether the command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time for the donor's reason of a loss that a client driver has noticed.
const REASON_WITHIN: Duration = Duration::from_secs(3);

/// A grant as `--json` prints it.
#[derive(Debug, serde::Serialize)]
pub struct GrantedRow {
    /// Its number.
    pub id: u64,
    /// The name of its kind.
    pub kind: &'static str,
    /// Its donor.
    pub node: String,
    /// Name of a device at its node; for memory the address of its donor.
    pub address: String,
    /// Its size.
    pub bytes: u64,
    /// Its capabilities.
    pub capabilities: Vec<String>,
    /// Its lease.
    pub lease_s: f64,
    /// The way to its service; `None`: it has none.
    pub service: Option<ServiceAccess>,
}

impl GrantedRow {
    /// Describes what is held.
    pub fn all(held: &Held) -> Vec<Self> {
        let services = held.services().iter().cloned();
        held.grants().iter().zip(services).map(|(grant, it)| Self::new(grant, it)).collect()
    }

    fn new(grant: &Grant, service: Option<ServiceAccess>) -> Self {
        let share = &grant.share;
        let address = match share.device() {
            Some((_, address)) => address.to_owned(),
            None => format!("udp:{}", grant.address(PortId::Udp)),
        };
        Self {
            id: grant.id.0,
            kind: share.kind.name(),
            node: grant.donor.clone(),
            address,
            bytes: share.bytes,
            capabilities: share.capabilities.clone(),
            lease_s: grant.lease_s,
            service,
        }
    }
}

/// Returns the environment variables that describe the grants.
pub fn environment(rows: &[GrantedRow]) -> Vec<(&'static str, String)> {
    let all = |of: &dyn Fn(&GrantedRow) -> String| rows.iter().map(of).collect::<Vec<_>>();
    let list = |of: &dyn Fn(&GrantedRow) -> String| all(of).join(",");
    let services: Vec<_> = rows.iter().map(|row| &row.service).collect();
    let services = serde_json::to_string(&services).expect("plain data");
    vec![
        ("VENICE_GRANT_ENDPOINTS", services),
        ("VENICE_GRANT_ID", list(&|row| row.id.to_string())),
        ("VENICE_GRANT_KIND", list(&|row| row.kind.to_owned())),
        ("VENICE_GRANT_NODE", list(&|row| row.node.clone())),
        ("VENICE_GRANT_ADDRESS", list(&|row| row.address.clone())),
        ("VENICE_GRANT_BYTES", list(&|row| row.bytes.to_string())),
        ("VENICE_GRANT_CAPABILITIES", all(&|row| row.capabilities.join(",")).join(";")),
    ]
}

/// Reports events of grants until the command has ended, and ends it when a grant is lost or due:
/// by SIGTERM and, after `grace`, by SIGKILL, because the resource may soon have another recipient.
/// `next` waits for an event. The loss of a grant that `drivers` report to the command is no reason
/// to end it; one that is wanted back they move. Each loss is told once, with the donor's reason if
/// that comes in time. Returns true if it ended the command.
pub fn watch(
    next: impl Fn(Duration) -> Option<HeldNews>,
    drivers: &Installed,
    has_ended: &Receiver<()>,
    grace: Duration,
    signal: impl Fn(Signal),
) -> bool {
    let mut lost_at = None;
    let mut is_killed = false;
    let mut losses = Losses::default();
    while has_ended.try_recv() == Err(TryRecvError::Empty) {
        if let Some(news) = next(LOOK_EVERY) {
            losses.tell(&news);
            drivers.hear(&news);
            let is_over = matches!(news.event, HeldEvent::Lost(_) | HeldEvent::Due);
            if is_over && drivers.needs(news.grant) && lost_at.is_none() {
                lost_at = Some(Instant::now());
                signal(Signal::TERM);
                // A stopped process would not receive it.
                signal(Signal::CONT);
            }
        }
        losses.tell_noticed(drivers, REASON_WITHIN);
        if !is_killed && lost_at.is_some_and(|at: Instant| at.elapsed() >= grace) {
            is_killed = true;
            terminal::remark("venice: the command ignored SIGTERM: killed");
            signal(Signal::KILL);
        }
    }
    // The loss may have ended it, before the donor's reason has come.
    let ended = Instant::now();
    while losses.are_awaited(drivers) && ended.elapsed() < REASON_WITHIN {
        if let Some(news) = next(LOOK_EVERY) {
            losses.tell(&news);
        }
    }
    losses.tell_noticed(drivers, Duration::ZERO);
    lost_at.is_some()
}

/// Losses of a command's grants: those that the user was told of, and those that its drivers have
/// noticed, with the time.
#[derive(Default)]
struct Losses {
    told: BTreeSet<GrantId>,
    noticed: BTreeMap<GrantId, Instant>,
}

impl Losses {
    /// Tells the user of an event, unless it is a loss that he knows of.
    fn tell(&mut self, news: &HeldNews) {
        let is_lost = matches!(news.event, HeldEvent::Lost(_));
        if !is_lost || self.told.insert(news.grant) {
            terminal::remark(format!("venice: {news}"));
        }
    }

    /// Tells the user of losses that drivers have noticed for as long as `patience`, if no reason of
    /// the donor's has come.
    fn tell_noticed(&mut self, drivers: &Installed, patience: Duration) {
        for (grant, line) in drivers.noticed() {
            let since = *self.noticed.entry(grant).or_insert_with(Instant::now);
            if since.elapsed() >= patience && self.told.insert(grant) {
                terminal::remark(format!("venice: {line}"));
            }
        }
    }

    /// True if a driver has noticed a loss that the user was not told of.
    fn are_awaited(&self, drivers: &Installed) -> bool {
        drivers.noticed().iter().any(|(grant, _)| !self.told.contains(grant))
    }
}
