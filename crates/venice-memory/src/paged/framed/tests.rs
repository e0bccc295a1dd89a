//! Donors that stop answering, as one thread sees them, over a scripted port.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::*;
use crate::paged::run_block::{PortKind, ReplicaAt, ReplicaState};
use crate::paged::transfer::WriteOut;

/// A scripted port. Each donor answers, or its link fails with all outstanding requests.
#[derive(Default)]
struct Port {
    memory: BTreeMap<u64, Vec<u8>>,
    requests: VecDeque<(u64, usize, Request)>,
    /// By replica, which here is also the donor.
    is_silent: [bool; 2],
    /// Turns until a suspected donor answers again; `None`: never.
    silent_for: Option<u32>,
    /// The block in which the supervisor's decision is made at each turn.
    resolves: Option<std::sync::Arc<RunBlockMap>>,
    turns: u32,
    /// True after a turn since a link last failed.
    has_turned: bool,
}

enum Request {
    Read(u64),
    Write(u64, Vec<u8>),
    Add(u64, u64),
}

impl Port {
    fn queue(&mut self, token: u64, address: u64, request: Request) -> Result<(), Rejected> {
        let replica = (address / SLAB_BYTES) as usize;
        self.requests.push_back((token, replica, request));
        Ok(())
    }

    fn word(&self, address: u64) -> u64 {
        let bytes = self.memory.get(&address).map_or(&[][..], |bytes| bytes);
        bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

impl Donors for Port {
    fn reach(&mut self, _block: &RunBlockMap, _replica: usize) -> bool {
        true
    }

    fn is_up(&mut self, replica: usize) -> bool {
        !self.is_silent[replica]
    }

    fn read(&mut self, token: u64, address: u64, _len_bytes: u32) -> Result<(), Rejected> {
        self.queue(token, address, Request::Read(address))
    }

    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), Rejected> {
        self.queue(token, address, Request::Write(address, bytes.to_vec()))
    }

    fn atomic(&mut self, token: u64, address: u64, atomic: Atomic) -> Result<(), Rejected> {
        let Atomic::FetchAdd(add) = atomic else { unreachable!("only additions are tried") };
        self.queue(token, address, Request::Add(address, add))
    }

    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), RequestError>)> {
        let &(token, replica, _) = self.requests.front()?;
        // A timeout takes a turn.
        if self.is_silent[replica] && !std::mem::take(&mut self.has_turned) {
            return None;
        }
        let (_, _, request) = self.requests.pop_front()?;
        if self.is_silent[replica] {
            return Some((token, Err(RequestError::NoAnswer)));
        }
        match request {
            Request::Read(address) => buffer[0] = self.word(address),
            Request::Write(address, bytes) => drop(self.memory.insert(address, bytes)),
            Request::Add(address, add) => {
                buffer[0] = self.word(address);
                let sum = buffer[0].wrapping_add(add);
                self.memory.insert(address, sum.to_ne_bytes().to_vec());
            }
        }
        Some((token, Ok(())))
    }

    fn flush(&mut self) {}

    fn attend(&mut self, _block: &RunBlockMap) {}

    fn turn(&mut self) {
        (self.turns, self.has_turned) = (self.turns + 1, true);
        if self.silent_for.is_some_and(|turns| self.turns > turns) {
            self.is_silent = [false; 2];
        }
        if let Some(block) = &self.resolves {
            let suspected: Vec<bool> =
                block.donors().iter().map(|donor| donor.take_suspicion()).collect();
            for donor in (0..suspected.len()).filter(|&donor| suspected[donor]) {
                block.resolve_suspicion(donor, |other| suspected[other]);
            }
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// One slab with a copy at each of `copies` donors.
fn block(copies: usize) -> std::sync::Arc<RunBlockMap> {
    let (_fd, block) = RunBlockMap::create(PortKind::Udp, 1, copies).unwrap();
    for donor in 0..copies {
        block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
        let at = ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 };
        match donor {
            0 => drop(block.add_slab(at).unwrap()),
            _ => drop(block.add_replica(0, at, ReplicaState::Live).unwrap()),
        }
    }
    block.into()
}

fn write(far: &mut Framed<Port>, block: &RunBlockMap, number: u64) -> bool {
    let page = Box::new([number; PAGE / 8]);
    let mut pages = [WriteOut::page(page.as_ptr() as usize, 7)];
    far.write_all(block, &mut pages);
    pages[0].reached != 0
}

fn read(far: &mut Framed<Port>, block: &RunBlockMap) -> Option<u64> {
    let mut buffer = [0; PAGE / 8];
    far.fetch_at_once(block, 7, &mut buffer).then_some(buffer[0])
}

#[test]
fn slow_sole_holder_is_awaited() {
    let block = block(1);
    let port = Port { resolves: Some(block.clone()), silent_for: Some(20), ..Port::default() };
    let mut far = Framed::new(port, &block);
    far.donors.is_silent[0] = true;
    assert!(write(&mut far, &block, 5), "the write ends once the donor answers");
    assert!(far.donors.turns > 20);
    (far.donors.turns, far.donors.is_silent[0]) = (0, true);
    assert_eq!(read(&mut far, &block), Some(5));
    assert!(!block.donors()[0].is_lost());
    assert!(!far.is_silent(0), "an answer ends it");
}

#[test]
fn donor_silent_for_lease_is_lost() {
    let block = block(1);
    block.set_lease(Duration::from_millis(1));
    let mut far = Framed::new(Port { is_silent: [true; 2], ..Port::default() }, &block);
    assert!(!write(&mut far, &block, 5));
    assert_eq!(block.donors()[0].fate(), Some(Fate::Unresponsive));
    assert_eq!(read(&mut far, &block), None);
}

#[test]
fn silent_donor_with_replica_is_dropped() {
    let block = block(2);
    let mut far = Framed::new(Port { resolves: Some(block.clone()), ..Port::default() }, &block);
    assert!(write(&mut far, &block, 5));
    far.donors.is_silent[0] = true;
    assert_eq!(read(&mut far, &block), Some(5), "the other donor has it");
    assert!(!block.donors()[0].is_lost(), "no request waited for it");
    assert!(write(&mut far, &block, 6));
    assert_eq!(block.donors()[0].fate(), Some(Fate::Unresponsive));
    far.donors.is_silent = [false; 2];
    assert_eq!(read(&mut far, &block), Some(6), "a replica that missed a write is not read");
}

#[test]
fn two_silent_donors_lose_nothing() {
    let block = block(2);
    let port = Port { resolves: Some(block.clone()), silent_for: Some(20), ..Port::default() };
    let mut far = Framed::new(port, &block);
    assert!(write(&mut far, &block, 5));
    (far.donors.turns, far.donors.is_silent) = (0, [true; 2]);
    assert!(write(&mut far, &block, 6));
    assert!(block.readable(0).next().is_some());
    assert_eq!(read(&mut far, &block), Some(6));
}

#[test]
fn unanswered_addition_is_not_repeated() {
    let block = block(1);
    let port = Port { resolves: Some(block.clone()), silent_for: Some(20), ..Port::default() };
    let mut far = Framed::new(port, &block);
    assert_eq!(far.atomic(&block, 0, 7, 0, Atomic::FetchAdd(3)), Some(0));
    (far.donors.turns, far.donors.is_silent) = (0, [true; 2]);
    assert_eq!(far.atomic(&block, 0, 7, 0, Atomic::FetchAdd(3)), None);
    assert!(block.slot_is_alive(7), "the slot is not lost");
    assert_eq!(far.atomic(&block, 0, 7, 0, Atomic::FetchAdd(3)), Some(3));
}
