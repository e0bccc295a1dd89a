//! The state of the copies of borrowed memory.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use venice_memory::paged::run_block::{Donor, RunBlock, RunBlockMap};
use venice_wire::{ByteSize, PAGE_BYTES};

/// Steps of the progress bar.
const BAR_STEPS: u64 = 20;

/// The state of the copies of borrowed memory. Displays as a line for users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// Wanted copies of each slab, on different nodes.
    pub copies: u32,
    /// The coding as `k+m`, with one copy of each fragment; `None` without coding.
    #[serde(default)]
    pub coding: Option<String>,
    /// Slabs in all.
    pub slabs: u64,
    /// Slabs with fewer copies or fragments.
    pub short_slabs: u64,
    /// Slabs without any copy, or with too few fragments.
    pub lost_slabs: u64,
    /// Lost copies or fragments to be rebuilt, since the memory was borrowed.
    pub to_rebuild: u64,
    /// Rebuilt copies or fragments, since then.
    pub rebuilt: u64,
    /// The error of the last rebuild; `None`: none. It is retried.
    #[serde(default)]
    pub not_rebuilt: Option<String>,
    /// Donors that were lost.
    pub lost_donors: Vec<String>,
    /// Donors that reclaim their memory: its data moves to other donors.
    pub leaving_donors: Vec<String>,
    /// Copies of slabs reclaimed by donors, since the memory was borrowed.
    pub to_move: u64,
    /// Moved copies of reclaimed slabs, since then.
    pub moved: u64,
    /// The state of the write-behind; `None` without one.
    #[serde(default)]
    pub behind: Option<Behind>,
}

/// The state of the write-behind. Displays as part of a line for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// Slabs on the disk.
    pub slabs: u64,
    /// Slabs in all.
    pub of_slabs: u64,
    /// Bytes not yet on the disk: they are in this machine's memory.
    pub waiting_bytes: u64,
}

impl Behind {
    fn of(block: &RunBlockMap) -> Option<Behind> {
        block.first_on_disk()?;
        let slabs = 0..block.slab_count();
        Some(Behind {
            of_slabs: slabs.len() as u64,
            slabs: slabs.filter(|slab| block.disk_replica(*slab).is_some()).count() as u64,
            waiting_bytes: block.undrained_pages() * PAGE_BYTES,
        })
    }
}

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.slabs, self.of_slabs) {
            (slabs, all) if slabs == all => f.write_str("on disk too")?,
            (slabs, all) => write!(f, "on disk too ({slabs} of {all} slabs)")?,
        }
        match self.waiting_bytes {
            0 => Ok(()),
            bytes => write!(f, " but for {}", ByteSize(bytes)),
        }
    }
}

impl Copies {
    /// Reads the state from the run block, which does not contain the error of the last rebuild.
    pub(crate) fn of(block: &RunBlockMap) -> Copies {
        let copies = block.copies.load(Relaxed);
        let is_short = |slab: &usize| {
            let there = |at| block.readable_of(*slab, at).count();
            (0..block.fragment_count()).any(|at| there(at) < block.wanted_copies(*slab, at))
        };
        let slabs = block.slab_count();
        Copies {
            copies,
            coding: block.coding().map(|coding| coding.to_string()),
            slabs: slabs as u64,
            short_slabs: (0..slabs).filter(is_short).count() as u64,
            lost_slabs: (0..slabs).filter(|slab| !block.slab_is_alive(*slab)).count() as u64,
            to_rebuild: block.to_rebuild.load(Relaxed),
            rebuilt: block.rebuilt.load(Relaxed),
            not_rebuilt: None,
            lost_donors: names(block, Donor::is_lost),
            leaving_donors: names(block, |donor| donor.is_reclaiming() && !donor.is_gone()),
            to_move: block.to_move.load(Relaxed),
            moved: block.moved.load(Relaxed),
            behind: Behind::of(block),
        }
    }

    /// Combines two states, neither coded nor with a write-behind. The lower number of copies
    /// counts.
    pub fn and(self, other: Copies) -> Copies {
        let union = |one: Vec<String>, other: Vec<String>| -> Vec<String> {
            one.into_iter().chain(other).collect::<BTreeSet<_>>().into_iter().collect()
        };
        Copies {
            copies: self.copies.min(other.copies),
            coding: None,
            slabs: self.slabs + other.slabs,
            short_slabs: self.short_slabs + other.short_slabs,
            lost_slabs: self.lost_slabs + other.lost_slabs,
            to_rebuild: self.to_rebuild + other.to_rebuild,
            rebuilt: self.rebuilt + other.rebuilt,
            not_rebuilt: self.not_rebuilt.or(other.not_rebuilt),
            lost_donors: union(self.lost_donors, other.lost_donors),
            leaving_donors: union(self.leaving_donors, other.leaving_donors),
            to_move: self.to_move + other.to_move,
            moved: self.moved + other.moved,
            behind: None,
        }
    }

    /// Describes the redundancy in a word or two: `2 copies`, `coded 4+2`.
    pub fn replicas(&self) -> String {
        match &self.behind {
            None => self.at_donors(),
            Some(behind) => format!("{}, {behind}", self.at_donors()),
        }
    }

    fn at_donors(&self) -> String {
        match (&self.coding, self.copies) {
            (Some(coding), _) => format!("coded {coding}"),
            (None, 1) => "1 copy".to_string(),
            (None, copies) => format!("{copies} copies"),
        }
    }

    /// True if every slab has all its copies.
    pub fn are_all_there(&self) -> bool {
        self.short_slabs == 0
    }

