//! The recipient's side of a connection: blocking, one thread.

use std::time::Duration;

use venice_fabric::{CloseReason, QPairError};
use venice_ports::PortError;
use venice_ports::qpair::{QPairAddress, QPairMessages, QPairOptions, QPairSeal, QPairSocketError};
use venice_ports::seal::SealedAs;
use venice_rack::types::{Endpoint, ServiceAccess};
use venice_wire::{GrantId, KeyName, PortId, SealKey};

use crate::boot_id::boot_id;
use crate::error::ClientError;
use crate::secret::ServiceSecret;
use crate::wire::{
    Batch, BatchKind, BatchWriter, CloseCode, Entry, Hello, MAX_MESSAGE_BYTES, Message,
    QPAIR_SERVICE, VERSION, Welcome, qpair_end,
};

/// Attempts of a connection. A host under a flood of strangers closes the oldest connection without a
/// hello, which may be this one.
const ATTEMPTS: usize = 16;

/// Connection of a recipient to a service host.
///
/// Requests are collected in a batch, which leaves with [`ServiceClient::flush`], or when it is
/// full. Answers come in any order; their ids are those of the requests.
#[derive(Debug)]
pub struct ServiceClient {
    socket: QPairMessages,
    welcome: Welcome,
    batch: BatchWriter,
    buffer: Vec<u8>,
}

impl ServiceClient {
    /// Connects to the service of a grant, at its first endpoint that is reachable from here. Each
    /// call waits at most `timeout`, more than zero; `None`: without limit.
    ///
    /// # Errors
    /// Fails if none is, or with the error of the last one tried; [`ClientError::NoTime`].
    pub fn open(access: &ServiceAccess, timeout: Option<Duration>) -> Result<Self, ClientError> {
        let offered: Vec<_> = access.endpoints.iter().map(Endpoint::to_string).collect();
        let service = access.service.clone();
        let mut last = ClientError::NoEndpoint { service, offered: offered.join(", ") };
        let secret = ServiceSecret::from_bytes(access.secret);
        for address in access.endpoints.iter().filter_map(|it| reachable(it, access.grant)) {
            match Self::connect(&address, &access.service, secret, timeout) {
                Ok(client) => return Ok(client),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to the host at `address` and shows the secret of the grant.
    ///
    /// # Errors
    /// Fails if the host is not there, does not answer within `timeout`, or refuses;
    /// [`ClientError::NoTime`] for a time-out of zero.
    pub fn connect(
        address: &QPairAddress,
        service: &str,
        secret: ServiceSecret,
        timeout: Option<Duration>,
    ) -> Result<Self, ClientError> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(ClientError::NoTime);
        }
        let mut attempts = 1;
        loop {
            match Self::connect_once(address, service, secret, timeout) {
                Err(error) if error.is_pushed_out() && attempts < ATTEMPTS => attempts += 1,
                connected => return connected,
            }
        }
    }

    fn connect_once(
        address: &QPairAddress,
        service: &str,
        secret: ServiceSecret,
        timeout: Option<Duration>,
    ) -> Result<Self, ClientError> {
        let options = QPairOptions { end: qpair_end(), ..QPairOptions::default() };
        let shown = secret.as_bytes();
        let socket = QPairMessages::connect_admitted(address, QPAIR_SERVICE, &options, shown);
        let socket = socket.map_err(|error| match error {
            QPairSocketError::Port(PortError::Refused { .. }) => {
                ClientError::Refused { code: CloseCode::Secret, version: VERSION }
            }
            error => ClientError::QPair(error),
        })?;
        socket.set_timeout(timeout);
        let mut buffer = Vec::new();
        Message::Hello(Hello { version: VERSION, secret, service }).emit(&mut buffer);
        socket.send(&buffer)?;
        buffer.resize(MAX_MESSAGE_BYTES, 0);
        let len = receive(&socket, &mut buffer)?;
        let welcome = match Message::parse(&buffer[..len])? {
            Message::Welcome(welcome) => welcome,
            Message::Refused { code, version } => {
                return Err(ClientError::Refused { code, version });
            }
            Message::Closed(code) => return Err(ClientError::Closed(code)),
            Message::Hello(_) | Message::Requests(_) | Message::Answers(_) => {
                return Err(ClientError::Unexpected);
            }
        };
        let batch = BatchWriter::new(BatchKind::Requests, welcome.max_message_bytes as usize);
        Ok(Self { socket, welcome, batch, buffer })
    }

    /// Returns what the host takes.
    pub fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// Sets the longest wait of each call; `None`: no limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.socket.set_timeout(timeout);
    }

