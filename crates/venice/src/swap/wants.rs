//! The wants of a run with `--mode swap`: the part of its device's [`Plan`] that its user chooses.

use serde::{Deserialize, Serialize};
use venice_control::Policy;
use venice_recipient::MOST_COPIES;
use venice_wire::ByteSize;

use super::plan::{Device, LEAST_BYTES, Plan, Reclaim, Size, Waits};
use crate::name;
use crate::rack::PortKind;

/// Above the usual priorities of swap areas, so that the program's pages go to this device.
const PRIORITY: u16 = 32_000;
/// More than any rack has; sums of sizes do not overflow.
const MOST_BYTES: u64 = 1 << 50;
/// Most nodes that a request names.
const MOST_NAMES: usize = 1024;
/// Longest path of a program, in bytes, and longest name of a node.
const LONGEST_PURPOSE: usize = 4096;
const LONGEST_NAME: usize = 255;

/// The wants of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wants {
    /// Limit of resident memory, in bytes.
    pub local_bytes: u64,
    /// Amount to borrow.
    pub size: Size,
    /// Monitor Node that the user names; `None`: that of this machine's rack.
    pub monitor: Option<String>,
    /// Port to the donors; `None`: the rack's.
    pub port: Option<PortKind>,
    /// Donors to borrow from; empty: any.
    pub donors: Vec<String>,
    /// Placement policy; `None`: the rack's.
    pub placement: Option<Policy>,
    /// Bandwidth to reserve on its links, in bits a second; 0: none.
    pub bandwidth_bps: u64,
    /// Waiting options.
    pub waiting: Waits,
    /// Copies of each page, on different donors; `None`: two if the rack has room for them.
    pub copies: Option<u32>,
    /// Destinations for reclaimed memory.
    pub reclaim_to: Vec<Reclaim>,
    /// Node that this machine belongs to, where nodes relay.
    pub node: Option<String>,
    /// Path of the program.
    pub purpose: String,
}

impl Wants {
    /// Checks what the command line checks: a request of another user's process need not come from it.
    ///
    /// # Errors
    /// The reason, for users.
    pub fn check(&self) -> Result<(), String> {
        let (Size::Exactly(bytes) | Size::UpTo(bytes)) = self.size;
        if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes) {
            let (least, most) = (ByteSize(LEAST_BYTES), ByteSize(MOST_BYTES));
            return Err(format!("--remote {} is not from {least} to {most}", ByteSize(bytes)));
        }
        let most_copies = MOST_COPIES;
        if self.copies.is_some_and(|copies| !(1..=most_copies).contains(&copies)) {
            return Err(format!("--copies is not from 1 to {most_copies}"));
        }
        if self.donors.len() > MOST_NAMES {
            return Err(format!("more than {MOST_NAMES} donors are named"));
        }
        for node in self.donors.iter().chain(&self.node) {
            name::check(node)?;
            check_text(node, LONGEST_NAME)?;
        }
        check_text(&self.purpose, LONGEST_PURPOSE)
    }

    /// Returns the plan of the device `name`, which serves the process `owner_pid`.
    pub fn plan(&self, name: String, monitor: String, port: PortKind, owner_pid: u32) -> Plan {
        let wants = self.clone();
        Plan {
            name,
            size: wants.size,
            monitor,
            port,
            donors: wants.donors,
            placement: wants.placement,
            bandwidth_bps: wants.bandwidth_bps,
            waiting: wants.waiting,
            copies: wants.copies,
            reclaim_to: wants.reclaim_to,
            node: wants.node,
            queues: Plan::default_queues(),
            priority: PRIORITY,
            device: None::<Device>,
            purpose: wants.purpose,
            owner_pid: Some(owner_pid),
            user: None,
        }
    }
}

/// Checks a text that tables show to others.
fn check_text(text: &str, longest: usize) -> Result<(), String> {
    if text.len() > longest {
        return Err(format!("a name is longer than {longest} bytes"));
    }
    match text.chars().any(char::is_control) {
        true => Err(format!("{text:?} has control characters")),
        false => Ok(()),
    }
}

#[cfg(test)]
pub fn some() -> Wants {
    Wants {
        local_bytes: 8 << 20,
        size: Size::Exactly(16 << 20),
        monitor: None,
        port: None,
        donors: vec!["node1".into()],
        placement: None,
        bandwidth_bps: 0,
        waiting: Waits::default(),
        copies: Some(2),
        reclaim_to: Reclaim::by_default(),
        node: None,
        purpose: "/bin/true".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wants_are_checked() {
        some().check().unwrap();
        let bad: [fn(&mut Wants); 10] = [
            |it| it.size = Size::Exactly(4096),
            |it| it.size = Size::UpTo(u64::MAX),
            |it| it.copies = Some(0),
            |it| it.copies = Some(4),
            |it| it.donors = vec!["".into()],
            |it| it.donors = vec!["node1".into(); MOST_NAMES + 1],
            |it| it.donors = vec!["n".repeat(LONGEST_NAME + 1)],
            |it| it.node = Some("node1\u{1b}[2J".into()),
            |it| it.purpose = "a\nb".into(),
            |it| it.purpose = "/x".repeat(LONGEST_PURPOSE),
        ];
        for (at, change) in bad.iter().enumerate() {
            let mut wants = some();
            change(&mut wants);
            assert!(wants.check().is_err(), "{at}");
        }
    }

    #[test]
    fn unknown_wants_are_refused() {
        let text = serde_json::to_value(some()).unwrap();
        assert_eq!(serde_json::from_value::<Wants>(text.clone()).unwrap(), some());
        for (field, value) in [("user", "0"), ("device", "/dev/sda"), ("priority", "1")] {
            let mut text = text.clone();
            text[field] = value.into();
            assert!(serde_json::from_value::<Wants>(text).is_err(), "{field}");
        }
        let mut text = text;
        text["reclaim_to"] = serde_json::json!(["disk:/etc"]);
        assert!(serde_json::from_value::<Wants>(text).is_err());
    }
}
