//! The adaptive streams of one end: served whenever its frames move, even if their own socket makes
//! no call.

use std::collections::BTreeMap;

use venice_fabric::adaptive::{
    AdaptiveReceiver, AdaptiveSender, ChoiceEvent, ChooserConfig, Offer, Pattern, StreamConfig,
    StreamError,
};
use venice_fabric::{Initiator, QPairError, QPairId};
use venice_wire::{GrantId, GrantKey};

use super::QPairSocketError;
use super::landing::Landings;
use super::link::Link;

/// Address of the landing region in the initiator's mappings; there is no other.
const LANDING_ADDR: u64 = 0;

/// Streams of an end: a connecting end writes at most one, an accepting end reads any number.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    writer: Option<Writer>,
    readers: BTreeMap<QPairId, Reader>,
}

#[derive(Debug)]
struct Writer {
    sender: AdaptiveSender,
    qpair: QPairId,
    /// True if its socket is gone and a part of the stream is still to be sent.
    is_closing: bool,
}

#[derive(Debug)]
struct Reader {
    receiver: AdaptiveReceiver,
    grant: GrantId,
    /// Error of the stream. Bytes that arrived before it can still be read.
    failed: Option<StreamError>,
}

impl Streams {
    /// Takes the offer of the reader at the other end of `qpair` and begins to write. Segments that
    /// travel in messages have at most `inline_bytes`, even if the reader takes longer ones.
    pub(crate) fn begin_writing(
        &mut self,
        link: &mut Link,
        now_ns: u64,
        qpair: QPairId,
        inline_bytes: u32,
        chooser: ChooserConfig,
    ) -> Result<(), QPairSocketError> {
        let mut message = [0; Offer::BYTES];
        let len = match link.qpairs().recv(qpair, &mut message) {
            Ok(0) => return Err(QPairSocketError::Closed),
            Err(QPairError::BufferTooSmall { .. }) => return Err(StreamError::Protocol.into()),
            received => received?,
        };
        let offer = Offer::parse(&message[..len]).ok_or(StreamError::Protocol)?;
        let Offer { mut config, grant, key } = offer;
        config.inline_bytes = config.inline_bytes.min(inline_bytes);
        let initiator = initiator(link);
        if config.landing_bytes > 0 {
            let peer = initiator.qpair_peer(qpair).ok_or(QPairSocketError::Closed)?;
            initiator
                .map_window(LANDING_ADDR, config.landing_bytes, peer, 0, grant, key)
                .map_err(StreamError::NotTaken)?;
        }
        let sender = AdaptiveSender::new(config, chooser, qpair, LANDING_ADDR, 0);
        self.writer = Some(Writer { sender, qpair, is_closing: false });
        // A later event is reported only after a poll that found nothing.
        self.notify_reader(link, now_ns);
        Ok(())
    }

    /// Lends a landing region under `key`, and offers it to the writer at the other end of `qpair`.
    pub(crate) fn begin_reading(
        &mut self,
        link: &mut Link,
        now_ns: u64,
        qpair: QPairId,
        config: StreamConfig,
        key: GrantKey,
    ) -> Result<(), QPairSocketError> {
        let grant = landings(link).add(key, config.landing_bytes);
        let offer = Offer { config, grant, key };
        if let Err(error) = link.qpairs().send(now_ns, qpair, &offer.emit()) {
            landings(link).remove(grant);
            return Err(error.into());
        }
        let receiver = AdaptiveReceiver::new(config, qpair);
        let mut reader = Reader { receiver, grant, failed: None };
        // Polls once, for the reason given in `begin_writing`.
        reader.handle(now_ns, link);
        self.readers.insert(qpair, reader);
        Ok(())
    }

    /// Writes the next bytes, at most one segment; returns how many, and the channel that carries
    /// them.
    pub(crate) fn write(
        &mut self,
        link: &mut Link,
        now_ns: u64,
        bytes: &[u8],
        pattern: Pattern,
    ) -> Result<(usize, Option<ChoiceEvent>), StreamError> {
        let sender = &mut self.writer.as_mut().ok_or(StreamError::Ended)?.sender;
        let len = sender.write(now_ns, initiator(link), bytes, Some(pattern))?;
        Ok((len, sender.poll_choice()))
    }

