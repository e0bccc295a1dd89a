//! Watches of several Monitor Nodes' events, that survive restarts.

use anyhow::Context;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use venice_control::client::{EventWatch, MonitorClient};
use venice_control::{
    ControlError, EventBatch, EventPosition, EventRequest, EventRow, NodeRow, RackError,
};
use venice_recipient::local_rack::access;

use super::PAUSE;
use crate::registry::told;
use venice_cli::terminal::remark;

/// Batches not printed yet; the watches wait beyond, and the Monitor Nodes with them.
const QUEUE: usize = 16;

/// Returns the events that the Monitor Node at `addr` keeps.
pub async fn kept(addr: &str, request: EventRequest) -> anyhow::Result<Vec<EventRow>> {
    let mut watch = open(addr, request).await.map_err(told)?;
    let mut rows = Vec::new();
    while let Some(batch) = watch.next().await.map_err(told)? {
        rows.extend(batch.rows);
    }
    Ok(rows)
}

/// Returns the nodes that the Monitor Node at `addr` knows.
pub async fn nodes(addr: &str) -> Result<Vec<NodeRow>, ControlError> {
    MonitorClient::connect(&access(addr)).await?.nodes().await
}

async fn open(addr: &str, request: EventRequest) -> Result<EventWatch, ControlError> {
    MonitorClient::connect(&access(addr)).await?.events(request).await
}

type News = (String, Result<EventBatch, ControlError>);

/// Watches of all Monitor Nodes. They end when this is dropped.
pub struct Followed {
    news: mpsc::Receiver<News>,
    _watches: JoinSet<()>,
}

impl Followed {
    /// Starts watches; call it within a runtime.
    pub fn start(addrs: &[&str], request: &EventRequest) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let mut watches = JoinSet::new();
        for addr in addrs {
            let watch = Watch {
                addr: (*addr).to_owned(),
                is_only: addrs.len() == 1,
                request: request.clone(),
                position: None,
                news: sender.clone(),
            };
            watches.spawn(watch.run());
        }
        Self { news, _watches: watches }
    }

    /// Returns the next events, and the Monitor Node that they are of.
    ///
    /// # Errors
    /// The sole Monitor Node cannot be reached at first, or one refuses the caller.
    pub async fn next(&mut self) -> anyhow::Result<(String, EventBatch)> {
        let (addr, news) = self.news.recv().await.context("all watches of events have ended")?;
        Ok((addr, news.map_err(told)?))
    }
}

/// The watch of one Monitor Node.
struct Watch {
    addr: String,
    is_only: bool,
    request: EventRequest,
    /// Position after the last events; `None`: none came yet.
    position: Option<EventPosition>,
    news: mpsc::Sender<News>,
}

impl Watch {
    async fn run(mut self) {
        let mut is_told = false;
        loop {
            let error = match self.watch(&mut is_told).await {
                // The receiver is gone.
                Ok(()) => return,
                Err(error) => error,
            };
            let is_first = self.position.is_none() && self.is_only;
            if is_first || !may_pass(&error) {
                let _ = self.news.send((self.addr, Err(error))).await;
                return;
            }
            if !std::mem::replace(&mut is_told, true) {
                remark(format!("venice: {:#}: trying again", told(error)));
            }
            sleep(PAUSE).await;
        }
    }

    /// Watches until an error.
    async fn watch(&mut self, was_away: &mut bool) -> Result<(), ControlError> {
        let only_new = self.request.only_new && self.position.is_none();
        let request = EventRequest { after: self.position, only_new, ..self.request.clone() };
        let mut watch = open(&self.addr, request).await?;
        while let Some(batch) = watch.next().await? {
            let list = batch.position.list;
            if self.position.is_some_and(|before| before.list != list) {
                let addr = &self.addr;
                remark(format!(
                    "venice: the Monitor Node at {addr} has restarted, with a new list"
                ));
            } else if *was_away {
                remark(format!("venice: the Monitor Node at {} answers again", self.addr));
            }
            *was_away = false;
            self.position = Some(batch.position);
            if self.news.send((self.addr.clone(), Ok(batch))).await.is_err() {
                return Ok(());
            }
        }
        Err(ControlError::Rack(RackError::Stopping))
    }
}

/// True if the Monitor Node may answer later.
fn may_pass(error: &ControlError) -> bool {
    matches!(
        error,
        ControlError::Unreachable { .. }
            | ControlError::TimedOut { .. }
            | ControlError::Peer { .. }
            | ControlError::Rack(RackError::Stopping)
    )
}
