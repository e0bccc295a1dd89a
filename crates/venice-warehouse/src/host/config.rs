//! The parts of a server: cores, operating system, network card.

use serde::{Deserialize, Serialize};
use venice_simkernel::units::{Bytes, Hertz, Picos};

use super::kernel::Kernel;
use crate::config::Preset;

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Server {
    /// Cores, 1 to 64. DIABLO's servers have one (section 5).
    pub cores: u16,
    /// Frequency of a core (DIABLO, section 4.1: 2 or 4 GHz).
    pub frequency: Hertz,
    /// Cycles an instruction, the same for all (DIABLO, section 3.3).
    pub cycles_per_instruction: f64,
    /// Costs of the operating system.
    pub kernel: Preset<Kernel>,
    /// Network card.
    pub nic: Nic,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            cores: 1,
            frequency: Hertz(4_000_000_000),
            cycles_per_instruction: 1.0,
            kernel: Preset::default(),
            nic: Nic::default(),
        }
    }
}

/// A network card with one ring to receive and one to send, as Intel's 8254x (DIABLO, section 3.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Nic {
    /// Descriptors of the ring of received packets: the driver's default (`e1000.ko`: 256).
    pub receive_ring: u32,
    /// Packets that wait to be sent, in the ring and in the queue above it
    /// (`e1000.ko`: 256; `txqueuelen`: 1000).
    pub send_queue: u32,
    /// Time of a transfer between card and memory: a write that the memory has acknowledged, over PCI
    /// Express.
    pub dma_latency: Picos,
    /// The first packet after a quiet time waits this long for others before it interrupts.
    pub interrupt_delay: Picos,
    /// The number of waiting packets that interrupt without that delay; 0: no limit.
    pub interrupt_packets: u32,
    /// Least time between two interrupts.
    pub interrupt_gap: Picos,
    /// Packets that the driver takes from the ring after an interrupt before threads may run
    /// (`net.core.netdev_budget`).
    pub poll_budget: u32,
    /// A packet leaves up to so much late, at random, and those behind it catch up: a shaper in software
    /// has timers that are late (tc-tbf(8)). Without it, hosts of one rate fall into step, and one of them
    /// may lose all of its packets at a full queue (Floyd and Jacobson, "On traffic phase effects in
    /// packet-switched gateways", 1992).
    pub jitter: Picos,
    /// Sent bytes are not copied (`sendfile(2)`, scatter and gather).
    pub zero_copy: bool,
    /// Core that is interrupted.
    pub interrupt_core: u16,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            receive_ring: 256,
            send_queue: 1256,
            dma_latency: Picos(500 * Picos::NANO),
            interrupt_delay: Picos(0),
            interrupt_packets: 0,
            interrupt_gap: Picos(10 * Picos::MICRO),
            poll_budget: 300,
            jitter: Picos(0),
            zero_copy: false,
            interrupt_core: 0,
        }
    }
}

/// The reason why a configuration is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: must be {bound}")]
pub struct BadValue {
    /// The key, from the table that holds it.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The values that are possible.
    pub bound: String,
}

impl BadValue {
    /// Returns an error unless `is_good`.
    ///
    /// # Errors
    /// The error.
    pub fn unless(
        is_good: bool,
        key: &str,
        value: impl ToString,
        bound: &str,
    ) -> Result<(), BadValue> {
        let error = || BadValue { key: key.into(), value: value.to_string(), bound: bound.into() };
        if is_good { Ok(()) } else { Err(error()) }
    }

    /// Puts the name of a table before the key.
    #[must_use]
    pub fn within(mut self, table: &str) -> Self {
        self.key = format!("{table}.{}", self.key);
        self
    }
}

impl Server {
    /// Checks all bounds.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), BadValue> {
        BadValue::unless((1..=64).contains(&self.cores), "cores", self.cores, "1 to 64")?;
        let frequency = self.frequency.0;
        let is_good = (1_000_000..=100_000_000_000).contains(&frequency);
        BadValue::unless(is_good, "frequency", self.frequency, "1MHz to 100GHz")?;
        let cpi = self.cycles_per_instruction;
        let is_good = (0.01..=1000.0).contains(&cpi);
        BadValue::unless(is_good, "cycles-per-instruction", cpi, "0.01 to 1000")?;
        self.kernel.values.check().map_err(|bad| bad.within("kernel"))?;
        let picos = cpi * Picos::SECOND as f64 / frequency as f64;
        let noise = self.kernel.values.noise.check(picos);
        noise.map_err(|bad| bad.within("noise").within("kernel"))?;
        self.nic.check(self.cores).map_err(|bad| bad.within("nic"))
    }
}

impl Nic {
    fn check(&self, cores: u16) -> Result<(), BadValue> {
        let is_ring = |size: u32| (1..=1 << 20).contains(&size);
        BadValue::unless(
            is_ring(self.receive_ring),
            "receive-ring",
            self.receive_ring,
            "1 to 2^20",
        )?;
        BadValue::unless(is_ring(self.send_queue), "send-queue", self.send_queue, "1 to 2^20")?;
        BadValue::unless(is_ring(self.poll_budget), "poll-budget", self.poll_budget, "1 to 2^20")?;
        for (key, time) in [
            ("dma-latency", self.dma_latency),
            ("interrupt-delay", self.interrupt_delay),
            ("interrupt-gap", self.interrupt_gap),
            ("jitter", self.jitter),
        ] {
            BadValue::unless(time.0 <= Picos::SECOND, key, time, "at most 1s")?;
        }
        let core = self.interrupt_core;
        BadValue::unless(core < cores, "interrupt-core", core, "the number of a core, from 0")
    }
}

/// Buffers of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct SocketBuffers {
    /// Bytes of datagrams that wait to be read (`net.core.rmem_default`).
    pub receive: Bytes,
    /// Room that a datagram takes of them beside its bytes: `sk_buff` and the rest of its page.
    pub datagram_overhead: Bytes,
    /// Connections that wait to be accepted (`listen(2)`, `net.core.somaxconn`).
    pub backlog: u32,
}

impl Default for SocketBuffers {
    fn default() -> Self {
        Self { receive: Bytes(229_376), datagram_overhead: Bytes(512), backlog: 128 }
    }
}
