//! Donors of coded memory that die, stop answering or delay a read, over a scripted port.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use venice_fabric::Atomic;
use venice_wire::SLAB_BYTES;

use super::*;
use crate::paged::run_block::{Fate, PortKind, ReplicaAt, ReplicaState};

/// A donor's scripted behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Donor {
    Answers,
    /// Delays its answers.
    Waits,
    /// Fails its link after a turn.
    IsSilent,
    Died,
}

/// A port to donors, one for each replica.
struct Port {
    memory: BTreeMap<u64, Vec<u8>>,
    requests: VecDeque<(u64, usize, u64, Option<Vec<u8>>)>,
    donors: Vec<Donor>,
    /// Turns until suspected donors answer again.
    silent_for: u32,
    has_turned: bool,
    /// Requests that were answered.
    answered: usize,
}

impl Port {
    fn queue(&mut self, token: u64, address: u64, bytes: Option<&[u8]>) -> Result<(), Rejected> {
        let replica = (address / SLAB_BYTES) as usize;
        self.requests.push_back((token, replica, address, bytes.map(<[u8]>::to_vec)));
        Ok(())
    }
}

impl Donors for Port {
    fn reach(&mut self, _block: &RunBlockMap, _replica: usize) -> bool {
        true
    }

    fn is_up(&mut self, replica: usize) -> bool {
        self.donors[replica] == Donor::Answers
    }

