//! Messages between a recipient and a service host, read without copying. `docs/reference/wire.md`
//! describes the bytes.

use venice_fabric::EndConfig;

use crate::secret::ServiceSecret;

/// Version of the messages.
pub const VERSION: u16 = 1;
/// Longest name of a service in bytes.
pub const MAX_NAME_BYTES: usize = 32;
/// Longest message in bytes: a QPair carries no longer one.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Bytes of a batch before its first entry.
pub const BATCH_HEADER_BYTES: usize = 8;
/// Bytes of an entry before its payload.
pub const ENTRY_HEADER_BYTES: usize = 16;
/// Longest payload of an entry in bytes.
pub const MAX_PAYLOAD_BYTES: usize = MAX_MESSAGE_BYTES - BATCH_HEADER_BYTES - ENTRY_HEADER_BYTES;

/// Number by which QPairs of services are requested.
pub const QPAIR_SERVICE: u32 = u32::from_le_bytes(*b"VNSV");

/// Returns the buffers of either end of a service's QPair: room for several of the longest messages.
pub fn qpair_end() -> EndConfig {
    EndConfig { send_bytes: 256 << 10, recv_bytes: 256 << 10, ..EndConfig::default() }
}

const MAGIC: [u8; 4] = *b"VNSV";
const HELLO_BYTES: usize = BATCH_HEADER_BYTES + ServiceSecret::BYTES;
const WELCOME_BYTES: usize = BATCH_HEADER_BYTES + 16;

/// Kind of a message: its fifth byte.
mod kind {
    pub const HELLO: u8 = 1;
    pub const WELCOME: u8 = 2;
    pub const REFUSED: u8 = 3;
    pub const REQUESTS: u8 = 4;
    pub const ANSWERS: u8 = 5;
    pub const CLOSED: u8 = 6;
}

/// Reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Shorter than its fields say, or longer.
    #[error("message length does not match its fields")]
    Length,
    /// Another magic: not a message of this protocol.
    #[error("not a message of a service")]
    Magic,
    /// A kind that does not exist.
    #[error("unknown kind of message")]
    Kind,
    /// A batch without entries.
    #[error("batch without entries")]
    Empty,
    /// A name that is empty, too long, or no text.
    #[error("malformed service name")]
    Name,
    /// A code that does not exist.
    #[error("unknown code")]
    Code,
}

/// Reason of a refusal or of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CloseCode {
    /// The host speaks another version, which the refusal carries.
    Version = 1,
    /// The secret is not the grant's.
    Secret = 2,
    /// The host serves another service.
    Service = 3,
    /// The host has its maximum of connections.
    Full = 4,
    /// A message that is malformed, or that does not belong here.
    Protocol = 5,
    /// More requests outstanding than the welcome allowed.
    Outstanding = 6,
    /// An id that an outstanding request has.
    DuplicateId = 7,
    /// A request longer than the welcome allowed.
    TooLong = 8,
    /// No hello within the time for it.
    Silent = 9,
}

impl CloseCode {
    fn from_byte(byte: u8) -> Result<Self, MessageError> {
        Ok(match byte {
            1 => Self::Version,
            2 => Self::Secret,
            3 => Self::Service,
            4 => Self::Full,
            5 => Self::Protocol,
            6 => Self::Outstanding,
            7 => Self::DuplicateId,
            8 => Self::TooLong,
            9 => Self::Silent,
            _ => return Err(MessageError::Code),
        })
    }
}

impl std::fmt::Display for CloseCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Version => "the host speaks another version",
            Self::Secret => "wrong secret",
            Self::Service => "the host serves another service",
            Self::Full => "as many processes use the device as its service takes: end one",
            Self::Protocol => "malformed or unexpected message",
            Self::Outstanding => "more requests outstanding than allowed",
            Self::DuplicateId => "id of an outstanding request used again",
            Self::TooLong => "request longer than allowed",
            Self::Silent => "no hello in time",
        })
    }
}

/// First message of a recipient.
#[derive(Clone, Copy, Debug)]
pub struct Hello<'a> {
    /// Version of the recipient.
    pub version: u16,
    /// Secret that it shows.
    pub secret: ServiceSecret,
    /// Service that it expects.
    pub service: &'a str,
}

/// Answer to a hello: what the recipient may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Version of the host.
    pub version: u16,
    /// Longest payload of a request in bytes.
    pub max_request_bytes: u32,
    /// Longest payload of an answer in bytes.
    pub max_answer_bytes: u32,
    /// Requests that may be outstanding at a time.
    pub max_outstanding: u32,
    /// Longest message in bytes.
    pub max_message_bytes: u32,
}

/// Entry of a batch: a request, or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Number that the recipient chose for the request.
    pub id: u64,
    /// Opcode of a request, status of an answer.
    pub code: u16,
    /// Bytes for the service or from it.
    pub payload: &'a [u8],
}

