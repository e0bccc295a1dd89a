//! `venice_listener` and `venice_channel`.

use std::ffi::{CString, c_char, c_int};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use venice_client::Error;
use venice_client::channel::{self, Address, Connection, Kind, Listener};

use crate::arguments::{give, handle, items, place, room, take, text, timeout};
use crate::status::{Status, status_of};

/// `venice_channel_options` of the header.
#[derive(Debug)]
#[repr(C)]
pub struct Options {
    struct_bytes: usize,
    key: *const c_char,
    plain: u32,
    buffer_bytes: u32,
    connect_timeout_ms: u32,
}

/// A listener, and its address for C. Any thread may use it while another accepts.
#[derive(Debug)]
pub struct ListenerHandle {
    listener: Listener,
    address: CString,
}

/// A connection, and its time-out in milliseconds: −1 none, 0 polled.
#[derive(Debug)]
pub struct ChannelHandle {
    connection: Connection,
    timeout_ms: AtomicI64,
}

impl ChannelHandle {
    fn new(connection: Connection) -> Self {
        Self { connection, timeout_ms: AtomicI64::new(-1) }
    }

    fn is_polled(&self) -> bool {
        self.timeout_ms.load(Ordering::Relaxed) == 0
    }
}

/// Converts the options; null: the defaults.
///
/// # Safety
/// The requirements of [`crate::arguments`].
pub unsafe fn options(options: *const Options) -> Result<channel::Options, Error> {
    let mut meant = channel::Options::default();
    // SAFETY: guaranteed by the caller; every version of the struct begins with its length.
    let struct_bytes = match unsafe { options.cast::<usize>().as_ref() } {
        None => return Ok(meant),
        Some(struct_bytes) => *struct_bytes,
    };
    if struct_bytes != size_of::<Options>() {
        return Err(Error::Invalid("invalid options: begin with VENICE_CHANNEL_OPTIONS".into()));
    }
    // SAFETY: guaranteed by the caller, for all of them.
    unsafe {
        let options = &*options;
        meant.key = text(options.key, "key")?.map(str::parse).transpose()?;
        meant.plain = options.plain != 0;
        if options.buffer_bytes > 0 {
            meant.buffer_bytes = options.buffer_bytes;
        }
        if options.connect_timeout_ms > 0 {
            meant.connect_timeout = Duration::from_millis(options.connect_timeout_ms.into());
        }
    }
    Ok(meant)
}

/// Converts an address.
///
/// # Safety
/// The requirements of [`crate::arguments`].
pub unsafe fn address(pointer: *const c_char) -> Result<Address, Error> {
    // SAFETY: guaranteed by the caller.
    let typed = unsafe { text(pointer, "address") }?.unwrap_or_default();
    Ok(typed.parse()?)
}

