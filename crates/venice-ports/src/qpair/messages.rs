//! QPair sockets that carry whole messages.

use std::task::{Context, Poll};

use venice_fabric::{QPairError, QPairKind};

use super::shared::Wait;
use super::socket::Socket;
use super::socket::{QPairSocket, common_calls};
use super::{QPairAddress, QPairOptions, QPairSocketError, connect};

/// Bytes that a call makes room for before it knows the message's length.
const SHORT_BYTES: usize = 4096;

/// Socket for messages, each of which arrives whole, once and in order.
#[derive(Debug)]
pub struct QPairMessages {
    pub(super) socket: QPairSocket,
}

common_calls!(QPairMessages);

impl QPairMessages {
    /// Connects to the listener for `service` at `address`; waits for it to accept.
    ///
    /// # Errors
    /// Fails if no listener is there, or if it refuses or does not answer in time.
    pub fn connect(
        address: &QPairAddress,
        service: u32,
        options: &QPairOptions,
    ) -> Result<Self, QPairSocketError> {
        Self::connect_admitted(address, service, options, &[])
    }

    /// Connects like [`QPairMessages::connect`] to a listener that admits only callers that show
    /// these bytes, at most 64 of them. They go to a listener on this host alone: one of UDP admits
    /// by keys.
    ///
    /// # Errors
    /// The errors of [`QPairMessages::connect`]; [`crate::PortError::Refused`] if the listener wants other
    /// bytes.
    pub fn connect_admitted(
        address: &QPairAddress,
        service: u32,
        options: &QPairOptions,
        admission: &[u8],
    ) -> Result<Self, QPairSocketError> {
        let kind = QPairKind::Messages;
        let socket = connect::connect_qpair(address, service, kind, options, admission)?;
        Ok(Self { socket })
    }

    /// Sends a message; waits while the other side has no room.
    ///
    /// # Errors
    /// Fails if the message is empty or too long, the QPair is closed, or the time-out has passed.
    #[inline]
    pub fn send(&self, message: &[u8]) -> Result<(), QPairSocketError> {
        self.send_waiting(self.socket.wait(), message)
    }

    /// Sends a message if there is room for it.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if there is no room; else those of [`QPairMessages::send`].
    #[inline]
    pub fn try_send(&self, message: &[u8]) -> Result<(), QPairSocketError> {
        self.send_waiting(Wait::Never, message)
    }

    #[inline]
    fn send_waiting(&self, wait: Wait, message: &[u8]) -> Result<(), QPairSocketError> {
        match &self.socket {
            QPairSocket::Piped(socket) => socket.pipe().send(wait, message),
            QPairSocket::Framed(Socket { shared, id, .. }) => {
                shared.send(wait, |end, now_ns| Ok(end.qpairs().send(now_ns, *id, message)?))
            }
        }
    }

    /// Waits for the next message and copies it to the front of `into`; returns its length in
    /// bytes. 0: the other side has ended its sending.
    ///
    /// # Errors
    /// Fails if `into` is too small (the message stays queued), the QPair is closed, or the
    /// time-out has passed.
    #[inline]
    pub fn recv(&self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.recv_waiting(self.socket.wait(), into)
    }

    /// Copies the next message to the front of `into` if it has arrived; returns its length in
    /// bytes.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if no message has arrived; else those of
    /// [`QPairMessages::recv`].
    #[inline]
    pub fn try_recv(&self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.recv_waiting(Wait::Never, into)
    }

    #[inline]
    fn recv_waiting(&self, wait: Wait, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        match &self.socket {
            QPairSocket::Piped(socket) => socket.pipe().recv(wait, into),
            QPairSocket::Framed(Socket { shared, id, .. }) => {
                shared.call(wait, |end, _| Ok(end.qpairs().recv(*id, into)?))
            }
        }
    }

    /// Waits for the next message, however long; `None`: the other side has ended its sending. The
    /// memory grows with what has arrived, whatever length the other side names.
    ///
    /// # Errors
    /// The errors of [`QPairMessages::recv`], except for a buffer.
    pub fn recv_vec(&self) -> Result<Option<Vec<u8>>, QPairSocketError> {
        self.recv_vec_waiting(self.socket.wait())
    }

    /// Returns the next message like [`QPairMessages::recv_vec`], if it has arrived.
    ///
    /// # Errors
    /// The errors of [`QPairMessages::try_recv`], except for a buffer.
    pub fn try_recv_vec(&self) -> Result<Option<Vec<u8>>, QPairSocketError> {
        self.recv_vec_waiting(Wait::Never)
    }

    fn recv_vec_waiting(&self, wait: Wait) -> Result<Option<Vec<u8>>, QPairSocketError> {
        let Socket { shared, id, .. } = match &self.socket {
            QPairSocket::Framed(socket) => socket,
            QPairSocket::Piped(socket) => return socket.pipe().recv_vec(wait),
        };
        let mut message = vec![0; SHORT_BYTES];
        let len = shared.call(wait, |end, _| match end.qpairs().recv(*id, &mut message) {
            Err(QPairError::BufferTooSmall { needed_bytes }) => {
                // All of it is in the receive buffer, under the same lock.
                message.resize(needed_bytes, 0);
                Ok(end.qpairs().recv(*id, &mut message)?)
            }
            received => Ok(received?),
        })?;
        message.truncate(len);
        Ok((len > 0).then_some(message))
    }

    /// Sends like [`QPairMessages::send`], for tasks.
    ///
    /// # Errors
    /// Same as [`QPairMessages::send`], except the time-out.
    pub async fn send_async(&self, message: &[u8]) -> Result<(), QPairSocketError> {
        std::future::poll_fn(|context| self.poll_send(context, message)).await
    }

    /// Receives like [`QPairMessages::recv`], for tasks.
    ///
    /// # Errors
    /// Same as [`QPairMessages::recv`], except the time-out.
    pub async fn recv_async(&self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_recv(context, into)).await
    }

    /// Performs one step of [`QPairMessages::send_async`].
    pub fn poll_send(
        &self,
        context: &mut Context<'_>,
        message: &[u8],
    ) -> Poll<Result<(), QPairSocketError>> {
        let Socket { shared, id, .. } = match &self.socket {
            QPairSocket::Framed(socket) => socket,
            QPairSocket::Piped(socket) => {
                return socket.poll_call(context, |pipe| pipe.send(Wait::Never, message));
            }
        };
        let sent =
            shared.poll_call(context, |end, now_ns| Ok(end.qpairs().send(now_ns, *id, message)?));
        if sent.is_ready() {
            shared.push();
        }
        sent
    }

    /// Performs one step of [`QPairMessages::recv_async`].
    pub fn poll_recv(
        &self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        match &self.socket {
            QPairSocket::Piped(socket) => {
                socket.poll_call(context, |pipe| pipe.recv(Wait::Never, into))
            }
            QPairSocket::Framed(Socket { shared, id, .. }) => {
                shared.poll_call(context, |end, _| Ok(end.qpairs().recv(*id, into)?))
            }
        }
    }
}
