//! The listening side of adaptive streams, which reads.

use std::net::SocketAddr;
use std::time::Duration;

use venice_fabric::EndConfig;
use venice_fabric::adaptive::StreamConfig;
use venice_wire::GrantKey;

use super::AdaptiveReader;
use crate::qpair::{QPairAddress, QPairListener, QPairSocketError, Wait};
use crate::{PortError, random_u64};

/// Messages of the longest kind that fit into a stream's QPair, at least.
const LONG_MESSAGES: u32 = 4;

/// Listener of a service: accepts one incoming stream from each writer that connects.
#[derive(Debug)]
pub struct AdaptiveListener {
    listener: QPairListener,
    config: StreamConfig,
}

impl AdaptiveListener {
    /// Listens at `address` for `service`. A writer must name the same number, which may be any.
    ///
    /// # Errors
    /// Fails if the address is taken or unusable.
    pub fn bind(address: &QPairAddress, service: u32) -> Result<Self, QPairSocketError> {
        let mut listener = Self {
            listener: QPairListener::bind_framed(address, service)?,
            config: StreamConfig::default(),
        };
        listener.set_config(StreamConfig::default());
        Ok(listener)
    }

    /// Sets the configuration of streams accepted from now on, clamped by
    /// [`StreamConfig::in_bounds`]. Writers receive it when they connect.
    pub fn set_config(&mut self, config: StreamConfig) {
        self.config = config.in_bounds();
        let messages_bytes = LONG_MESSAGES.saturating_mul(self.config.inline_bytes);
        let end = EndConfig::default();
        self.listener.set_end(EndConfig { recv_bytes: end.recv_bytes.max(messages_bytes), ..end });
    }

    /// Returns the UDP address, with the port the system chose if port 0 was given.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the listener to poll before an accept with a time-out of zero; see
    /// [`QPairListener::fd`].
    pub fn polled(&self) -> &QPairListener {
        &self.listener
    }

    /// Accepts the next stream, within `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or an error of the port.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<AdaptiveReader, QPairSocketError> {
        let socket = self.listener.accept_framed(timeout)?;
        let key = random_u64().map_err(PortError::at("drawing a random number"))?;
        let (id, config) = (socket.id, self.config);
        socket.shared.send(Wait::Never, |end, now_ns| {
            let (streams, link) = end.streams();
            streams.begin_reading(link, now_ns, id, config, GrantKey(key))
        })?;
        Ok(AdaptiveReader { socket })
    }
}