    /// Ends the written stream.
    pub(crate) fn finish(&mut self, link: &mut Link, now_ns: u64) -> Result<(), StreamError> {
        let Some(Writer { sender, .. }) = &mut self.writer else { return Ok(()) };
        sender.finish();
        sender.handle(now_ns, initiator(link))
    }

    /// Returns `Ok` once the reader's end was sent the notifications of all written bytes; with
    /// `to_the_end`, once all was read and the end of the stream was seen.
    pub(crate) fn check_written(
        &mut self,
        link: &mut Link,
        now_ns: u64,
        to_the_end: bool,
    ) -> Result<(), StreamError> {
        let Some(Writer { sender, .. }) = &mut self.writer else { return Ok(()) };
        sender.handle(now_ns, initiator(link))?;
        let is_done = if to_the_end { sender.is_done() } else { sender.is_announced() };
        if is_done { Ok(()) } else { Err(StreamError::WouldBlock) }
    }

    /// Reads the bytes that have arrived, as far as they fit; returns 0 at the end.
    pub(crate) fn read(
        &mut self,
        link: &mut Link,
        now_ns: u64,
        qpair: QPairId,
        into: &mut [u8],
    ) -> Result<usize, StreamError> {
        let reader = self.readers.get_mut(&qpair).expect("a reader's QPair has a stream");
        let grant = reader.grant;
        let landings = landings(link);
        let read = reader.receiver.read(into, |offset, bytes| landings.copy(grant, offset, bytes));
        if let (Err(StreamError::WouldBlock), Some(failed)) = (&read, reader.failed) {
            return Err(failed);
        }
        reader.handle(now_ns, link);
        read
    }

    /// Handles an event of a QPair; returns whether it belongs to a stream.
    pub(super) fn handle_qpair(&mut self, link: &mut Link, now_ns: u64, qpair: QPairId) -> bool {
        if let Some(reader) = self.readers.get_mut(&qpair) {
            reader.handle(now_ns, link);
            return true;
        }
        let is_writer = self.writer.as_ref().is_some_and(|writer| writer.qpair == qpair);
        is_writer && self.notify_reader(link, now_ns)
    }

    /// Takes the completions of the writer's accesses; returns whether there were any.
    pub(super) fn take_completions(&mut self, link: &mut Link, now_ns: u64) -> bool {
        let (Some(Writer { sender, .. }), Some(initiator)) = (&mut self.writer, link.initiator())
        else {
            return false;
        };
        let mut any = false;
        while let Some(completion) = initiator.poll_completion() {
            any |= sender.handle_completion(&completion);
        }
        while let Some(completion) = initiator.poll_rdma_completion() {
            any |= sender.handle_rdma_completion(completion).is_none();
        }
        any && self.notify_reader(link, now_ns)
    }

    /// Sends pending notifications to the reader; closes the QPair after the last one.
    fn notify_reader(&mut self, link: &mut Link, now_ns: u64) -> bool {
        let (Some(writer), Some(initiator)) = (&mut self.writer, link.initiator()) else {
            return false;
        };
        let handled = writer.sender.handle(now_ns, initiator);
        if writer.is_closing && (handled.is_err() || writer.sender.is_announced()) {
            initiator.qpairs_mut().close(writer.qpair);
            self.writer = None;
        }
        true
    }

    /// Handles the drop of the socket of `qpair`. A written stream is ended, and its QPair closed
    /// once the reader was notified of all of it.
    pub(super) fn close(&mut self, link: &mut Link, now_ns: u64, qpair: QPairId) {
        match &mut self.writer {
            Some(writer) if writer.qpair == qpair => {
                writer.sender.finish();
                writer.is_closing = true;
                self.notify_reader(link, now_ns);
            }
            _ => {
                if let Some(reader) = self.readers.remove(&qpair) {
                    landings(link).remove(reader.grant);
                }
                link.qpairs().close(qpair);
            }
        }
    }

    /// True while a stream without a socket has pending notifications.
    pub(super) fn is_closing(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.is_closing)
    }
}

impl Reader {
    fn handle(&mut self, now_ns: u64, link: &mut Link) {
        if self.failed.is_none() {
            self.failed = self.receiver.handle(now_ns, link.qpairs()).err();
        }
    }
}

fn initiator(link: &mut Link) -> &mut Initiator {
    link.initiator().expect("a writing end has an initiator")
}

fn landings(link: &mut Link) -> &mut Landings {
    link.landings().expect("a reading end lends memory")
}
