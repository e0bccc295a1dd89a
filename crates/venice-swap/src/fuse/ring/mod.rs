//! Requests by rings (`FUSE_OVER_IO_URING`, Linux 6.14): each processor has a queue, on which its
//! requests are answered. No other core has to be woken, and answering one request and fetching the
//! next is one system call.

mod protocol;
mod queue;
mod switch;

use std::fs::File;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::SwapError;
use crate::backing::Backing;
use crate::store::Store;
use queue::Queue;

pub(super) use switch::SwitchedOn;

/// Checks that this kernel carries FUSE requests by rings, or can be switched to it.
pub(crate) fn check() -> Result<(), SwapError> {
    SwitchedOn::check()?;
    queue::check()
}

/// Starts a thread for each of `backings` and waits until all have registered their queues: until
/// every processor has one, the kernel holds all requests back.
///
/// # Errors
/// The first error of a thread. The other threads then end with the connection.
pub(super) fn start(
    device: File,
    store: &Store,
    backings: Vec<Box<dyn Backing>>,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), SwapError> {
    let device = Arc::new(device);
    let (say, hear) = mpsc::channel();
    let shares = shares(switch::possible_processors()?, backings.len());
    for (number, (processors, backing)) in shares.into_iter().zip(backings).enumerate() {
        let (device, store, say) = (Arc::clone(&device), store.clone(), say.clone());
        // A ring belongs to the thread that made it.
        let body = move || match Queue::register(device, processors, store, backing) {
            Ok(queue) => {
                let _ = say.send(Ok(()));
                // Dropped here: the end of the other threads must not wait for this one.
                drop(say);
                queue.serve();
            }
            Err(error) => drop(say.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name(format!("swap-queue-{number}"));
        let thread = thread.spawn(body);
        threads.push(thread.map_err(SwapError::file("start a thread for", "/dev/fuse"))?);
    }
    drop(say);
    hear.iter().collect()
}

/// Returns the processors whose queues each thread serves: one or several for each, or several
/// threads for one.
fn shares(processors: usize, threads: usize) -> Vec<Vec<u16>> {
    let share = |thread: usize| {
        let step = if threads < processors { threads } else { processors };
        (thread % step..processors).step_by(step).map(|processor| processor as u16).collect()
    };
    (0..threads).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_processor_has_thread() {
        assert_eq!(shares(2, 2), [[0], [1]]);
        assert_eq!(shares(2, 4), [[0], [1], [0], [1]]);
        assert_eq!(shares(2, 1), [[0, 1]]);
        assert_eq!(shares(5, 2), [vec![0, 2, 4], vec![1, 3]]);
        for (processors, threads) in [(1, 1), (1, 3), (64, 4), (7, 5), (3, 64)] {
            let shares = shares(processors, threads);
            let mut served: Vec<u16> = shares.iter().flatten().copied().collect();
            served.sort_unstable();
            served.dedup();
            assert_eq!((served.len(), shares.len()), (processors, threads));
            assert!(shares.iter().all(|share| !share.is_empty()));
        }
    }
}
