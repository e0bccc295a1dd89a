//! Conversion of the library's errors to exceptions of the package.

use pyo3::prelude::*;
use pyo3::types::PyType;
use venice_client::Error;
use venice_client::channel::Error as ChannelError;

/// Returns the exception of `venice.errors` for the error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    let made = class(py, class_name(error)).and_then(|class| match error {
        Error::DonorLost { node, offset, len_bytes } => {
            class.call1((text, node.as_str(), *offset, *len_bytes))
        }
        _ => class.call1((text,)),
    });
    made.map_or_else(|failed| failed, PyErr::from_value)
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("venice.errors")?.getattr(name)?.cast_into::<PyType>()?)
}

fn class_name(error: &Error) -> &'static str {
    match error {
        Error::Unreachable(_) => "Unreachable",
        Error::Refused(_) => "Refused",
        Error::NoRoom(_) => "NoRoom",
        Error::DonorLost { .. } => "DonorLost",
        Error::DeviceLost { .. } => "DeviceLost",
        Error::Task { .. } => "TaskFailed",
        Error::OutOfRange { .. } => "OutOfRange",
        Error::Unaligned(_) => "Unaligned",
        Error::Invalid(_) => "Invalid",
        Error::Closed => "Closed",
        Error::Channel(error) => channel_class_name(error),
        _ => "Error",
    }
}

fn channel_class_name(error: &ChannelError) -> &'static str {
    match error {
        ChannelError::WouldBlock => "WouldBlock",
        ChannelError::TimedOut => "TimedOut",
        ChannelError::Closed | ChannelError::Lost(_) => "Disconnected",
        ChannelError::Connect { .. } => "Unreachable",
        ChannelError::OutOfRange { .. } => "OutOfRange",
        ChannelError::Unaligned(_) => "Unaligned",
        ChannelError::Forked => "Closed",
        ChannelError::Address { .. }
        | ChannelError::Key
        | ChannelError::Unprotected { .. }
        | ChannelError::Unsupported { .. }
        | ChannelError::UnusedOption { .. }
        | ChannelError::Size { .. }
        | ChannelError::Empty
        | ChannelError::TooLong { .. }
        | ChannelError::TooSmall { .. }
        | ChannelError::Ended
        | ChannelError::WrongKind { .. } => "Invalid",
        _ => "Refused",
    }
}
