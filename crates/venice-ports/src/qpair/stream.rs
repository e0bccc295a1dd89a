//! QPair sockets that carry a stream of bytes.

use std::io::{Read, Write};
use std::task::{Context, Poll};

use venice_fabric::QPairKind;

use super::connect::Depth;
use super::shared::Wait;
use super::socket::{Socket, common_calls};
use super::{QPairAddress, QPairOptions, QPairSocketError, connect};

/// Socket for a stream of bytes in each direction, like a TCP connection.
#[derive(Debug)]
pub struct QPairStream {
    pub(super) socket: Socket,
}

common_calls!(QPairStream);

impl QPairStream {
    /// Connects to the listener for `service` at `address`; waits at most ten seconds for it to
    /// accept.
    ///
    /// # Errors
    /// Fails if no listener is there, or if it refuses or does not answer in time.
    pub fn connect(
        address: &QPairAddress,
        service: u32,
        options: &QPairOptions,
    ) -> Result<Self, QPairSocketError> {
        let socket = connect::connect(address, service, QPairKind::Stream, options, Depth::NONE)?;
        Ok(Self { socket })
    }

    /// Sends as much of `bytes` as there is room for now; returns how much.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if there is no room, or the error that closed the QPair.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        self.write_waiting(Wait::Never, bytes)
    }

    fn write_waiting(&mut self, wait: Wait, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        let id = self.socket.id;
        self.socket.shared.send(wait, |end, now_ns| Ok(end.qpairs().write(now_ns, id, bytes)?))
    }

    /// Copies the bytes that have arrived, as far as they fit; returns how many. 0: the other side
    /// has ended.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if nothing has arrived, or the error that closed the QPair.
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.read_waiting(Wait::Never, into)
    }

    fn read_waiting(&mut self, wait: Wait, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        let id = self.socket.id;
        self.socket.shared.call(wait, |end, _| Ok(end.qpairs().read(id, into)?))
    }

    /// Reads like [`Read::read`], for tasks.
    ///
    /// # Errors
    /// The error that closed the QPair.
    pub async fn read_async(&mut self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_read(context, into)).await
    }

    /// Writes like [`Write::write`], for tasks.
    ///
    /// # Errors
    /// The error that closed the QPair.
    pub async fn write_async(&mut self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// Performs one step of [`QPairStream::read_async`].
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        let id = self.socket.id;
        self.socket.shared.poll_call(context, |end, _| Ok(end.qpairs().read(id, into)?))
    }

    /// Performs one step of [`QPairStream::write_async`].
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        let id = self.socket.id;
        let written = self
            .socket
            .shared
            .poll_call(context, |end, now_ns| Ok(end.qpairs().write(now_ns, id, bytes)?));
        if written.is_ready() {
            self.socket.shared.push();
        }
        written
    }
}

/// Reads block, with the time-out of [`QPairStream::set_timeout`].
impl Read for QPairStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        Ok(self.read_waiting(self.socket.wait(), into)?)
    }
}

/// Writes block, with the time-out of [`QPairStream::set_timeout`]. Written bytes are sent at once,
/// which leaves nothing to flush.
impl Write for QPairStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        Ok(self.write_waiting(self.socket.wait(), bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
