//! A TCP connection that can move to another runtime than the one that accepted it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP connection. Its runtime reports its readiness.
pub(super) struct MovableStream {
    /// `None` only while it moves, or after a failed move.
    stream: Option<TcpStream>,
}

impl MovableStream {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream: Some(stream) }
    }

    /// Moves it to the current runtime.
    ///
    /// # Errors
    /// Fails if the kernel cannot watch another descriptor. The connection is closed then.
    pub(super) fn move_here(&mut self) -> io::Result<()> {
        let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
        self.stream = Some(TcpStream::from_std(stream.into_std()?)?);
        Ok(())
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let stream = self.get_mut().stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(stream))
    }
}

impl AsyncRead for MovableStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buf)
    }
}

impl AsyncWrite for MovableStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(TcpStream::is_write_vectored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::runtime::{Builder, Runtime};

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn moved_stream_survives_its_runtime() {
        let (first, second) = (runtime(), runtime());
        let (mut here, mut there) = first.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addr = listener.local_addr().unwrap();
            let (here, there) = tokio::join!(TcpStream::connect(addr), listener.accept());
            let (mut here, mut there) =
                (MovableStream::new(here.unwrap()), MovableStream::new(there.unwrap().0));
            // Bytes are in flight while it moves.
            here.write_all(b"early").await.unwrap();
            let mut byte = [0];
            there.read_exact(&mut byte).await.unwrap();
            (here, there)
        });
        second.block_on(async {
            here.move_here().unwrap();
            there.move_here().unwrap();
            first.shutdown_background();
            let mut rest = [0; 4];
            there.read_exact(&mut rest).await.unwrap();
            assert_eq!(&rest, b"arly");
            // The new runtime must wake the reader.
            let (said, heard) = tokio::join!(
                async {
                    tokio::task::yield_now().await;
                    here.write_all(b"late").await
                },
                there.read_exact(&mut rest),
            );
            said.unwrap();
            heard.unwrap();
            assert_eq!(&rest, b"late");
        });
    }
}
