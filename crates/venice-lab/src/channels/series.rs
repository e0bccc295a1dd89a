//! Series of figures by size, for each system, medium and operation.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The system that a figure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Venice.
    Venice,
    /// The bare machine, by a minimal program.
    Raw,
    /// libfabric's own benchmark.
    Libfabric,
    /// UCX's own benchmark.
    Ucx,
    /// iperf3.
    Iperf3,
}

impl System {
    /// Returns the display name.
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

/// Medium between the two ends. Only figures of one medium are compared.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory of one machine.
    Shm,
    /// A wire: a veth pair between two network namespaces, or loopback.
    Udp,
    /// Shared memory with the behaviour of the Venice paper's link: 1.4 µs, 5 Gb/s.
    Paper,
}

impl Medium {
    /// All of them, in the order they are measured.
    pub const ALL: [Medium; 3] = [Medium::Shm, Medium::Udp, Medium::Paper];

    /// Returns the display name.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Medium::Shm => "shared memory",
            Medium::Udp => "the wire",
            Medium::Paper => "the emulated paper link",
        }
    }
}

/// Operation, which defines the meaning of latency and bandwidth.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// CRMA read. Latency: from the request until the bytes are here.
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
    /// Round trip, the same bytes both ways (raw).
    RoundTrip,
    /// One way without end (raw). No latency.
    Stream,
    /// A copy in local memory (raw).
    Copy,
}

impl Operation {
    /// The channels' operations, in the order they are measured.
    pub const CHANNELS: [Operation; 6] = [
        Operation::Read,
        Operation::Write,
        Operation::Atomic,
        Operation::BulkRead,
        Operation::BulkWrite,
        Operation::Message,
    ];

    /// Returns the display name.
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

    /// True if an access of `size_bytes` exists: CRMA carries up to a page, an atomic a word.
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
    /// Returns the median if there is one, else the mean.
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
    /// Latency of one operation at a time.
    pub latency: Option<Latency>,
    /// Payload bytes per second with as many operations outstanding as the channel takes.
    pub bandwidth_bytes_per_s: Option<f64>,
}

/// Part of the variant's name with AF_XDP beside the sockets.
pub(super) const PAST_KERNEL: &str = "AF_XDP";

/// One line of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The system.
    pub system: System,
    /// The medium.
    pub medium: Medium,
    /// The operation.
    pub operation: Operation,
    /// Variant, where a system has several: `sealed`, `posix ucp_put`.
    pub variant: String,
    /// By rising size.
    pub points: Vec<Point>,
    /// Reason for missing points.
    pub absent: Option<String>,
}

impl Series {
    /// Creates a series without points.
    pub(crate) fn new(system: System, medium: Medium, operation: Operation, variant: &str) -> Self {
        let variant = variant.to_owned();
        Self { system, medium, operation, variant, points: Vec::new(), absent: None }
    }

    /// Returns it with a reason for missing points.
    pub(crate) fn absent(mut self, reason: impl Into<String>) -> Self {
        self.absent = Some(reason.into());
        self
    }

    /// Returns the point of a size.
    #[must_use]
    pub fn at(&self, size_bytes: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.size_bytes == size_bytes)
    }

    /// Returns the name for legends and tables.
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
