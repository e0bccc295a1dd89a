//! Mailboxes: accelerators as buffers in memory (Venice, section 5.2.2 and Fig. 11).
//!
//! A mailbox lies in the [region](crate::region) of its host: a request buffer for the executable, an
//! input buffer, a return buffer, a *start* word and a *completion* word. The recipient writes request
//! and input, then the start word; a thread of the host runs the task, and flags the completion last.
//! Both words are numbers that grow, so a repeated write is harmless. An accelerator has several
//! mailboxes: one is filled while the task of another runs.
//!
//! | to | look at |
//! |---|---|
//! | run tasks | [`Mailboxes`], [`Executable`] |
//! | serve an accelerator | [`serve_mailboxes`], [`Executor`] |
//! | emulate one | [`EmulatedAccelerator`], [`EmulatedModel`], [`BuiltIn`] |
//! | run one in virtual time | [`MailboxDevice`], [`MailboxDonor`] |
//! | read the bytes | [`Task::parse`], [`Shape`]; `docs/reference/wire.md` |

mod builtin;
mod client;
mod description;
mod device;
mod donor;
mod emulated;
mod executor;
mod layout;
mod outcome;
mod print;
mod printed;
mod service;
mod task;
mod waits;

pub use self::builtin::{BuiltIn, MAX_FFT_POINTS};
pub use self::client::{MailboxError, Mailboxes, output_len};
pub use self::device::MailboxDevice;
pub use self::donor::{Completion, DonorCounts, MailboxDonor, Ticket};
pub use self::emulated::{EmulatedAccelerator, EmulatedModel};
pub use self::executor::{Executor, MailboxMemory, PrivateMemory, TaskBuffers};
pub use self::layout::{
    Attention, HEAD_BYTES, MAX_LOG_BYTES, MAX_MAILBOXES, MAX_MESSAGE_BYTES, Shape, VERSION,
};
pub use self::outcome::{Outcome, ResultCode, ResultError, TaskError, TaskResult};
pub use self::service::{
    AWAIT, COUNTS, DESCRIBE, ENTRY, NAME, OUTPUT, serve_mailboxes, serve_mailboxes_beside,
};
pub use self::task::{
    Argument, Code, Executable, MAX_ARGUMENTS, MAX_NAME_BYTES, MAX_OPTION_BYTES, MAX_VALUE_BYTES,
    RequestError, Task, WorkItems,
};
