//! What was measured: one figure after the other by size, for each system, way and operation.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Whose work a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Ours.
    Venice,
    /// The machine itself, by the shortest program there is.
    Raw,
    /// libfabric's own benchmark.
    Libfabric,
    /// UCX's own benchmark.
    Ucx,
    /// iperf3.
    Iperf3,
}

impl System {
    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            System::Venice => "Venice",
            System::Raw => "raw",
            System::Libfabric => "libfabric",
            System::Ucx => "UCX",
            System::Iperf3 => "iperf3",
        }
    }
}

/// What lies between the two ends. Only figures of one medium are compared.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory of one machine.
    Shm,
    /// A wire: a veth pair between two network namespaces, or loopback.
    Udp,
    /// Shared memory that behaves like the link of the Venice paper: 1.4 µs, 5 Gb/s.
    Paper,
}

impl Medium {
    /// All of them, in the order they are measured.
    pub const ALL: [Medium; 3] = [Medium::Shm, Medium::Udp, Medium::Paper];

    /// As people write it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Medium::Shm => "shared memory",
            Medium::Udp => "the wire",
            Medium::Paper => "the emulated paper link",
        }
    }
}

/// What is done, and so what a latency and a bandwidth mean.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// CRMA read. Latency: from asking until the bytes are here.
    Read,
    /// CRMA write. Latency: one way.
    Write,
    /// CRMA atomic. Latency: until the old value is here.
    Atomic,
    /// RDMA read. Latency: until all bytes are here.
    BulkRead,
    /// RDMA write. Latency: until the donor has all bytes.
    BulkWrite,
    /// `QPair` message. Latency: one way.
    Message,
    /// There and back, the same bytes both ways (raw).
    RoundTrip,
    /// One way without end (raw). No latency.
    Stream,
    /// A copy in local memory (raw).
    Copy,
}

impl Operation {
    /// The channels' own, in the order they are measured.
    pub const CHANNELS: [Operation; 6] = [
        Operation::Read,
        Operation::Write,
        Operation::Atomic,
        Operation::BulkRead,
        Operation::BulkWrite,
        Operation::Message,
    ];

    /// As people write it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Operation::Read => "CRMA read",
            Operation::Write => "CRMA write",
            Operation::Atomic => "CRMA fetch-add",
            Operation::BulkRead => "RDMA read",
            Operation::BulkWrite => "RDMA write",
            Operation::Message => "QPair message",
            Operation::RoundTrip => "round trip",
            Operation::Stream => "stream",
            Operation::Copy => "copy",
        }
    }

    /// Whether an access of `size_bytes` exists: CRMA carries up to a page, an atomic a word.
    #[must_use]
    pub fn carries(self, size_bytes: u64) -> bool {
        match self {
            Operation::Read | Operation::Write => size_bytes <= 4096,
            Operation::Atomic => size_bytes == 8,
            _ => true,
        }
    }
}

/// Latencies of one operation at one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean in nanoseconds.
    pub mean_ns: f64,
    /// Median in nanoseconds; `None` where the benchmark gives a mean only.
    pub p50_ns: Option<f64>,
    /// 99th percentile in nanoseconds; `None` where the benchmark does not give one.
    pub p99_ns: Option<f64>,
}

impl Latency {
    /// The median where there is one, else the mean.
    #[must_use]
    pub fn typical_ns(&self) -> f64 {
        self.p50_ns.unwrap_or(self.mean_ns)
    }
}

/// The figures of one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes of one access, transfer or message.
    pub size_bytes: u64,
    /// One at a time.
    pub latency: Option<Latency>,
    /// As many at a time as the channel takes; bytes of payload per second.
    pub bandwidth_bytes_per_s: Option<f64>,
}

/// In the variant of who has AF_XDP beside its sockets.
pub(super) const PAST_KERNEL: &str = "AF_XDP";

/// One line of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Whose.
    pub system: System,
    /// Over what.
    pub medium: Medium,
    /// Doing what.
    pub operation: Operation,
    /// What exactly, where a system has more than one way: `sealed`, `posix ucp_put`.
    pub variant: String,
    /// By rising size.
    pub points: Vec<Point>,
    /// Why there are no points, or why some are missing.
    pub absent: Option<String>,
}

impl Series {
    /// A series without points yet.
    pub(crate) fn new(system: System, medium: Medium, operation: Operation, variant: &str) -> Self {
        let variant = variant.to_owned();
        Self { system, medium, operation, variant, points: Vec::new(), absent: None }
    }

    /// `self`, saying why there is nothing.
    pub(crate) fn absent(mut self, reason: impl Into<String>) -> Self {
        self.absent = Some(reason.into());
        self
    }

    /// The point of a size.
    #[must_use]
    pub fn at(&self, size_bytes: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.size_bytes == size_bytes)
    }

    /// For legends and tables.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.system, self.variant.as_str()) {
            (System::Venice, "") => self.operation.title().to_owned(),
            (System::Venice, variant) => format!("{}, {variant}", self.operation.title()),
            (System::Raw, variant) => variant.to_owned(),
            (system, variant) => format!("{} {variant}", system.name()),
        }
    }
}
