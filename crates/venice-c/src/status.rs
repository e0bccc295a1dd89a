//! The outcome of a call: a status, and this thread's error text.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use venice_client::Error;
use venice_client::channel::Error as ChannelError;

/// `venice_status` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No rack is known, or it does not answer.
    Unreachable = 1,
    /// The rack or the kernel refused.
    Refused = 2,
    /// Too little is free.
    NoRoom = 3,
    /// The only donor of these bytes is gone.
    DonorLost = 4,
    /// Beyond the borrowed memory.
    OutOfRange = 5,
    /// An atomic access at an unaligned offset.
    Unaligned = 6,
    /// An invalid argument.
    Invalid = 7,
    /// No object has this key.
    NotFound = 8,
    /// The value is longer than the buffer.
    TooSmall = 9,
    /// A device's grant has ended.
    DeviceLost = 10,
    /// The call would block.
    WouldBlock = 11,
    /// The call did not complete in time.
    TimedOut = 12,
    /// The other side of a channel has closed in an orderly way.
    Closed = 13,
    /// The other side of a channel is gone without closing.
    Lost = 14,
    /// A task failed on an accelerator.
    TaskFailed = 15,
}

thread_local! {
    static WORDS: RefCell<CString> = RefCell::new(CString::default());
}

/// Converts an outcome to a status; keeps the error's text for `venice_last_error`.
pub fn status_of(outcome: Result<(), Error>) -> Status {
    let Err(error) = outcome else { return Status::Ok };
    set_last_error(error.to_string());
    match error {
        Error::Unreachable(_) => Status::Unreachable,
        Error::NoRoom(_) => Status::NoRoom,
        Error::DonorLost { .. } => Status::DonorLost,
        Error::DeviceLost { .. } => Status::DeviceLost,
        Error::Task { .. } => Status::TaskFailed,
        Error::OutOfRange { .. } => Status::OutOfRange,
        Error::Unaligned(_) => Status::Unaligned,
        Error::Invalid(_) => Status::Invalid,
        Error::Channel(error) => of_channel(&error),
        _ => Status::Refused,
    }
}

fn of_channel(error: &ChannelError) -> Status {
    match error {
        ChannelError::WouldBlock => Status::WouldBlock,
        ChannelError::TimedOut => Status::TimedOut,
        ChannelError::Closed => Status::Closed,
        ChannelError::Lost(_) => Status::Lost,
        ChannelError::Connect { .. } => Status::Unreachable,
        ChannelError::TooSmall { .. } => Status::TooSmall,
        ChannelError::OutOfRange { .. } => Status::OutOfRange,
        ChannelError::Unaligned(_) => Status::Unaligned,
        ChannelError::Address { .. }
        | ChannelError::Key
        | ChannelError::Unprotected { .. }
        | ChannelError::Unsupported { .. }
        | ChannelError::UnusedOption { .. }
        | ChannelError::Size { .. }
        | ChannelError::Empty
        | ChannelError::TooLong { .. }
        | ChannelError::Ended
        | ChannelError::WrongKind { .. }
        | ChannelError::Forked => Status::Invalid,
        _ => Status::Refused,
    }
}

/// Keeps a text for `venice_last_error`.
pub fn set_last_error(text: String) {
    let words = CString::new(text.replace('\0', " ")).expect("no zero is left in it");
    WORDS.with(|last| *last.borrow_mut() = words);
}

/// Implements the function of the header.
#[unsafe(no_mangle)]
pub extern "C" fn venice_last_error() -> *const c_char {
    WORDS.with(|last| last.borrow().as_ptr())
}

/// Implements the function of the header.
#[unsafe(no_mangle)]
pub extern "C" fn venice_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => unreachable!(),
        };
    VERSION.as_ptr()
}
