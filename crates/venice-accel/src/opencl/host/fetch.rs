//! Bytes from the regions of other donors, fetched on a thread of their own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use venice_service::ConnectionId;

use super::watch::{Brought, Inbox};
use crate::region::{RegionHost, Ticket, TicketReader};

/// Fetches that wait for the thread; more are refused.
const MAX_WAITING: usize = 256;
/// Bytes that are fetched at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Longest wait for another donor's first answer.
const OPEN_WITHIN: Duration = Duration::from_secs(3);

/// Bytes to be fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) ticket: Ticket,
    /// Destination in the region.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The end of a fetch.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    /// Reason why not all was fetched.
    pub(super) failed: Option<String>,
}

/// The thread that fetches.
#[derive(Debug)]
pub(super) struct Fetcher {
    fetches: SyncSender<Fetch>,
}

impl Fetcher {
    /// Starts it; `None`: this host reaches no network.
    pub(super) fn start(
        region: &Arc<RegionHost>,
        inbox: &Arc<Inbox>,
    ) -> std::io::Result<Option<Self>> {
        if region.outgoing().is_none() {
            return Ok(None);
        }
        let (fetches, waiting) = sync_channel(MAX_WAITING);
        let (region, inbox) = (Arc::clone(region), Arc::clone(inbox));
        std::thread::Builder::new()
            .name("venice-fetch".into())
            .spawn(move || fetch_all(&region, &inbox, &waiting))?;
        Ok(Some(Self { fetches }))
    }

    /// Takes a fetch; false if too many wait.
    pub(super) fn put(&self, fetch: Fetch) -> bool {
        self.fetches.try_send(fetch).is_ok()
    }
}

fn fetch_all(region: &RegionHost, inbox: &Inbox, fetches: &Receiver<Fetch>) {
    for fetch in fetches {
        let (connection, request) = (fetch.connection, fetch.request);
        let failed = carry_out(region, fetch).err();
        inbox.put(Brought::Fetched(Fetched { connection, request, failed }));
    }
}

fn carry_out(region: &RegionHost, fetch: Fetch) -> Result<(), String> {
    let Fetch { ticket, offset, bytes, .. } = fetch;
    let socket = region.outgoing().ok_or("no descriptor is free")?;
    let opened = TicketReader::open(socket, ticket, OPEN_WITHIN);
    let mut reader = opened.map_err(|error| error.to_string())?;
    let mut chunk = vec![0; bytes.min(CHUNK_BYTES as u64) as usize];
    for at in (0..bytes).step_by(CHUNK_BYTES) {
        let part = &mut chunk[..(bytes - at).min(CHUNK_BYTES as u64) as usize];
        reader.read(at, part).map_err(|error| error.to_string())?;
        if !region.write(offset + at, part) {
            return Err("the destination is beyond the region".to_owned());
        }
    }
    Ok(())
}
