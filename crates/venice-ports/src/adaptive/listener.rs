//! The waiting side, which reads.

use std::net::SocketAddr;
use std::time::Duration;

use venice_fabric::EndConfig;
use venice_fabric::adaptive::StreamConfig;
use venice_wire::GrantKey;

use super::AdaptiveReader;
use crate::qpair::{QPairAddress, QPairListener, QPairSocketError, Wait};
use crate::{PortError, random_u64};

/// Messages of the longest kind that a stream's QPair has room for, at least.
const LONG_MESSAGES: u32 = 4;

/// Waits for those who connect to a service to write a stream each.
#[derive(Debug)]
pub struct AdaptiveListener {
    listener: QPairListener,
    config: StreamConfig,
}

impl AdaptiveListener {
    /// Listens at `address` for `service`, any number that who connects must name too.
    ///
    /// # Errors
    /// When the address is taken or cannot be used.
    pub fn bind(address: &QPairAddress, service: u32) -> Result<Self, QPairSocketError> {
        let mut listener = Self {
            listener: QPairListener::bind(address, service)?,
            config: StreamConfig::default(),
        };
        listener.set_config(StreamConfig::default());
        Ok(listener)
    }

    /// How streams accepted from now on are set up, brought within the bounds of
    /// [`StreamConfig::in_bounds`]. Those who connect are told.
    pub fn set_config(&mut self, config: StreamConfig) {
        self.config = config.in_bounds();
        let messages_bytes = LONG_MESSAGES.saturating_mul(self.config.inline_bytes);
        let end = EndConfig::default();
        self.listener.set_end(EndConfig { recv_bytes: end.recv_bytes.max(messages_bytes), ..end });
    }

    /// The UDP address, with the port the system chose if it was to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next stream, within `timeout` (`None`: however long it takes).
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or when the port fails.
    pub fn accept(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<AdaptiveReader, QPairSocketError> {
        let socket = self.listener.accept(timeout)?;
        let key = random_u64().map_err(PortError::at("drawing a random number"))?;
        let (id, config) = (socket.id, self.config);
        socket.shared.send(Wait::Never, |end, now_ns| {
            let (streams, link) = end.streams();
            streams.begin_reading(link, now_ns, id, config, GrantKey(key))
        })?;
        Ok(AdaptiveReader { socket })
    }
}
