//! Programs that write to borrowed memory and read it back: two owners of one slab would find each
//! other's bytes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use venice_control::client::Access;
use venice_recipient::{AllocationSpec, MemorySpec, PortKind, RemoteMemory, Request};
use venice_wire::SLAB_BYTES;

use crate::clients::{Order, Stage};
use venice_testkit::random::SplitMix64;

const PAGE_BYTES: u64 = 4096;
/// Pages of a slab that are written.
const PAGES: u64 = 32;

/// Runs one program until it is told to end, on a thread of its own.
pub fn run(stage: &Arc<Stage>, runtime: &tokio::runtime::Handle, number: u64, seed: u64) {
    let mut random = SplitMix64::split(seed, number);
    loop {
        match stage.order() {
            Order::Go => write_and_read(stage, number, &mut random),
            Order::Rest => runtime.block_on(stage.rest()),
            Order::End => return,
        }
    }
}

fn write_and_read(stage: &Stage, number: u64, random: &mut SplitMix64) {
    let memory = MemorySpec {
        remote_bytes: Some(SLAB_BYTES),
        copies: Some(1 + random.below(2) as u32),
        ..MemorySpec::default()
    };
    let spec = AllocationSpec { purpose: "writer".to_owned(), ..AllocationSpec::of_memory(memory) };
    let access = Access::new(stage.addresses(number), venice_testkit::identity::login());
    let request = Request { access, port: PortKind::Udp, node: None, spec };
    let Ok(memory) = RemoteMemory::borrow(&request, |_| {}) else {
        return thread::sleep(Duration::from_millis(100));
    };
    let Ok(mut lane) = memory.lane() else { return };
    let mark = random.draw();
    let written: Vec<(u64, Vec<u8>)> = (0..PAGES)
        .map(|page| (page * (SLAB_BYTES / PAGES), mark.wrapping_add(page)))
        .map(|(at, value)| (at, value.to_le_bytes().repeat(PAGE_BYTES as usize / 8)))
        .collect();
    // Pages lost with their donor must be reported as lost.
    if written.iter().any(|(at, bytes)| lane.write(*at, bytes).is_err()) {
        return;
    }
    let until = 1 + random.below(20);
    for _ in 0..until {
        thread::sleep(Duration::from_millis(100));
        let (at, bytes) = random.choice(&written);
        let mut found = vec![0; bytes.len()];
        match lane.read(*at, &mut found) {
            Ok(()) if found != *bytes => {
                stage.judge.complain(format!("writer {number} read other bytes at {at:#x}"));
            }
            Ok(()) => {}
            Err(_) => return,
        }
    }
}
