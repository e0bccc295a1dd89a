//! Orders of the rack to its processes and their replies: a line of JSON each.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// An order to a donor, a program or the forwarder.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    /// To a donor: lend memory.
    Lend {
        /// The grant.
        grant: u64,
        /// Its key.
        key: u64,
        /// Number of the region in the notes.
        region: u32,
    },
    /// To a donor: end a grant.
    End {
        /// The grant.
        grant: u64,
    },
    /// To a program: a grant for it.
    Connect {
        /// Index of the donor, from 0.
        session: usize,
        /// The grant.
        grant: u64,
        /// Its key.
        key: u64,
        /// Number of the region in the notes.
        region: u32,
        /// Salt of the bytes written to it.
        salt: u64,
    },
    /// To a program: read the whole of every region.
    Probe,
    /// To donors and programs: note the final state.
    Report,
    /// To the forwarder: a fault of the scenario begins.
    Begin {
        /// The fault.
        fault: usize,
    },
    /// To the forwarder: the fault is over.
    Over {
        /// The fault.
        fault: usize,
    },
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// It has started.
    Ready,
    /// A donor lends.
    Lent {
        /// The grant.
        grant: u64,
    },
    /// A program needs memory of a donor, or a link to it.
    Want {
        /// Index of the donor.
        session: usize,
    },
    /// True if a program has done all its work and has all its memory.
    Content {
        /// The value.
        is_so: bool,
    },
    /// A program has read all of it.
    Probed,
    /// All is noted.
    Reported,
}

/// Sends a reply to the parent.
pub fn reply(reply: Reply) {
    let line = serde_json::to_string(&reply).expect("a reply has only plain data");
    let mut out = std::io::stdout().lock();
    // A dead parent has closed this process's input too, which ends it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Receives the orders of the parent; it ends when the parent does.
pub fn orders() -> Receiver<Order> {
    let (to, orders) = channel();
    std::thread::spawn(move || {
        let _ = each_line(std::io::stdin().lock(), |order| to.send(order).is_ok());
    });
    orders
}

/// Reads lines until the end, or until `take` returns false.
///
/// # Errors
/// When a line cannot be parsed.
pub fn each_line<T: DeserializeOwned>(
    from: impl BufRead,
    mut take: impl FnMut(T) -> bool,
) -> Result<()> {
    for line in from.lines() {
        let line = line.context("cannot read a line")?;
        let parsed =
            serde_json::from_str(&line).with_context(|| format!("cannot parse '{line}'"))?;
        if !take(parsed) {
            break;
        }
    }
    Ok(())
}