fn kind(number: u32) -> Result<Kind, Error> {
    [(1, Kind::Messages), (2, Kind::Stream), (3, Kind::Adaptive)]
        .into_iter()
        .find_map(|(known, kind)| (known == number).then_some(kind))
        .ok_or_else(|| Error::Invalid(format!("unknown kind {number}: use one of venice_kind")))
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_listen(
    at: *const c_char,
    kind_number: u32,
    options_pointer: *const Options,
    listener: *mut *mut ListenerHandle,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(listener, || {
            let kind = kind(kind_number)?;
            let listener = Listener::bind(&address(at)?, kind, &options(options_pointer)?)?;
            let address = CString::new(listener.address().to_string()).unwrap_or_default();
            Ok(ListenerHandle { listener, address })
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_listener_address(listener: *const ListenerHandle) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    unsafe { listener.as_ref() }.map_or(c"".as_ptr(), |listener| listener.address.as_ptr())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_accept(
    listener: *mut ListenerHandle,
    timeout_ms: i64,
    channel: *mut *mut ChannelHandle,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(channel, || {
            let listener = &handle(listener, "listener")?.listener;
            let accepted = match timeout_ms {
                0 => listener.try_accept(),
                _ => listener.accept(timeout(timeout_ms)?),
            };
            Ok(ChannelHandle::new(accepted?))
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_listener_fd(listener: *const ListenerHandle) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { listener.as_ref() }.map_or(-1, |listener| listener.listener.fd().as_raw_fd())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_listener_arm(listener: *const ListenerHandle) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { listener.as_ref() }.is_some_and(|listener| listener.listener.arm())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_close_listener(listener: *mut ListenerHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(listener) });
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_connect_channel(
    at: *const c_char,
    kind_number: u32,
    options_pointer: *const Options,
    channel: *mut *mut ChannelHandle,
) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(unsafe {
        give(channel, || {
            let (kind, options) = (kind(kind_number)?, options(options_pointer)?);
            Ok(ChannelHandle::new(Connection::connect(&address(at)?, kind, &options)?))
        })
    })
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_set_timeout(
    channel: *mut ChannelHandle,
    timeout_ms: i64,
) -> Status {
    let set = || {
        // SAFETY: guaranteed by the caller.
        let channel = unsafe { handle(channel, "channel") }?;
        channel.connection.set_timeout(timeout(timeout_ms)?);
        channel.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        Ok(())
    };
    status_of(set())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_send(
    channel: *const ChannelHandle,
    message: *const u8,
    len_bytes: usize,
) -> Status {
    let send = || {
        // SAFETY: guaranteed by the caller.
        let (channel, message) =
            unsafe { (handle(channel, "channel")?, items(message, len_bytes, "message")?) };
        match channel.is_polled() {
            true => channel.connection.try_send(message)?,
            false => channel.connection.send(message)?,
        }
        Ok(())
    };
    status_of(send())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_recv(
    channel: *const ChannelHandle,
    buffer: *mut u8,
    size_bytes: usize,
    len_bytes: *mut usize,
) -> Status {
    let receive = || {
        // SAFETY: guaranteed by the caller.
        let (channel, into, len) = unsafe {
            let into = room(buffer, size_bytes, "buffer")?;
            (handle(channel, "channel")?, into, place(len_bytes, "the place for the length")?)
        };
        let received = match channel.is_polled() {
            true => channel.connection.try_recv(into),
            false => channel.connection.recv(into),
        };
        if let Err(channel::Error::TooSmall { needed_bytes }) = received {
            *len = needed_bytes;
        }
        *len = received?;
        Ok(())
    };
    status_of(receive())
}

/// Converts an error of a stream's call, which the standard library's traits have wrapped.
fn unwrapped(error: std::io::Error) -> Error {
    match error.downcast::<channel::Error>() {
        Ok(error) => error.into(),
        Err(error) => channel::Error::System(error.to_string()).into(),
    }
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_stream_write(
    channel: *const ChannelHandle,
    from: *const u8,
    len_bytes: usize,
    written_bytes: *mut usize,
) -> Status {
    let write = || {
        // SAFETY: guaranteed by the caller.
        let (channel, from, written) = unsafe {
            let written = place(written_bytes, "the place for the length")?;
            (handle(channel, "channel")?, items(from, len_bytes, "bytes")?, written)
        };
        *written = match channel.is_polled() {
            true => channel.connection.try_write(from)?,
            false => (&channel.connection).write(from).map_err(unwrapped)?,
        };
        Ok(())
    };
    status_of(write())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_stream_read(
    channel: *const ChannelHandle,
    buffer: *mut u8,
    size_bytes: usize,
    len_bytes: *mut usize,
) -> Status {
    let read = || {
        // SAFETY: guaranteed by the caller.
        let (channel, into, len) = unsafe {
            let into = room(buffer, size_bytes, "buffer")?;
            (handle(channel, "channel")?, into, place(len_bytes, "the place for the length")?)
        };
        *len = match channel.is_polled() {
            true => channel.connection.try_read(into)?,
            false => (&channel.connection).read(into).map_err(unwrapped)?,
        };
        Ok(())
    };
    status_of(read())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_shutdown(channel: *const ChannelHandle) -> Status {
    // SAFETY: guaranteed by the caller.
    status_of(
        unsafe { handle(channel, "channel") }
            .and_then(|channel| Ok(channel.connection.shutdown()?)),
    )
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_channel_fd(channel: *const ChannelHandle) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { channel.as_ref() }.map_or(-1, |channel| channel.connection.as_raw_fd())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_arm(channel: *const ChannelHandle) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { channel.as_ref() }.is_some_and(|channel| channel.connection.arm())
}

/// Implements the function of the header.
///
/// # Safety
/// The requirements of [`crate::arguments::take`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn venice_close_channel(channel: *mut ChannelHandle) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { take(channel) });
}
