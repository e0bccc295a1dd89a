//! The adaptive communication library (Venice paper, 5.1.3) as a socket: one ordered stream of
//! bytes that uses CRMA, RDMA and QPair at once. Each segment takes the channel measured to be best
//! for its size, its pattern and the present load.
//!
//! An [`AdaptiveListener`] listens where a [`crate::qpair::QPairListener`] would: on a unix
//! socket's path (frames then travel through shared memory) or on a UDP address, sealed or not. The
//! connecting side writes ([`AdaptiveWriter`]), the accepting side reads ([`AdaptiveReader`]): only
//! the reader lends memory for the writers to write to. For both directions, connect both ways. All
//! calls come in three kinds, like those of [`crate::qpair`]: blocking with a time-out, `try_` with
//! a descriptor to poll, and futures.
//!
//! A segment travels as a QPair message, or as a CRMA or RDMA write into the reader's *landing
//! region*, followed by a message with its position. Segments overtake each other; sequence numbers
//! restore the order. [`venice_fabric::adaptive`] documents the rules of the choice.
//!
//! # Reports of choices
//! Each choice is an event of `tracing`, under the target [`TRACE_TARGET`]: at level *debug* if
//! segments of its size and pattern went another way before, or if a trial begins or ends; at level
//! *trace* otherwise. `RUST_LOG=venice_ports::adaptive=debug` shows what is learnt, in a program
//! with a subscriber that uses that filter. Fields:
//!
//! | field | meaning |
//! |---|---|
//! | `message` | the choice in words |
//! | `channel` | `Crma`, `Rdma` or `QPair` |
//! | `reason` | `OnlyOne` (no other can take it), `Unmeasured` (on trial for the first time), `Explore` (on trial again), `Best`, `Incumbent` (in use, and no other is better by enough) |
//! | `pattern` | pattern the channel was chosen for: `Message`, `Random`, `Sequential`, `Strided` |
//! | `len_bytes`, `class_bytes` | length of the segment, and longest length of its class |
//! | `in_flight` | other segments outstanding on that channel |
//! | `crma_ns`, `rdma_ns`, `qpair_ns` | measured time of one segment by each channel, in nanoseconds; absent if never measured |
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! use venice_fabric::adaptive::{ChooserConfig, Pattern};
//! use venice_ports::adaptive::{AdaptiveListener, AdaptiveWriter};
//! use venice_ports::qpair::QPairAddress;
//!
//! let address = QPairAddress::ring("/tmp/flow.sock");
//! let listener = AdaptiveListener::bind(&address, 7)?;
//! # std::thread::spawn(move || {
//! let mut reader = listener.accept(None)?;
//! let mut all = Vec::new();
//! reader.read_to_end(&mut all)?;
//! # Ok::<(), std::io::Error>(()) });
//!
//! let mut writer = AdaptiveWriter::connect(&address, 7, ChooserConfig::default(), None)?;
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
