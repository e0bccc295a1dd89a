//! The driver's inputs.

use crate::driver::Driver;
use tokio::sync::oneshot;
use venice_control::{HeartbeatAck, HeartbeatReport, RackError};
use venice_rack::monitor_node::{Call, Reply as CallReply};

pub(crate) type Reply<T> = oneshot::Sender<T>;

/// Keys and values of all records.
pub(crate) type RecordsAnswer = Result<Vec<(String, Vec<u8>)>, RackError>;

/// An input of the driver.
pub(crate) enum Input {
    Call(Box<Call>, Reply<CallReply>),
    /// A query of the tables.
    Query(Box<dyn FnOnce(&Driver) + Send>),
    /// All records of the store, for a backup.
    Records(Reply<RecordsAnswer>),
    Stop,
}

/// An input by way of the heartbeat server, in order.
pub(crate) enum Heard {
    /// Reports of nodes, in order of arrival.
    Reports(Vec<Report>),
    /// The heartbeat server runs: all reports that arrived before have been forwarded. The time
    /// counts for the nodes' liveness only as these arrive.
    Tick,
}

/// A node's heartbeat report.
pub(crate) struct Report {
    /// The node's name, from its certificate.
    pub(crate) name: String,
    pub(crate) report: HeartbeatReport,
    pub(crate) reply: Reply<Result<HeartbeatAck, RackError>>,
}
