//! Service of a ring on which the kernel slots requests in slots of ours: a slot returns to the
//! kernel with the answer, and comes back with the next request.

use std::io::ErrorKind;
use std::time::Duration;

use io_uring::squeue::EntryMarker;
use io_uring::{IoUring, cqueue};

/// The pause before a retry when the kernel was short of a resource.
const PAUSE: Duration = Duration::from_millis(1);

/// A ring, and slots that are with the kernel or hold a request.
pub(crate) trait Slots {
    type Entry: EntryMarker;

    fn ring(&mut self) -> &mut IoUring<Self::Entry, cqueue::Entry>;

    /// Performs the request in a slot, and returns the slot with the answer.
    fn answer(&mut self, slot: u64);
}

/// The ring has failed, which was reported: the kernel may still own slots.
pub(crate) struct Failed;

/// Serves until the kernel has released all slots.
pub(crate) fn serve_slots(queue: &mut impl Slots, slots: usize) -> Result<(), Failed> {
    // A slot that comes back with an error is not given to the kernel again.
    let mut left = slots;
    while left > 0 {
        match queue.ring().submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_short_of_something(&error) => std::thread::sleep(PAUSE),
            Err(error) => {
                eprintln!("venice: queue of the swap device failed: {error}");
                return Err(Failed);
            }
        }
        while let Some((slot, result)) = next_completion(queue) {
            if result != 0 {
                left -= 1;
                continue;
            }
            queue.answer(slot);
            // The next request takes its time: this answer must not wait for it.
            if !queue.ring().completion().is_empty() {
                let _ = queue.ring().submit();
            }
        }
    }
    Ok(())
}

fn next_completion(queue: &mut impl Slots) -> Option<(u64, i32)> {
    let completion = queue.ring().completion().next()?;
    Some((completion.user_data(), completion.result()))
}

/// True for errors that pass once the machine has memory to spare.
fn is_short_of_something(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}
