//! How near an emulated link comes to what was asked for.
//!
//! `cargo run --release -p venice-ports --example emulation_accuracy [LINK]` prints, for reads and
//! writes of several sizes on mapped memory and for frames through a ring, what the model says,
//! what was measured (median) and the error. `LINK` is as for `venice up --link`; the paper's by
//! default.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::thread::{CpuSet, sched_setaffinity};
use venice_fabric::LinkModel;
use venice_ports::channels::{AccessLink, ChannelError, Channels, ShmChannels};
use venice_ports::monotonic_ns;
use venice_ports::ring::{RingConfig, RingPort};
use venice_ports::shm::{ShmServer, SlabBatch, SlabSource};
use venice_wire::{GrantId, GrantKey, NodeId, SLAB_BYTES};

const ROUNDS: usize = 2000;

fn main() -> Result<(), ChannelError> {
    let asked = std::env::args().nth(1);
    let model = asked.map_or(LinkModel::PAPER, |text| text.parse().expect("LINK"));
    pin(0);
    println!("{model}\n{:>24} {:>12} {:>12} {:>8}", "", "asked ns", "median ns", "error");
    accesses(model)?;
    for len_bytes in [64, 128, 1024, 4160] {
        let asked_ns = model.serialisation_ns(len_bytes) + model.delay_ns();
        show(&format!("ring frame {len_bytes} B"), asked_ns, ring(model, len_bytes)?);
    }
    Ok(())
}

fn accesses(model: LinkModel) -> Result<(), ChannelError> {
    let dir = std::env::temp_dir().join(format!("venice-emulation-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the socket");
    let path = dir.join("shm.sock");
    let _donor = ShmServer::start(&path, OneSlab::new())?;
    let mut shm = ShmChannels::new(Some(model))?;
    shm.map_grant(0, NodeId(1), &path, GrantId(1), GrantKey(1), SLAB_BYTES)?;
    let mut channels = Channels::from(shm);
    for len_bytes in [8, 64, 1024, 4096] {
        let mut bytes = vec![1; len_bytes];
        let asked_ns = AccessLink::new(model).single_ns(0, 0, len_bytes);
        let took_ns = median(|| channels.read(0, &mut bytes))?;
        show(&format!("read {len_bytes} B"), asked_ns, took_ns);
        let asked_ns = AccessLink::new(model).single_ns(0, len_bytes, 0);
        let took_ns = median(|| channels.write(0, &bytes))?;
        show(&format!("write {len_bytes} B"), asked_ns, took_ns);
    }
    let mut bytes = vec![1; 1 << 20];
    let asked_ns = AccessLink::new(model).bulk_read_ns(0, bytes.len());
    let took_ns = median(|| channels.rdma_read(0, &mut bytes))?;
    show("bulk read 1 MiB", asked_ns, took_ns);
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}

/// From one thread to itself: the time from sending to finding, no other core involved.
fn ring(model: LinkModel, len_bytes: usize) -> Result<u64, ChannelError> {
    let config = RingConfig { link: Some(model), ..RingConfig::default() };
    let (mut near, mut far) = RingPort::pair(&config)?;
    median(|| {
        let buffer = near.reserve()?.expect("an empty ring has room");
        buffer[..len_bytes].fill(7);
        near.commit(monotonic_ns(), len_bytes);
        near.announce();
        while far.receive(monotonic_ns())?.is_none() {}
        Ok(())
    })
}

fn median(mut act: impl FnMut() -> Result<(), ChannelError>) -> Result<u64, ChannelError> {
    let mut took_ns = Vec::with_capacity(ROUNDS);
    let deadline_ns = monotonic_ns() + 2_000_000_000;
    while took_ns.len() < ROUNDS && monotonic_ns() < deadline_ns {
        let start_ns = monotonic_ns();
        act()?;
        took_ns.push(monotonic_ns() - start_ns);
    }
    took_ns.sort_unstable();
    Ok(took_ns[took_ns.len() / 2])
}

fn show(what: &str, asked_ns: u64, took_ns: u64) {
    let error = (took_ns as f64 / asked_ns as f64 - 1.0) * 100.0;
    println!("{what:>24} {asked_ns:>12} {took_ns:>12} {error:>+7.1}%");
}

/// A donor of one slab, to anyone.
struct OneSlab(OwnedFd);

impl OneSlab {
    fn new() -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("slab", flags).expect("a memfd");
        ftruncate(&fd, SLAB_BYTES).expect("memory");
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        Self(fd)
    }
}

impl SlabSource for OneSlab {
    fn slabs(&self, _: GrantId, _: GrantKey, _: usize, _: usize) -> Result<SlabBatch, String> {
        let fd = self.0.try_clone().map_err(|error| error.to_string())?;
        Ok(SlabBatch { total: 1, files: vec![fd.into()] })
    }
}

/// To a core of its own; without it the figures are worse, not wrong.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}
