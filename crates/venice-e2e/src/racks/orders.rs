//! What the rack tells its processes and what they answer: a line of JSON each.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// To a donor, a program or the forwarder.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    /// To a donor: lend memory.
    Lend {
        /// The grant.
        grant: u64,
        /// Its key.
        key: u64,
        /// What the notes call the memory.
        region: u32,
    },
    /// To a donor: end a grant.
    End {
        /// Which.
        grant: u64,
    },
    /// To a program: this is what it has borrowed.
    Connect {
        /// Which of its donors, counted from 0.
        session: usize,
        /// The grant.
        grant: u64,
        /// Its key.
        key: u64,
        /// What the notes call the memory.
        region: u32,
        /// What the bytes written to it follow from.
        salt: u64,
    },
    /// To a program: read the whole of every region.
    Probe,
    /// To donors and programs: note what there is at the end.
    Report,
    /// To the forwarder: a fault of the scenario begins.
    Begin {
        /// Which.
        fault: usize,
    },
    /// To the forwarder: it is over.
    Over {
        /// Which.
        fault: usize,
    },
}

/// What they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// It has begun.
    Ready,
    /// A donor lends.
    Lent {
        /// The grant.
        grant: u64,
    },
    /// A program needs memory of a donor, or a link to it.
    Want {
        /// Which of its donors.
        session: usize,
    },
    /// Whether a program has done all it wanted and has all its memory.
    Content {
        /// Whether.
        is_so: bool,
    },
    /// A program has read all of it.
    Probed,
    /// All is noted.
    Reported,
}

/// Says something to the parent.
pub fn reply(reply: Reply) {
    let line = serde_json::to_string(&reply).expect("plain data");
    let mut out = std::io::stdout().lock();
    // A parent that is gone has closed our input too, which ends us.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The orders of the parent; it ends when the parent does.
pub fn orders() -> Receiver<Order> {
    let (to, orders) = channel();
    std::thread::spawn(move || {
        let _ = each_line(std::io::stdin().lock(), |order| to.send(order).is_ok());
    });
    orders
}

/// Reads lines until there are no more, or `take` wants none.
///
/// # Errors
/// When a line is none of ours.
pub fn each_line<T: DeserializeOwned>(
    from: impl BufRead,
    mut take: impl FnMut(T) -> bool,
) -> Result<()> {
    for line in from.lines() {
        let line = line.context("reading a line")?;
        let parsed = serde_json::from_str(&line).with_context(|| format!("reading '{line}'"))?;
        if !take(parsed) {
            break;
        }
    }
    Ok(())
}
