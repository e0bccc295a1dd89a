//! What came of a call: a status, and the words for this thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use venice_client::Error;

/// `venice_status` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No rack is known, or nobody answers.
    Unreachable = 1,
    /// The rack or the kernel said no.
    Refused = 2,
    /// Not so much is free.
    NoRoom = 3,
    /// The only donor of these bytes is gone.
    DonorLost = 4,
    /// Beyond what was borrowed.
    OutOfRange = 5,
    /// An atomic access not to a multiple of eight.
    Unaligned = 6,
    /// An argument that makes no sense.
    Invalid = 7,
    /// No object has this key.
    NotFound = 8,
    /// The value is longer than the buffer.
    TooSmall = 9,
    /// A device's grant is over.
    DeviceLost = 10,
}

thread_local! {
    static WORDS: RefCell<CString> = RefCell::new(CString::default());
}

/// What is returned to C; an error's words are kept for `venice_last_error`.
pub fn told(outcome: Result<(), Error>) -> Status {
    let Err(error) = outcome else { return Status::Ok };
    say(error.to_string());
    match error {
        Error::Unreachable(_) => Status::Unreachable,
        Error::NoRoom(_) => Status::NoRoom,
        Error::DonorLost { .. } => Status::DonorLost,
        Error::DeviceLost { .. } => Status::DeviceLost,
        Error::OutOfRange { .. } => Status::OutOfRange,
        Error::Unaligned(_) => Status::Unaligned,
        Error::Invalid(_) => Status::Invalid,
        _ => Status::Refused,
    }
}

/// Keeps words for `venice_last_error`.
pub fn say(text: String) {
    let words = CString::new(text.replace('\0', " ")).expect("no zero is left in it");
    WORDS.with(|last| *last.borrow_mut() = words);
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn venice_last_error() -> *const c_char {
    WORDS.with(|last| last.borrow().as_ptr())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn venice_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => unreachable!(),
        };
    VERSION.as_ptr()
}
