//! Serving a ring at which the kernel leaves requests in places of ours: a place goes back to it with the
//! answer, and comes back with the next request.

use std::io::ErrorKind;
use std::time::Duration;

use io_uring::squeue::EntryMarker;
use io_uring::{IoUring, cqueue};

/// Before the kernel is asked again for what it could not do.
const PAUSE: Duration = Duration::from_millis(1);

/// A ring, and places that are with the kernel or hold a request.
pub(crate) trait Places {
    type Entry: EntryMarker;

    fn ring(&mut self) -> &mut IoUring<Self::Entry, cqueue::Entry>;

    /// Carries out the request in a place, and gives the place back with the answer.
    fn answer(&mut self, place: u64);
}

/// The ring has failed, which has been told: the kernel may have places still.
pub(crate) struct Failed;

/// Serves until the kernel has taken leave of all places.
pub(crate) fn serve_places(queue: &mut impl Places, places: usize) -> Result<(), Failed> {
    // A place that comes back with an error is not given to the kernel again.
    let mut left = places;
    while left > 0 {
        match queue.ring().submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_short_of_something(&error) => std::thread::sleep(PAUSE),
            Err(error) => {
                eprintln!("venice: a queue of the swap device has failed: {error}");
                return Err(Failed);
            }
        }
        while let Some((place, result)) = next_completion(queue) {
            if result != 0 {
                left -= 1;
                continue;
            }
            queue.answer(place);
            // The next request takes its time: this one is not to wait for it.
            if !queue.ring().completion().is_empty() {
                let _ = queue.ring().submit();
            }
        }
    }
    Ok(())
}

fn next_completion(queue: &mut impl Places) -> Option<(u64, i32)> {
    let completion = queue.ring().completion().next()?;
    Some((completion.user_data(), completion.result()))
}

/// What passes while the machine has no memory to spare.
fn is_short_of_something(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}
