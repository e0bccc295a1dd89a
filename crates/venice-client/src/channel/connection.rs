//! Connections: messages and streams.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use venice_fabric::adaptive::{ChannelKind, ChooserConfig, Pattern};
use venice_ports::adaptive::{AdaptiveReader, AdaptiveWriter};
use venice_ports::qpair::{QPairMessages, QPairOptions, QPairSeal, QPairSocketError, QPairStream};
use venice_ports::{Process, random_u64};

use super::listener::qpair_address;
use super::{Address, Error, Options};

/// Kind of a connection. Both ends name the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Messages in both directions: each whole, once and in order.
    Messages,
    /// A stream of bytes in both directions, like a TCP connection.
    Stream,
    /// A stream of bytes from the connecting end to the accepting one, whose segments take the
    /// channel measured best for their size: CRMA, RDMA or QPair.
    Adaptive,
}

impl Kind {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Stream => "a stream",
            Self::Adaptive => "an adaptive stream",
        }
    }

    /// Returns the number by which both ends know the kind.
    pub(super) fn service(self) -> u32 {
        match self {
            Self::Messages => 1,
            Self::Stream => 2,
            Self::Adaptive => 3,
        }
    }

    /// Checks that it has a use for the length of buffers, if one is given, and that it is valid.
    pub(super) fn check_buffer(self, options: &Options) -> Result<(), Error> {
        match self {
            Self::Messages | Self::Stream => options.check_buffer(),
            Self::Adaptive => options.check_no_buffer(self.name()),
        }
    }

    pub(super) fn check_port(self, address: &Address) -> Result<(), Error> {
        if address.capabilities().messages {
            return Ok(());
        }
        let (address, what) = (address.to_string(), self.name());
        Err(Error::Unsupported { address, what, instead: "shm: or udp:" })
    }
}

/// One end of a connection; closed on drop, which waits up to 0.1 s until sent bytes are on their
/// way.
///
/// Any threads may use it at the same time. Messages stay whole, and those of one thread stay in
/// order; a message that another thread is sending counts as missing room. Of a stream, the bytes
/// that one call takes stay together.
#[derive(Debug)]
pub struct Connection {
    inner: Inner,
    /// Duplicate of the socket's descriptor, for this connection alone.
    fd: OwnedFd,
    process: Process,
}

#[derive(Debug)]
enum Inner {
    Messages(QPairMessages),
    Stream(QPairStream),
    Writer(Box<Mutex<AdaptiveWriter>>),
    Reader(Mutex<AdaptiveReader>),
}

/// Makes a call that all sockets have; in a forked child none, because a thread that the child does
/// not have may hold the lock.
macro_rules! on_socket {
    ($connection:expr, $socket:ident => $call:expr) => {
        match &$connection.inner {
            Inner::Messages($socket) => Ok($call),
            Inner::Stream($socket) => Ok($call),
            Inner::Writer(writer) => $connection.lock(writer).map(|$socket| $call),
            Inner::Reader(reader) => $connection.lock(reader).map(|$socket| $call),
        }
    };
}

impl Connection {
    /// Connects to the listener at `address`; waits for it to accept.
    ///
    /// # Errors
    /// [`Error::Connect`] if no listener is there, it is of another kind, or does not answer within
    /// [`Options::connect_timeout`]; [`Error::Unprotected`], [`Error::Unsupported`],
    /// [`Error::UnusedOption`], [`Error::Size`], [`Error::Address`].
    pub fn connect(address: &Address, kind: Kind, options: &Options) -> Result<Self, Error> {
        kind.check_port(address)?;
        kind.check_buffer(options)?;
        let seal = options.seal().map(|key| -> Result<_, Error> {
            let number = random_u64().map_err(|error| {
                Error::System(format!("drawing a number failed: {}", std::io::Error::from(error)))
            })?;
            // Each connection has a key of its own.
            Ok(QPairSeal::As(key.sealed_as(number)))
        });
        let at = qpair_address(address, options, seal.transpose()?)?;
        let timeout = Some(options.connect_timeout);
        let asked = QPairOptions {
            end: options.end(),
            connect_timeout: timeout,
            ..QPairOptions::default()
        };
        let service = kind.service();
        let connected = match kind {
            Kind::Messages => QPairMessages::connect(&at, service, &asked).map(Inner::Messages),
            Kind::Stream => QPairStream::connect(&at, service, &asked).map(Inner::Stream),
            Kind::Adaptive => {
                let chooser = ChooserConfig::default();
                let writer = AdaptiveWriter::connect(&at, service, chooser, timeout);
                writer.map(|writer| Inner::Writer(Box::new(Mutex::new(writer))))
            }
        };
        Self::new(connected.map_err(|error| Error::connecting(address, error))?)
    }

