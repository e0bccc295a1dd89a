//! Memory borrowed from real agents, read and written by byte ranges.

use std::sync::mpsc;

use crate::common::{Rack, eventually};
use venice_recipient::{
    AllocationSpec, MemorySpec, News, PortKind, ReadPart, RecipientError, RemoteMemory, Request,
    WritePart,
};
use venice_wire::SLAB_BYTES;

fn request(rack: &Rack, port: PortKind, slabs: u64) -> Request {
    let memory = MemorySpec {
        remote_bytes: Some(slabs * SLAB_BYTES),
        copies: Some(1),
        ..MemorySpec::default()
    };
    let spec = AllocationSpec::of_memory(memory);
    Request { access: rack.access(), port, node: None, spec }
}

/// Returns the data that belongs at `offset`.
fn pattern(offset: u64, len_bytes: usize) -> Vec<u8> {
    (offset..offset + len_bytes as u64).map(|at| (at * 31 % 251) as u8 + 1).collect()
}

fn bytes_roundtrip(port: PortKind) {
    let rack = Rack::start(2, 4);
    let memory = RemoteMemory::borrow(&request(&rack, port, 4), |_| {}).unwrap();
    assert_eq!(memory.len_bytes(), 4 * SLAB_BYTES);
    // Two threads at a time, each its own ranges of odd sizes, over page and slab borders.
    let offsets: Vec<u64> =
        (0..4).flat_map(|slab| [1, 5, 9].map(|n| slab * SLAB_BYTES + n * 4095 * 97)).collect();
    let lens = [1usize, 4096, 9001, 300_000];
    std::thread::scope(|scope| {
        for side in 0..2 {
            let (memory, offsets) = (&memory, &offsets);
            scope.spawn(move || {
                let mut lane = memory.lane().unwrap();
                let mine = || offsets.iter().enumerate().filter(|(at, _)| at % 2 == side);
                let texts: Vec<_> =
                    mine().map(|(at, &offset)| (offset, pattern(offset, lens[at % 4]))).collect();
                let mut parts: Vec<_> =
                    texts.iter().map(|(offset, text)| WritePart::new(*offset, text)).collect();
                lane.write_all(&mut parts).unwrap();
                assert!(parts.iter().all(|part| !part.is_lost));
                let mut back: Vec<_> = texts.iter().map(|(_, text)| vec![0; text.len()]).collect();
                let mut parts: Vec<_> = texts
                    .iter()
                    .zip(&mut back)
                    .map(|((offset, _), into)| ReadPart::new(*offset, into))
                    .collect();
                lane.read_all(&mut parts).unwrap();
                assert!(texts.iter().zip(&back).all(|((_, text), back)| text == back));
            });
        }
    });
    let mut fresh = vec![1; 5000];
    memory.lane().unwrap().read(4 * SLAB_BYTES - 5000, &mut fresh).unwrap();
    assert!(fresh.iter().all(|&byte| byte == 0), "borrowed memory is zeros");
    drop(memory);
    eventually("all is given back", || rack.free_bytes() == 8 * SLAB_BYTES);
}

fn stopped_donor_loses_its_slabs(port: PortKind) {
    let mut rack = Rack::start(2, 2);
    let (tell, events) = mpsc::channel();
    let memory = RemoteMemory::borrow(&request(&rack, port, 2), move |lost| {
        let _ = tell.send(lost);
    });
    let memory = memory.unwrap();
    let mut lane = memory.lane().unwrap();
    for slab in 0..2 {
        lane.write(slab * SLAB_BYTES, &pattern(slab, 10_000)).unwrap();
    }
    rack.stop(1);
    let News::Lost(lost) = events.recv().unwrap() else { panic!("another event came first") };
    assert_eq!((lost.name.as_str(), lost.lost_slabs), ("node2", 1));
    let mut lives = 0;
    for slab in 0..2 {
        let mut back = vec![0; 10_000];
        match lane.read(slab * SLAB_BYTES, &mut back) {
            Ok(()) => {
                assert!(back == pattern(slab, 10_000));
                lives += 1;
            }
            Err(error) => assert!(error.to_string().contains("node2"), "{error}"),
        }
    }
    assert_eq!(lives, 1);
    drop(memory);
    assert!(lane.read(0, &mut [0]).is_err(), "released memory cannot be read");
    assert!(lane.read(SLAB_BYTES, &mut [0]).is_err());
}

