//! Errors between a client and a service, and their encoding in gRPC.

use crate::convert;
use crate::proto;
use prost::Message as _;
use thiserror::Error;
use tonic::{Code, Status};
use venice_rack::queueing::{InLine, no_room_text};
use venice_rack::quota::OverQuota;
use venice_rack::types::{RackError, Refusal, ResourceKind};

/// Failure of a call to the Monitor Node or to an agent.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The Monitor Node refused the call.
    #[error(transparent)]
    Rack(RackError),
    /// The donors have less free memory than requested: [`RackError::NoRoom`] in a variant of its
    /// own, because every caller handles it separately.
    #[error("{}", no_room_text(*.asked, .free, .line))]
    NoRoom {
        /// Bytes requested, in whole slabs.
        asked: u64,
        /// Bytes free, by node.
        free: Vec<(String, u64)>,
        /// State of the queue for this request.
        line: InLine,
    },
    /// The rack lists no donor of this name.
    #[error("the rack has no node named {0}: `venice nodes` lists those there are")]
    UnknownNode(String),
    /// A donor refused a step of the handshake.
    #[error("the donor refuses: {0}")]
    Refused(Refusal),
    /// There is no answer at the address.
    #[error("{}", unreachable_text(.peer, .addr))]
    Unreachable {
        /// The called service.
        peer: PeerKind,
        /// The called address.
        addr: String,
        /// True if the connection was refused: there surely is no such process.
        refused: bool,
        /// The network's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This process has no credential.
    #[error("no login to the rack on this machine: {0}")]
    NoLogin(String),
    /// Another peer than the called one answers.
    #[error("wrong peer at {addr}, not the rack's {peer}: {why}")]
    WrongPeer {
        /// The called service.
        peer: PeerKind,
        /// The called address.
        addr: String,
        /// The problem.
        why: String,
    },
    /// The peer does not admit this process.
    #[error("the {peer} at {addr} refuses this caller: {why}")]
    NotAdmitted {
        /// The called service.
        peer: PeerKind,
        /// The called address.
        addr: String,
        /// The peer's reason, and a remedy.
        why: String,
    },
    /// The peer has authenticated the caller, but does not permit the call.
    #[error("{0}")]
    Forbidden(String),
    /// The address is not of the form `host:port`.
    #[error("{addr:?} is not an address of the form HOST:PORT")]
    BadAddress {
        /// The address.
        addr: String,
    },
    /// No answer came in time; the call may have had its effect or not.
    #[error("the {peer} at {addr} did not answer in time")]
    TimedOut {
        /// The called service.
        peer: PeerKind,
        /// The called address.
        addr: String,
    },
    /// The Monitor Node does not know the call.
    #[error("the Monitor Node at {addr} is of an earlier release, which has no {what}: upgrade it")]
    EarlierRelease {
        /// Its address.
        addr: String,
        /// Subject of the call.
        what: &'static str,
    },
    /// The peer uses another protocol, or failed without an explanation.
    #[error("the {peer} at {addr} failed: {message}")]
    Peer {
        /// The called service.
        peer: PeerKind,
        /// The called address.
        addr: String,
        /// The peer's message.
        message: String,
    },
}

/// A called service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerKind {
    /// The Monitor Node.
    MonitorNode,
    /// A node's agent.
    Agent,
}

impl std::fmt::Display for PeerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PeerKind::MonitorNode => "Monitor Node",
            PeerKind::Agent => "agent",
        })
    }
}

/// The peer has a wrong certificate.
#[derive(Debug, Error)]
pub(crate) enum WrongPeer {
    #[error("it is {found}, not {wanted}")]
    Other { found: String, wanted: String },
    #[error(
        "its certificate was not made by an authority known here, or not for this purpose ({0}): if \
         that authority was retired (`venice identity rotate`), join again with `venice join TOKEN` \
         (a token comes from `venice token new` at the Monitor Node) and restart the agent, or start \
         the program again"
    )]
    Untrusted(rustls::Error),
}

