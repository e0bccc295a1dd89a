//! A stream with a bounded life: once its bound is reached, every operation fails.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bound of a stream's life.
pub(super) trait Bound: Unpin {
    /// Fails with [`io::ErrorKind::TimedOut`] once the stream is to be closed. Wakes the task then.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()>;

    /// Notes that the peer has sent something.
    fn note_heard(&mut self) {}
}

/// A stream and the bound of its life.
pub(super) struct BoundedStream<S, B> {
    pub(super) stream: S,
    pub(super) bound: B,
}

impl<S: AsyncRead + Unpin, B: Bound> AsyncRead for BoundedStream<S, B> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.bound.check(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.bound.note_heard();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, B: Bound> AsyncWrite for BoundedStream<S, B> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bound.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bound.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bound.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bound.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
