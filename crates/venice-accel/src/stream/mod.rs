//! Command streams: what the services of accelerators have in common. A recipient sends commands
//! without waiting, bulk data goes through the [region](crate::region), and notices come back.
//!
//! | file | contents |
//! |---|---|
//! | `code`, `wire` | encoding of messages, and those that every service has |
//! | `session`, `outbox`, `arena` | a recipient's side |
//! | `host` | a host's side |

mod arena;
pub(crate) mod code;
pub(crate) mod host;
mod outbox;
mod session;
pub mod wire;

pub use self::code::{Field, Malformed, Reader};
pub(crate) use self::outbox::RequestKind;
pub use self::session::{CommandStream, OpenError, Protocol, Receiver, SessionError};
