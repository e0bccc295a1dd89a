//! Errors of a program's login at the sockets of its machine, with advice.

mod standstill;

pub(super) use standstill::Standstill;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Record that `venice up` writes to its run directory, beside its sockets.
pub const RECORD_FILE: &str = "rack.json";

/// Error of one socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SocketError {
    /// A process listens but does not answer.
    Late(Standstill),
    /// No permission to connect.
    NotAllowed,
    /// The socket exists, but no process listens.
    NobodyListens,
    /// Another error, reported by the daemon.
    Reported(String),
    /// The socket does not exist.
    Missing,
}

impl SocketError {
    /// Converts a connection error.
    pub(super) fn connecting(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => SocketError::NotAllowed,
            std::io::ErrorKind::NotFound => SocketError::Missing,
            std::io::ErrorKind::ConnectionRefused => SocketError::NobodyListens,
            // Its queue of connections is full.
            std::io::ErrorKind::WouldBlock => SocketError::Late(Standstill::Unknown),
            _ => SocketError::Reported(error.to_string()),
        }
    }

    fn text(&self) -> &str {
        match self {
            SocketError::Late(_) => "no answer in time",
            SocketError::NotAllowed => "permission denied",
            SocketError::NobodyListens => "no process listens",
            SocketError::Reported(why) => why,
            SocketError::Missing => "no such socket",
        }
    }
}

/// Describes all errors in one line. Missing sockets are named only if all are missing: a machine
/// has one or two of those that are looked for.
pub(super) fn text(failed: &[(PathBuf, SocketError)]) -> String {
    let there: Vec<_> = failed.iter().filter(|(_, why)| *why != SocketError::Missing).collect();
    let Some((path, worst)) = there.iter().min_by_key(|(_, why)| why) else {
        return format!(
            "no socket of a Monitor Node or an agent on this machine{}: run this on a machine of the \
             rack; a machine joins with `venice join TOKEN`",
            looked_in(failed)
        );
    };
    let said = there.iter().map(|(path, why)| format!("{}: {}", path.display(), why.text()));
    let said = said.collect::<Vec<_>>().join("; ");
    match advice(path, worst) {
        Some(advice) => format!("{said}: {advice}"),
        None => said,
    }
}

fn looked_in(failed: &[(PathBuf, SocketError)]) -> String {
    let dirs: BTreeSet<_> = failed.iter().filter_map(|(path, _)| path.parent()).collect();
    let dirs: Vec<_> = dirs.into_iter().map(|dir| dir.display().to_string()).collect();
    match dirs.is_empty() {
        true => String::new(),
        false => format!(" (looked in {})", dirs.join(", ")),
    }
}

fn advice(path: &Path, worst: &SocketError) -> Option<String> {
    let name = path.file_stem().and_then(|name| name.to_str());
    let (who, command) = match name {
        Some("monitor") => ("the Monitor Node", "`venice monitor`"),
        Some("agent") => ("the agent", "`venice agent`"),
        _ => ("the daemon", "it"),
    };
    Some(match worst {
        SocketError::Late(standstill) => standstill.advice(who),
        SocketError::NotAllowed => {
            "run this as root, as the daemon's user, or as a member of the group venice".to_owned()
        }
        SocketError::NobodyListens if path.with_file_name(RECORD_FILE).exists() => {
            format!("restart {who} with `venice up`")
        }
        SocketError::NobodyListens => {
            format!("restart {who} as it was started: {command} with its options, or its service")
        }
        SocketError::Reported(_) | SocketError::Missing => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(found: &[(&str, SocketError)]) -> String {
        let found: Vec<_> = found.iter().map(|(path, why)| (path.into(), why.clone())).collect();
        text(&found)
    }

    #[test]
    fn advice_matches_worst_socket_error() {
        let missing = ("/run/venice/monitor.sock", SocketError::Missing);
        let hangs = ("/tmp/x/monitor.sock", SocketError::Late(Standstill::Unknown));
        let said =
            of(&[missing.clone(), hangs.clone(), ("/tmp/x/agent.sock", SocketError::Missing)]);
        assert!(
            said.starts_with(
                "/tmp/x/monitor.sock: no answer in time: the Monitor Node is overloaded"
            )
        );
        assert!(!said.contains("no such socket") && !said.contains("group"), "{said}");
        let said = of(&[("/x/agent.sock", SocketError::NobodyListens), hangs]);
        assert!(
            said.contains("agent.sock: no process listens") && said.contains("hangs"),
            "{said}"
        );
        let said = of(&[("/x/agent.sock", SocketError::NotAllowed), missing.clone()]);
        assert!(said.contains("group venice"), "{said}");
        let said = of(&[("/x/agent.sock", SocketError::NobodyListens)]);
        assert!(said.contains("restart the agent") && said.contains("`venice agent`"), "{said}");
        assert!(!said.contains("venice up"), "{said}");
        let up = tempfile::tempdir().unwrap();
        std::fs::write(up.path().join(RECORD_FILE), "{}").unwrap();
        let socket = up.path().join("monitor.sock");
        let said = of(&[(socket.to_str().unwrap(), SocketError::NobodyListens)]);
        assert!(said.ends_with("restart the Monitor Node with `venice up`"), "{said}");
        let said = of(&[missing]);
        assert!(said.contains("looked in /run/venice)") && said.contains("venice join"), "{said}");
        assert_eq!(of(&[("/x/s", SocketError::Reported("no".into()))]), "/x/s: no");
    }
}
