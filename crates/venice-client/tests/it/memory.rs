//! Borrowed memory and object caches of real agents, used by a program.

use crate::common::{Rack as Daemons, eventually};
use venice_client::{
    CacheOptions, Copies, Error, Memory, MemoryOptions, Policy, PortKind, Rack, ReclaimTo,
};
use venice_wire::SLAB_BYTES;

const MIB: u64 = 1 << 20;

fn options(port: PortKind) -> MemoryOptions {
    let mut options = MemoryOptions::default();
    options.port = Some(port);
    options.purpose = "a test".into();
    options
}

fn borrowed(daemons: &Daemons, port: PortKind, len_bytes: u64) -> Memory {
    let rack = Rack::connect_by(daemons.access()).unwrap();
    rack.get_memory(len_bytes, &options(port)).unwrap()
}

fn pattern(seed: u64, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes as u64).map(|at| (seed * 131 + at * 7) as u8).collect()
}

fn threads_share_one_memory(port: PortKind) {
    let daemons = Daemons::start(2, 4);
    let memory = borrowed(&daemons, port, 3 * SLAB_BYTES + 1);
    assert_eq!(memory.len_bytes(), 4 * SLAB_BYTES);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..20u64 {
                    let offset = (round * 3 + thread) * (MIB - 5) + 3;
                    let bytes = pattern(offset, 10_000 + round as usize * 977);
                    memory.write(offset, &bytes).unwrap();
                    let mut back = vec![0; bytes.len()];
                    memory.read(offset, &mut back).unwrap();
                    assert!(back == bytes);
                    memory.fetch_add(4 * SLAB_BYTES - 8, 1).unwrap();
                }
            });
        }
    });
    assert_eq!(memory.compare_swap(4 * SLAB_BYTES - 8, 60, 7), Ok(60));
    assert_eq!(memory.fetch_add(4 * SLAB_BYTES - 8, 0), Ok(7));
    assert_eq!(memory.fetch_add(3, 1), Err(Error::Unaligned(3)));
    let beyond = memory.read(4 * SLAB_BYTES - 1, &mut [0; 2]);
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "{beyond:?}");
    drop(memory);
    eventually("all is given back", || daemons.free_bytes() == 8 * SLAB_BYTES);
}

#[test]
fn threads_share_mapped_memory() {
    threads_share_one_memory(PortKind::Shm);
}

#[test]
fn threads_share_udp_memory() {
    threads_share_one_memory(PortKind::Udp);
}

fn outstanding_accesses_keep_order(port: PortKind) {
    let daemons = Daemons::start(2, 2);
    let memory = borrowed(&daemons, port, 2 * SLAB_BYTES);
    // More than may be outstanding, each byte written three times; then read without waiting.
    let mut writes = Vec::new();
    for generation in 0..3u64 {
        for page in 0..400u64 {
            let bytes = pattern(generation * 1000 + page, 4096);
            writes.push(memory.write_async(page * 40_000, bytes).unwrap());
        }
    }
    let reads: Vec<_> =
        (0..400).map(|page| memory.read_async(page * 40_000, vec![0; 4096]).unwrap()).collect();
    for (page, read) in (0..).zip(reads) {
        assert!(read.wait().unwrap() == pattern(2000 + page, 4096), "page {page}");
    }
    assert!(writes.iter().all(|write| write.is_over()));
    memory.write_async(0, vec![9; 100]).unwrap();
    memory.flush();
    assert_eq!(memory.under_way(), 0);
    let mut first = [0; 1];
    memory.read(0, &mut first).unwrap();
    assert_eq!(first, [9]);
    let beyond = memory.write_async(2 * SLAB_BYTES, vec![0]).unwrap_err();
    assert!(matches!(beyond, Error::OutOfRange { .. }), "{beyond}");
    // Under any runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bytes = runtime.block_on(async {
        memory.write_async(5, b"awaited".to_vec()).unwrap().await.unwrap();
        memory.read_async(5, vec![0; 7]).unwrap().await.unwrap()
    });
    assert_eq!(bytes, b"awaited");
}

#[test]
fn mapped_accesses_keep_order() {
    outstanding_accesses_keep_order(PortKind::Shm);
}

#[test]
fn udp_accesses_keep_order() {
    outstanding_accesses_keep_order(PortKind::Udp);
}

