//! The events of a holding.

use std::path::PathBuf;
use std::time::Duration;

use venice_control::NoticeReason;
use venice_memory::paged::run_block::{Fate, RunBlockMap};

use crate::local_fallback::ReclaimTo;
use crate::suspend::Suspended;

/// An event of a holding, reported once. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A donor was lost, whoever found out.
    Lost(LostDonor),
    /// A donor does not answer, and no other has some of its slabs: the run waits until it answers,
    /// or its lease is over.
    Awaited {
        /// Its name.
        name: String,
        /// Slabs without a copy at another donor.
        slabs: usize,
    },
    /// Every slab has all its copies again.
    Rebuilt {
        /// Slabs or fragments rebuilt.
        slabs: u64,
        /// True for fragments of coded slabs.
        is_coded: bool,
    },
    /// Slabs remain without all copies; the rebuild is retried.
    NotRebuilt {
        /// The error.
        why: String,
        /// True if fragments are missing.
        is_coded: bool,
    },
    /// A donor reclaims its memory.
    WantedBack {
        /// Its name.
        name: String,
        /// The reason.
        reason: NoticeReason,
        /// Time after which data still there is lost; `None`: the donor waits.
        within: Option<Duration>,
        /// The reason why the data cannot move; `None`: it moves.
        anchored: Option<&'static str>,
    },
    /// A donor has all its memory back.
    GivenBack {
        /// Its name.
        name: String,
        /// Slabs that have moved.
        slabs: usize,
    },
    /// Reclaimed slabs go to this machine, since no preferred destination has room.
    FallsBack {
        /// The destination.
        place: ReclaimTo,
        /// The number of slabs.
        slabs: usize,
    },
    /// The write-behind fails.
    WriteBehindFailed {
        /// Its directory.
        dir: PathBuf,
        /// The error.
        why: String,
        /// Slabs now only at nodes, and no longer on the disk.
        slabs: usize,
        /// Pages at no node: they wait here, and the write is retried.
        kept_pages: usize,
    },
    /// The program constantly waits for the disk.
    SlowDisk {
        /// The directory of the write-behind.
        dir: PathBuf,
    },
    /// Reclaimed slabs have no destination; the move is retried.
    NotMoved {
        /// The error.
        why: String,
    },
}

/// A lost donor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDonor {
    /// Its name.
    pub name: String,
    /// The way it was lost.
    pub fate: Fate,
    /// True if all its links were in use when one was to be opened last.
    pub is_refusing: bool,
    /// The owner that its memory was transferred to; `None` for another fate.
    pub transferred_to: Option<String>,
    /// Slabs of which it had a copy or a fragment.
    pub slabs: usize,
    /// Slabs of these without any other copy, or with too few fragments left.
    pub lost_slabs: usize,
    /// Slabs of these without any other copy, but on this machine's disk.
    pub disk_slabs: usize,
    /// True if they are coded.
    pub is_coded: bool,
    /// Set if this process was suspended and did not renew the lease: the donor is not to blame.
    pub suspended: Option<Suspended>,
}

impl LostDonor {
    /// Describes the loss of a node: `donors` are its entries in the run block.
    pub(crate) fn of(
        block: &RunBlockMap,
        donors: &[usize],
        fate: Fate,
        suspended: Option<Suspended>,
    ) -> LostDonor {
        let (mut slabs, mut lost_slabs, mut disk_slabs) = (0, 0, 0);
        for slab in 0..block.slab_count() {
            if block.replicas_of(slab).any(|(_, replica)| donors.contains(&replica.donor())) {
                slabs += 1;
                let is_alive = block.slab_is_alive(slab);
                lost_slabs += usize::from(!is_alive);
                let is_at_donors =
                    block.coding().is_some() || block.readable(slab).next().is_some();
                disk_slabs += usize::from(is_alive && !is_at_donors);
            }
        }
        let donor = &block.donors()[donors[0]];
        let (name, transferred_to) = (donor.name(), donor.transferred_to());
        let (is_coded, is_refusing) = (block.coding().is_some(), donor.is_refusing());
        LostDonor {
            name,
            fate,
            is_refusing,
            transferred_to,
            slabs,
            lost_slabs,
            disk_slabs,
            is_coded,
            suspended,
        }
    }

