//! The adaptive streams of one end: kept going whenever its frames move, whether their own socket
//! makes a call or not.

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

/// Where the landing region is in the window space of the initiator, which has no other window.
const LANDING_ADDR: u64 = 0;

/// A connecting end writes at most one stream, an accepting end reads any number.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    writer: Option<Writer>,
    readers: BTreeMap<QPairId, Reader>,
}

#[derive(Debug)]
struct Writer {
    sender: AdaptiveSender,
    qpair: QPairId,
    /// Its socket is gone, and not all of the stream is on its way.
    is_closing: bool,
}

#[derive(Debug)]
struct Reader {
    receiver: AdaptiveReceiver,
    grant: GrantId,
    /// What arrived before can be read all the same.
    failed: Option<StreamError>,
}

impl Streams {
    /// Takes what the reader at the other end of `qpair` offers, and begins to write. Segments that
    /// travel in messages have at most `inline_bytes`, however long the reader would take them.
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
        // Who has not heard that there is nothing is not told when there is something.
        self.go_on_writing(link, now_ns);
        Ok(())
    }

    /// Lends a landing region under `key`, and tells the writer at the other end of `qpair`.
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
        // As above.
        reader.handle(now_ns, link);
        self.readers.insert(qpair, reader);
        Ok(())
    }

    /// Writes the next bytes, at most one segment; how many, and the channel that they went by.
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

    /// Ends what is written.
    pub(crate) fn finish(&mut self, link: &mut Link, now_ns: u64) -> Result<(), StreamError> {
        let Some(Writer { sender, .. }) = &mut self.writer else { return Ok(()) };
        sender.finish();
        sender.handle(now_ns, initiator(link))
    }

    /// `Ok` once the reader's end was sent word of all that was written; with `to_the_end`, once
    /// all was read and the stream's end was seen.
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

    /// Reads what is there, as far as it fits; 0 at the end.
    pub(crate) fn read(
        &mut self,
        link: &mut Link,
        now_ns: u64,
        qpair: QPairId,
        into: &mut [u8],
    ) -> Result<usize, StreamError> {
        let reader = self.readers.get_mut(&qpair).expect("a reader's socket has a stream");
        let grant = reader.grant;
        let landings = landings(link);
        let read = reader.receiver.read(into, |offset, bytes| landings.copy(grant, offset, bytes));
        if let (Err(StreamError::WouldBlock), Some(failed)) = (&read, reader.failed) {
            return Err(failed);
        }
        reader.handle(now_ns, link);
        read
    }

    /// Segments that came by another channel before one that was sent earlier.
    pub(crate) fn early_segments(&self, qpair: QPairId) -> u64 {
        self.readers.get(&qpair).map_or(0, |reader| reader.receiver.early_segments())
    }

    /// Something has happened to a QPair; whether it is a stream's.
    pub(super) fn handle_qpair(&mut self, link: &mut Link, now_ns: u64, qpair: QPairId) -> bool {
        if let Some(reader) = self.readers.get_mut(&qpair) {
            reader.handle(now_ns, link);
            return true;
        }
        let is_writer = self.writer.as_ref().is_some_and(|writer| writer.qpair == qpair);
        is_writer && self.go_on_writing(link, now_ns)
    }

    /// Takes what is over of the writer's accesses; whether anything was.
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
        any && self.go_on_writing(link, now_ns)
    }

    /// Tells the reader what there is to tell; gives the QPair back if that was all.
    fn go_on_writing(&mut self, link: &mut Link, now_ns: u64) -> bool {
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

    /// The socket of `qpair` is gone. A stream that is written is ended, and its QPair given back
    /// once the reader has been told of all of it.
    pub(super) fn close(&mut self, link: &mut Link, now_ns: u64, qpair: QPairId) {
        match &mut self.writer {
            Some(writer) if writer.qpair == qpair => {
                writer.sender.finish();
                writer.is_closing = true;
                self.go_on_writing(link, now_ns);
            }
            _ => {
                if let Some(reader) = self.readers.remove(&qpair) {
                    landings(link).remove(reader.grant);
                }
                link.qpairs().close(qpair);
            }
        }
    }

    /// Whether a stream without a socket is still being told of.
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
    link.initiator().expect("streams are written where there is an initiator")
}

fn landings(link: &mut Link) -> &mut Landings {
    link.landings().expect("streams are read where memory is lent")
}
