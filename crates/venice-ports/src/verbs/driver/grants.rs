//! Grants of a driver: joins them to their donors, at the start or later, and ends them.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use venice_fabric::{AccessError, DownReason, PeerIndex};
use venice_wire::{GrantId, GrantKey};

use super::VerbsDriver;
use crate::verbs::VerbsError;
use crate::verbs::link::{Link, LinkTarget};
use crate::verbs::queue::QueuePair;

/// Longest time of a living donor to answer, registration of its slabs included, in nanoseconds.
pub(super) const ANSWER_LIMIT_NS: u64 = 20_000_000_000;
/// The same limit while a program waits, in nanoseconds; a slower donor has registered the slabs by
/// the next attempt.
const JOIN_LIMIT_NS: u64 = 1_000_000_000;

impl VerbsDriver {
    /// Sets the longest time of a donor to answer [`VerbsDriver::add_grant`], registration of its
    /// slabs included; initially 20 seconds.
    pub fn set_answer_limit(&mut self, limit: Duration) {
        self.answer_limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Connects to the donor at `address` for one grant. It takes a round trip of TCP, and the
    /// first time the donor registers the slabs (milliseconds each).
    ///
    /// # Errors
    /// Fails if the donor does not answer or refuses (unknown grant, wrong key), or the devices
    /// cannot be joined.
    pub fn add_grant(
        &mut self,
        address: SocketAddr,
        grant: GrantId,
        key: GrantKey,
    ) -> Result<PeerIndex, VerbsError> {
        let mut link = self.vacant_link()?;
        let limit_ns = self.answer_limit_ns;
        let target = LinkTarget { address, grant, key, limit_ns, lowest_fd: self.lowest_fd };
        link.connect(&target, &self.domain.device().addresses()?)?;
        self.links.push(link);
        let index = self.links.len() - 1;
        self.watch_link(index)?;
        Ok(PeerIndex(index as u32))
    }

    /// Prepares for `count` more grants that come later, by [`VerbsDriver::join_grant`]. Their
    /// connections' descriptors will be at or above `lowest_fd`, if there is room.
    ///
    /// # Errors
    /// Fails if the device has no room for so many queue pairs; those that fitted are ready.
    pub fn make_ready(&mut self, count: usize, lowest_fd: RawFd) -> Result<(), VerbsError> {
        self.lowest_fd = lowest_fd;
        self.addresses = Some(self.domain.device().addresses()?);
        for _ in 0..count {
            let link = self.vacant_link()?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Adds a grant like [`VerbsDriver::add_grant`], for a thread that must take no memory from the
    /// C library: over a prepared queue pair, or one whose grant has ended. That grant's mappings
    /// are removed, and the new grant takes its number.
    ///
    /// # Errors
    /// Same as [`VerbsDriver::add_grant`]; [`VerbsError::NoneReady`] if all are in use.
    pub fn join_grant(
        &mut self,
        address: SocketAddr,
        grant: GrantId,
        key: GrantKey,
    ) -> Result<PeerIndex, VerbsError> {
        let vacant = self.links.iter().position(Link::is_vacant);
        let (Some(index), Some(addresses)) = (vacant, &self.addresses) else {
            return Err(VerbsError::NoneReady { device: self.domain.device().name().to_owned() });
        };
        let peer = PeerIndex(index as u32);
        self.mappings.unmap_all_of(peer);
        let limit_ns = JOIN_LIMIT_NS;
        let target = LinkTarget { address, grant, key, limit_ns, lowest_fd: self.lowest_fd };
        self.links[index].connect(&target, addresses)?;
        self.watch_link(index)?;
        Ok(peer)
    }

    /// Takes the connections of grants that have ended, for their owner to close; each once.
    pub fn take_ended(&mut self) -> impl Iterator<Item = OwnedFd> {
        let (events, links) = (&self.events, &mut self.links);
        let ended = links.iter_mut().filter(|link| link.down().is_some());
        let streams = ended.filter_map(|link| link.stream.take());
        // A forked child may still have it open, which would keep it in the epoll.
        streams.inspect(move |stream| {
            let _ = epoll::delete(events, stream);
        })
    }

    /// Returns the descriptor of a grant's connection.
    ///
    /// # Panics
    /// Panics if the grant is not of this driver.
    pub fn connection(&self, peer: PeerIndex) -> Option<RawFd> {
        self.links[peer.0 as usize].stream.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn vacant_link(&self) -> Result<Link, VerbsError> {
        let depth = self.config.requests_per_grant.max(2);
        Ok(Link::vacant(QueuePair::new(&self.domain, &self.completions, depth)?))
    }

    /// Adds a link's connection to the epoll of [`VerbsDriver::fd`].
    fn watch_link(&mut self, index: usize) -> Result<(), VerbsError> {
        let link = &mut self.links[index];
        let Some(stream) = &link.stream else { return Ok(()) };
        let interest = epoll::EventData::new_u64(index as u64);
        let added = epoll::add(&self.events, stream, interest, epoll::EventFlags::IN);
        added.map_err(|errno| {
            link.fail(AccessError::PeerDown(DownReason::Closed));
            VerbsError::System { step: "watching a connection", source: errno.into() }
        })
    }

    /// Handles an event of a link's connection.
    pub(super) fn handle_link_event(&mut self, index: usize) {
        let link = &mut self.links[index];
        link.read_event();
        if link.down().is_some() {
            // A closed stream stays readable for ever.
            if let Some(stream) = &link.stream {
                let _ = epoll::delete(&self.events, stream);
            }
        }
    }
}
