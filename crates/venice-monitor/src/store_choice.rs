//! The choice of a rack's store, made when the rack is created and kept beside its authority for
//! later starts.

use crate::error::MonitorError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use venice_control::identity::write_private;
use venice_store::{EtcdTls, StoreError, StoreLocation};

/// File name of the choice, in the state directory.
pub const STORE_CHOICE_FILE: &str = "store.toml";

/// A store and its TLS files. As a file it has the same keys as the Monitor Node's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreChoice {
    /// File, or members of etcd ([`StoreLocation`]); `None` is a file in the state directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Authority that signed the certificates of etcd's members, in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_ca: Option<PathBuf>,
    /// Client certificate for etcd, if it requires one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_certificate: Option<PathBuf>,
    /// Key of the client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_key: Option<PathBuf>,
}

impl StoreChoice {
    /// Checks that a Monitor Node can use the choice.
    ///
    /// # Errors
    /// [`MonitorError::Config`] for an invalid store, and for TLS files that are missing or would
    /// be ignored.
    pub fn check(&self) -> Result<(), MonitorError> {
        let wrong = |what: &str| Err(MonitorError::Config(what.to_owned()));
        if self.store_certificate.is_some() != self.store_key.is_some() {
            return wrong(
                "store_certificate and store_key are required together: one of them is missing",
            );
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

    /// Returns the store's location, for a Monitor Node with that state directory.
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

    /// Fills missing parts from `other`. With a store of its own it takes none of them.
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

    /// Reads the choice made when the rack was created; the default if there is none.
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

    /// Writes the choice for later starts, with absolute paths.
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
    fn saved_choice_yields_to_flags() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(StoreChoice::load(dir.path()).unwrap(), StoreChoice::default());
        let etcd = StoreChoice { store_ca: Some("/ca.pem".into()), ..of("etcds://a/rack1") };
        etcd.save(dir.path()).unwrap();
        assert_eq!(StoreChoice::load(dir.path()).unwrap(), etcd);
        let said = of("etcds://b").or(StoreChoice::load(dir.path()).unwrap());
        assert_eq!(said, of("etcds://b"), "no part of the other store is used");
        let key = StoreChoice { store_key: Some("/key.pem".into()), ..StoreChoice::default() };
        let said = key.clone().or(etcd.clone());
        assert_eq!((&said.store, &said.store_key), (&etcd.store, &key.store_key));
        of("./x.redb").save(dir.path()).unwrap();
        let file = StoreChoice::load(dir.path()).unwrap().store.unwrap();
        assert!(file.starts_with('/') && file.ends_with("/x.redb"), "{file}");
    }

    #[test]
    fn invalid_choices_are_rejected() {
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
