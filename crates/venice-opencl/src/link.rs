//! The link of a device to the host of its grant: a session, and what the host still has to tell.
//! A device that moves to another donor gets another link.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use opencl_sys::{CL_DEVICE_NAME, CL_DEVICE_NOT_AVAILABLE, cl_device_info, cl_int};
use venice_accel::opencl::session::{OpenError, Session, Sink};
use venice_accel::opencl::wire::{Command, CommandKind, Notice};
use venice_accel::opencl::{library, losses};
use venice_rack::types::ServiceAccess;
use venice_wire::GrantId;

use crate::call::{Done, session_code};
use crate::context::Context;
use crate::event::Event;
use crate::object::{Object, Shared};
use crate::output;

/// A link.
pub struct Link {
    pub grant: GrantId,
    pub session: Arc<Session>,
    /// Events that notices are to come for.
    pending: Mutex<HashMap<u64, Shared<Event>>>,
    /// Events that are being ended.
    ending: AtomicUsize,
    /// Errors of objects that could not be made, by id.
    failures: Mutex<HashMap<u64, cl_int>>,
    background: Once,
    /// True once the device has another link: then nobody misses this one.
    is_left: AtomicBool,
}

impl Link {
    /// Opens a link to the device of a grant.
    ///
    /// # Errors
    /// The errors of [`Session::open`].
    pub fn open(access: &ServiceAccess) -> Result<Arc<Self>, OpenError> {
        let link = Arc::new(Self {
            grant: access.grant,
            session: Session::open(access)?,
            pending: Mutex::default(),
            ending: AtomicUsize::new(0),
            failures: Mutex::default(),
            background: Once::new(),
            is_left: AtomicBool::new(false),
        });
        link.session.set_sink(Arc::new(LinkSink { link: Arc::downgrade(&link) }));
        Ok(link)
    }

    /// Sends a command of the driver's own to a queue.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn send(
        self: &Arc<Self>,
        context: &Shared<Context>,
        queue: u64,
        kind: CommandKind<'_>,
    ) -> Done<Sent> {
        let event = Object::<Event>::of_driver(context);
        self.expect(&event);
        let sent = Sent { link: Arc::clone(self), event };
        let command = Command { queue, event: sent.event.id, waits: Vec::new(), kind };
        let session = &self.session;
        session.submit(&command).and_then(|()| session.flush()).map_err(|error| {
            self.forget(&sent.event);
            session_code(error)
        })?;
        Ok(sent)
    }

    /// Sends a command of the driver's own to a queue, and waits for its end.
    ///
    /// # Errors
    /// The code of the command, or of a lost session.
    pub fn run(
        self: &Arc<Self>,
        context: &Shared<Context>,
        queue: u64,
        kind: CommandKind<'_>,
    ) -> Done {
        let sent = self.send(context, queue, kind)?;
        match self.session.wait_until(|| sent.event.outcome()).map_err(session_code)? {
            status @ ..0 => Err(status),
            _ => Ok(()),
        }
    }

    /// Adds an event that a notice is to come for. Of a lost device it fails at once.
    pub fn expect(&self, event: &Shared<Event>) {
        self.pending().insert(event.id, Arc::clone(event));
        if self.session.why_lost().is_some() {
            self.fail_pending();
        }
    }

    /// Forgets an event whose command was not sent.
    pub fn forget(&self, event: &Event) {
        drop(self.pending().remove(&event.id));
    }

    /// True if all events have ended, and what follows their ends is done.
    pub fn is_quiet(&self) -> bool {
        self.pending().is_empty() && self.ending.load(Ordering::Acquire) == 0
    }

    /// Takes notices in even while the program waits for nothing here.
    pub fn receive_always(&self) {
        self.background.call_once(|| self.session.receive_always());
    }

    /// True if notices are taken in always.
    pub fn receives_always(&self) -> bool {
        self.background.is_completed()
    }

    /// Returns the error of the making of an object.
    pub fn failure(&self, id: u64) -> Option<cl_int> {
        lock(&self.failures).get(&id).copied()
    }

    /// Notes the error of an object, unless there was one before.
    pub fn note_failure(&self, id: u64, status: cl_int) {
        lock(&self.failures).entry(id).or_insert(status);
    }

    /// Takes over the error of an object at the link before.
    pub fn inherit_failure(&self, former: &Self, id: u64) {
        if let Some(status) = former.failure(id) {
            self.note_failure(id, status);
        }
    }

    /// Notes that the device has another link.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Shared<Event>>> {
        lock(&self.pending)
    }

    fn take_pending(&self, id: u64) -> Option<Shared<Event>> {
        let mut pending = self.pending();
        let event = pending.remove(&id)?;
        self.ending.fetch_add(1, Ordering::Relaxed);
        Some(event)
    }

    fn fail_pending(&self) {
        let pending = std::mem::take(&mut *self.pending());
        pending.into_values().for_each(|event| event.end(CL_DEVICE_NOT_AVAILABLE, None, &[]));
    }

    /// Tells the user of the loss, by the run that started the program: it knows the donor's reason.
    fn tell_loss(&self, why: &str) {
        let dir = std::env::var_os(losses::VARIABLE);
        let is_noted = dir.is_some_and(|dir| losses::note(dir.as_ref(), self.grant.0, why).is_ok());
        if !is_noted {
            let name = self.text(CL_DEVICE_NAME);
            let _ = writeln!(std::io::stderr(), "venice: accelerator {name} is lost: {why}");
        }
    }

    /// Returns a parameter of the device as the donor tells it; empty if it does not.
    pub fn text(&self, name: cl_device_info) -> String {
        let told = &self.session.description().device;
        let found = told.iter().find(|parameter| parameter.name == name);
        found.map(|parameter| library::text(&parameter.value)).unwrap_or_default()
    }
}

/// A command of the driver's own.
pub struct Sent {
    link: Arc<Link>,
    event: Shared<Event>,
}

impl Sent {
    /// True once it has ended.
    pub fn has_ended(&self) -> bool {
        self.event.has_ended()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.link.session.release(self.event.id);
    }
}

/// Takes the notices of a link.
struct LinkSink {
    link: Weak<Link>,
}

impl Sink for LinkSink {
    fn notice(&self, notice: Notice<'_>) {
        let Some(link) = self.link.upgrade() else { return };
        match notice {
            Notice::Done { event, status, times, data } => {
                let event = link.take_pending(event);
                if let Some(event) = event {
                    event.end(status, times, data);
                    link.ending.fetch_sub(1, Ordering::Release);
                }
            }
            Notice::Failed { id, status, queue } => {
                let id = if id == 0 { queue } else { id };
                link.note_failure(id, status);
            }
            Notice::Output { bytes } => output::print(bytes),
            Notice::Freed { id } => link.session.free_left(id),
        }
    }

    fn lost(&self, why: &str) {
        let Some(link) = self.link.upgrade() else { return };
        if !link.is_left.load(Ordering::Relaxed) {
            link.tell_loss(why);
        }
        link.fail_pending();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
