//! A recipient's session with a granted device: a [command stream](crate::stream) of OpenCL.

mod fetch;

use std::ops::Deref;
use std::sync::Arc;

use venice_rack::types::ServiceAccess;

pub use self::fetch::FetchError;
use super::wire::{Command, CommandKind, Description, Field, Notice, Reader, VERSION, decode};
pub use crate::stream::{CommandStream, OpenError, SessionError};
use crate::stream::{Malformed, Protocol, Receiver};

/// Receiver of notices. Calls come from threads that wait, one at a time; they must not wait
/// themselves, nor use the session but for [`CommandStream::release`], [`CommandStream::free`] and its
/// region.
pub trait Sink: Send + Sync {
    /// Takes a notice.
    fn notice(&self, notice: Notice<'_>);
    /// Takes the loss of the session, once.
    fn lost(&self, why: &str);
}

/// A session.
#[derive(Debug)]
pub struct Session {
    stream: Arc<CommandStream>,
    description: Description,
}

impl Deref for Session {
    type Target = Arc<CommandStream>;

    fn deref(&self) -> &Arc<CommandStream> {
        &self.stream
    }
}

const PROTOCOL: Protocol = Protocol { version: VERSION, put_release, thread: "venice-opencl" };

fn put_release(id: u64, into: &mut Vec<u8>) {
    let kind = CommandKind::Release { id };
    Command { queue: 0, event: 0, waits: Vec::new(), kind }.put(into);
}

impl Session {
    /// Opens a session with the device of a grant.
    ///
    /// # Errors
    /// Fails if the host cannot be reached, refuses, or speaks another version.
    pub fn open(access: &ServiceAccess) -> Result<Arc<Self>, OpenError> {
        let mut described = None;
        let stream = CommandStream::open(access, PROTOCOL, |answer| {
            let told: Description = decode(answer)?;
            let region = (told.region_bytes, told.region_port);
            described = Some(told);
            Ok(region)
        })?;
        let description = described.ok_or(Malformed)?;
        Ok(Arc::new(Self { stream, description }))
    }

    /// Sets what is told notices; the first one counts.
    pub fn set_sink(&self, sink: Arc<dyn Sink>) {
        self.stream.set_receiver(Arc::new(SinkReceiver(sink)));
    }

    /// Returns what the host said of its device.
    pub fn description(&self) -> &Description {
        &self.description
    }
}

/// Decodes notices for a sink.
struct SinkReceiver(Arc<dyn Sink>);

impl Receiver for SinkReceiver {
    fn notices(&self, payload: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(payload);
        while !reader.is_at_end() {
            self.0.notice(reader.take()?);
        }
        Ok(())
    }

    fn lost(&self, why: &str) {
        self.0.lost(why);
    }
}
