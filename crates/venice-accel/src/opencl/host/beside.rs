//! Mailboxes beside the commands of OpenCL: one host, one device, two services. A connection has the
//! one that its hello names.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use venice_service::{Answer, ConnectionId, Request, Service, ServiceLimits, ServiceUsage};

use super::OpenCl;
use crate::mailbox;

/// The two services.
pub(super) struct OpenClBesideMailboxes {
    opencl: OpenCl,
    mailboxes: Box<dyn Service>,
    of_mailboxes: BTreeSet<ConnectionId>,
    /// Polls what wakes either.
    wake: OwnedFd,
}

impl OpenClBesideMailboxes {
    /// Joins them.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(opencl: OpenCl, mailboxes: Box<dyn Service>) -> std::io::Result<Self> {
        let wake = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in opencl.wake_fd().into_iter().chain(mailboxes.wake_fd()) {
            epoll::add(&wake, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Self { opencl, mailboxes, of_mailboxes: BTreeSet::new(), wake })
    }

    fn of(&mut self, connection: ConnectionId) -> &mut dyn Service {
        match self.of_mailboxes.contains(&connection) {
            true => &mut *self.mailboxes,
            false => &mut self.opencl,
        }
    }
}

impl Service for OpenClBesideMailboxes {
    fn name(&self) -> &'static str {
        self.opencl.name()
    }

    fn serves(&self, name: &str) -> bool {
        name == self.opencl.name() || name == mailbox::NAME
    }

    fn limits(&self) -> ServiceLimits {
        let (one, other) = (self.opencl.limits(), self.mailboxes.limits());
        ServiceLimits {
            max_request_bytes: one.max_request_bytes.max(other.max_request_bytes),
            max_answer_bytes: one.max_answer_bytes.max(other.max_answer_bytes),
            max_outstanding: one.max_outstanding.max(other.max_outstanding),
        }
    }

    fn handle_connect_to(&mut self, now_ns: u64, connection: ConnectionId, name: &str) {
        if name == mailbox::NAME {
            self.of_mailboxes.insert(connection);
        }
        self.of(connection).handle_connect(now_ns, connection);
    }

    fn handle_request(&mut self, now_ns: u64, request: Request<'_>) {
        self.of(request.connection).handle_request(now_ns, request);
    }

    fn handle_disconnect(&mut self, now_ns: u64, connection: ConnectionId) {
        self.of(connection).handle_disconnect(now_ns, connection);
        self.of_mailboxes.remove(&connection);
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        self.opencl.handle_timeout(now_ns);
        self.mailboxes.handle_timeout(now_ns);
    }

    fn handle_wake(&mut self, now_ns: u64) {
        self.opencl.handle_wake(now_ns);
        self.mailboxes.handle_wake(now_ns);
    }

    fn poll_answer(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> Option<Answer> {
        let answer = self.opencl.poll_answer(now_ns, payload);
        answer.or_else(|| self.mailboxes.poll_answer(now_ns, payload))
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.opencl.poll_timeout().into_iter().chain(self.mailboxes.poll_timeout()).min()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    /// Sum of the usage of both. A device that does both at the same time is busy twice.
    fn usage(&self, now_ns: u64) -> Option<ServiceUsage> {
        let (one, other) = (self.opencl.usage(now_ns)?, self.mailboxes.usage(now_ns)?);
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Some(ServiceUsage {
            busy_ns: sum(one.busy_ns, other.busy_ns),
            in_bytes: sum(one.in_bytes, other.in_bytes),
            out_bytes: sum(one.out_bytes, other.out_bytes),
            commands: one.commands + other.commands,
        })
    }
}