    /// Describes what is missing, the progress or the error, in a line for users; `None`: every
    /// slab has all its copies.
    pub fn missing(&self) -> Option<String> {
        if self.are_all_there() {
            return None;
        }
        let (one, how) = self.words();
        let short = format!("{} of {} slabs lack {one}", self.short_slabs, self.slabs);
        Some(match (&self.not_rebuilt, self.lost_slabs) {
            (Some(why), _) => format!("{short}: {why}; retrying"),
            (None, 0) => format!("{short}: {how} {}", self.progress()),
            (None, lost) if lost == self.short_slabs => {
                format!("{lost} of {} slabs are lost with their donors", self.slabs)
            }
            (None, lost) => format!("{short}: {lost} are lost with their donors"),
        })
    }

    /// Returns what a slab lacks, and the remedy under way.
    fn words(&self) -> (&'static str, &'static str) {
        match self.coding {
            Some(_) => ("a fragment", "rebuilding"),
            None => ("one", "copying"),
        }
    }

    /// Formats the progress of the rebuild: a bar, and numbers.
    pub fn progress(&self) -> String {
        bar(self.rebuilt, self.to_rebuild)
    }
}

/// Returns the names of donors, each once.
fn names(block: &RunBlock, which: impl Fn(&Donor) -> bool) -> Vec<String> {
    let donors = block.donors().iter().filter(|donor| which(donor));
    let names: BTreeSet<String> = donors.map(Donor::name).collect();
    names.into_iter().collect()
}

/// Formats a progress bar.
fn bar(done: u64, all: u64) -> String {
    let done = done.min(all);
    let steps = (done * BAR_STEPS).checked_div(all).unwrap_or(0);
    let (full, left) = (steps as usize, (BAR_STEPS - steps) as usize);
    format!("[{}{}] {done}/{all}", "=".repeat(full), " ".repeat(left))
}

impl std::fmt::Display for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let join = if self.coding.is_some() { "," } else { " of" };
        let (one, how) = self.words();
        write!(f, "{}{join} {} slabs, ", self.at_donors(), self.slabs)?;
        match (self.lost_slabs, self.short_slabs) {
            (0, 0) => f.write_str("all there")?,
            (0, short) => write!(f, "{short} lack {one}: {how} {}", self.progress())?,
            (lost, _) => write!(f, "{lost} lost with their donors")?,
        }
        if let Some(why) = self.not_rebuilt.as_ref().filter(|_| !self.are_all_there()) {
            write!(f, ", not now: {why}; retrying")?;
        }
        if let Some(behind) = &self.behind {
            write!(f, "; {behind}")?;
        }
        if self.leaving_donors.is_empty() {
            return Ok(());
        }
        write!(f, "; leaving {} {}", self.leaving_donors.join(", "), bar(self.moved, self.to_move))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_copies_show_progress() {
        let mut copies = Copies {
            copies: 2,
            slabs: 8,
            short_slabs: 3,
            to_rebuild: 4,
            rebuilt: 1,
            lost_donors: vec!["node2".into()],
            ..Copies::default()
        };
        let line = copies.to_string();
        assert!(line.starts_with("2 copies of 8 slabs, 3 lack one: copying [=====   "), "{line}");
        assert!(line.ends_with("] 1/4"), "{line}");
        assert!(copies.missing().unwrap().starts_with("3 of 8 slabs lack one: copying ["));
        copies.not_rebuilt = Some("no other node has room for one (node3 is full)".into());
        let why = "no other node has room for one (node3 is full); retrying";
        assert!(copies.to_string().ends_with(&format!("] 1/4, not now: {why}")), "{copies}");
        assert_eq!(copies.missing(), Some(format!("3 of 8 slabs lack one: {why}")));
        copies.short_slabs = 0;
        assert_eq!(
            (copies.to_string().as_str(), copies.missing()),
            ("2 copies of 8 slabs, all there", None)
        );
        copies.leaving_donors = vec!["node3".into()];
        (copies.moved, copies.to_move) = (3, 6);
        let half = "2 copies of 8 slabs, all there; leaving node3 [==========          ] 3/6";
        assert_eq!(copies.to_string(), half);
        copies.leaving_donors.clear();
        (copies.copies, copies.short_slabs, copies.lost_slabs) = (1, 2, 2);
        (copies.not_rebuilt, copies.to_rebuild) = (None, 0);
        assert_eq!(copies.to_string(), "1 copy of 8 slabs, 2 lost with their donors");
        assert_eq!(copies.missing().unwrap(), "2 of 8 slabs are lost with their donors");
        copies.short_slabs = 0;
        (copies.coding, copies.lost_slabs) = (Some("4+2".into()), 0);
        assert_eq!(copies.to_string(), "coded 4+2, 8 slabs, all there");
        copies.behind = Some(Behind { slabs: 8, of_slabs: 8, waiting_bytes: 3 << 20 });
        assert_eq!(copies.replicas(), "coded 4+2, on disk too but for 3MiB");
        assert_eq!(copies.to_string(), "coded 4+2, 8 slabs, all there; on disk too but for 3MiB");
        copies.behind = Some(Behind { slabs: 7, of_slabs: 8, waiting_bytes: 0 });
        assert_eq!(copies.replicas(), "coded 4+2, on disk too (7 of 8 slabs)");
        (copies.behind, copies.short_slabs) = (None, 1);
        let line = copies.to_string();
        assert!(line.starts_with("coded 4+2, 8 slabs, 1 lack a fragment: rebuilding ["), "{line}");
    }
}
