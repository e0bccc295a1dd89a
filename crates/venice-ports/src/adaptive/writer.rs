//! The writing end.

use std::io::Write;
use std::task::{Context, Poll};
use std::time::Duration;

use venice_fabric::adaptive::{ChoiceEvent, ChooserConfig, Pattern};
use venice_fabric::{EndConfig, QPairKind};

use super::ChoiceLog;
use crate::qpair::{
    Depth, QPairAddress, QPairOptions, QPairSocketError, Socket, Wait, connect, waiting_calls,
};

/// Send buffer of a writer's QPair, in bytes.
const SEND_BYTES: u32 = 1 << 20;
/// Longest segment that travels in a message, in bytes: two of them fit into the send buffer.
const MAX_INLINE_BYTES: u32 = SEND_BYTES / 2 - 64;
/// Limits of outstanding accesses: as many single accesses as segments can be outstanding, and as
/// many bulk transfers as a sender has buffers.
const DEPTH: Depth = Depth { crma: 64, rdma: 16 };

/// Writing end of an adaptive stream.
///
/// A segment is on its way when a call returns. The reader is notified of one in its landing region
/// by the next call, by [`Write::flush`], or some milliseconds later at the latest. Dropping the
/// writer ends the stream behind all written bytes.
#[derive(Debug)]
pub struct AdaptiveWriter {
    socket: Socket,
    pattern: Pattern,
    log: ChoiceLog,
    segments: [u64; 3],
}

waiting_calls!(AdaptiveWriter);

impl AdaptiveWriter {
    /// Connects to the listener for `service` at `address`; waits at most `timeout` for it to
    /// accept (`None`: ten seconds).
    ///
    /// # Errors
    /// Fails if no listener is there, if it refuses or does not answer in time, or if it is a QPair
    /// listener.
    pub fn connect(
        address: &QPairAddress,
        service: u32,
        chooser: ChooserConfig,
        timeout: Option<Duration>,
    ) -> Result<Self, QPairSocketError> {
        let end = EndConfig { send_bytes: SEND_BYTES, ..EndConfig::default() };
        let options = QPairOptions { end, connect_timeout: timeout, ..QPairOptions::default() };
        let until = options.connect_until();
        let socket = connect(address, service, QPairKind::Messages, &options, DEPTH)?;
        let id = socket.id;
        socket.shared.call(until, |end, now_ns| {
            let (streams, link) = end.streams();
            streams.begin_writing(link, now_ns, id, MAX_INLINE_BYTES, chooser)
        })?;
        let log = ChoiceLog::default();
        Ok(Self { socket, pattern: Pattern::Message, log, segments: [0; 3] })
    }

    /// Sets the access pattern for later writes. Initially [`Pattern::Message`]: the reader waits
    /// for the bytes, which makes the time of one segment count. With [`Pattern::Sequential`] the
    /// throughput counts.
    pub fn set_pattern(&mut self, pattern: Pattern) {
        self.pattern = pattern;
    }

    /// Writes the front of `bytes`, as much as one segment takes; returns how much.
    ///
    /// # Errors
    /// [`QPairSocketError::WouldBlock`] if there is no room, or the error that ended the stream.
    pub fn try_write(&mut self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        self.write_waiting(Wait::Never, bytes)
    }

    /// Writes like [`Write::write`], with the error of this module.
    ///
    /// # Errors
    /// Same as [`AdaptiveWriter::try_write`], except [`QPairSocketError::WouldBlock`];
    /// [`QPairSocketError::TimedOut`].
    pub fn write_some(&mut self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.write_waiting(self.socket.wait(), bytes)
    }

    fn write_waiting(&mut self, wait: Wait, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        let pattern = self.pattern;
        let written = self.socket.shared.send(wait, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.write(link, now_ns, bytes, pattern)?)
        });
        self.note(written?)
    }

    /// Counts a segment and the channel that carried it.
    fn note(
        &mut self,
        (len_bytes, choice): (usize, Option<ChoiceEvent>),
    ) -> Result<usize, QPairSocketError> {
        if let Some(choice) = choice {
            self.segments[choice.channel.index()] += 1;
            self.log.note(&choice);
        }
        Ok(len_bytes)
    }

    /// Writes like [`Write::write`], for tasks.
    ///
    /// # Errors
    /// Same as [`AdaptiveWriter::try_write`], except [`QPairSocketError::WouldBlock`].
    pub async fn write_async(&mut self, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        std::future::poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// Performs one step of [`AdaptiveWriter::write_async`].
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, QPairSocketError>> {
        let pattern = self.pattern;
        let written = self.socket.shared.poll_call(context, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.write(link, now_ns, bytes, pattern)?)
        });
        written.map(|written| {
            self.socket.shared.push();
            self.note(written?)
        })
    }

    /// Ends the stream behind the written bytes: the reader gets all of them, then the end. Does
    /// not wait.
    ///
    /// # Errors
    /// The error that ended the stream.
    pub fn shutdown(&mut self) -> Result<(), QPairSocketError> {
        self.socket.shared.send(Wait::Never, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.finish(link, now_ns)?)
        })
    }

    /// Ends the stream and waits until the reader has read all of it.
    ///
    /// # Errors
    /// The error that ended the stream; [`QPairSocketError::TimedOut`] after the time-out.
    pub fn finish(&mut self) -> Result<(), QPairSocketError> {
        self.shutdown()?;
        self.wait_written(self.socket.wait(), true)
    }

    /// Finishes like [`AdaptiveWriter::finish`], for tasks.
    ///
    /// # Errors
    /// Same as [`AdaptiveWriter::finish`], except the time-out.
    pub async fn finish_async(&mut self) -> Result<(), QPairSocketError> {
        self.shutdown()?;
        std::future::poll_fn(|context| self.poll_written(context, true)).await
    }

    /// Flushes like [`Write::flush`], for tasks.
    ///
    /// # Errors
    /// Same as [`AdaptiveWriter::finish_async`].
    pub async fn flush_async(&mut self) -> Result<(), QPairSocketError> {
        std::future::poll_fn(|context| self.poll_written(context, false)).await
    }

    fn wait_written(&mut self, wait: Wait, to_the_end: bool) -> Result<(), QPairSocketError> {
        self.socket.shared.send(wait, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.check_written(link, now_ns, to_the_end)?)
        })
    }

    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        to_the_end: bool,
    ) -> Poll<Result<(), QPairSocketError>> {
        let written = self.socket.shared.poll_call(context, |end, now_ns| {
            let (streams, link) = end.streams();
            Ok(streams.check_written(link, now_ns, to_the_end)?)
        });
        if written.is_ready() {
            self.socket.shared.push();
        }
        written
    }

    /// Returns the number of segments by channel, indexed by
    /// [`venice_fabric::adaptive::ChannelKind::index`].
    pub fn segments(&self) -> [u64; 3] {
        self.segments
    }
}

/// Writes block, with the time-out of [`AdaptiveWriter::set_timeout`]. A flush waits until the
/// reader was notified of all written bytes.
impl Write for AdaptiveWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(self.write_some(bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(self.wait_written(self.socket.wait(), false)?)
    }
}
