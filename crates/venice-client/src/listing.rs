//! Everything this program has borrowed, as one row of `venice ps` and `venice status` that `venice
//! limit` can change.
//!
//! The request socket is opened with the first borrowed memory and closed with the last. It is
//! optional: if it cannot be opened (no run directory, or another user's) the program is not
//! listed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use venice_recipient::paged::Space;
use venice_recipient::runs::{
    About, CoreView, Look, RunFile, RunsDir, Sample, StatusServer, Watched,
};
use venice_recipient::{Copies, Holding, RemoteMemory};
use venice_wire::ByteSize;

/// Length of the command shown by `venice status`, in characters.
const MOST_SHOWN: usize = 60;

/// The program, while it has borrowed anything.
static PROGRAM: Mutex<Option<Program>> = Mutex::new(None);

/// This program.
struct Program {
    process: u32,
    borrowed: Arc<Borrowed>,
    desk: Option<StatusServer>,
    entered: u64,
}

/// An entry of this program's list, removed when this is dropped. Drop it before the memory it
/// describes.
#[derive(Debug)]
pub(crate) struct Listing {
    number: u64,
    process: u32,
}

impl Listing {
    /// Enters borrowed memory, and the regions over it if there are any.
    pub(crate) fn enter(remote: &RemoteMemory, space: Option<&Arc<Space>>) -> Listing {
        let mut program = lock(&PROGRAM);
        let process = std::process::id();
        if program.as_ref().is_some_and(|program| program.process != process) {
            // In a child of a fork: the socket and its list belong to the parent.
            std::mem::forget(program.take());
        }
        let program = program.get_or_insert_with(|| Program::new(process));
        program.entered += 1;
        let number = program.entered;
        let (holding, space) = (remote.holding().clone(), space.cloned());
        lock(&program.borrowed.now).push(Entry { number, holding, space });
        program.show();
        Listing { number, process }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child of a fork drops values of its parent.
            return;
        }
        // Held until the socket is closed: another one would be opened at the same path.
        let mut program = lock(&PROGRAM);
        let Some(listing) = program.as_ref().filter(|program| program.process == self.process)
        else {
            return;
        };
        if listing.borrowed.leave(self.number) {
            *program = None;
        }
    }
}

impl Program {
    fn new(process: u32) -> Program {
        Program { process, borrowed: Arc::default(), desk: None, entered: 0 }
    }

    /// Opens the request socket, if possible and not done yet.
    fn show(&mut self) {
        if self.desk.is_some() {
            return;
        }
        let Some(dir) = RunsDir::locate() else { return };
        let command = command();
        let file = RunFile::new(&dir, &shortened(&command));
        let about = About { pid: self.process, command, ..About::default() };
        let shown = Shown { process: self.process, borrowed: self.borrowed.clone(), file };
        self.desk = StatusServer::open(&dir, about, shown).ok();
    }
}

/// The memory the program has borrowed.
#[derive(Default)]
struct Borrowed {
    now: Mutex<Vec<Entry>>,
    /// The faults on memory it has given back.
    before: Mutex<Sample>,
}

/// One borrowed memory, and the regions over it.
struct Entry {
    number: u64,
    holding: Arc<Holding>,
    space: Option<Arc<Space>>,
}

impl Borrowed {
    /// Removes the entry with this number; returns true if it was the last.
    fn leave(&self, number: u64) -> bool {
        let mut now = lock(&self.now);
        if let Some(at) = now.iter().position(|entry| entry.number == number) {
            let entry = now.swap_remove(at);
            let mut before = lock(&self.before);
            *before = std::mem::take(&mut *before).and(Sample::of(&entry.holding));
        }
        now.is_empty()
    }

    fn copies(&self) -> Option<Copies> {
        lock(&self.now).iter().map(|entry| entry.holding.copies()).reduce(Copies::and)
    }
}

impl Entry {
    fn look(&self) -> Look {
        let look = Look::of(&self.holding);
        match self.space {
            Some(_) => look,
            // The use of its bytes is not known here.
            None => Look { remote_bytes: look.borrowed_bytes, ..look },
        }
    }
}

/// The data served by the request socket.
struct Shown {
    process: u32,
    borrowed: Arc<Borrowed>,
    file: Option<RunFile>,
}

