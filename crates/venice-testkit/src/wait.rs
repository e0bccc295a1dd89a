//! Waits with a limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks every 20 ms until `ready` gives something, at most `limit`.
///
/// # Panics
/// When nothing came in time: with `what` was awaited.
pub fn wait_for<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what}");
        sleep(PAUSE);
    }
}

/// Looks every 20 ms until `is_so` holds, at most `limit`.
///
/// # Panics
/// When it does not hold in time: with `what` was awaited.
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
    #[should_panic(expected = "in vain for the impossible")]
    fn panics_past_its_limit() {
        wait_until("the impossible", Duration::ZERO, || false);
    }
}
