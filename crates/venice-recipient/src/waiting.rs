//! Waiting in line where there is no room, or no device.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use venice_control::client::MonitorClient;
use venice_control::{
    Asked, ControlError, DEFAULT_PRIORITY, DeviceRequest, Grant, MemoryRequest, Preempt, Queueing,
    Standing,
};

use crate::error::RecipientError;

/// How often whoever waits may say that it waits no longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How a wish waits where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// How long at most; zero: not at all.
    pub at_most: Duration,
    /// 0 to 255: higher ones are served first. More than [`DEFAULT_PRIORITY`] is for administrators.
    pub priority: u8,
    /// Have grants of lower priority called back for it: the user's own, for administrators
    /// anybody's.
    pub preempt: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { at_most: Duration::ZERO, priority: DEFAULT_PRIORITY, preempt: false }
    }
}

impl Waiting {
    /// What the rack is told of a request that is as old as `began`.
    pub(crate) fn queueing(self) -> Queueing {
        let (wait_ms, priority) = (milliseconds(self.at_most), self.priority);
        // Whose, the Monitor Node's door says.
        let preempt = if self.preempt { Preempt::Own } else { Preempt::No };
        Queueing { wait_ms, waited_ms: 0, priority, preempt }
    }
}

/// Hears now and then (ten times a second) that somebody waits, and once a second how that stands;
/// [`ControlFlow::Break`]: it is to wait no longer.
pub type Told<'a> = dyn FnMut(Option<&Standing>) -> ControlFlow<()> + 'a;

/// Whoever has no say and hears nothing.
pub(crate) fn unheard(_: Option<&Standing>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// What is asked for in line.
#[derive(Clone)]
pub(crate) enum InLine {
    Memory(MemoryRequest),
    Device(DeviceRequest),
}

impl InLine {
    fn client_id(&self) -> u128 {
        match self {
            InLine::Memory(request) => request.client_id,
            InLine::Device(request) => request.client_id,
        }
    }

    /// The same after so long a time.
    fn waited(mut self, waited: Duration) -> Self {
        match &mut self {
            InLine::Memory(MemoryRequest { queueing, .. })
            | InLine::Device(DeviceRequest { queueing, .. }) => {
                queueing.waited_ms = milliseconds(waited);
            }
        }
        self
    }

    async fn ask(self, client: &mut MonitorClient) -> Result<Asked, ControlError> {
        match self {
            InLine::Memory(request) => client.ask_for_memory(request).await,
            InLine::Device(request) => client.ask_for_device(request).await,
        }
    }
}

/// Makes a request until it is granted, or its wait is over.
pub(crate) async fn ask_in_line(
    client: &mut MonitorClient,
    request: InLine,
    told: &mut Told<'_>,
) -> Result<Vec<Grant>, RecipientError> {
    let (began, client_id) = (Instant::now(), request.client_id());
    let mut request = request;
    loop {
        let Some(asked) = ask_once(client, request.clone(), told).await else {
            // What is not heard there ends within seconds all the same.
            let _ = client.leave_queue(client_id).await;
            return Err(RecipientError::LeftLine);
        };
        match asked? {
            Asked::Granted(grants) => return Ok(grants),
            Asked::Waits(standing) => {
                if told(Some(&standing)).is_break() {
                    let _ = client.leave_queue(client_id).await;
                    return Err(RecipientError::LeftLine);
                }
            }
        }
        request = request.waited(began.elapsed());
    }
}

/// One request; `None`: nobody wants its answer any more.
async fn ask_once(
    client: &MonitorClient,
    request: InLine,
    told: &mut Told<'_>,
) -> Option<Result<Asked, ControlError>> {
    let mut client = client.clone();
    let mut answer = std::pin::pin!(request.ask(&mut client));
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            answer = &mut answer => return Some(answer),
            _ = looks.tick() => {
                if told(None).is_break() {
                    return None;
                }
            }
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
