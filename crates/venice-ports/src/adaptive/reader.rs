//! The reading end.

use std::io::Read;
use std::task::{Context, Poll};

use crate::qpair::{QPairSocketError, Socket, Wait, waiting_calls};

/// Reading end of an adaptive stream: returns its bytes in order, each once, from all channels.
#[derive(Debug)]
pub struct AdaptiveReader {
    pub(super) socket: Socket,
}

waiting_calls!(AdaptiveReader);

impl AdaptiveReader {
    /// Copies the bytes that have arrived, as far as they fit; returns how many. 0: the writer has
    /// ended the stream.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if nothing has arrived. If the stream broke off,
    /// [`QPairSocketError::Closed`] or [`QPairSocketError::Stream`], after all bytes that had
    /// arrived.
    pub fn try_read(&mut self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.read_waiting(Wait::Never, into)
    }

    /// Reads like [`Read::read`], with the error of this module.
    ///
    /// # Errors
    /// Same as [`AdaptiveReader::try_read`], except [`QPairSocketError::WouldBlock`];
    /// [`QPairSocketError::TimedOut`].
    pub fn read_some(&mut self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.read_waiting(self.socket.wait(), into)
    }

    fn read_waiting(&mut self, wait: Wait, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        if into.is_empty() {
            return Ok(0);
        }
        let id = self.socket.id;
        // Tells the writer at once of the room that reading has freed.
        self.socket.shared.send(wait, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.read(link, now_ns, id, into)?)
        })
    }

    /// Reads like [`Read::read`], for tasks.
    ///
    /// # Errors
    /// Same as [`AdaptiveReader::try_read`], except [`QPairSocketError::WouldBlock`].
    pub async fn read_async(&mut self, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_read(context, into)).await
    }

    /// Performs one step of [`AdaptiveReader::read_async`].
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let id = self.socket.id;
        let read = self.socket.shared.poll_call(context, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.read(link, now_ns, id, into)?)
        });
        if read.is_ready() {
            self.socket.shared.push();
        }
        read
    }
}

/// Reads block, with the time-out of [`AdaptiveReader::set_timeout`].
impl Read for AdaptiveReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.read_some(into)?)
    }
}
