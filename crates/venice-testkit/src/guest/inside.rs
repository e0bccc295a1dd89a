//! Tests whose bodies run in a guest.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::own_test::path_of;

use super::{Guest, GuestError, GuestPlan, Kernel, Ran};

/// Environment variable set in the guest, by which a test detects it.
const INSIDE: &str = "VENICE_INSIDE_GUEST";

/// Largest number of guests for one script, after emulator faults.
const MOST_GUESTS: usize = 3;

/// The guest that all tests of one binary share. The first test that needs it boots it.
#[derive(Debug)]
pub struct Room {
    plan: GuestPlan,
    /// Locked for the length of one test: tests run one after the other in the guest.
    guest: Mutex<State>,
}

#[derive(Debug)]
enum State {
    NotYet,
    Up(Box<Guest>),
    /// No guest is available; the reason.
    Missing(String),
}

impl Room {
    /// Creates a room; the guest is booted by the first test.
    pub const fn new(plan: GuestPlan) -> Self {
        Self { plan, guest: Mutex::new(State::NotYet) }
    }

    /// Runs a script of bash in the guest, like [`Guest::run`]; after an emulator fault again in a
    /// new one. Returns the reason if this machine does not support a guest.
    ///
    /// # Panics
    /// When the guest does not boot.
    pub fn run(&self, command: &str, limit: Duration) -> Result<Result<Ran, GuestError>, String> {
        for _ in 1..MOST_GUESTS {
            match self.with(|guest| guest.run(command, limit))? {
                Err(error) if error.is_emulator_fault() => self.leave(&error),
                ran => return Ok(ran),
            }
        }
        self.with(|guest| guest.run(command, limit))
    }

    /// Drops the guest: the next test boots another.
    fn leave(&self, error: &GuestError) {
        println!("Emulator fault: retry in another guest. {error}");
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = State::NotYet;
    }

    /// Calls `work` with the guest; returns the reason if this machine does not support one.
    ///
    /// # Panics
    /// When the guest does not boot.
    pub fn with<T>(&self, work: impl FnOnce(&mut Guest) -> T) -> Result<T, String> {
        // A failed test does not affect the guest.
        let mut state = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::NotYet) {
            let mut booted = Guest::boot(&self.plan);
            if booted.as_ref().is_err_and(GuestError::is_emulator_fault) {
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
            State::NotYet => unreachable!("the guest was just booted"),
        }
    }
}

/// Runs the body of the test called `test` in the room's guest, by starting this test binary there
/// for this one test, and fails if it fails there. Prints the line of a skipped test if this
/// machine does not support a guest.
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

/// True if this process is a test that runs in a guest.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Indents the output, so that the inner line `test result` is not taken for another test's.
fn indented(output: &str) -> String {
    output.lines().map(|line| format!("    | {line}\n")).collect()
}

fn hint(status: i32, name: &str) -> String {
    match status {
        137 => format!(": it ran past its limit; console: target/guest/{name}.console"),
        _ => format!("; console: target/guest/{name}.console"),
    }
}
