//! Which store a rack has: said when it is founded, and kept beside its authority for every start after.

use crate::error::MonitorError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use venice_control::identity::write_private;
use venice_store::{EtcdTls, StoreError, StoreLocation};

/// Where in the state directory that is kept.
pub const STORE_CHOICE_FILE: &str = "store.toml";

/// A store, and how it is reached. As a file it has the keys that the Monitor Node's own configuration
/// has for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreChoice {
    /// A file, or members of etcd ([`StoreLocation`]); `None`: a file in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The authority that signed the certificates of etcd's members, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_ca: Option<PathBuf>,
    /// The certificate that etcd is shown, where it asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_certificate: Option<PathBuf>,
    /// Its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_key: Option<PathBuf>,
}

impl StoreChoice {
    /// Whether a Monitor Node can use it.
    ///
    /// # Errors
    /// [`MonitorError::Config`]: what is no store, and files for TLS that are missing or would be passed
    /// over.
    pub fn check(&self) -> Result<(), MonitorError> {
        let wrong = |what: &str| Err(MonitorError::Config(what.to_owned()));
        if self.store_certificate.is_some() != self.store_key.is_some() {
            return wrong("store_certificate and store_key go together: one of them is missing");
        }
        let has_tls = self.store_ca.is_some() || self.store_key.is_some();
        match self.location(Path::new("."))? {
            StoreLocation::Etcd(etcd) if etcd.is_tls && self.store_ca.is_none() => {
                wrong("etcds:// needs store_ca: the authority of the members' certificates")
            }
            StoreLocation::Etcd(etcd) if etcd.is_tls || !has_tls => Ok(()),
            _ if has_tls => {
                wrong("store_ca, store_certificate and store_key are for etcds:// alone")
            }
            _ => Ok(()),
        }
    }

    /// Where it is, for a Monitor Node with that state directory.
    pub(crate) fn location(&self, state_dir: &Path) -> Result<StoreLocation, MonitorError> {
        match &self.store {
            Some(store) => {
                store.parse().map_err(|error: StoreError| MonitorError::Config(error.to_string()))
            }
            None => Ok(StoreLocation::File(state_dir.join(crate::STORE_FILE))),
        }
    }

    pub(crate) fn tls(&self) -> EtcdTls {
        let certificate = self.store_certificate.clone().zip(self.store_key.clone());
        EtcdTls { authority: self.store_ca.clone(), certificate }
    }

    /// This where it says something, and else what `other` says. Another store than that has nothing of it.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        if self.store.is_some() {
            return self;
        }
        Self {
            store: other.store,
            store_ca: self.store_ca.or(other.store_ca),
            store_certificate: self.store_certificate.or(other.store_certificate),
            store_key: self.store_key.or(other.store_key),
        }
    }

    /// What was said when the rack was founded; nothing, where nothing was.
    ///
    /// # Errors
    /// [`MonitorError::StoreChoice`].
    pub(crate) fn load(state_dir: &Path) -> Result<Self, MonitorError> {
        let path = state_dir.join(STORE_CHOICE_FILE);
        let unusable = |why: String| MonitorError::StoreChoice { path: path.clone(), why };
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| unusable(error.message().to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    /// Keeps it for every start, wherever that is in.
    pub(crate) fn save(&self, state_dir: &Path) -> Result<(), MonitorError> {
        let path = state_dir.join(STORE_CHOICE_FILE);
        let text = toml::to_string(&self.absolute()).map_err(|error| {
            MonitorError::StoreChoice { path: path.clone(), why: error.to_string() }
        })?;
        Ok(write_private(&path, text.as_bytes())?)
    }

    fn absolute(&self) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let store = self.store.as_ref().map(|store| match store.parse() {
            Ok(StoreLocation::File(path)) => absolute(&path).display().to_string(),
            Ok(StoreLocation::Etcd(_)) | Err(_) => store.clone(),
        });
        Self {
            store,
            store_ca: self.store_ca.as_ref().map(absolute),
            store_certificate: self.store_certificate.as_ref().map(absolute),
            store_key: self.store_key.as_ref().map(absolute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(store: &str) -> StoreChoice {
        StoreChoice { store: Some(store.to_owned()), ..StoreChoice::default() }
    }

    #[test]
    fn what_was_kept_is_read_again_and_what_is_said_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(StoreChoice::load(dir.path()).unwrap(), StoreChoice::default());
        let etcd = StoreChoice { store_ca: Some("/ca.pem".into()), ..of("etcds://a/rack1") };
        etcd.save(dir.path()).unwrap();
        assert_eq!(StoreChoice::load(dir.path()).unwrap(), etcd);
        let said = of("etcds://b").or(StoreChoice::load(dir.path()).unwrap());
        assert_eq!(said, of("etcds://b"), "and nothing of the other store");
        let key = StoreChoice { store_key: Some("/key.pem".into()), ..StoreChoice::default() };
        let said = key.clone().or(etcd.clone());
        assert_eq!((&said.store, &said.store_key), (&etcd.store, &key.store_key));
        of("./x.redb").save(dir.path()).unwrap();
        let file = StoreChoice::load(dir.path()).unwrap().store.unwrap();
        assert!(file.starts_with('/') && file.ends_with("/x.redb"), "{file}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let key = |store| StoreChoice { store_key: Some("/k".into()), ..of(store) };
        let ca = |store| StoreChoice { store_ca: Some("/c".into()), ..of(store) };
        for (choice, says) in [
            (of("rack.redb"), "./rack.redb"),
            (of("http://a"), "http://"),
            (of("etcds://a"), "store_ca"),
            (key("etcds://a"), "store_certificate"),
            (ca("etcd://a"), "alone"),
            (ca("./rack.redb"), "alone"),
        ] {
            let said = choice.check().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        ca("etcds://a").check().unwrap();
        StoreChoice::default().check().unwrap();
    }
}
