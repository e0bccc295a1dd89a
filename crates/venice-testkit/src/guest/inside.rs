//! Tests whose bodies run in a guest.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::own_test::path_of;

use super::{Guest, GuestError, GuestPlan, Kernel, Ran};

/// Set in the guest, so that a test knows that it is there.
const INSIDE: &str = "VENICE_INSIDE_GUEST";

/// So many guests one script may come to, each of which the emulator let down.
const MOST_GUESTS: usize = 3;

/// The guest that all tests of one binary share. It is booted by the first that wants it.
#[derive(Debug)]
pub struct Room {
    plan: GuestPlan,
    /// Taken for the length of one test: they run one after the other in there.
    guest: Mutex<State>,
}

#[derive(Debug)]
enum State {
    NotYet,
    Up(Box<Guest>),
    /// Nothing to be had; the reason.
    Missing(String),
}

impl Room {
    /// Nothing happens before the first test.
    pub const fn new(plan: GuestPlan) -> Self {
        Self { plan, guest: Mutex::new(State::NotYet) }
    }

    /// Runs a script of bash in the guest, as [`Guest::run`] does; in a new one where the emulator made
    /// a slip. The reason where this machine cannot have one.
    ///
    /// # Panics
    /// When the guest does not boot.
    pub fn run(&self, command: &str, limit: Duration) -> Result<Result<Ran, GuestError>, String> {
        for _ in 1..MOST_GUESTS {
            match self.with(|guest| guest.run(command, limit))? {
                Err(error) if error.is_emulators() => self.leave(&error),
                ran => return Ok(ran),
            }
        }
        self.with(|guest| guest.run(command, limit))
    }

    /// The next to come has another guest.
    fn leave(&self, error: &GuestError) {
        println!("The emulator made a slip; once more in another guest. {error}");
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = State::NotYet;
    }

    /// Does something with the guest; the reason where this machine cannot have one.
    ///
    /// # Panics
    /// When the guest does not boot.
    pub fn with<T>(&self, work: impl FnOnce(&mut Guest) -> T) -> Result<T, String> {
        // A test that failed in there says nothing about the guest.
        let mut state = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::NotYet) {
            let mut booted = Guest::boot(&self.plan);
            if booted.as_ref().is_err_and(GuestError::is_emulators) {
                booted = Guest::boot(&self.plan);
            }
            *state = match booted {
                Ok(guest) => State::Up(Box::new(guest)),
                Err(GuestError::Missing(reason)) => State::Missing(reason),
                Err(error) => panic!("{error}"),
            };
        }
        match &mut *state {
            State::Up(guest) => Ok(work(guest)),
            State::Missing(reason) => Err(reason.clone()),
            State::NotYet => unreachable!("it was just booted"),
        }
    }
}

/// The body of the test called `test`: runs it in the room's guest, by starting this very test
/// binary in there for this one test, and fails as it fails there. Prints the line of a skipped
/// test where this machine can have no guest.
///
/// # Panics
/// When the test fails in the guest, takes longer than `limit` or is not called `test`.
pub fn inside(room: &Room, test: &str, limit: Duration, body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    let binary = std::env::current_exe().expect("Linux knows the path of a program");
    let command = format!(
        "cd / && {INSIDE}=1 RUST_BACKTRACE=1 '{}' --exact '{}' --nocapture --test-threads=1",
        binary.display(),
        path_of(test)
    );
    match room.run(&command, limit) {
        Err(reason) => {
            let feature = match room.plan.kernel {
                Kernel::OfRelease => "qemu",
                Kernel::Newer => "newer-kernel",
            };
            println!("SKIPPED: {test}: no {feature}: {reason}");
        }
        Ok(Err(error)) => panic!("{error}"),
        Ok(Ok(ran)) => {
            print!("{}", indented(&ran.output));
            let status = ran.status;
            let name = room.plan.name;
            assert!(status == 0, "failed in the guest with {status}{}", hint(status, name));
            let passed = ran.output.contains("test result: ok. 1 passed");
            assert!(passed, "there is no test called {test}");
        }
    }
}

/// Whether this process is a test that runs in a guest.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Nested, so that the inner line `test result` is not taken for another test's.
fn indented(output: &str) -> String {
    output.lines().map(|line| format!("    | {line}\n")).collect()
}

fn hint(status: i32, name: &str) -> String {
    match status {
        137 => format!(": it ran past its limit; console: target/guest/{name}.console"),
        _ => format!("; console: target/guest/{name}.console"),
    }
}