    /// Describes what happened, as the beginning of a sentence.
    #[must_use]
    pub fn what(&self) -> String {
        let LostDonor { name, fate, suspended, transferred_to, is_refusing, .. } = self;
        if let Some(owner) = transferred_to {
            return format!("the memory of node {name} was transferred to {owner}");
        }
        match (suspended, fate) {
            (Some(slept), _) => format!("the lease of node {name} has ended: {slept}"),
            (None, Fate::Died) => format!("node {name} died"),
            (None, Fate::Revoked) => format!("node {name} took its memory back"),
            (None, Fate::Unresponsive) if *is_refusing => {
                format!("node {name} has no link free for more programs over udp")
            }
            (None, Fate::Unresponsive) => format!("node {name} stopped answering"),
            (None, Fate::NotAdmitted) => format!(
                "node {name} does not admit this program any more (a certificate has expired, was \
                 revoked or is of a retired authority: start the program again)"
            ),
        }
    }
}

impl std::fmt::Display for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            News::Lost(lost) => lost.fmt(f),
            News::Awaited { name, slabs } => {
                write!(
                    f,
                    "node {name} does not answer; {slabs} slabs that only it has are waited for"
                )
            }
            News::Rebuilt { slabs, is_coded: true } => {
                write!(f, "all fragments are there again: {slabs} computed anew")
            }
            News::Rebuilt { slabs, .. } => {
                write!(f, "all copies are there again: {slabs} slabs copied anew")
            }
            News::NotRebuilt { why, is_coded } => {
                let what = if *is_coded { "fragments" } else { "copies" };
                write!(f, "lost {what} are not there again: {why}")
            }
            News::WantedBack { name, reason, within, anchored } => {
                match reason {
                    NoticeReason::Drain => write!(f, "node {name} is being drained: ")?,
                    NoticeReason::Preempted => {
                        write!(
                            f,
                            "a request of higher priority needs the memory of node {name}: "
                        )?;
                    }
                    _ => write!(f, "node {name} needs its memory itself: ")?,
                }
                match anchored {
                    None => write!(f, "its data moves to other donors")?,
                    Some(why) => write!(f, "its data cannot move ({why})")?,
                }
                match within {
                    None => Ok(()),
                    Some(within) => {
                        let s = within.as_secs_f64();
                        write!(f, "; the node waits {s:.0} s and takes what it has then")
                    }
                }
            }
            News::GivenBack { name, slabs } => {
                write!(f, "node {name} has its memory back: {slabs} slabs moved, none lost")
            }
            News::FallsBack { place: ReclaimTo::Disk(dir), slabs } => {
                write!(f, "{slabs} reclaimed slabs go to files in {}", dir.display())
            }
            News::FallsBack { slabs, .. } => {
                write!(f, "{slabs} reclaimed slabs go to this machine's own memory")
            }
            News::WriteBehindFailed { dir, why, slabs, kept_pages } => {
                write!(f, "write-behind to {} failed: {why}; ", dir.display())?;
                match (slabs, kept_pages) {
                    (slabs, 0) => write!(f, "{slabs} slabs are with their nodes alone from now on"),
                    (_, pages) => write!(
                        f,
                        "{pages} pages that no node has wait in this machine's memory, and the \
                         program for them; retrying"
                    ),
                }
            }
            News::SlowDisk { dir } => write!(
                f,
                "the disk of {} takes less than the program has to write behind, which waits for it",
                dir.display()
            ),
            News::NotMoved { why } => {
                write!(f, "reclaimed slabs cannot move: {why}; retrying")
            }
        }
    }
}

impl std::fmt::Display for LostDonor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LostDonor { slabs, lost_slabs, disk_slabs, is_coded, .. } = self;
        let what = self.what();
        match lost_slabs {
            0 if *slabs == 0 => write!(f, "{what}"),
            0 if *is_coded => {
                write!(f, "{what}; its fragments of {slabs} slabs are computed from others")
            }
            0 if *disk_slabs > 0 => {
                write!(f, "{what}; what only it held is on this machine's disk")
            }
            0 => write!(f, "{what}; other nodes have copies of its {slabs} slabs"),
            _ if *is_coded => {
                write!(f, "{what}; too few fragments are left of {lost_slabs} slabs")
            }
            _ if self.transferred_to.is_some() => {
                write!(f, "{what}; what only it held is gone from here")
            }
            _ => write!(f, "{what}; what only it held is lost"),
        }
    }
}
