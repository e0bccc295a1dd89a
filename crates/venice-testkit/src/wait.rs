//! Waits with a limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `ready` every 20 ms until it returns a value, at most for `limit`.
///
/// # Panics
/// After the limit; the message names `what`.
pub fn wait_for<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout after {limit:?}: waiting for {what}");
        sleep(PAUSE);
    }
}

/// Calls `is_so` every 20 ms until it holds, at most for `limit`.
///
/// # Panics
/// After the limit; the message names `what`.
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    wait_for(what, limit, || is_so().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_first_answer() {
        let mut looks = 0;
        let found = wait_for("the third look", Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }

    #[test]
    #[should_panic(expected = "waiting for the impossible")]
    fn panics_past_its_limit() {
        wait_until("the impossible", Duration::ZERO, || false);
    }
}
