//! A program's byte streams with one donor, each on a thread and over a link of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use venice_ports::qpair::{QPairAddress, QPairOptions, QPairStream};
use venice_sim::checkers::StreamId;
use venice_sim::rack::Sabotage;

use super::talk::{PAUSE, number};
use crate::racks::notes::{Notebook, Source, What};
use crate::racks::plan::{Service, end_config};
use crate::racks::stream::{Habits, StreamEnd};

/// Time for which a finished end is kept, while the donor may still have bytes to read.
const LINGER: Duration = Duration::from_secs(60);

/// The streams with one donor.
pub(super) struct Streams {
    pub source: Source,
    pub session: usize,
    pub donor: u16,
    pub address: QPairAddress,
    pub notebook: Arc<Notebook>,
    pub sabotage: Option<Sabotage>,
    pub tally: Tally,
}

/// Number of streams so far, and of those that go on.
#[derive(Debug, Default)]
pub(super) struct Tally {
    begun: AtomicU32,
    open: AtomicU32,
}

impl Streams {
    /// Begins a stream.
    pub fn begin(self: &Arc<Self>) {
        self.tally.open.fetch_add(1, Ordering::AcqRel);
        let streams = Arc::clone(self);
        std::thread::spawn(move || streams.play());
    }

    /// True if none goes on.
    pub fn are_over(&self) -> bool {
        self.tally.open.load(Ordering::Acquire) == 0
    }

    fn play(&self) {
        let mut end = self.connect();
        end.run();
        self.tally.open.fetch_sub(1, Ordering::AcqRel);
        if !end.is_all_read() {
            std::thread::sleep(LINGER);
        }
    }

    /// Retries until the donor accepts one.
    fn connect(&self) -> StreamEnd {
        loop {
            let begun = self.tally.begun.fetch_add(1, Ordering::AcqRel);
            let stream = number(self.source, self.session, begun);
            self.notebook.note(What::StreamBegan { stream, donor: self.donor });
            let id = StreamId(stream);
            let options = QPairOptions {
                credit: Habits::of(id).credit,
                end: end_config(),
                ..QPairOptions::default()
            };
            match QPairStream::connect(&self.address, Service::Stream as u32, &options) {
                Ok(socket) => {
                    let notebook = Arc::clone(&self.notebook);
                    return StreamEnd::connected(socket, notebook, id, self.sabotage);
                }
                Err(error) => {
                    let text = error.to_string();
                    self.notebook.note(What::StreamClosed { stream, text });
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}
