//! Makes changes durable, and serves whom it can while there is no room for them.
//!
//! While the disk of the store is full nothing can be changed: a Monitor Node that ended instead would not
//! come up again, and one that went on would have granted what it may forget. What has been begun waits.
//! Whoever only asks is answered, whoever wants something changed is told why not, and the data plane goes
//! on meanwhile.

use super::Driver;
use crate::error::MonitorError;
use crate::inputs::Input;
use crate::records::Applied;
use std::mem::replace;
use std::time::Duration;
use tokio::time::sleep;
use venice_control::RackError;
use venice_rack::monitor::Change;

/// How often it is tried whether there is room.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// How often other tasks are let go first until a call that was begun is on its way.
const TURNS_OF_A_CALL: usize = 8;

impl Driver {
    /// Makes the changes durable, however long that takes, or hears that others were first.
    pub(super) async fn write(&mut self, mut changes: Vec<Change>) -> Result<(), MonitorError> {
        let_go_out(!self.calls.is_empty()).await;
        let mut has_waited = false;
        loop {
            match self.store.apply(changes).await? {
                Applied::NoRoom { unmade, why } => {
                    if !replace(&mut has_waited, true) {
                        tracing::error!("{why}: nothing can be granted or changed until then");
                    }
                    changes = unmade;
                    self.serve_without_room(&why).await;
                    continue;
                }
                Applied::Conflict { failed, news } => self.yield_to_others(failed, news),
                Applied::Made => {}
            }
            if has_waited {
                tracing::info!("there is room for the store again: the Monitor Node goes on");
            }
            return Ok(());
        }
    }

    /// Until it is worth another try.
    async fn serve_without_room(&mut self, why: &str) {
        let mut again = std::pin::pin!(sleep(TRY_EVERY));
        loop {
            tokio::select! {
                () = &mut again => return,
                Some(input) = self.inputs.recv() => self.take_without_room(input, why),
            }
        }
    }

    /// What gives back, or turns somebody out, is begun all the same.
    fn take_without_room(&mut self, input: Input, why: &str) {
        let refused = || RackError::StoreFull(why.to_owned());
        match input {
            Input::Register(_, reply) => drop(reply.send(Err(refused()))),
            Input::Request(_, _, reply) | Input::RequestDevice(_, _, reply) => {
                drop(reply.send(Err(refused())));
            }
            Input::Order(order, reply) if !order.is_for_all() => drop(reply.send(Err(refused()))),
            input => self.take(input),
        }
    }
}

/// A file is waited for in this very thread: what others have ready goes out before, and calls that were begun
/// too, so that donors are at work meanwhile. A call passes through several tasks until it is on its way.
async fn let_go_out(has_calls: bool) {
    for _ in 0..if has_calls { TURNS_OF_A_CALL } else { 1 } {
        tokio::task::yield_now().await;
    }
}
