//! The data of `venice top`, asked for at each update.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use venice_control::client::MonitorClient;
use venice_control::{
    ControlError, EventPosition, EventRequest, EventRow, GrantRow, NodeRow, QueueRow,
};
use venice_recipient::local_rack::access;
use venice_recipient::runs::RunRow;

use crate::registry::told;
use crate::runs;

/// Events shown at most.
const EVENTS: usize = 100;

/// The rack at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Snapshot {
    /// Address of the Monitor Node.
    pub monitor: String,
    /// Its time here, in milliseconds since 1970.
    pub time_ms: u64,
    pub nodes: Vec<NodeRow>,
    /// Programs of this machine.
    pub programs: Vec<RunRow>,
    pub grants: Vec<GrantRow>,
    pub queue: Vec<QueueRow>,
    /// The newest events, the oldest first.
    pub events: VecDeque<EventRow>,
}

/// A Monitor Node that is asked again and again.
pub struct Source {
    addr: String,
    /// The connection, until it fails.
    client: Option<MonitorClient>,
    position: Option<EventPosition>,
    events: VecDeque<EventRow>,
}

impl Source {
    pub fn new(addr: String) -> Self {
        Self { addr, client: None, position: None, events: VecDeque::new() }
    }

    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// The Monitor Node's, for users. The next call connects anew.
    pub async fn snapshot(&mut self) -> anyhow::Result<Snapshot> {
        let asked = self.ask().await;
        if asked.is_err() {
            self.client = None;
        }
        asked.map_err(told)
    }

    async fn ask(&mut self) -> Result<Snapshot, ControlError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => MonitorClient::connect(&access(&self.addr)).await?,
        };
        let mut client = self.client.insert(client).clone();
        let mut nodes = client.nodes().await?;
        nodes.sort_by_cached_key(|row| (row.name.len(), row.name.clone()));
        let (grants, queue) = (client.grants().await?, client.queue().await?);
        match self.read_events(&mut client).await {
            // Without events the rest is shown.
            Ok(()) | Err(ControlError::EarlierRelease { .. }) => {}
            Err(error) => return Err(error),
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Snapshot {
            monitor: self.addr.clone(),
            time_ms: now.as_millis() as u64,
            nodes,
            programs: runs::rows_of_machine(),
            grants,
            queue,
            events: self.events.clone(),
        })
    }

    async fn read_events(&mut self, client: &mut MonitorClient) -> Result<(), ControlError> {
        let request = EventRequest { after: self.position, ..EventRequest::default() };
        let mut watch = client.events(request).await?;
        while let Some(batch) = watch.next().await? {
            self.position = Some(batch.position);
            self.events.extend(batch.rows);
            let excess = self.events.len().saturating_sub(EVENTS);
            self.events.drain(..excess);
        }
        Ok(())
    }
}