    /// Returns the socket and what the host takes, for a recipient that writes
    /// [`crate::wire`] messages by itself, with several threads.
    pub fn into_parts(self) -> (QPairMessages, Welcome) {
        (self.socket, self.welcome)
    }

    /// Returns the socket, to poll it.
    pub fn socket(&mut self) -> &mut QPairMessages {
        &mut self.socket
    }

    /// Adds a request to the batch; sends the batch before if it is full.
    ///
    /// # Errors
    /// Fails if the request is too long, or the batch cannot be sent.
    pub fn request(&mut self, id: u64, opcode: u16, payload: &[u8]) -> Result<(), ClientError> {
        let entry = Entry { id, code: opcode, payload };
        if self.batch.push(entry) {
            return Ok(());
        }
        self.flush()?;
        if self.batch.push(entry) {
            return Ok(());
        }
        let most = self.welcome.max_request_bytes as usize;
        Err(ClientError::TooLong { bytes: payload.len(), most })
    }

    /// Sends the batch.
    ///
    /// # Errors
    /// Fails if the host is gone, or takes nothing within the time-out.
    pub fn flush(&mut self) -> Result<(), ClientError> {
        if !self.batch.is_empty() {
            self.socket.send(self.batch.message())?;
            self.batch.clear();
        }
        Ok(())
    }

    /// Waits for answers; returns those of one message, at least one.
    ///
    /// # Errors
    /// Fails if the host is gone or has closed the connection, or within the time-out none comes.
    pub fn answers(&mut self) -> Result<Batch<'_>, ClientError> {
        let len = receive(&self.socket, &mut self.buffer)?;
        match Message::parse(&self.buffer[..len])? {
            Message::Answers(batch) => Ok(batch),
            Message::Closed(code) => Err(ClientError::Closed(code)),
            Message::Hello(_)
            | Message::Welcome(_)
            | Message::Refused { .. }
            | Message::Requests(_) => Err(ClientError::Unexpected),
        }
    }

    /// Sends one request and waits for its answer; returns its status and payload. Only for a client
    /// without other requests outstanding.
    ///
    /// # Errors
    /// The errors of [`ServiceClient::request`] and [`ServiceClient::answers`].
    pub fn call(
        &mut self,
        id: u64,
        opcode: u16,
        payload: &[u8],
    ) -> Result<(u16, Vec<u8>), ClientError> {
        self.request(id, opcode, payload)?;
        self.flush()?;
        let mut answers = self.answers()?.entries();
        match (answers.next(), answers.next()) {
            (Some(answer), None) if answer.id == id => Ok((answer.code, answer.payload.to_vec())),
            _ => Err(ClientError::Unexpected),
        }
    }
}

impl ClientError {
    /// True if the host closed a connection without a word.
    fn is_pushed_out(&self) -> bool {
        let reason = CloseReason::PeerClosed;
        match self {
            Self::QPair(QPairSocketError::Closed | QPairSocketError::Port(PortError::Closed)) => {
                true
            }
            Self::QPair(QPairSocketError::QPair(error)) => *error == QPairError::Closed(reason),
            Self::QPair(_)
            | Self::NoEndpoint { .. }
            | Self::Refused { .. }
            | Self::Closed(_)
            | Self::Malformed(_)
            | Self::Unexpected
            | Self::NoTime
            | Self::TooLong { .. } => false,
        }
    }
}

/// Receives the next message; returns its length in bytes, at least 1.
fn receive(socket: &QPairMessages, into: &mut [u8]) -> Result<usize, QPairSocketError> {
    match socket.recv(into)? {
        0 => Err(QPairSocketError::Closed),
        len => Ok(len),
    }
}

/// Returns the address of an endpoint; `None` if it is on another machine, invalid, or of a port
/// that carries no messages.
fn reachable(endpoint: &Endpoint, grant: GrantId) -> Option<QPairAddress> {
    match endpoint.port {
        PortId::Ring => {
            let is_here = endpoint.extra == boot_id().into_bytes();
            is_here.then(|| QPairAddress::ring(&endpoint.address))
        }
        PortId::Udp => {
            let address = endpoint.address.parse().ok()?;
            let seal = match &endpoint.extra[..] {
                [] => None,
                key => {
                    let key = SealKey(key.try_into().ok()?);
                    Some(QPairSeal::As(SealedAs { name: KeyName::Grant(grant), key }))
                }
            };
            Some(QPairAddress::Udp { address, seal })
        }
        PortId::Shm | PortId::Verbs => None,
    }
}
