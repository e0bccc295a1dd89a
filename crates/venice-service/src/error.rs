//! Errors of the supervisor and of recipients.

use std::path::PathBuf;

use venice_ports::qpair::QPairSocketError;
use venice_wire::GrantId;

use crate::wire::{CloseCode, MessageError};

/// Error of a host's start that is known at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Something of a host of this grant is still there.
    #[error("grant {} has a host: end it first", grant.0)]
    InUse {
        /// The grant.
        grant: GrantId,
    },
    /// There are as many hosts as the configuration allows.
    #[error("{max_hosts} service hosts run: end one, or raise the limit")]
    TooMany {
        /// The limit.
        max_hosts: usize,
    },
    /// The spec is invalid.
    #[error("invalid service host: {why}")]
    Invalid {
        /// Reason.
        why: String,
    },
    /// The supervisor's thread has ended.
    #[error("the supervisor of service hosts has ended")]
    Closed,
}

/// Error of a supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Its directory cannot be made or locked.
    #[error("directory of service hosts {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// No range of user ids can be claimed.
    #[error("user ids of service hosts: {0}")]
    Ids(#[source] std::io::Error),
    /// Another process supervises hosts in the same directory.
    #[error("directory of service hosts {}: in use by another process", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// Its thread cannot start.
    #[error("starting the supervisor of service hosts: {0}")]
    Thread(std::io::Error),
}

/// Error of a recipient's connection to a host.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The QPair failed, or the host is gone.
    #[error(transparent)]
    QPair(#[from] QPairSocketError),
    /// No endpoint of the service can be reached from here.
    #[error("service {service}: no endpoint can be reached from this machine (offered: {offered})")]
    NoEndpoint {
        /// The service.
        service: String,
        /// Its endpoints.
        offered: String,
    },
    /// The host refused the connection.
    #[error("service host refused the connection: {code}{}", spoken(*code, *version))]
    Refused {
        /// Reason.
        code: CloseCode,
        /// Version of the host.
        version: u16,
    },
    /// The host closed the connection.
    #[error("service host closed the connection: {0}")]
    Closed(CloseCode),
    /// The host sent something that is no message.
    #[error("service host sent a malformed message: {0}")]
    Malformed(#[from] MessageError),
    /// The host sent a message that does not belong here.
    #[error("service host sent an unexpected message")]
    Unexpected,
    /// A call with this time-out could not wait for any answer.
    #[error("invalid time-out 0: a call waits for its answer; give more, or no limit")]
    NoTime,
    /// A request is longer than the host takes.
    #[error("request of {bytes} bytes: the service takes at most {most}")]
    TooLong {
        /// Length in bytes.
        bytes: usize,
        /// Longest length in bytes.
        most: usize,
    },
}

/// Returns the version of a host, if it is the reason.
fn spoken(code: CloseCode, version: u16) -> String {
    match code == CloseCode::Version {
        true => format!(" (it speaks version {version})"),
        false => String::new(),
    }
}

impl ClientError {
    /// True if no answer came in time; it may still come.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::QPair(QPairSocketError::TimedOut))
    }

    /// True if the host is gone, or has closed the connection.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::QPair(_) | Self::Closed(_)) && !self.is_timeout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_what_matters() {
        let said = |code| ClientError::Refused { code, version: 1 }.to_string();
        assert!(said(CloseCode::Version).ends_with("another version (it speaks version 1)"));
        let full = said(CloseCode::Full);
        assert!(full.contains("its service takes") && !full.contains("version"), "{full}");
    }
}