fn unreachable_text(peer: &PeerKind, addr: &str) -> String {
    match peer {
        // The address may be another rack's: `venice up` might start a second rack.
        PeerKind::MonitorNode => format!(
            "no Monitor Node answers at {addr}: check the address, or start the Monitor Node there \
             (`venice monitor`)"
        ),
        PeerKind::Agent => format!("no agent answers at {addr}"),
    }
}

impl ControlError {
    /// Converts the status of a failed call.
    pub(crate) fn from_status(peer: PeerKind, addr: &str, status: Status) -> Self {
        if let Some(error) = decode_detail(status.details()) {
            return error;
        }
        let addr = addr.to_owned();
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => ControlError::TimedOut { peer, addr },
            Code::Unavailable | Code::Unknown if cause::<WrongPeer>(&status).is_some() => {
                let why = cause::<WrongPeer>(&status).map(ToString::to_string).unwrap_or_default();
                ControlError::WrongPeer { peer, addr, why }
            }
            Code::Unavailable | Code::Unknown if is_broken(&status) => {
                let refused = is_refused(&status);
                ControlError::Unreachable { peer, addr, refused, source: Box::new(status) }
            }
            Code::Unauthenticated => {
                ControlError::NotAdmitted { peer, addr, why: status.message().to_owned() }
            }
            Code::PermissionDenied => ControlError::Forbidden(status.message().to_owned()),
            _ => ControlError::Peer { peer, addr, message: status.message().to_owned() },
        }
    }
}

impl From<RackError> for ControlError {
    fn from(error: RackError) -> Self {
        match error {
            RackError::NoRoom { asked_bytes, free, line } => {
                ControlError::NoRoom { asked: asked_bytes, free, line }
            }
            RackError::UnknownNode(name) => ControlError::UnknownNode(name),
            other => ControlError::Rack(other),
        }
    }
}

/// True if the connection could not be made, or broke, without an answer of the peer. A connection
/// that breaks under a call has the code Unknown and a cause; a peer's own status has no cause.
fn is_broken(status: &Status) -> bool {
    status.code() == Code::Unavailable || std::error::Error::source(status).is_some()
}

/// True if a connection was refused somewhere down the chain of causes.
pub(crate) fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// Returns the first error of the type `E` down the chain of causes.
pub(crate) fn cause<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|it| it.downcast_ref())
}

/// Converts a Monitor Node's error into a status.
pub(crate) fn rack_status(error: &RackError) -> Status {
    use proto::error_detail::{self, Kind};
    let (code, kind) = match error.clone() {
        RackError::NoRoom { asked_bytes, free, line } => {
            let free = free
                .into_iter()
                .map(|(node, free_bytes)| error_detail::NodeFree { node, free_bytes })
                .collect();
            let InLine { waited_ms, before, most_bytes } = line;
            let no_room = error_detail::NoRoom { asked_bytes, free, waited_ms, before, most_bytes };
            (Code::ResourceExhausted, Kind::NoRoom(no_room))
        }
        RackError::OverQuota(OverQuota { user, kind, asked, used, quota }) => {
            let kind = convert::kind_out(kind);
            let over = error_detail::OverQuota { user, kind, asked, used, quota };
            (Code::ResourceExhausted, Kind::OverQuota(over))
        }
        RackError::NoBandwidth(reason) => {
            (Code::ResourceExhausted, Kind::NoBandwidth(error_detail::NoBandwidth { reason }))
        }
        RackError::NoDevice(reason) => {
            (Code::ResourceExhausted, Kind::NoDevice(error_detail::NoDevice { reason }))
        }
        RackError::UnknownNode(name) => {
            (Code::NotFound, Kind::UnknownNode(error_detail::UnknownNode { name }))
        }
        RackError::NameTaken { name, control_addr } => {
            let taken = error_detail::NameTaken { name, control_addr };
            (Code::AlreadyExists, Kind::NameTaken(taken))
        }
        RackError::NotRegistered => {
            (Code::FailedPrecondition, Kind::NotRegistered(error_detail::NotRegistered {}))
        }
        RackError::BadRequest(reason) => {
            (Code::InvalidArgument, Kind::BadRequest(error_detail::BadRequest { reason }))
        }
        RackError::TooMany(reason) => {
            (Code::ResourceExhausted, Kind::TooMany(error_detail::TooMany { reason }))
        }
        RackError::HandshakeFailed => {
            (Code::Aborted, Kind::HandshakeFailed(error_detail::HandshakeFailed {}))
        }
        RackError::TransferFailed(reason) => {
            (Code::Aborted, Kind::TransferFailed(error_detail::TransferFailed { reason }))
        }
        RackError::StoreFull(why) => {
            (Code::ResourceExhausted, Kind::StoreFull(error_detail::StoreFull { why }))
        }
        // To its caller this is like a peer that no longer answers.
        RackError::Forbidden(reason) => return Status::permission_denied(reason.clone()),
        RackError::BadToken(why) => return Status::unauthenticated(why.clone()),
        RackError::Stopping => return Status::unavailable(error.to_string()),
    };
    status_with(code, error.to_string(), kind)
}

