//! Metrics and health of a daemon over HTTP, for Prometheus and for probes.
//!
//! A daemon implements [`Source`] and hands it to [`MetricsServer::serve`]. `/metrics` answers with
//! the source's [`Exposition`] in Prometheus' text format, `/healthz` while the process works,
//! `/readyz` with 200 while the daemon serves, else with 503 and a line with the reason.
//!
//! Without TLS and authentication: the metrics name nodes and users, and nothing secret. Whatever a
//! peer sends is bounded in size, number and time, so that it does not harm the daemon.
#![forbid(unsafe_code)]

mod connections;
mod exposition;
mod server;

pub use exposition::{Exposition, Label};
pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
pub use server::{ListenError, MetricsServer, NotReady, Source};