    fn new(inner: Inner) -> Result<Self, Error> {
        let duplicate = match &inner {
            Inner::Messages(socket) => socket.as_fd().try_clone_to_owned(),
            Inner::Stream(socket) => socket.as_fd().try_clone_to_owned(),
            Inner::Writer(socket) => unshared(socket).as_fd().try_clone_to_owned(),
            Inner::Reader(socket) => unshared(socket).as_fd().try_clone_to_owned(),
        };
        let failed = |error| Error::System(format!("duplicating a descriptor failed: {error}"));
        let process = Process::current().map_err(Error::of_port)?;
        Ok(Self { fd: duplicate.map_err(failed)?, inner, process })
    }

    pub(super) fn messaging(socket: QPairMessages) -> Result<Self, Error> {
        Self::new(Inner::Messages(socket))
    }

    pub(super) fn streaming(socket: QPairStream) -> Result<Self, Error> {
        Self::new(Inner::Stream(socket))
    }

    pub(super) fn reading(socket: AdaptiveReader) -> Result<Self, Error> {
        Self::new(Inner::Reader(Mutex::new(socket)))
    }

    fn lock<'a, T>(&self, socket: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, Error> {
        self.process.check().map_err(Error::of_port)?;
        Ok(unshared(socket))
    }

    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        match self.inner {
            Inner::Messages(_) => Kind::Messages,
            Inner::Stream(_) => Kind::Stream,
            Inner::Writer(_) | Inner::Reader(_) => Kind::Adaptive,
        }
    }

    fn wrong(&self, call: &'static str) -> Error {
        let kind = match &self.inner {
            Inner::Messages(_) | Inner::Stream(_) => self.kind().name(),
            Inner::Writer(_) => "the writing end of an adaptive stream",
            Inner::Reader(_) => "the reading end of an adaptive stream",
        };
        Error::WrongKind { call, kind }
    }

    fn messages(&self, call: &'static str) -> Result<&QPairMessages, Error> {
        match &self.inner {
            Inner::Messages(socket) => Ok(socket),
            Inner::Stream(_) | Inner::Writer(_) | Inner::Reader(_) => Err(self.wrong(call)),
        }
    }

    /// Sets the longest wait of a blocking call; `None`, the initial value: no limit.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        let _ = on_socket!(self, socket => socket.set_timeout(timeout));
    }

    /// Returns the descriptor to poll for input after [`Connection::arm`]. It becomes readable when
    /// anything may have changed, room to send included, and stays so until the next call with
    /// `try_` or [`Connection::attend`]: poll by level, not by edge.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Prepares to poll the descriptor. `false`: try again first, do not wait.
    pub fn arm(&self) -> bool {
        on_socket!(self, socket => socket.arm()).unwrap_or(false)
    }

    /// Ends a wait on the descriptor: it stays readable until then. Calls with `try_` do it too.
    pub fn attend(&self) {
        let _ = on_socket!(self, socket => socket.attend());
    }

    /// Ends the sending: the other side gets all that was sent, then the end. Receiving continues.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Lost`]; [`Error::WrongKind`] at a reading end.
    pub fn shutdown(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Messages(socket) => Ok(socket.shutdown()?),
            Inner::Stream(socket) => Ok(socket.shutdown()?),
            Inner::Writer(socket) => Ok(self.lock(socket)?.shutdown()?),
            Inner::Reader(_) => Err(self.wrong("shutdown")),
        }
    }
}

