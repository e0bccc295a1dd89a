//! What the keepers of a holding have to tell.

use std::path::PathBuf;
use std::time::Duration;

use venice_control::NoticeReason;
use venice_memory::paged::run_block::{Fate, RunBlockMap};

use crate::at_home::ReclaimTo;
use crate::oversleep::Overslept;

/// What the keepers of a holding have to tell, each thing once. It reads as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A donor was lost, whoever found out.
    Lost(LostDonor),
    /// A donor does not answer, and nobody else has some of what it holds: that is waited for until
    /// it does, or its lease is over.
    Awaited {
        /// Its name.
        name: String,
        /// Slabs that only it has.
        slabs: usize,
    },
    /// Every slab has all its copies again; so many were copied.
    Rebuilt {
        /// How many.
        slabs: u64,
        /// They were fragments of coded slabs.
        is_coded: bool,
    },
    /// Slabs go on with fewer copies than they should have; it is tried again.
    NotRebuilt {
        /// Why.
        why: String,
        /// They lack fragments.
        is_coded: bool,
    },
    /// A donor wants its memory back.
    WantedBack {
        /// Its name.
        name: String,
        /// Why.
        reason: NoticeReason,
        /// What is still there after this is lost; `None`: it waits.
        within: Option<Duration>,
        /// Why what is there cannot move; `None`: it does.
        anchored: Option<&'static str>,
    },
    /// A donor has all its memory back.
    GivenBack {
        /// Its name.
        name: String,
        /// Slabs, all of which are elsewhere.
        slabs: usize,
    },
    /// Slabs that a donor wants back are put here, since nobody before in the order has room.
    ComesHome {
        /// Where.
        place: ReclaimTo,
        /// How many.
        slabs: usize,
    },
    /// What is written behind does not get to the disk.
    NotBehind {
        /// Where that is.
        dir: PathBuf,
        /// Why not.
        why: String,
        /// Slabs that nodes have, and the disk no longer.
        slabs: usize,
        /// Pages that no node has: they wait here, and it is tried again.
        kept_pages: usize,
    },
    /// The program waits for the disk all the time.
    SlowDisk {
        /// Where that is.
        dir: PathBuf,
    },
    /// There is nowhere to put what donors want back; it is tried again.
    NotMoved {
        /// Why.
        why: String,
    },
}

/// A donor that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDonor {
    /// Its name.
    pub name: String,
    /// How it was lost.
    pub fate: Fate,
    /// Slabs that it held a copy of, or a fragment.
    pub slabs: usize,
    /// Those of them that nobody else had, or of which too few fragments are left.
    pub lost_slabs: usize,
    /// Those that nobody else had, and this machine's disk has.
    pub disk_slabs: usize,
    /// They are coded.
    pub is_coded: bool,
    /// It was not the donor's doing: nobody renewed its lease.
    pub overslept: Option<Overslept>,
}

impl LostDonor {
    /// What a node takes with it, being lost: `donors` are its entries in the run block.
    pub(crate) fn of(
        block: &RunBlockMap,
        donors: &[usize],
        fate: Fate,
        overslept: Option<Overslept>,
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
        let (name, is_coded) = (block.donors()[donors[0]].name(), block.coding().is_some());
        LostDonor { name, fate, slabs, lost_slabs, disk_slabs, is_coded, overslept }
    }

    /// What has happened, as the beginning of a sentence.
    #[must_use]
    pub fn what(&self) -> String {
        let LostDonor { name, fate, overslept, .. } = self;
        match (overslept, fate) {
            (Some(slept), _) => format!("the lease of what node {name} lent has ended: {slept}"),
            (None, Fate::Died) => format!("node {name} died"),
            (None, Fate::Revoked) => format!("node {name} took its memory back"),
            (None, Fate::Unresponsive) => format!("node {name} stopped answering"),
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
                    None => write!(f, "what is there moves elsewhere")?,
                    Some(why) => write!(f, "what is there cannot move ({why})")?,
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
                write!(f, "node {name} has its memory back: {slabs} slabs moved, nothing is lost")
            }
            News::ComesHome { place: ReclaimTo::Disk(dir), slabs } => {
                write!(f, "{slabs} slabs that a node wants back go to files in {}", dir.display())
            }
            News::ComesHome { slabs, .. } => {
                write!(f, "{slabs} slabs that a node wants back go to this machine's own memory")
            }
            News::NotBehind { dir, why, slabs, kept_pages } => {
                write!(f, "what is far is not written behind to {}: {why}; ", dir.display())?;
                match (slabs, kept_pages) {
                    (slabs, 0) => write!(f, "{slabs} slabs are with their nodes alone from now on"),
                    (_, pages) => write!(
                        f,
                        "{pages} pages that no node has wait in this machine's memory, and the \
                         program for them; it is tried again"
                    ),
                }
            }
            News::SlowDisk { dir } => write!(
                f,
                "the disk of {} takes less than the program has to write behind, which waits for it",
                dir.display()
            ),
            News::NotMoved { why } => {
                write!(f, "what a node wants back cannot move: {why}; it is tried again")
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
                write!(f, "{what}; its fragments of {slabs} slabs are computed of others")
            }
            0 if *disk_slabs > 0 => {
                write!(f, "{what}; what only it held is on this machine's disk")
            }
            0 => write!(f, "{what}; of its {slabs} slabs other nodes have copies"),
            _ if *is_coded => {
                write!(f, "{what}; of {lost_slabs} slabs too few fragments are left")
            }
            _ => write!(f, "{what}; what only it held is lost"),
        }
    }
}
