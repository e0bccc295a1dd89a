//! What the device itself costs: a swap device on this process's own memory, for as long as stdin
//! is open.
//!
//! ```text
//! device_cost MIB QUEUES KIND
//! ```

use venice_swap::backing::{Backing, OwnMemory};
use venice_swap::{BlockKind, SwapDevice};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut number = |or: u64| words.next().map_or(Ok(or), |word| word.parse());
    let (len_bytes, queues) = (number(1100)? << 20, number(2)?);
    let kind = words.next().map_or(Ok(BlockKind::best()), |word| word.parse())?;
    let memory = OwnMemory::new(len_bytes);
    let backings = (0..queues).map(|_| Box::new(memory.clone()) as Box<dyn Backing>).collect();
    let mut device = SwapDevice::attach(len_bytes, backings, 32000, kind)?;
    println!("{} by {}", device.path().display(), kind.name());
    std::io::read_to_string(std::io::stdin())?;
    let store = device.store();
    let served = [0.5, 0.99].map(|quantile| store.counters().request_ns.at(quantile));
    println!("{} bytes held; requests served in p50, p99 {served:?} ns", store.held_bytes());
    device.detach()?;
    Ok(())
}
