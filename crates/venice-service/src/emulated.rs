//! A service with the latency and bandwidth of a modelled device, for virtual and for real time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use venice_wire::ByteSize;

use crate::service::{Answer, ConnectionId, Request, Service, ServiceLimits};

/// Model of a device: it moves one request after the other, and each takes its time besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// Time of a request without bytes, in nanoseconds; requests overlap in it.
    pub latency_ns: u64,
    /// Bytes of requests and answers a second that pass one after the other; 0: without limit.
    pub bytes_per_s: u64,
}

/// Reads `RATE`, a size a second: `64MB/s`. The latency is 0.
impl FromStr for DeviceModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = |why: String| format!("rate '{text}': {why}, for example 64MB/s");
        let size = text.strip_suffix("/s").ok_or_else(|| malformed("expected SIZE/s".into()))?;
        match ByteSize::parse_with_unit(size) {
            Ok(ByteSize(0)) => Err(malformed("expected more than 0".into())),
            Ok(ByteSize(bytes_per_s)) => Ok(Self { latency_ns: 0, bytes_per_s }),
            Err(error) => Err(malformed(error.to_string())),
        }
    }
}

/// A service whose answers come when the modelled device would have them.
#[derive(Debug)]
pub struct Emulated<S> {
    service: S,
    model: DeviceModel,
    /// Time until which the device moves bytes.
    busy_until_ns: u64,
    /// Time at which each outstanding request came, with its bytes.
    requests: BTreeMap<(ConnectionId, u64), (u64, usize)>,
    /// Answers by the time at which they are ready; those of equal time in order.
    ready: BTreeMap<u64, VecDeque<(Answer, Vec<u8>)>>,
    scratch: Vec<u8>,
}

impl<S: Service> Emulated<S> {
    /// Gives a service the times of a model.
    pub fn new(service: S, model: DeviceModel) -> Self {
        let (requests, ready) = (BTreeMap::new(), BTreeMap::new());
        Self { service, model, busy_until_ns: 0, requests, ready, scratch: Vec::new() }
    }

    /// Takes the answers that the service has, and sets their times.
    fn schedule(&mut self, now_ns: u64) {
        loop {
            self.scratch.clear();
            let Some(answer) = self.service.poll_answer(now_ns, &mut self.scratch) else { return };
            let key = (answer.connection, answer.id);
            let Some((came_ns, request_bytes)) = self.requests.remove(&key) else { continue };
            let moved = (request_bytes + self.scratch.len()) as u128 * 1_000_000_000;
            let moved_ns = moved.checked_div(u128::from(self.model.bytes_per_s)).unwrap_or(0);
            let begin_ns = self.busy_until_ns.max(came_ns);
            self.busy_until_ns = begin_ns.saturating_add(moved_ns as u64);
            let at_ns = self.busy_until_ns.saturating_add(self.model.latency_ns);
            let answers = self.ready.entry(at_ns).or_default();
            answers.push_back((answer, std::mem::take(&mut self.scratch)));
        }
    }
}

impl<S: Service> Service for Emulated<S> {
    fn name(&self) -> &'static str {
        self.service.name()
    }

    fn limits(&self) -> ServiceLimits {
        self.service.limits()
    }

    fn handle_connect(&mut self, now_ns: u64, connection: ConnectionId) {
        self.service.handle_connect(now_ns, connection);
    }

    fn handle_request(&mut self, now_ns: u64, request: Request<'_>) {
        let key = (request.connection, request.id);
        self.requests.insert(key, (now_ns, request.payload.len()));
        self.service.handle_request(now_ns, request);
        self.schedule(now_ns);
    }

    fn handle_disconnect(&mut self, now_ns: u64, connection: ConnectionId) {
        self.service.handle_disconnect(now_ns, connection);
        self.requests.retain(|(of, _), _| *of != connection);
        self.ready.values_mut().for_each(|answers| {
            answers.retain(|(answer, _)| answer.connection != connection);
        });
        self.ready.retain(|_, answers| !answers.is_empty());
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.service.handle_timeout(now_ns);
        self.schedule(now_ns);
    }

    fn handle_wake(&mut self, now_ns: u64) {
        self.service.handle_wake(now_ns);
        self.schedule(now_ns);
    }

    fn poll_answer(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        let mut first = self.ready.first_entry().filter(|first| *first.key() <= now_ns)?;
        let (answer, bytes) = first.get_mut().pop_front().expect("no empty entry is kept");
        if first.get().is_empty() {
            first.remove();
        }
        payload.extend_from_slice(&bytes);
        Some(answer)
    }

    fn poll_timeout(&self) -> Option<u64> {
        let ready = self.ready.first_key_value().map(|(at_ns, _)| *at_ns);
        ready.into_iter().chain(self.service.poll_timeout()).min()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.service.wake_fd()
    }
}
