//! An outstanding access: wait for it, poll it, or await it.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::Error;

/// The outcome of an access: its buffer, filled by a read.
pub type Outcome = Result<Vec<u8>, Error>;

/// An outstanding access. It is a future, for any runtime; dropping it discards the outcome and
/// does not cancel the access.
#[derive(Debug)]
pub struct Pending {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Pending {
    /// Returns an access, and the function to call with its outcome.
    pub(crate) fn new() -> (Pending, impl FnOnce(Outcome) + Send + 'static) {
        let shared = Arc::new(Shared::default());
        let completer = shared.clone();
        let complete = move |outcome| {
            let waker = {
                let mut state = completer.lock();
                state.outcome = Some(outcome);
                completer.over.notify_all();
                state.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        (Pending { shared }, complete)
    }

    /// True if the access has completed.
    pub fn is_over(&self) -> bool {
        self.shared.lock().outcome.is_some()
    }

    /// Waits until it has completed.
    ///
    /// # Errors
    /// The error of the access.
    pub fn wait(self) -> Outcome {
        let state = self.shared.lock();
        let is_under_way = |state: &mut State| state.outcome.is_none();
        let mut state = self.shared.over.wait_while(state, is_under_way).expect(UNPOISONED);
        state.outcome.take().expect("it is over")
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.shared.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

const UNPOISONED: &str = "no thread panics while it holds the lock";

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(UNPOISONED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_across_threads() {
        let (pending, complete) = Pending::new();
        assert!(!pending.is_over());
        let completer = std::thread::spawn(move || complete(Ok(vec![1, 2])));
        assert_eq!(pending.wait(), Ok(vec![1, 2]));
        completer.join().unwrap();
    }

    #[test]
    fn awaiting_task_is_woken() {
        let (mut pending, complete) = Pending::new();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut pending).poll(&mut context), Poll::Pending);
        complete(Err(Error::Closed));
        assert_eq!(Pin::new(&mut pending).poll(&mut context), Poll::Ready(Err(Error::Closed)));
    }
}
