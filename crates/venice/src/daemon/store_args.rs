//! Where a rack's tables are, as `venice init` and `venice monitor` are told.

use std::path::PathBuf;

use clap::Args;
use venice_monitor::{MonitorConfig, StoreChoice};

/// What is given of it.
#[derive(Args, Clone, Debug, Default)]
pub struct StoreArgs {
    /// Keep the tables elsewhere: in a file, or in etcd (etcd://HOST:PORT,HOST:PORT/PREFIX; the port
    /// is 2379 and the prefix venice, unless said otherwise; etcds:// is with TLS). Several Monitor
    /// Nodes with one etcd and one authority all serve the rack [default: as the rack was founded,
    /// else rack.redb in the state directory]
    #[arg(long, value_name = "STORE", env = "VENICE_STORE")]
    store: Option<String>,
    /// The authority that signed the certificates of etcd's members, for etcds://
    #[arg(long, value_name = "PEM", env = "VENICE_STORE_CA")]
    store_ca: Option<PathBuf>,
    /// The certificate that etcd is shown, where it asks for one
    #[arg(long, value_name = "PEM", env = "VENICE_STORE_CERTIFICATE")]
    store_certificate: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "PEM", env = "VENICE_STORE_KEY")]
    store_key: Option<PathBuf>,
}

impl StoreArgs {
    /// The store of a new rack.
    pub fn choice(&self) -> StoreChoice {
        let Self { store, store_ca, store_certificate, store_key } = self.clone();
        StoreChoice { store, store_ca, store_certificate, store_key }
    }

    /// Puts them over what a configuration has.
    pub fn apply(&self, config: &mut MonitorConfig) {
        let StoreChoice { store, store_ca, store_certificate, store_key } = self.choice();
        config.store = store.or(config.store.take());
        config.store_ca = store_ca.or(config.store_ca.take());
        config.store_certificate = store_certificate.or(config.store_certificate.take());
        config.store_key = store_key.or(config.store_key.take());
    }
}
