//! Location of a rack's tables, for `venice init` and `venice monitor`.

use std::path::PathBuf;

use clap::Args;
use venice_monitor::{MonitorConfig, StoreChoice};

/// The store's flags.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreArgs {
    /// Store of the tables: a file, or etcd (etcd://HOST:PORT,HOST:PORT/PREFIX, with port 2379 and
    /// prefix venice by default; etcds:// uses TLS). Several Monitor Nodes with one etcd and one
    /// authority serve the rack together [default: as chosen by `venice init`, else rack.redb in
    /// the state directory]
    #[arg(long, value_name = "STORE", env = "VENICE_STORE")]
    store: Option<String>,
    /// Authority that signed the certificates of etcd's members, for etcds://
    #[arg(long, value_name = "PEM", env = "VENICE_STORE_CA")]
    store_ca: Option<PathBuf>,
    /// Client certificate for etcd, if it requires one
    #[arg(long, value_name = "PEM", env = "VENICE_STORE_CERTIFICATE")]
    store_certificate: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long, value_name = "PEM", env = "VENICE_STORE_KEY")]
    store_key: Option<PathBuf>,
}

impl StoreArgs {
    /// Returns the store of a new rack.
    pub fn choice(&self) -> StoreChoice {
        let Self { store, store_ca, store_certificate, store_key } = self.clone();
        StoreChoice { store, store_ca, store_certificate, store_key }
    }

    /// Applies the flags to a configuration.
    pub fn apply(&self, config: &mut MonitorConfig) {
        let StoreChoice { store, store_ca, store_certificate, store_key } = self.choice();
        config.store = store.or(config.store.take());
        config.store_ca = store_ca.or(config.store_ca.take());
        config.store_certificate = store_certificate.or(config.store_certificate.take());
        config.store_key = store_key.or(config.store_key.take());
    }
}
