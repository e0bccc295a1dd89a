//! Location of a store, in text form.

use crate::error::StoreError;
use std::path::PathBuf;
use std::str::FromStr;

/// Default port of etcd's clients.
const ETCD_PORT: u16 = 2379;
/// Default prefix in etcd.
const DEFAULT_PREFIX: &str = "venice";

/// Location of a store: a file, or etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// A file on this machine.
    File(PathBuf),
    /// `etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX]`; `etcds` with TLS.
    Etcd(EtcdLocation),
}

/// Members of etcd, and the prefix of this store's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdLocation {
    /// Address of each member, `host:port`.
    pub members: Vec<String>,
    /// Prefix of all keys, followed by a `/`.
    pub prefix: String,
    /// True for TLS.
    pub is_tls: bool,
}

/// Files for TLS with etcd, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Authority that signed the members' certificates.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key, if the members require one.
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
                return Err(bad(text, format!("{scheme}:// is no store: use etcd:// or etcds://")));
            }
            None if text.is_empty() => return Err(bad(text, "missing path".to_owned())),
            // A typing error must not become a file in the working directory.
            None if !text.contains('/') => {
                let said =
                    format!("ambiguous: write a file with a slash (./{text}), etcd with a scheme");
                return Err(bad(text, format!("{said} (etcd://{text})")));
            }
            None => return Ok(StoreLocation::File(PathBuf::from(text))),
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, DEFAULT_PREFIX));
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() || prefix.split('/').any(str::is_empty) {
            return Err(bad(text, "invalid key prefix after the /".to_owned()));
        }
        let members = members.split(',').map(|member| self::member(text, member));
        let members = members.collect::<Result<_, _>>()?;
        Ok(StoreLocation::Etcd(EtcdLocation { members, prefix: prefix.to_owned(), is_tls }))
    }
}

/// Parses a member's `host:port`.
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
    fn locations_roundtrip() {
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
    fn invalid_locations_are_refused() {
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
