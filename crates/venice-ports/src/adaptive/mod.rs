//! The adaptive communication library (Venice paper, 5.1.3) as a socket: one ordered stream of bytes
//! that takes CRMA, RDMA and QPair at once, each segment the channel measured to be best for its
//! size, its pattern and the present load.
//!
//! An [`AdaptiveListener`] waits where a [`crate::qpair::QPairListener`] would, on a unix socket's
//! path (then frames travel through shared memory) or on a UDP address, sealed or not. Who connects
//! writes ([`AdaptiveWriter`]), who accepts reads ([`AdaptiveReader`]): only the reader lends memory
//! for the others to write to. For both directions, connect both ways. All calls come in three
//! kinds, as those of [`crate::qpair`]: blocking with a time-out, `try_` and a descriptor to poll,
//! and as futures.
//!
//! A segment goes as a QPair message, or as a CRMA or RDMA write into the reader's *landing region*
//! with a message that says where it lies. Segments overtake each other; sequence numbers put them
//! in order. The rules of the choice are in [`venice_fabric::adaptive`].
//!
//! # Why a channel was chosen
//! Each choice is an event of `tracing`, under the target [`TRACE_TARGET`]: at level *debug* when
//! segments of its size and pattern went another way before, or a trial begins or ends; at level
//! *trace* otherwise. So `RUST_LOG=venice_ports::adaptive=debug` shows what is learnt, in a program
//! that sets up a subscriber with that filter. Fields:
//!
//! | field | what it says |
//! |---|---|
//! | `message` | the choice in words |
//! | `channel` | `Crma`, `Rdma` or `QPair` |
//! | `reason` | `OnlyOne` (no other can take it), `Unmeasured` (on trial for the first time), `Explore` (on trial again), `Best`, `Incumbent` (in use, and no other is better by enough) |
//! | `pattern` | what it was chosen for: `Message`, `Random`, `Sequential`, `Strided` |
//! | `len_bytes`, `class_bytes` | its length, and the longest that is judged with it |
//! | `in_flight` | others under way on that channel |
//! | `crma_ns`, `rdma_ns`, `qpair_ns` | what one takes by each, in nanoseconds; missing where it was never measured |
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use venice_fabric::adaptive::{ChooserConfig, Pattern};
//! use venice_ports::adaptive::{AdaptiveListener, AdaptiveWriter};
//! use venice_ports::qpair::QPairAddress;
//!
//! let address = QPairAddress::ring("/tmp/flow.sock");
//! let mut listener = AdaptiveListener::bind(&address, 7)?;
//! # std::thread::spawn(move || {
//! let mut reader = listener.accept(None)?;
//! let mut all = Vec::new();
//! reader.read_to_end(&mut all)?;
//! # Ok::<(), std::io::Error>(()) });
//!
//! let mut writer = AdaptiveWriter::connect(&address, 7, ChooserConfig::default())?;
//! writer.set_pattern(Pattern::Sequential);
//! writer.write_all(&[0; 1 << 20])?;
//! writer.finish()?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod choices;
mod listener;
mod reader;
mod writer;

pub use self::choices::{ChoiceLog, TRACE_TARGET};
pub use self::listener::AdaptiveListener;
pub use self::reader::AdaptiveReader;
pub use self::writer::AdaptiveWriter;