/// Entries of one message. They were checked when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    count: u16,
    entries: &'a [u8],
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// See [`Hello`].
    Hello(Hello<'a>),
    /// See [`Welcome`].
    Welcome(Welcome),
    /// The host admits no such recipient.
    Refused {
        /// Reason.
        code: CloseCode,
        /// Version of the host.
        version: u16,
    },
    /// Requests of a recipient.
    Requests(Batch<'a>),
    /// Answers of a host.
    Answers(Batch<'a>),
    /// The host ends the connection.
    Closed(CloseCode),
}

impl<'a> Message<'a> {
    /// Reads a message. Every length in it is checked here.
    ///
    /// # Errors
    /// Fails if the bytes are not exactly one message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (head, body) =
            bytes.split_at_checked(BATCH_HEADER_BYTES).ok_or(MessageError::Length)?;
        if head[..4] != MAGIC {
            return Err(MessageError::Magic);
        }
        let (detail, number) = (head[5], u16::from_le_bytes([head[6], head[7]]));
        let bare = |message| if body.is_empty() { Ok(message) } else { Err(MessageError::Length) };
        match head[4] {
            kind::HELLO => parse_hello(detail, number, body),
            kind::WELCOME => parse_welcome(number, body),
            kind::REFUSED => {
                bare(Self::Refused { code: CloseCode::from_byte(detail)?, version: number })
            }
            kind::REQUESTS => Ok(Self::Requests(Batch::parse(number, body)?)),
            kind::ANSWERS => Ok(Self::Answers(Batch::parse(number, body)?)),
            kind::CLOSED => bare(Self::Closed(CloseCode::from_byte(detail)?)),
            _ => Err(MessageError::Kind),
        }
    }

    /// Writes the message to `into`, which is cleared before.
    ///
    /// # Panics
    /// If a hello's name is longer than [`MAX_NAME_BYTES`].
    pub fn emit(&self, into: &mut Vec<u8>) {
        into.clear();
        match self {
            Self::Hello(hello) => {
                assert!(hello.service.len() <= MAX_NAME_BYTES, "service name too long");
                head(into, kind::HELLO, hello.service.len() as u8, hello.version);
                into.extend_from_slice(hello.secret.as_bytes());
                into.extend_from_slice(hello.service.as_bytes());
            }
            Self::Welcome(welcome) => {
                head(into, kind::WELCOME, 0, welcome.version);
                for number in [
                    welcome.max_request_bytes,
                    welcome.max_answer_bytes,
                    welcome.max_outstanding,
                    welcome.max_message_bytes,
                ] {
                    into.extend_from_slice(&number.to_le_bytes());
                }
            }
            Self::Refused { code, version } => head(into, kind::REFUSED, *code as u8, *version),
            Self::Closed(code) => head(into, kind::CLOSED, *code as u8, 0),
            Self::Requests(batch) => batch.emit(kind::REQUESTS, into),
            Self::Answers(batch) => batch.emit(kind::ANSWERS, into),
        }
    }
}

fn head(into: &mut Vec<u8>, kind: u8, detail: u8, number: u16) {
    into.extend_from_slice(&MAGIC);
    into.extend_from_slice(&[kind, detail]);
    into.extend_from_slice(&number.to_le_bytes());
}

fn parse_hello(name_bytes: u8, version: u16, body: &[u8]) -> Result<Message<'_>, MessageError> {
    let name_bytes = usize::from(name_bytes);
    if name_bytes == 0 || name_bytes > MAX_NAME_BYTES {
        return Err(MessageError::Name);
    }
    let (secret, name) = body.split_first_chunk().ok_or(MessageError::Length)?;
    if name.len() != name_bytes {
        return Err(MessageError::Length);
    }
    let service = std::str::from_utf8(name).map_err(|_| MessageError::Name)?;
    Ok(Message::Hello(Hello { version, secret: ServiceSecret::from_bytes(*secret), service }))
}

fn parse_welcome(version: u16, body: &[u8]) -> Result<Message<'_>, MessageError> {
    let body: &[u8; 16] = body.try_into().map_err(|_| MessageError::Length)?;
    let number = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"));
    Ok(Message::Welcome(Welcome {
        version,
        max_request_bytes: number(0),
        max_answer_bytes: number(4),
        max_outstanding: number(8),
        max_message_bytes: number(12),
    }))
}

impl<'a> Batch<'a> {
    fn parse(count: u16, entries: &'a [u8]) -> Result<Self, MessageError> {
        if count == 0 {
            return Err(MessageError::Empty);
        }
        let mut rest = entries;
        for _ in 0..count {
            (_, rest) = Entry::split(rest).ok_or(MessageError::Length)?;
        }
        if rest.is_empty() { Ok(Self { count, entries }) } else { Err(MessageError::Length) }
    }

    /// Returns the number of entries; at least 1.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns the entries in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = self.entries;
        (0..self.count).map(move |_| {
            let (entry, after) = Entry::split(rest).expect("checked when the batch was read");
            rest = after;
            entry
        })
    }

    fn emit(&self, kind: u8, into: &mut Vec<u8>) {
        head(into, kind, 0, self.count);
        into.extend_from_slice(self.entries);
    }
}

impl<'a> Entry<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk::<ENTRY_HEADER_BYTES>()?;
        let id = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        let code = u16::from_le_bytes([head[8], head[9]]);
        let len = u32::from_le_bytes(head[12..].try_into().expect("four bytes"));
        let (payload, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        Some((Self { id, code, payload }, rest))
    }
}