fn lost_donor_fails_its_bytes(port: PortKind) {
    let mut daemons = Daemons::start(2, 2);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let mut one_copy = options(port);
    one_copy.copies = Some(1);
    let memory = rack.get_memory(2 * SLAB_BYTES, &one_copy).unwrap();
    for slab in 0..2 {
        memory.write(slab * SLAB_BYTES, &pattern(slab, 5000)).unwrap();
    }
    daemons.stop(1);
    let outcome_of = |slab: u64| {
        let mut back = vec![0; 5000];
        memory.read(slab * SLAB_BYTES, &mut back).map(|()| back)
    };
    eventually("the donor to be found lost", || (0..2).any(|slab| outcome_of(slab).is_err()));
    let outcomes: Vec<_> = (0..2).map(outcome_of).collect();
    let lost: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(matches!(lost[..], [Error::DonorLost { node, .. }] if node == "node2"), "{lost:?}");
    for (slab, outcome) in (0..).zip(&outcomes) {
        let at_once = memory.read_async(slab * SLAB_BYTES, vec![0; 5000]).unwrap().wait();
        assert_eq!(&at_once.clone().map_err(drop), &outcome.clone().map_err(drop));
        let write = memory.write_async(slab * SLAB_BYTES, vec![1; 10]).unwrap().wait();
        assert_eq!(write.is_ok(), outcome.is_ok());
        assert_eq!(memory.fetch_add(slab * SLAB_BYTES, 1).is_ok(), outcome.is_ok());
        assert!(outcome.as_ref().is_err() || outcome.as_ref() == Ok(&pattern(slab, 5000)));
    }
}

#[test]
fn lost_mapped_donor_fails_its_bytes() {
    lost_donor_fails_its_bytes(PortKind::Shm);
}

#[test]
fn lost_udp_donor_fails_its_bytes() {
    lost_donor_fails_its_bytes(PortKind::Udp);
}

/// Memory and a cache keep working while donors go, one after the other, and get their copies back.
fn copies_survive_donor_losses(port: PortKind) {
    let mut daemons = Daemons::start(4, 6);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let memory = rack.get_memory(4 * SLAB_BYTES, &options(port)).unwrap();
    let mut two = options(port);
    two.copies = Some(2);
    let cache = rack.object_cache(2 * SLAB_BYTES, &two, &CacheOptions::default()).unwrap();
    assert_eq!((memory.copies().copies, cache.copies().copies), (2, 2), "the rack has room");
    assert!(memory.copies().are_all_there() && cache.copies().are_all_there());
    let value = |key: u64| pattern(key, 1 + key as usize * 37);
    (0..300u64).for_each(|key| cache.put(&key.to_le_bytes(), &value(key)).unwrap());
    let at = |slab: u64| slab * SLAB_BYTES + 4_095;
    let counter = 4 * SLAB_BYTES - 8;
    let (mut generation, mut count) = (0, 0);
    (0..4).for_each(|slab| memory.write(at(slab), &pattern(slab, 50_000)).unwrap());
    for gone in [3, 0] {
        daemons.stop(gone);
        let name = format!("node{}", gone + 1);
        let has_recovered = |copies: Copies| copies.are_all_there() && copies.lost_slabs == 0;
        let is_told = |copies: Copies| copies.lost_donors.contains(&name);
        eventually("lost copies to be there again", || {
            for slab in 0..4 {
                let mut back = vec![0; 50_000];
                memory.read(at(slab), &mut back).unwrap();
                assert!(back == pattern(slab + generation, 50_000), "slab {slab}");
                let write = memory.write_async(at(slab), pattern(slab + generation + 1, 50_000));
                write.unwrap().wait().unwrap();
            }
            generation += 1;
            match memory.fetch_add(counter, 1) {
                Ok(before) => assert_eq!(before, count),
                // It may have been at the donor that went.
                Err(Error::Unreachable(_)) => {
                    count = memory.fetch_add(counter, 0).unwrap();
                    return false;
                }
                Err(error) => panic!("{error}"),
            }
            count += 1;
            let key = generation % 300;
            cache.put(&key.to_le_bytes(), &value(key)).unwrap();
            is_told(memory.copies())
                && has_recovered(memory.copies())
                && has_recovered(cache.copies())
        });
    }
    let found = |key: &u64| cache.get(&key.to_le_bytes()).unwrap() == Some(value(*key));
    assert_eq!((0..300u64).filter(found).count(), 300, "{:?}", cache.stats());
    assert_eq!(cache.stats().lost, 0);
    assert!(memory.copies().rebuilt > 0);
}

#[test]
fn mapped_copies_survive_donor_losses() {
    copies_survive_donor_losses(PortKind::Shm);
}

#[test]
fn udp_copies_survive_donor_losses() {
    copies_survive_donor_losses(PortKind::Udp);
}

/// No other donor has room: all reclaimed memory falls back to this machine.
fn reclaimed_memory_falls_back_locally(port: PortKind) {
    let daemons = Daemons::start(2, 2);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let on_disk = vec![ReclaimTo::Donors, ReclaimTo::Disk(folder.path().into())];
    for reclaim_to in [MemoryOptions::default().reclaim_to, on_disk] {
        let mut wanted = options(port);
        (wanted.copies, wanted.reclaim_to) = (Some(1), reclaim_to);
        let memory = rack.get_memory(3 * SLAB_BYTES, &wanted).unwrap();
        let at = |slab: u64| slab * SLAB_BYTES + 4_095;
        let mut generation = 0;
        (0..3).for_each(|slab| memory.write(at(slab), &pattern(slab, 50_000)).unwrap());
        ["node1", "node2"].iter().for_each(|node| daemons.drain(node, true));
        eventually("both donors to be empty", || {
            for slab in 0..3 {
                let mut back = vec![0; 50_000];
                memory.read(at(slab), &mut back).unwrap();
                assert!(back == pattern(slab + generation, 50_000), "slab {slab}");
                memory.write(at(slab), &pattern(slab + generation + 1, 50_000)).unwrap();
            }
            generation += 1;
            ["node1", "node2"].iter().all(|node| daemons.granted_bytes(node) == 0)
        });
        for slab in 0..3 {
            let read = memory.read_async(at(slab), vec![0; 50_000]).unwrap().wait();
            assert!(read.unwrap() == pattern(slab + generation, 50_000), "slab {slab}");
        }
        assert!(memory.copies().lost_donors.is_empty(), "{:?}", memory.copies());
        drop(memory);
        ["node1", "node2"].iter().for_each(|node| daemons.drain(node, false));
        eventually("they lend again", || daemons.free_bytes() == 4 * SLAB_BYTES);
    }
}