impl Watched for Shown {
    fn mode(&self) -> &'static str {
        "library"
    }

    fn look(&self) -> Look {
        let looks = lock(&self.borrowed.now).iter().map(Entry::look).reduce(Look::and);
        Look { processes: vec![self.process], ..looks.unwrap_or_default() }
    }

    fn sample(&self) -> Sample {
        let now = lock(&self.borrowed.now);
        let before = lock(&self.borrowed.before).clone();
        now.iter().map(|entry| Sample::of(&entry.holding)).fold(before, Sample::and)
    }

    fn limit(&self, local_bytes: u64) -> Result<(), String> {
        let now = lock(&self.borrowed.now);
        let spaces: Vec<&Space> = now.iter().filter_map(|entry| entry.space.as_deref()).collect();
        divide_budget(&spaces, local_bytes)
    }

    /// The thread that would hand out far pages stops with the program.
    fn core(&self, _pid: u32) -> Result<CoreView, String> {
        Err("it borrows by the library, and its far arrays are not in a core".to_owned())
    }

    fn each_second(&mut self) {
        if let (Some(file), Some(copies)) = (&mut self.file, self.borrowed.copies()) {
            file.update(copies);
        }
    }
}

/// Divides a budget among spaces: all of them get their part, or none.
fn divide_budget(spaces: &[&Space], local_bytes: u64) -> Result<(), String> {
    if spaces.is_empty() {
        let why = "no arrays to limit: memory read and written by offset is never resident";
        return Err(why.to_owned());
    }
    let budgets = spaces.iter().map(|space| (space.least_local_bytes(), space.local_bytes()));
    let parts = parts(&budgets.collect::<Vec<_>>(), local_bytes)?;
    let each = || spaces.iter().zip(&parts);
    let said = |error| crate::Error::from(error).to_string();
    each().try_for_each(|(space, part)| space.check_local_bytes(*part)).map_err(said)?;
    each().try_for_each(|(space, part)| space.set_local_bytes(*part)).map_err(said)
}

/// Divides `total_bytes` among spaces with these minimum and present budgets: each gets its
/// minimum, and of the rest its present share.
fn parts(budgets: &[(u64, u64)], total_bytes: u64) -> Result<Vec<u64>, String> {
    let least_bytes: u64 = budgets.iter().map(|(least, _)| least).sum();
    let Some(rest_bytes) = total_bytes.checked_sub(least_bytes) else {
        return Err(format!(
            "budget too small: the arrays have {} budgets of their own: ask for {} at least",
            budgets.len(),
            ByteSize(least_bytes)
        ));
    };
    let beyond = |(least, local): &(u64, u64)| u128::from(local.saturating_sub(*least));
    let all: u128 = budgets.iter().map(beyond).sum();
    let part = |budget: &(u64, u64)| {
        let (of, weight) =
            if all == 0 { (budgets.len() as u128, 1) } else { (all, beyond(budget)) };
        budget.0 + (u128::from(rest_bytes) * weight / of) as u64
    };
    Ok(budgets.iter().map(part).collect())
}

/// Returns the program and its arguments, on one line.
fn command() -> String {
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the beginning of a long command.
fn shortened(command: &str) -> String {
    match command.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &command[..end]),
        None => command.to_owned(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn budget_division_keeps_shares_and_minimum() {
        let of = |budgets: &[(u64, u64)], total| parts(budgets, total * MIB).unwrap();
        assert_eq!(of(&[(4 * MIB, 64 * MIB)], 5), [5 * MIB]);
        let two = [(4 * MIB, 64 * MIB), (4 * MIB, 24 * MIB)];
        assert_eq!(of(&two, 88), [64 * MIB, 24 * MIB], "as it was");
        assert_eq!(of(&two, 48), [34 * MIB, 14 * MIB]);
        assert_eq!(of(&two, 8), [4 * MIB; 2]);
        assert_eq!(of(&[(4 * MIB, 4 * MIB); 2], 20), [10 * MIB; 2]);
        assert_eq!(of(&[(32 * MIB, 32 * MIB), (4 * MIB, 8 * MIB)], 46), [32 * MIB, 14 * MIB]);
        let refused = parts(&two, 7 * MIB).unwrap_err();
        assert!(refused.contains("2 budgets") && refused.contains("8MiB at least"), "{refused}");
        let most = of(&[(4 * MIB, u64::MAX), (4 * MIB, u64::MAX)], 1 << 40);
        assert_eq!(most, [1 << 59; 2]);
    }

    #[test]
    fn long_command_is_shortened() {
        assert_eq!(shortened("python3 job.py"), "python3 job.py");
        let short = shortened(&"ü".repeat(MOST_SHOWN + 1));
        assert_eq!(short, "ü".repeat(MOST_SHOWN) + "...");
    }
}
