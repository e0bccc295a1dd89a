//! The adaptive communication library (Venice paper, 5.1.3): it chooses the channel of each
//! transfer by measurement, and carries one ordered stream over several channels at once.
//!
//! No channel is best for everything: CRMA has the lowest latency for small accesses, RDMA the
//! highest bandwidth, and QPair messages reach a waiting reader. A [`Chooser`] keeps running
//! estimates of each channel by size, tells access patterns apart by a [`PatternDetector`] or a
//! hint, and explains every choice by a [`ChoiceEvent`] that its user can log.
//!
//! An [`AdaptiveSender`] cuts a stream into segments and sends each over the channel chosen for it:
//! as a QPair message, or as a CRMA or RDMA write into the receiver's *landing region* followed by
//! a QPair message that gives its place. Channels overtake each other, so segments carry sequence
//! numbers, and the [`AdaptiveReceiver`] delivers them in order, each once. Both hold a bounded
//! number of segments: a slow reader blocks the writer. An [`Offer`] carries the reader's settings
//! to the writer.

mod chooser;
mod estimate;
mod landing;
mod offer;
mod pattern;
mod receiver;
mod segment;
mod sender;
mod stream;
mod trial;

pub use self::{
    chooser::{Ask, ChoiceEvent, ChoiceReason, Chooser, ChooserConfig},
    estimate::{ChannelKind, Estimate},
    offer::Offer,
    pattern::{Pattern, PatternDetector},
    receiver::AdaptiveReceiver,
    sender::AdaptiveSender,
    stream::{StreamConfig, StreamError},
};
