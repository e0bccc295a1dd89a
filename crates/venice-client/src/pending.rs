//! An access that is under way: wait for it, look whether it is over, or await it.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::Error;

/// What came of an access: the buffer that went with it, filled by a read.
pub type Outcome = Result<Vec<u8>, Error>;

/// An access that is under way. It is a future, for any runtime; dropping it forgets the outcome
/// and does not take the access back.
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
    /// An access, and what is to be called with its outcome.
    pub(crate) fn new() -> (Pending, impl FnOnce(Outcome) + Send + 'static) {
        let shared = Arc::new(Shared::default());
        let told = shared.clone();
        let tell = move |outcome| {
            let waker = {
                let mut state = told.lock();
                state.outcome = Some(outcome);
                told.over.notify_all();
                state.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        (Pending { shared }, tell)
    }

    /// Is it over?
    pub fn is_over(&self) -> bool {
        self.shared.lock().outcome.is_some()
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// Those of the access.
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

const UNPOISONED: &str = "nobody panics with it in hand";

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(UNPOISONED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_waited_for_from_another_thread() {
        let (pending, tell) = Pending::new();
        assert!(!pending.is_over());
        let teller = std::thread::spawn(move || tell(Ok(vec![1, 2])));
        assert_eq!(pending.wait(), Ok(vec![1, 2]));
        teller.join().unwrap();
    }

    #[test]
    fn whoever_awaits_it_is_woken() {
        let (mut pending, tell) = Pending::new();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut pending).poll(&mut context), Poll::Pending);
        tell(Err(Error::Closed));
        assert_eq!(Pin::new(&mut pending).poll(&mut context), Poll::Ready(Err(Error::Closed)));
    }
}