/// Converts a donor's refusal into a status.
pub(crate) fn refusal_status(refusal: &Refusal) -> Status {
    use proto::error_detail::{Kind, Refused, StaleOwnership, WrongEpoch, refused::Reason};
    let (code, reason) = match refusal.clone() {
        Refusal::NoRoom { free_slabs } => {
            (Code::ResourceExhausted, Reason::NoRoomFreeSlabs(free_slabs))
        }
        Refusal::NoDevice(reason) => (Code::ResourceExhausted, Reason::NoDevice(reason)),
        Refusal::UnknownGrant => (Code::NotFound, Reason::UnknownGrant(true)),
        Refusal::WrongEpoch { asked, current } => {
            (Code::FailedPrecondition, Reason::WrongEpoch(WrongEpoch { asked, current }))
        }
        Refusal::Conflict => (Code::AlreadyExists, Reason::Conflict(true)),
        Refusal::StaleOwnership { asked, current } => {
            let stale = StaleOwnership { asked, current };
            (Code::FailedPrecondition, Reason::StaleOwnership(stale))
        }
        Refusal::Failed(message) => (Code::Internal, Reason::Failed(message)),
    };
    status_with(code, refusal.to_string(), Kind::Refused(Refused { reason: Some(reason) }))
}

fn status_with(code: Code, message: String, kind: proto::error_detail::Kind) -> Status {
    let detail = proto::ErrorDetail { kind: Some(kind) };
    Status::with_details(code, message, detail.encode_to_vec().into())
}

