//! QPairs between two processes of one host: messages and streams straight through shared memory.
//!
//! A pipe is a pair of rings ([`crate::ring`]) whose records carry the bytes of messages without
//! frames: both ends map the ring, so its room is the credit, and nothing is lost, acknowledged or
//! replayed. The sender copies from the program's memory into the ring, and the receiver from the
//! ring into the program's memory: two copies, which overlap for messages longer than a record. A
//! message may be longer than the ring.
//!
//! | module | contents |
//! |---|---|
//! | `record` | types of records and their tags |
//! | `send`, `receive` | the two directions |
//! | `bells` | doorbell, sleepers, and the end of the other side |
//! | `socket` | calls: blocking, polled, and for tasks |

mod bells;
#[cfg(test)]
mod hostile;
mod receive;
mod record;
mod send;
mod socket;

pub(super) use self::socket::{Pipe, PipeSocket, PipeWatcher};