/// Messages.
impl Connection {
    /// Sends a message; waits while the other side has no room.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`], [`Error::TimedOut`], [`Error::Closed`],
    /// [`Error::Lost`], [`Error::WrongKind`].
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        Ok(self.messages("send")?.send(message)?)
    }

    /// Sends a message if there is room for it.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none; else those of [`Connection::send`].
    pub fn try_send(&self, message: &[u8]) -> Result<(), Error> {
        let socket = self.messages("try_send")?;
        retried(|| socket.try_send(message), || socket.attend())
    }

    /// Waits for the next message and copies it to the front of `into`; returns its length in
    /// bytes. 0: the other side has ended its sending.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if `into` is too small (the message stays queued), [`Error::TimedOut`],
    /// [`Error::Lost`], [`Error::WrongKind`].
    pub fn recv(&self, into: &mut [u8]) -> Result<usize, Error> {
        at_end(self.messages("recv")?.recv(into))
    }

    /// Copies the next message to the front of `into` if it has arrived; returns its length.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if none has; else those of [`Connection::recv`].
    pub fn try_recv(&self, into: &mut [u8]) -> Result<usize, Error> {
        let socket = self.messages("try_recv")?;
        retried_to_end(|| socket.try_recv(into), || socket.attend())
    }

    /// Receives the next message, however long; `None`: the other side has ended its sending. The
    /// memory grows with what has arrived: a peer that names a length of 1 GiB and sends less costs
    /// no more than what it sends.
    ///
    /// # Errors
    /// The errors of [`Connection::recv`], except [`Error::TooSmall`].
    pub fn recv_vec(&self) -> Result<Option<Vec<u8>>, Error> {
        at_end(self.messages("recv_vec")?.recv_vec())
    }

    /// Returns the next message like [`Connection::recv_vec`], if it has arrived.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if none has; else those of [`Connection::recv_vec`].
    pub fn try_recv_vec(&self) -> Result<Option<Vec<u8>>, Error> {
        let socket = self.messages("try_recv_vec")?;
        retried_to_end(|| socket.try_recv_vec(), || socket.attend())
    }

    /// Sends like [`Connection::send`], for tasks: without the time-out.
    ///
    /// # Errors
    /// Those of [`Connection::send`].
    pub async fn send_async(&self, message: &[u8]) -> Result<(), Error> {
        Ok(self.messages("send_async")?.send_async(message).await?)
    }

    /// Receives like [`Connection::recv`], for tasks: without the time-out.
    ///
    /// # Errors
    /// The errors of [`Connection::recv`].
    pub async fn recv_async(&self, into: &mut [u8]) -> Result<usize, Error> {
        at_end(self.messages("recv_async")?.recv_async(into).await)
    }
}

