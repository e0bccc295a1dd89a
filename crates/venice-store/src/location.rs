//! Where a store is, as people write it.

use crate::error::StoreError;
use std::path::PathBuf;
use std::str::FromStr;

/// Port of etcd's clients.
const ETCD_PORT: u16 = 2379;
/// Where in etcd, if nothing else is said.
const DEFAULT_PREFIX: &str = "venice";

/// A file, or etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// A file on this machine.
    File(PathBuf),
    /// `etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX]`; `etcds` with TLS.
    Etcd(EtcdLocation),
}

/// Members of etcd, and what is ours in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdLocation {
    /// `host:port` of each.
    pub members: Vec<String>,
    /// Keys begin with it and a `/`.
    pub prefix: String,
    /// Speak TLS.
    pub is_tls: bool,
}

/// Files for TLS with etcd, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// The authority that signed the members' certificates.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key, where the members ask for one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Display for EtcdLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.members.join(","), self.prefix)
    }
}

impl std::fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreLocation::File(path) => path.display().fmt(f),
            StoreLocation::Etcd(etcd) => etcd.fmt(f),
        }
    }
}

impl FromStr for StoreLocation {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let (is_tls, rest) = match text.split_once("://") {
            Some(("etcd", rest)) => (false, rest),
            Some(("etcds", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(bad(text, format!("{scheme}:// is no store: etcd:// or etcds://")));
            }
            None if text.is_empty() => return Err(bad(text, "no file is named".to_owned())),
            // A slip of the pen is not to become a file wherever this was started.
            None if !text.contains('/') => {
                let said = format!("a file's path has a slash (./{text}), and etcd a scheme");
                return Err(bad(text, format!("{said} (etcd://{text})")));
            }
            None => return Ok(StoreLocation::File(PathBuf::from(text))),
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, DEFAULT_PREFIX));
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() || prefix.split('/').any(str::is_empty) {
            return Err(bad(text, "what comes after the / is the beginning of keys".to_owned()));
        }
        let members = members.split(',').map(|member| self::member(text, member));
        let members = members.collect::<Result<_, _>>()?;
        Ok(StoreLocation::Etcd(EtcdLocation { members, prefix: prefix.to_owned(), is_tls }))
    }
}

/// `host:port` of a member.
fn member(text: &str, member: &str) -> Result<String, StoreError> {
    let has_port = match member.strip_prefix('[') {
        Some(rest) => rest.contains("]:"),
        None => member.contains(':'),
    };
    let member = if has_port { member.to_owned() } else { format!("{member}:{ETCD_PORT}") };
    let (host, port) = member.rsplit_once(':').unwrap_or_default();
    let is_host = !host.is_empty() && (host.starts_with('[') || !host.contains(':'));
    if !is_host || port.parse::<u16>().map_or(true, |port| port == 0) {
        return Err(bad(text, format!("`{member}` is no HOST[:PORT] of a member")));
    }
    Ok(member)
}

fn bad(place: &str, reason: String) -> StoreError {
    StoreError::Address { place: format!("store `{place}`"), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        let location = text.parse::<StoreLocation>().map_err(|error| error.to_string())?;
        Ok(location.to_string())
    }

    #[test]
    fn stores_are_read_as_they_are_written() {
        for (text, means) in [
            ("/var/lib/venice/rack.redb", "/var/lib/venice/rack.redb"),
            ("./rack.redb", "./rack.redb"),
            ("etcd://a", "etcd://a:2379/venice"),
            ("etcd://a,b:4001/rack1", "etcd://a:2379,b:4001/rack1"),
            ("etcds://10.0.0.1:2379/x/y/", "etcds://10.0.0.1:2379/x/y"),
            ("etcd://[fd00::1],[fd00::2]:99", "etcd://[fd00::1]:2379,[fd00::2]:99/venice"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(means), "{text}");
            assert_eq!(parsed(means).as_deref(), Ok(means), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "etcd",
            "http://a",
            "etcd://",
            "etcd://a,,b",
            "etcd://a:0",
            "etcd://a:99999",
            "etcd://fd00::1",
            "etcd://a/",
            "etcd://a/x//y",
            "etcd://:2379",
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(&format!("store `{text}`: ")), "{error}");
        }
    }
}
