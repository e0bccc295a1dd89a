//! The adaptive communication library (Venice paper, 5.1.3): which channel suits what is to be
//! done, measured and not guessed, and one ordered stream that takes several channels at once.
//!
//! No channel is best at everything: single accesses are quick and small, bulk transfers carry
//! most, messages find a reader that waits. A [`Chooser`] keeps running estimates of each channel
//! by size, tells patterns apart by a [`PatternDetector`] or a hint, and explains every choice by
//! a [`ChoiceEvent`], which its user can log.
//!
//! An [`AdaptiveSender`] cuts a stream into segments and sends each over the channel chosen for it:
//! as a QPair message, or as a CRMA or RDMA write into the receiver's *landing region*, with a
//! QPair message that says where it lies. Channels overtake each other, so segments carry sequence
//! numbers, and the [`AdaptiveReceiver`] gives them out in order, each once. Both hold a bounded
//! number of segments: a slow reader holds up the writer. An [`Offer`] tells the writer how the
//! reader has set its end up.

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