/// Direction of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// From a recipient.
    Requests,
    /// From a host.
    Answers,
}

/// A batch that is being written.
#[derive(Clone, Debug)]
pub struct BatchWriter {
    bytes: Vec<u8>,
    max_bytes: usize,
    count: u16,
}

impl BatchWriter {
    /// Begins a batch of at most `max_bytes`, and never more than [`MAX_MESSAGE_BYTES`].
    pub fn new(kind: BatchKind, max_bytes: usize) -> Self {
        let mut bytes = Vec::new();
        let kind = match kind {
            BatchKind::Requests => kind::REQUESTS,
            BatchKind::Answers => kind::ANSWERS,
        };
        head(&mut bytes, kind, 0, 0);
        Self { bytes, max_bytes: max_bytes.min(MAX_MESSAGE_BYTES), count: 0 }
    }

    /// Adds an entry; `false` if it does not fit: send the batch first.
    #[must_use]
    pub fn push(&mut self, entry: Entry<'_>) -> bool {
        let len = self.bytes.len() + ENTRY_HEADER_BYTES + entry.payload.len();
        if len > self.max_bytes || self.count == u16::MAX {
            return false;
        }
        self.bytes.extend_from_slice(&entry.id.to_le_bytes());
        self.bytes.extend_from_slice(&entry.code.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(entry.payload.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(entry.payload);
        self.count += 1;
        self.bytes[6..8].copy_from_slice(&self.count.to_le_bytes());
        true
    }

    /// True if it has no entry, and is no message yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the message.
    pub fn message(&self) -> &[u8] {
        &self.bytes
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.bytes.truncate(BATCH_HEADER_BYTES);
        self.count = 0;
    }
}

const _: () = assert!(HELLO_BYTES == 40 && WELCOME_BYTES == 24, "as the wire reference says");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(message: Message<'_>) {
        let (mut bytes, mut again) = (Vec::new(), Vec::new());
        message.emit(&mut bytes);
        Message::parse(&bytes).unwrap().emit(&mut again);
        assert_eq!(bytes, again);
        for cut in 0..bytes.len() {
            assert!(Message::parse(&bytes[..cut]).is_err(), "cut to {cut}");
        }
        bytes.push(0);
        assert!(Message::parse(&bytes).is_err(), "one byte more");
    }

    #[test]
    fn messages_read_back() {
        let secret = ServiceSecret::from_bytes([9; 32]);
        round_trip(Message::Hello(Hello { version: 1, secret, service: "echo" }));
        round_trip(Message::Welcome(Welcome {
            version: 1,
            max_request_bytes: 2,
            max_answer_bytes: 3,
            max_outstanding: 4,
            max_message_bytes: 5,
        }));
        round_trip(Message::Refused { code: CloseCode::Secret, version: 1 });
        round_trip(Message::Closed(CloseCode::Silent));
        let mut batch = BatchWriter::new(BatchKind::Requests, 1000);
        assert!(batch.push(Entry { id: 1, code: 2, payload: b"abc" }));
        assert!(batch.push(Entry { id: u64::MAX, code: 0, payload: b"" }));
        let Ok(Message::Requests(read)) = Message::parse(batch.message()) else { panic!() };
        let ids: Vec<_> = read.entries().map(|entry| (entry.id, entry.payload.len())).collect();
        assert_eq!(ids, [(1, 3), (u64::MAX, 0)]);
        round_trip(Message::Requests(read));
    }

    #[test]
    fn huge_lengths_are_refused() {
        let mut batch = BatchWriter::new(BatchKind::Requests, 1000);
        assert!(batch.push(Entry { id: 1, code: 2, payload: b"abc" }));
        for len in [u32::MAX, 1 << 31, 4, 2, 0] {
            let mut bytes = batch.message().to_vec();
            bytes[20..24].copy_from_slice(&len.to_le_bytes());
            assert_eq!(Message::parse(&bytes).unwrap_err(), MessageError::Length, "{len}");
        }
        for count in [0, 2, u16::MAX] {
            let mut bytes = batch.message().to_vec();
            bytes[6..8].copy_from_slice(&count.to_le_bytes());
            assert!(Message::parse(&bytes).is_err(), "{count} entries");
        }
    }

    #[test]
    fn full_batch_refuses_entries() {
        let mut batch = BatchWriter::new(BatchKind::Answers, 40);
        assert!(batch.push(Entry { id: 1, code: 0, payload: &[0; 16] }));
        assert!(!batch.push(Entry { id: 2, code: 0, payload: &[] }));
        batch.clear();
        assert!(batch.is_empty() && batch.push(Entry { id: 2, code: 0, payload: &[] }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..8) {
            let mut bytes = bytes;
            let _ = Message::parse(&bytes);
            if bytes.len() >= 5 {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4] = kind;
            }
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = Vec::new();
                message.emit(&mut again);
                // Bytes that a reader ignores are written as 0.
                prop_assert_eq!(again.len(), bytes.len());
            }
        }
    }
}