/// Streams; [`Read`] and [`Write`] block.
impl Connection {
    /// Sends the front of `bytes`, as much as there is room for; returns how much.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is none; [`Error::Closed`], [`Error::Lost`],
    /// [`Error::WrongKind`].
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Stream(socket) => retried(|| socket.try_write(bytes), || socket.attend()),
            Inner::Writer(socket) => {
                let mut writer = self.lock(socket)?;
                writer.attend();
                Ok(writer.try_write(bytes)?)
            }
            Inner::Messages(_) | Inner::Reader(_) => Err(self.wrong("try_write")),
        }
    }

    /// Copies the bytes that have arrived, as far as they fit; returns how many. 0: the other side
    /// has ended its sending.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if nothing has arrived; [`Error::Lost`], [`Error::WrongKind`].
    pub fn try_read(&self, into: &mut [u8]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Stream(socket) => retried_to_end(|| socket.try_read(into), || socket.attend()),
            Inner::Reader(socket) => {
                let mut reader = self.lock(socket)?;
                reader.attend();
                at_end(reader.try_read(into))
            }
            Inner::Messages(_) | Inner::Writer(_) => Err(self.wrong("try_read")),
        }
    }

    /// Reads like [`Read::read`], for tasks: without the time-out.
    ///
    /// # Errors
    /// Those of [`Connection::try_read`].
    pub async fn read_async(&self, into: &mut [u8]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Stream(socket) => at_end(socket.read_async(into).await),
            Inner::Reader(socket) => {
                self.process.check().map_err(Error::of_port)?;
                at_end(poll_fn(|context| unshared(socket).poll_read(context, into)).await)
            }
            Inner::Messages(_) | Inner::Writer(_) => Err(self.wrong("read_async")),
        }
    }

    /// Writes like [`Write::write`], for tasks: without the time-out.
    ///
    /// # Errors
    /// Those of [`Connection::try_write`].
    pub async fn write_async(&self, bytes: &[u8]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Stream(socket) => Ok(socket.write_async(bytes).await?),
            Inner::Writer(socket) => {
                self.process.check().map_err(Error::of_port)?;
                Ok(poll_fn(|context| unshared(socket).poll_write(context, bytes)).await?)
            }
            Inner::Messages(_) | Inner::Reader(_) => Err(self.wrong("write_async")),
        }
    }

    /// Ends the writing end of an adaptive stream, and waits until the reader has read all of it.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Lost`]; [`Error::WrongKind`] at other ends.
    pub fn finish(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Writer(socket) => Ok(self.lock(socket)?.finish()?),
            Inner::Messages(_) | Inner::Stream(_) | Inner::Reader(_) => Err(self.wrong("finish")),
        }
    }

    /// Tells the writing end of an adaptive stream what counts for later writes: throughput
    /// (`true`), or the time of each segment (`false`, the initial value).
    ///
    /// # Errors
    /// [`Error::WrongKind`] at other ends.
    pub fn set_throughput(&self, counts: bool) -> Result<(), Error> {
        let pattern = if counts { Pattern::Sequential } else { Pattern::Message };
        match &self.inner {
            Inner::Writer(socket) => {
                self.lock(socket)?.set_pattern(pattern);
                Ok(())
            }
            Inner::Messages(_) | Inner::Stream(_) | Inner::Reader(_) => {
                Err(self.wrong("set_throughput"))
            }
        }
    }

    /// Returns the number of segments that an adaptive stream's writing end has sent so far by
    /// CRMA, RDMA and QPair.
    ///
    /// # Errors
    /// [`Error::WrongKind`] at other ends.
    pub fn segments(&self) -> Result<[u64; 3], Error> {
        let channels = [ChannelKind::Crma, ChannelKind::Rdma, ChannelKind::QPair];
        match &self.inner {
            Inner::Writer(socket) => {
                let segments = self.lock(socket)?.segments();
                Ok(channels.map(|channel| segments[channel.index()]))
            }
            Inner::Messages(_) | Inner::Stream(_) | Inner::Reader(_) => Err(self.wrong("segments")),
        }
    }

    fn read_blocking(&self, into: &mut [u8]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Stream(socket) => at_end(socket.read_some(into)),
            Inner::Reader(socket) => at_end(self.lock(socket)?.read_some(into)),
            Inner::Messages(_) | Inner::Writer(_) => Err(self.wrong("read")),
        }
    }

    fn write_blocking(&self, bytes: &[u8]) -> Result<usize, Error> {
        match &self.inner {
            Inner::Stream(socket) => Ok(socket.write_some(bytes)?),
            Inner::Writer(socket) => Ok(self.lock(socket)?.write_some(bytes)?),
            Inner::Messages(_) | Inner::Reader(_) => Err(self.wrong("write")),
        }
    }
}

fn unshared<T>(socket: &Mutex<T>) -> MutexGuard<'_, T> {
    socket.lock().expect("no thread panics under this lock")
}

/// Calls again after the wait of a poller has been ended.
fn retried<T>(
    mut call: impl FnMut() -> Result<T, QPairSocketError>,
    attend: impl FnOnce(),
) -> Result<T, Error> {
    match call() {
        Err(QPairSocketError::WouldBlock) => {
            attend();
            Ok(call()?)
        }
        done => Ok(done?),
    }
}

/// Does the same for a call that receives.
fn retried_to_end<T: Default>(
    mut call: impl FnMut() -> Result<T, QPairSocketError>,
    attend: impl FnOnce(),
) -> Result<T, Error> {
    match call() {
        Err(QPairSocketError::WouldBlock) => {
            attend();
            at_end(call())
        }
        done => at_end(done),
    }
}

/// Converts an orderly close by the other side to the end: 0, or no message.
fn at_end<T: Default>(received: Result<T, QPairSocketError>) -> Result<T, Error> {
    match received.map_err(Error::from) {
        Err(Error::Closed) => Ok(T::default()),
        done => done,
    }
}

/// Reads block, with the time-out of [`Connection::set_timeout`].
impl Read for &Connection {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.read_blocking(into)?)
    }
}

/// Writes block, with the time-out of [`Connection::set_timeout`]. A flush of an adaptive stream
/// waits until the reader was notified of all written bytes; other streams have nothing to flush.
impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(self.write_blocking(bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match &self.inner {
            Inner::Writer(socket) => self.lock(socket)?.flush(),
            Inner::Messages(_) | Inner::Stream(_) | Inner::Reader(_) => Ok(()),
        }
    }
}

/// Same as for a reference.
impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        (&*self).read(into)
    }
}

/// Same as for a reference.
impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        (&*self).flush()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