fn stop_donors_in_turn(port: PortKind) {
    let mut rack = Rack::start(4, 6);
    let (tell, events) = mpsc::channel();
    let mut with_copies = request(&rack, port, 5);
    with_copies.spec.memory.as_mut().unwrap().copies = None;
    let memory = RemoteMemory::borrow(&with_copies, move |news| drop(tell.send(news))).unwrap();
    assert_eq!(memory.copies().copies, 2, "the rack has room for two");
    let mut lane = memory.lane().unwrap();
    let offsets = (0..5).map(|slab| slab * SLAB_BYTES + 4_095);
    for offset in offsets.clone() {
        lane.write(offset, &pattern(offset, 50_000)).unwrap();
    }
    for index in [3, 0] {
        rack.stop(index);
        // Writes go on while copies are lost and rebuilt.
        let mut round = 0u64;
        loop {
            round += 1;
            for offset in offsets.clone() {
                let mut back = vec![0; 50_000];
                lane.read(offset, &mut back).unwrap();
                assert!(back == pattern(offset + round - 1, 50_000), "offset {offset}");
                lane.write(offset, &pattern(offset + round, 50_000)).unwrap();
            }
            match events.try_recv() {
                Ok(News::Lost(lost)) => assert_eq!(lost.lost_slabs, 0),
                Ok(News::Rebuilt { slabs, .. }) => break assert!(slabs > 0),
                Ok(News::NotRebuilt { why, .. }) => panic!("{why}"),
                Ok(News::Awaited { .. }) => {}
                Ok(news) => panic!("{news}"),
                Err(_) => assert!(round < 100_000, "nothing is rebuilt"),
            }
        }
        for offset in offsets.clone() {
            lane.write(offset, &pattern(offset, 50_000)).unwrap();
        }
    }
    // Two nodes are left; with one of them half the copies are lost.
    rack.stop(1);
    for offset in offsets {
        let mut back = vec![0; 50_000];
        lane.read(offset, &mut back).unwrap();
        assert!(back == pattern(offset, 50_000));
    }
}

#[test]
fn copies_survive_donor_stops_over_shm() {
    stop_donors_in_turn(PortKind::Shm);
}

#[test]
fn copies_survive_donor_stops_over_udp() {
    stop_donors_in_turn(PortKind::Udp);
}

#[test]
fn bytes_roundtrip_over_shm() {
    bytes_roundtrip(PortKind::Shm);
}

#[test]
fn bytes_roundtrip_over_udp() {
    bytes_roundtrip(PortKind::Udp);
}

#[test]
fn stopped_donor_loses_only_its_slabs_over_shm() {
    stopped_donor_loses_its_slabs(PortKind::Shm);
}

#[test]
fn stopped_donor_loses_only_its_slabs_over_udp() {
    stopped_donor_loses_its_slabs(PortKind::Udp);
}

#[test]
fn impossible_requests_are_refused() {
    let rack = Rack::start(1, 2);
    let error = RemoteMemory::borrow(&request(&rack, PortKind::Shm, 3), |_| {}).unwrap_err();
    assert!(matches!(error, RecipientError::Control(_)), "{error}");
    let mut twice = request(&rack, PortKind::Shm, 1);
    twice.spec.memory.as_mut().unwrap().copies = Some(2);
    let error = RemoteMemory::borrow(&twice, |_| {}).unwrap_err();
    assert!(matches!(error, RecipientError::NoRoomForCopies { copies: 2, .. }), "{error}");
    let said = error.to_string();
    assert!(said.starts_with("2 copies need 2 nodes with room, one each: there are 1"), "{said}");
    twice.spec.memory.as_mut().unwrap().copies = None;
    assert_eq!(RemoteMemory::borrow(&twice, |_| {}).unwrap().copies().copies, 1, "one must do");
    let mut strange = request(&rack, PortKind::Shm, 1);
    strange.spec.donors = vec!["node9".into()];
    let error = RemoteMemory::borrow(&strange, |_| {}).unwrap_err();
    assert!(matches!(&error, RecipientError::UnknownNode(name) if name == "node9"), "{error}");
    assert_eq!(rack.free_bytes(), 2 * SLAB_BYTES);
}
