//! The listening side of connections.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use venice_ports::adaptive::AdaptiveListener;
use venice_ports::qpair::{QPairAddress, QPairListener, QPairSeal, QPairSocketError};

use super::connection::{Connection, Kind};
use super::{Address, Error, Options};

/// Listener for connections of one kind.
///
/// Any threads may accept at the same time, while one polls the descriptor.
#[derive(Debug)]
pub struct Listener {
    inner: Inner,
    kind: Kind,
    address: Address,
}

#[derive(Debug)]
enum Inner {
    QPairs(QPairListener),
    Adaptive(AdaptiveListener),
}

impl Listener {
    /// Listens at `address`. Over shm, replaces a socket that a dead process left behind; the
    /// socket's file is removed on drop.
    ///
    /// # Errors
    /// [`Error::Listen`] if the address is taken or unusable; [`Error::Unprotected`],
    /// [`Error::Unsupported`], [`Error::UnusedOption`], [`Error::Size`], [`Error::Address`].
    pub fn bind(address: &Address, kind: Kind, options: &Options) -> Result<Self, Error> {
        kind.check_port(address)?;
        kind.check_buffer(options)?;
        options.check_no_timeout("a listener")?;
        let seal = options.seal().map(|key| QPairSeal::Keys(Arc::new(key.secret())));
        let at = qpair_address(address, options, seal)?;
        let failed = |error: QPairSocketError| Error::listening(address, error);
        let (inner, local) = match kind {
            Kind::Messages | Kind::Stream => {
                let mut listener = QPairListener::bind(&at, kind.service()).map_err(failed)?;
                listener.set_end(options.end());
                let local = listener.local_addr();
                (Inner::QPairs(listener), local)
            }
            Kind::Adaptive => {
                let listener = AdaptiveListener::bind(&at, kind.service()).map_err(failed)?;
                let local = listener.local_addr();
                (Inner::Adaptive(listener), local)
            }
        };
        let address = local.map_or_else(|| address.clone(), |local| address.at(local));
        Ok(Self { inner, kind, address })
    }

    /// Returns its address, with the port number that the system chose if 0 was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the kind of its connections.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Accepts the next connection, within `timeout`; `None`: without limit.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Forked`], [`Error::System`].
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Connection, Error> {
        match (&self.inner, self.kind) {
            (Inner::Adaptive(listener), _) => Connection::reading(listener.accept(timeout)?),
            (Inner::QPairs(listener), Kind::Stream) => {
                Connection::streaming(listener.accept_stream(timeout)?)
            }
            (Inner::QPairs(listener), Kind::Messages | Kind::Adaptive) => {
                Connection::messaging(listener.accept_messages(timeout)?)
            }
        }
    }

    /// Accepts the next connection if one waits.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if none does; else those of [`Listener::accept`].
    pub fn try_accept(&self) -> Result<Connection, Error> {
        self.polled().attend();
        match self.accept(Some(Duration::ZERO)) {
            Err(Error::TimedOut) => Err(Error::WouldBlock),
            accepted => accepted,
        }
    }

    /// Returns the descriptor to poll for input after [`Listener::arm`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.polled().fd()
    }

    /// Prepares to poll [`Listener::fd`]. `false`: try again first, do not wait.
    pub fn arm(&self) -> bool {
        self.polled().arm()
    }

    fn polled(&self) -> &QPairListener {
        match &self.inner {
            Inner::QPairs(listener) => listener,
            Inner::Adaptive(listener) => listener.polled(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

/// Converts an address of a port that carries messages.
pub(super) fn qpair_address(
    address: &Address,
    options: &Options,
    seal: Option<QPairSeal>,
) -> Result<QPairAddress, Error> {
    options.check_protection(address)?;
    match address.path() {
        Some(path) => Ok(QPairAddress::ring(path)),
        None => Ok(QPairAddress::Udp { address: address.resolve()?, seal }),
    }
}
