//! Errors of a program's login at the sockets of its machine, with advice.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Record that `venice up` writes to its run directory, beside its sockets.
pub const RECORD_FILE: &str = "rack.json";

/// Error of one socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NoEntry {
    /// A process listens but does not answer.
    Late,
    /// No permission to connect.
    NotAllowed,
    /// The socket exists, but no process listens.
    NobodyListens,
    /// Another error, reported by the daemon.
    Said(String),
    /// The socket does not exist.
    Missing,
}

impl NoEntry {
    /// Converts a connection error.
    pub(super) fn connecting(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => NoEntry::NotAllowed,
            std::io::ErrorKind::NotFound => NoEntry::Missing,
            std::io::ErrorKind::ConnectionRefused => NoEntry::NobodyListens,
            _ => NoEntry::Said(error.to_string()),
        }
    }

    fn text(&self) -> &str {
        match self {
            NoEntry::Late => "no answer in time",
            NoEntry::NotAllowed => "permission denied",
            NoEntry::NobodyListens => "no process listens",
            NoEntry::Said(why) => why,
            NoEntry::Missing => "no such socket",
        }
    }
}

/// Describes all errors in one line. Missing sockets are named only if all are missing: a machine
/// has one or two of those that are looked for.
pub(super) fn text(failed: &[(PathBuf, NoEntry)]) -> String {
    let there: Vec<_> = failed.iter().filter(|(_, why)| *why != NoEntry::Missing).collect();
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

fn looked_in(failed: &[(PathBuf, NoEntry)]) -> String {
    let dirs: BTreeSet<_> = failed.iter().filter_map(|(path, _)| path.parent()).collect();
    let dirs: Vec<_> = dirs.into_iter().map(|dir| dir.display().to_string()).collect();
    match dirs.is_empty() {
        true => String::new(),
        false => format!(" (looked in {})", dirs.join(", ")),
    }
}

fn advice(path: &Path, worst: &NoEntry) -> Option<String> {
    let name = path.file_stem().and_then(|name| name.to_str());
    let (who, command) = match name {
        Some("monitor") => ("the Monitor Node", "`venice monitor`"),
        Some("agent") => ("the agent", "`venice agent`"),
        _ => ("the daemon", "it"),
    };
    Some(match worst {
        NoEntry::Late => format!(
            "{who} hangs or is stopped: resume it (kill -CONT), or kill it (kill -9) and restart it"
        ),
        NoEntry::NotAllowed => {
            "run this as root, as the daemon's user, or as a member of the group venice".to_owned()
        }
        NoEntry::NobodyListens if path.with_file_name(RECORD_FILE).exists() => {
            format!("restart {who} with `venice up`")
        }
        NoEntry::NobodyListens => format!("restart {who} with {command}"),
        NoEntry::Said(_) | NoEntry::Missing => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(found: &[(&str, NoEntry)]) -> String {
        let found: Vec<_> = found.iter().map(|(path, why)| (path.into(), why.clone())).collect();
        text(&found)
    }

    #[test]
    fn advice_matches_worst_socket_error() {
        let missing = ("/run/venice/monitor.sock", NoEntry::Missing);
        let hangs = ("/tmp/x/monitor.sock", NoEntry::Late);
        let said = of(&[missing.clone(), hangs.clone(), ("/tmp/x/agent.sock", NoEntry::Missing)]);
        assert!(said.starts_with("/tmp/x/monitor.sock: no answer in time: the Monitor Node hangs"));
        assert!(!said.contains("no such socket") && !said.contains("group"), "{said}");
        let said = of(&[("/x/agent.sock", NoEntry::NobodyListens), hangs]);
        assert!(said.contains("agent.sock: no process listens") && said.contains("hangs"), "{said}");
        let said = of(&[("/x/agent.sock", NoEntry::NotAllowed), missing.clone()]);
        assert!(said.contains("group venice"), "{said}");
        let said = of(&[("/x/agent.sock", NoEntry::NobodyListens)]);
        assert!(
            said.contains("restart the agent") && said.contains("`venice agent`"),
            "{said}"
        );
        assert!(!said.contains("venice up"), "{said}");
        let up = tempfile::tempdir().unwrap();
        std::fs::write(up.path().join(RECORD_FILE), "{}").unwrap();
        let socket = up.path().join("monitor.sock");
        let said = of(&[(socket.to_str().unwrap(), NoEntry::NobodyListens)]);
        assert!(said.ends_with("restart the Monitor Node with `venice up`"), "{said}");
        let said = of(&[missing]);
        assert!(said.contains("looked in /run/venice)") && said.contains("venice join"), "{said}");
        assert_eq!(of(&[("/x/s", NoEntry::Said("no".into()))]), "/x/s: no");
    }
}