#[test]
fn reclaimed_mapped_memory_falls_back_locally() {
    reclaimed_memory_falls_back_locally(PortKind::Shm);
}

#[test]
fn reclaimed_udp_memory_falls_back_locally() {
    reclaimed_memory_falls_back_locally(PortKind::Udp);
}

#[test]
fn invalid_copy_counts_are_refused() {
    let daemons = Daemons::start(1, 4);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let mut wanted = options(PortKind::Shm);
    assert_eq!(rack.get_memory(SLAB_BYTES, &wanted).unwrap().copies().copies, 1, "one node");
    wanted.copies = Some(2);
    let error = rack.get_memory(SLAB_BYTES, &wanted).unwrap_err();
    assert!(matches!(&error, Error::NoRoom(said) if said.contains("2 copies")), "{error}");
    for none in [0, 4] {
        wanted.copies = Some(none);
        let error = rack.get_memory(SLAB_BYTES, &wanted).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}

#[test]
fn placement_option_chooses_donor() {
    let daemons = Daemons::start(2, 4);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    for (policy, donors) in [(Policy::Pack, 1), (Policy::Spread, 2)] {
        let mut wanted = options(PortKind::Shm);
        (wanted.placement, wanted.copies) = (Some(policy), Some(1));
        let memory = rack.get_memory(4 * SLAB_BYTES, &wanted).unwrap();
        let lending = ["node1", "node2"].iter().filter(|it| daemons.granted_bytes(it) > 0);
        assert_eq!(lending.count(), donors, "{policy}");
        drop(memory);
        eventually("it is given back", || daemons.free_bytes() == 8 * SLAB_BYTES);
    }
}

#[test]
fn cache_survives_donor_loss() {
    let mut daemons = Daemons::start(2, 2);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let cache =
        rack.object_cache(4 * SLAB_BYTES, &options(PortKind::Udp), &CacheOptions::default());
    let cache = cache.unwrap();
    let value = |key: u64| pattern(key, 1 + key as usize * 37);
    for key in 0..1000u64 {
        cache.put(&key.to_le_bytes(), &value(key)).unwrap();
    }
    let found = || {
        let is_right = |key: &u64| match cache.get(&key.to_le_bytes()).unwrap() {
            Some(got) => got == value(*key) || panic!("{key} is wrong"),
            None => false,
        };
        (0..1000u64).filter(is_right).count()
    };
    assert_eq!(found(), 1000);
    daemons.stop(0);
    eventually("some to be lost", || found() < 1000);
    let left = found();
    assert!(left > 0, "{:?}", cache.stats());
    for key in 0..1000u64 {
        cache.put(&key.to_le_bytes(), &value(key)).unwrap();
    }
    // The rest has a block less for each class than ideal.
    assert!(found() > 900, "{:?}", cache.stats());
}

#[test]
fn invalid_requests_name_reason() {
    let daemons = Daemons::start(1, 2);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    assert_eq!(rack.free_bytes(), Ok(2 * SLAB_BYTES));
    let error = rack.get_memory(3 * SLAB_BYTES, &options(PortKind::Shm)).unwrap_err();
    assert!(matches!(error, Error::NoRoom(_)), "{error}");
    assert!(matches!(rack.get_memory(0, &options(PortKind::Shm)), Err(Error::Invalid(_))));
    let small = rack.object_cache(MIB, &options(PortKind::Shm), &CacheOptions::default());
    assert!(matches!(small, Err(Error::Invalid(_))), "{small:?}");
    let mut nowhere = options(PortKind::Shm);
    nowhere.reclaim_to.clear();
    let error = rack.get_memory(MIB, &nowhere).unwrap_err();
    assert!(matches!(&error, Error::Invalid(said) if said.contains("reclaim_to")), "{error}");
    let mut strange = options(PortKind::Shm);
    strange.donors = vec!["node9".into()];
    let error = rack.get_memory(MIB, &strange).unwrap_err();
    assert!(matches!(&error, Error::Refused(said) if said.contains("node9")), "{error}");
    let nobody = Rack::connect_to("127.0.0.1:1").unwrap_err();
    assert!(matches!(nobody, Error::Unreachable(_)), "{nobody}");
}