    fn read(&mut self, token: u64, address: u64, _len_bytes: u32) -> Result<(), Rejected> {
        self.queue(token, address, None)
    }

    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), Rejected> {
        self.queue(token, address, Some(bytes))
    }

    fn atomic(&mut self, _: u64, _: u64, _: Atomic) -> Result<(), Rejected> {
        unreachable!("coded memory has none")
    }

    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), RequestError>)> {
        let may_end = |donor: Donor, has_turned: bool| match donor {
            Donor::Answers | Donor::Died => true,
            Donor::IsSilent => has_turned,
            Donor::Waits => false,
        };
        let (donors, has_turned) = (&self.donors, self.has_turned);
        let ready = self.requests.iter().position(|it| may_end(donors[it.1], has_turned))?;
        let (token, replica, address, bytes) = self.requests.remove(ready)?;
        match self.donors[replica] {
            Donor::IsSilent => {
                self.has_turned = false;
                return Some((token, Err(RequestError::NoAnswer)));
            }
            Donor::Died => return Some((token, Err(RequestError::Gone(Fate::Died)))),
            Donor::Answers | Donor::Waits => self.answered += 1,
        }
        match bytes {
            Some(bytes) => drop(self.memory.insert(address, bytes)),
            None => {
                let bytes = self.memory.get(&address).map_or(&[][..], |bytes| bytes);
                bytes_of_mut(buffer)[..bytes.len()].copy_from_slice(bytes);
            }
        }
        Some((token, Ok(())))
    }

    fn flush(&mut self) {}

    fn attend(&mut self, _block: &RunBlockMap) {}

    fn turn(&mut self) {
        self.has_turned = true;
        self.silent_for = self.silent_for.saturating_sub(1);
        if self.silent_for == 0 {
            let silent = self.donors.iter_mut().filter(|donor| **donor == Donor::IsSilent);
            silent.for_each(|donor| *donor = Donor::Answers);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

static GO_ON: AtomicBool = AtomicBool::new(false);

/// One slab, and a thread's access to it.
fn coded(coding: Coding) -> (RunBlockMap, Framed<Port>) {
    let (_fd, block) = RunBlockMap::create_coded(PortKind::Udp, 1, coding).unwrap();
    for donor in 0..coding.fragments() {
        block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
        let at = ReplicaAt { donor, remote_addr: 0, grant: donor as u64, key: 1 };
        match donor {
            0 => drop(block.add_slab(at).unwrap()),
            _ => drop(block.add_fragment(0, donor, at, ReplicaState::Live).unwrap()),
        }
    }
    let port = Port {
        memory: BTreeMap::new(),
        requests: VecDeque::new(),
        donors: vec![Donor::Answers; coding.fragments()],
        silent_for: 0,
        has_turned: false,
        answered: 0,
    };
    let far = Framed::new(port, &block);
    (block, far)
}

fn page(number: u64) -> Box<Words> {
    Box::new(std::array::from_fn(|at| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64))
}

/// Writes a page; `false`: too few donors have it.
fn write(far: &mut Framed<Port>, block: &RunBlockMap, slot: u32, number: u64) -> bool {
    let page = page(number);
    let mut pages = [WriteOut::page(page.as_ptr() as usize, slot)];
    far.write_all(block, &mut pages);
    pages[0].reached.count_ones() as usize >= block.data_fragments()
}

fn read(far: &mut Framed<Port>, block: &RunBlockMap, slot: u32) -> Option<Box<Words>> {
    let mut buffer = Box::new([0; PAGE / 8]);
    far.fetch_at_once(block, slot, &mut buffer).then_some(buffer)
}

/// All largest bearable sets of lost donors.
fn bearable(coding: Coding) -> impl Iterator<Item = u32> {
    (0..1u32 << coding.fragments())
        .filter(move |lost| lost.count_ones() as usize == coding.parity())
}

fn have(far: &mut Framed<Port>, which: u32, be: Donor) {
    for (at, donor) in far.donors.donors.iter_mut().enumerate() {
        *donor = if which & 1 << at != 0 { be } else { Donor::Answers };
    }
}

#[test]
fn healthy_read_requests_data_fragments_only() {
    let coding = Coding::new(4, 2).unwrap();
    let (block, mut far) = coded(coding);
    assert!(write(&mut far, &block, 9, 1));
    assert_eq!(std::mem::take(&mut far.donors.answered), 6);
    have(&mut far, 0b11_0000, Donor::Waits);
    assert!(read(&mut far, &block, 9) == Some(page(1)));
    assert_eq!((far.donors.answered, far.donors.requests.len()), (4, 0));
}

#[test]
fn page_survives_any_bearable_deaths() {
    for coding in Coding::all() {
        for lost in bearable(coding) {
            let (block, mut far) = coded(coding);
            assert!(write(&mut far, &block, 9, 1));
            have(&mut far, lost, Donor::Died);
            assert!(read(&mut far, &block, 9) == Some(page(1)), "{coding} without {lost:b}");
            assert!(write(&mut far, &block, 9, 2), "{coding} without {lost:b}");
            assert!(read(&mut far, &block, 9) == Some(page(2)), "{coding} without {lost:b}");
        }
    }
}

#[test]
fn one_death_too_many_is_loss() {
    for coding in Coding::all() {
        let (block, mut far) = coded(coding);
        assert!(write(&mut far, &block, 9, 1));
        have(&mut far, (2 << coding.parity()) - 1, Donor::Died);
        assert_eq!(read(&mut far, &block, 9), None, "{coding}");
        assert!(!write(&mut far, &block, 9, 2) && !block.slot_is_alive(9), "{coding}");
    }
}

#[test]
fn late_fragment_is_replaced() {
    let coding = Coding::new(4, 2).unwrap();
    for late in bearable(coding) {
        let (block, mut far) = coded(coding);
        assert!(write(&mut far, &block, 9, 1) && write(&mut far, &block, 10, 2));
        have(&mut far, late, Donor::Waits);
        assert!(read(&mut far, &block, 9) == Some(page(1)), "{late:b}");
        assert!(block.donors().iter().all(|donor| !donor.is_lost()), "no donor was lost");
        have(&mut far, 0, Donor::Answers);
        assert!(read(&mut far, &block, 10) == Some(page(2)), "{late:b}");
    }
}

#[test]
fn sole_silent_donors_are_awaited() {
    let coding = Coding::new(2, 1).unwrap();
    let (block, mut far) = coded(coding);
    assert!(write(&mut far, &block, 9, 1));
    have(&mut far, 0b110, Donor::IsSilent);
    far.donors.silent_for = 20;
    assert!(read(&mut far, &block, 9) == Some(page(1)));
    have(&mut far, 0b111, Donor::IsSilent);
    far.donors.silent_for = 20;
    assert!(write(&mut far, &block, 9, 2));
    assert!(read(&mut far, &block, 9) == Some(page(2)));
}

#[test]
fn lost_fragments_are_computed() {
    for (coding, lost) in [("2+1", 0), ("4+2", 5), ("8+3", 3), ("8+3", 10)] {
        let coding: Coding = coding.parse().unwrap();
        let (block, mut far) = coded(coding);
        let slots: Vec<u32> = (0..2 * MAX_IN_FLIGHT as u32).map(|at| at * 3).collect();
        slots.iter().for_each(|&slot| assert!(write(&mut far, &block, slot, slot.into())));
        have(&mut far, 1 << lost, Donor::Died);
        let mut pages = vec![[0; PAGE / 8]; slots.len()];
        assert!(far.compute_slots(&block, lost, &slots, &mut pages, &GO_ON));
        for (&slot, fragment) in slots.iter().zip(&pages) {
            let at = lost as u64 * SLAB_BYTES + block.offset_of(slot) as u64;
            let wrote = &far.donors.memory[&at];
            assert!(bytes_of(fragment)[..coding.fragment_bytes()] == wrote[..], "slot {slot}");
        }
        have(&mut far, (2 << coding.parity()) - 1, Donor::Died);
        assert!(
            !far.compute_slots(&block, lost, &slots, &mut pages, &GO_ON),
            "too few fragments compute none"
        );
        assert_eq!(far.waiting, 0);
    }
}

#[test]
fn stop_ends_reads_of_silent_donors() {
    let coding = Coding::new(2, 1).unwrap();
    let (block, mut far) = coded(coding);
    let slots = [3, 9];
    assert!(slots.iter().all(|&slot| write(&mut far, &block, slot, 1)));
    have(&mut far, 0b110, Donor::IsSilent);
    far.donors.silent_for = 20_000;
    let (mut pages, stop) = ([[0; PAGE / 8]; 2], AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::Release);
        });
        assert!(
            !far.compute_slots(&block, 0, &slots, &mut pages, &stop),
            "the reads must be stopped"
        );
    });
    assert_eq!((far.waiting, far.buffered.len()), (0, 0));
    far.donors.silent_for = 0;
    assert!(far.compute_slots(&block, 0, &slots, &mut pages, &GO_ON));
}