fn decode_detail(details: &[u8]) -> Option<ControlError> {
    use proto::error_detail::{self, Kind, refused::Reason};
    if details.is_empty() {
        return None;
    }
    let rack = match proto::ErrorDetail::decode(details).ok()?.kind? {
        Kind::NoRoom(no_room) => RackError::NoRoom {
            asked_bytes: no_room.asked_bytes,
            free: no_room.free.into_iter().map(|entry| (entry.node, entry.free_bytes)).collect(),
            line: InLine {
                waited_ms: no_room.waited_ms,
                before: no_room.before,
                most_bytes: no_room.most_bytes,
            },
        },
        Kind::OverQuota(error_detail::OverQuota { user, asked, used, quota, kind }) => {
            let kind = match kind {
                // The last release counted memory only.
                0 => ResourceKind::Memory,
                number => convert::kind_in(number).ok()?,
            };
            RackError::OverQuota(OverQuota { user, kind, asked, used, quota })
        }
        Kind::NoBandwidth(no_bandwidth) => RackError::NoBandwidth(no_bandwidth.reason),
        Kind::NoDevice(no_device) => RackError::NoDevice(no_device.reason),
        Kind::UnknownNode(unknown) => RackError::UnknownNode(unknown.name),
        Kind::NameTaken(taken) => {
            RackError::NameTaken { name: taken.name, control_addr: taken.control_addr }
        }
        Kind::NotRegistered(_) => RackError::NotRegistered,
        Kind::BadRequest(bad) => RackError::BadRequest(bad.reason),
        Kind::TooMany(too_many) => RackError::TooMany(too_many.reason),
        Kind::HandshakeFailed(_) => RackError::HandshakeFailed,
        Kind::TransferFailed(failed) => RackError::TransferFailed(failed.reason),
        Kind::StoreFull(full) => RackError::StoreFull(full.why),
        Kind::Refused(refused) => {
            let refusal = match refused.reason? {
                Reason::NoRoomFreeSlabs(free_slabs) => Refusal::NoRoom { free_slabs },
                Reason::NoDevice(reason) => Refusal::NoDevice(reason),
                Reason::UnknownGrant(_) => Refusal::UnknownGrant,
                Reason::WrongEpoch(wrong) => {
                    Refusal::WrongEpoch { asked: wrong.asked, current: wrong.current }
                }
                Reason::Conflict(_) => Refusal::Conflict,
                Reason::StaleOwnership(stale) => {
                    Refusal::StaleOwnership { asked: stale.asked, current: stale.current }
                }
                Reason::Failed(message) => Refusal::Failed(message),
            };
            return Some(ControlError::Refused(refusal));
        }
    };
    Some(rack.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn across(status: Status) -> ControlError {
        ControlError::from_status(PeerKind::Agent, "here:1", status)
    }

    #[test]
    fn rack_errors_roundtrip() {
        let errors = [
            RackError::NameTaken { name: "node1".into(), control_addr: "h:1".into() },
            RackError::NotRegistered,
            RackError::BadRequest("no".into()),
            RackError::TooMany("wait".into()),
            RackError::NoBandwidth("busy".into()),
            RackError::NoDevice("none".into()),
            RackError::HandshakeFailed,
            RackError::TransferFailed("mapped".into()),
            RackError::OverQuota(OverQuota {
                user: "ada".into(),
                kind: ResourceKind::Nic,
                asked: 1,
                used: 2,
                quota: 2,
            }),
        ];
        for error in errors {
            match across(rack_status(&error)) {
                ControlError::Rack(back) => assert_eq!(back, error),
                other => panic!("{error:?} came back as {other:?}"),
            }
        }
    }

    #[test]
    fn unreachable_monitor_text_names_no_rack() {
        for addr in ["127.0.0.1:1", "10.0.0.1:7470", "host1:1,host2:1"] {
            let said = unreachable_text(&PeerKind::MonitorNode, addr);
            assert!(said.contains(addr) && said.contains("`venice monitor`"), "{said}");
            assert!(!said.contains("venice up"), "{said}");
        }
    }

    #[test]
    fn no_room_and_unknown_node_are_separate() {
        let free = vec![("node1".to_owned(), 3 << 24)];
        let line = InLine { waited_ms: 7, before: vec!["ada@h".to_owned()], most_bytes: Some(9) };
        let (asked_bytes, said) = (1 << 30, line.clone());
        let no_room = RackError::NoRoom { asked_bytes, free: free.clone(), line };
        match across(rack_status(&no_room)) {
            ControlError::NoRoom { asked, free: back, line } => {
                assert_eq!((asked, back, line), (asked_bytes, free, said));
            }
            other => panic!("{other:?}"),
        }
        match across(rack_status(&RackError::UnknownNode("x".into()))) {
            ControlError::UnknownNode(name) => assert_eq!(name, "x"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusals_roundtrip() {
        let refusals = [
            Refusal::NoRoom { free_slabs: 0 },
            Refusal::UnknownGrant,
            Refusal::WrongEpoch { asked: 1, current: 2 },
            Refusal::Conflict,
            Refusal::StaleOwnership { asked: 2, current: 3 },
            Refusal::NoDevice("gone".into()),
            Refusal::Failed("mlock".into()),
        ];
        for refusal in refusals {
            match across(refusal_status(&refusal)) {
                ControlError::Refused(back) => assert_eq!(back, refusal),
                other => panic!("{refusal:?} came back as {other:?}"),
            }
        }
    }

    #[test]
    fn garbage_details_do_not_panic() {
        let status = Status::with_details(Code::Internal, "odd", vec![0xff; 9].into());
        assert!(matches!(across(status), ControlError::Peer { .. }));
    }
}
