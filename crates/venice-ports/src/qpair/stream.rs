//! QPair sockets that carry a stream of bytes.

use std::io::{Read, Write};
use std::task::{Context, Poll};

use venice_fabric::QPairKind;

use super::shared::Wait;
use super::socket::{QPairSocket, Socket, common_calls};
use super::{QPairAddress, QPairOptions, QPairSocketError, connect};

/// Socket for a stream of bytes in each direction, like a TCP connection.
#[derive(Debug)]
pub struct QPairStream {
    pub(super) socket: QPairSocket,
}

common_calls!(QPairStream);

impl QPairStream {
    /// Connects to the listener for `service` at `address`; waits for it to accept.
    ///
    /// # Errors
    /// Fails if no listener is there, or if it refuses or does not answer in time.
    pub fn connect(
        address: &QPairAddress,
        service: u32,
        options: &QPairOptions,
    ) -> Result<Self, QPairSocketError> {
        let kind = QPairKind::Stream;
        let socket = connect::connect_qpair(address, service, kind, options, &[])?;
        Ok(Self { socket })
    }

    /// Sends as much of `bytes` as there is room for now; returns how much.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if there is no room, or the error that closed the QPair.
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        self.write_waiting(Wait::Never, bytes)
    }

    /// Writes like [`Write::write`], with the error of this module.
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or the error that closed the QPair.
    pub fn write_some(&self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.write_waiting(self.socket.wait(), bytes)
    }

    fn write_waiting(&self, wait: Wait, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        match &self.socket {
            QPairSocket::Piped(socket) => socket.pipe().write(wait, bytes),
            QPairSocket::Framed(Socket { shared, id, .. }) => {
                shared.send(wait, |end, now_ns| Ok(end.qpairs().write(now_ns, *id, bytes)?))
            }
        }
    }

    /// Copies the bytes that have arrived, as far as they fit; returns how many. 0: the other side
    /// has ended.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if nothing has arrived, or the error that closed the QPair.
    pub fn try_read(&self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.read_waiting(Wait::Never, into)
    }

    /// Reads like [`Read::read`], with the error of this module.
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or the error that closed the QPair.
    pub fn read_some(&self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        if into.is_empty() {
            return Ok(0);
        }
        self.read_waiting(self.socket.wait(), into)
    }

    fn read_waiting(&self, wait: Wait, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        match &self.socket {
            QPairSocket::Piped(socket) => socket.pipe().read(wait, into),
            QPairSocket::Framed(Socket { shared, id, .. }) => {
                shared.call(wait, |end, _| Ok(end.qpairs().read(*id, into)?))
            }
        }
    }

    /// Reads like [`Read::read`], for tasks.
    ///
    /// # Errors
    /// The error that closed the QPair.
    pub async fn read_async(&self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_read(context, into)).await
    }

    /// Writes like [`Write::write`], for tasks.
    ///
    /// # Errors
    /// The error that closed the QPair.
    pub async fn write_async(&self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// Performs one step of [`QPairStream::read_async`].
    pub fn poll_read(
        &self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        match &self.socket {
            QPairSocket::Piped(socket) => {
                socket.poll_call(context, |pipe| pipe.read(Wait::Never, into))
            }
            QPairSocket::Framed(Socket { shared, id, .. }) => {
                shared.poll_call(context, |end, _| Ok(end.qpairs().read(*id, into)?))
            }
        }
    }

    /// Performs one step of [`QPairStream::write_async`].
    pub fn poll_write(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        let Socket { shared, id, .. } = match &self.socket {
            QPairSocket::Framed(socket) => socket,
            QPairSocket::Piped(socket) => {
                return socket.poll_call(context, |pipe| pipe.write(Wait::Never, bytes));
            }
        };
        let written =
            shared.poll_call(context, |end, now_ns| Ok(end.qpairs().write(now_ns, *id, bytes)?));
        if written.is_ready() {
            shared.push();
        }
        written
    }
}

/// Reads block, with the time-out of [`QPairStream::set_timeout`].
impl Read for &QPairStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.read_some(into)?)
    }
}

/// Writes block, with the time-out of [`QPairStream::set_timeout`]. Written bytes are sent at once,
/// which leaves nothing to flush.
impl Write for &QPairStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(self.write_some(bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Same as for a reference.
impl Read for QPairStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        (&*self).read(into)
    }
}

/// Same as for a reference.
impl Write for QPairStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
