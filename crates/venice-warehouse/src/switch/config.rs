//! Everything that can be set of a switch.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use venice_simkernel::units::{Bytes, Picos};

/// A switch, by the way it treats packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum SwitchConfig {
    /// Each packet finds its way alone (a datagram switch).
    Packet(PacketSwitchConfig),
    /// A circuit is set up before packets pass, and has a rate of its own.
    Circuit(CircuitSwitchConfig),
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self::Packet(PacketSwitchConfig::default())
    }
}

/// A packet switch with virtual output queues. The defaults are DIABLO's at 1 Gb/s (Tan et al.,
/// ASPLOS 2015, section 4.1): 1 µs from port to port, 4 KB of buffer a port, round-robin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PacketSwitchConfig {
    /// The time from port to port of a packet that waits for nothing: from the decision to send it
    /// until its first bit leaves.
    pub latency: Picos,
    /// The earliest moment at which a packet may leave.
    pub forwarding: Forwarding,
    /// The order in which an output serves the inputs.
    pub arbitration: Arbitration,
    /// The rate of an input into the crossbar, in multiples of its line rate: it passes one packet at
    /// a time, each for its bytes at that rate. 0: no limit, an input feeds all outputs at once.
    pub crossbar_speedup: u32,
    /// The room for packets that wait.
    pub buffer: BufferConfig,
    /// The queued bytes of an output above which an arriving packet is marked, if it is ECN-capable
    /// (DCTCP: Alizadeh et al., SIGCOMM 2010, section 3.1). Without it, none is marked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn_threshold: Option<Bytes>,
}

impl Default for PacketSwitchConfig {
    fn default() -> Self {
        Self {
            latency: Picos(Picos::MICRO),
            forwarding: Forwarding::CutThrough,
            arbitration: Arbitration::RoundRobin,
            crossbar_speedup: 0,
            buffer: BufferConfig::default(),
            ecn_threshold: None,
        }
    }
}

impl PacketSwitchConfig {
    /// Returns DIABLO's switch for 10 Gb/s: 100 ns from port to port, the same buffers (section 4.2).
    pub fn low_latency() -> Self {
        Self { latency: Picos(100 * Picos::NANO), ..Self::default() }
    }
}

/// The earliest moment at which a packet may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// A packet leaves once the output never has to wait for a bit: at once if the output is not faster
    /// than the input.
    #[default]
    CutThrough,
    /// After the last bit came.
    StoreAndForward,
}

/// The order in which an output serves the inputs that have packets for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arbitration {
    /// One packet from each input in turn (DIABLO, section 3.3).
    #[default]
    RoundRobin,
    /// The packet that could leave first (an output-queued switch).
    Fifo,
}

/// The room for packets that wait. A packet counts from its first bit's arrival until the decision to
/// send it; one that is sent on arrival never counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum BufferConfig {
    /// Each pair of an input and an output has so many bytes.
    PerQueue {
        /// The room of one pair.
        bytes: Bytes,
    },
    /// Each input has so many bytes, over all outputs.
    PerInput {
        /// The room of one input.
        bytes: Bytes,
    },
    /// Each output has so many bytes, over all inputs.
    PerOutput {
        /// The room of one output.
        bytes: Bytes,
    },
    /// A pool for all outputs, with a dynamic threshold (Choudhury and Hahne, IEEE/ACM ToN 6(2),
    /// 1998): an output may take more while it has less than `alpha` times what is free.
    Shared {
        /// The room of the pool.
        bytes: Bytes,
        /// The factor of the threshold. Broadcom's switches have powers of two from 1/128 to 8.
        #[serde(default)]
        alpha: Alpha,
        /// Room of each output alone, beside the pool and used before it.
        #[serde(default)]
        reserved: Bytes,
    },
}

/// 4 KB for each port: DIABLO, section 4.1, after the Nortel 5500.
impl Default for BufferConfig {
    fn default() -> Self {
        Self::PerInput { bytes: Bytes(4096) }
    }
}

/// The factor of a dynamic threshold, a fraction: `1/2`, `8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Alpha {
    numerator: u32,
    denominator: u32,
}

impl Alpha {
    /// Returns the fraction; `None` if either number is 0.
    pub fn new(numerator: u32, denominator: u32) -> Option<Self> {
        (numerator > 0 && denominator > 0).then_some(Self { numerator, denominator })
    }

    /// Returns so much of `bytes`, rounded down.
    pub fn of(self, bytes: u64) -> u64 {
        let product = u128::from(bytes) * u128::from(self.numerator);
        u64::try_from(product / u128::from(self.denominator)).unwrap_or(u64::MAX)
    }
}

/// 1: one output alone gets half of the pool.
impl Default for Alpha {
    fn default() -> Self {
        Self { numerator: 1, denominator: 1 }
    }
}

/// An unreadable [`Alpha`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a fraction above 0, for example 1/2")]
pub struct ParseAlphaError(String);

impl FromStr for Alpha {
    type Err = ParseAlphaError;

    fn from_str(text: &str) -> Result<Self, ParseAlphaError> {
        let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
        let number = |part: &str| part.trim().parse::<u32>().ok();
        let parts = number(numerator).zip(number(denominator));
        parts.and_then(|(n, d)| Self::new(n, d)).ok_or_else(|| ParseAlphaError(text.into()))
    }
}

impl fmt::Display for Alpha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

impl TryFrom<String> for Alpha {
    type Error = ParseAlphaError;

    fn try_from(text: String) -> Result<Self, ParseAlphaError> {
        text.parse()
    }
}

impl From<Alpha> for String {
    fn from(alpha: Alpha) -> String {
        alpha.to_string()
    }
}

/// A switch of virtual circuits, as researchers of data centers proposed them (Thacker, "A data center
/// network using FPGAs", 2010; AN3: Chung et al., MSR-TR-2014-35). DIABLO, section 3.3, has both
/// kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CircuitSwitchConfig {
    /// The time from port to port of a packet on a circuit that is idle.
    pub latency: Picos,
    /// The time to set up a circuit.
    pub set_up: Picos,
    /// A circuit without a packet for so long is torn down.
    pub idle: Picos,
    /// The most circuits of an input, and of an output. Each has this part of the line rate.
    pub circuits_per_port: u16,
}

/// 100 ns from port to port, as DIABLO's 10 Gb/s switch; set-up in 10 µs ("within tens of
/// microseconds": AN3, abstract); 16 circuits a port, each idle for at most 1 ms.
impl Default for CircuitSwitchConfig {
    fn default() -> Self {
        Self {
            latency: Picos(100 * Picos::NANO),
            set_up: Picos(10 * Picos::MICRO),
            idle: Picos(1000 * Picos::MICRO),
            circuits_per_port: 16,
        }
    }
}

/// A value out of its range, with its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct BadSwitch {
    /// The key below the switch.
    pub key: &'static str,
    /// The value and its bound.
    pub problem: String,
}

/// The longest latency: an hour would be a slip of the unit.
const LONGEST: Picos = Picos(Picos::SECOND);
/// The largest buffer, so that sums of many stay in 64 bits.
const LARGEST: Bytes = Bytes(1 << 40);

impl SwitchConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn check(&self) -> Result<(), BadSwitch> {
        match self {
            Self::Packet(packet) => packet.check(),
            Self::Circuit(circuit) => circuit.check(),
        }
    }

    /// Returns the time from port to port of a packet that waits for nothing.
    pub fn latency(&self) -> Picos {
        match self {
            Self::Packet(packet) => packet.latency,
            Self::Circuit(circuit) => circuit.latency,
        }
    }
}

fn at_most(key: &'static str, value: Picos) -> Result<(), BadSwitch> {
    let problem = || format!("{value} is above {LONGEST}");
    if value > LONGEST { Err(BadSwitch { key, problem: problem() }) } else { Ok(()) }
}

fn is_size(key: &'static str, value: Bytes) -> Result<(), BadSwitch> {
    let problem = || format!("{value} is not from 1B to {LARGEST}");
    let fits = (Bytes(1)..=LARGEST).contains(&value);
    if fits { Ok(()) } else { Err(BadSwitch { key, problem: problem() }) }
}

impl PacketSwitchConfig {
    fn check(&self) -> Result<(), BadSwitch> {
        at_most("latency", self.latency)?;
        if self.crossbar_speedup > 1000 {
            let problem = format!("{} is above 1000", self.crossbar_speedup);
            return Err(BadSwitch { key: "crossbar-speedup", problem });
        }
        match self.buffer {
            BufferConfig::PerQueue { bytes }
            | BufferConfig::PerInput { bytes }
            | BufferConfig::PerOutput { bytes } => is_size("buffer.bytes", bytes),
            BufferConfig::Shared { bytes, alpha: _, reserved } => {
                is_size("buffer.bytes", bytes)?;
                if reserved == Bytes(0) { Ok(()) } else { is_size("buffer.reserved", reserved) }
            }
        }
    }
}

impl CircuitSwitchConfig {
    fn check(&self) -> Result<(), BadSwitch> {
        at_most("latency", self.latency)?;
        at_most("set-up", self.set_up)?;
        at_most("idle", self.idle)?;
        if self.idle == Picos(0) {
            return Err(BadSwitch { key: "idle", problem: "0 is below 1ps".into() });
        }
        if self.circuits_per_port == 0 {
            return Err(BadSwitch { key: "circuits-per-port", problem: "0 is below 1".into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_is_read_from_text() {
        let text = r#"
            kind = "packet"
            latency = "100ns"
            forwarding = "store-and-forward"
            arbitration = "fifo"
            crossbar-speedup = 2
            buffer = { kind = "shared", bytes = "256KiB", alpha = "1/2", reserved = "4KiB" }
            ecn-threshold = "30kB"
        "#;
        let expected = SwitchConfig::Packet(PacketSwitchConfig {
            latency: Picos(100_000),
            forwarding: Forwarding::StoreAndForward,
            arbitration: Arbitration::Fifo,
            crossbar_speedup: 2,
            buffer: BufferConfig::Shared {
                bytes: Bytes(256 << 10),
                alpha: Alpha::new(1, 2).unwrap(),
                reserved: Bytes(4096),
            },
            ecn_threshold: Some(Bytes(30_000)),
        });
        let read: SwitchConfig = toml::from_str(text).unwrap();
        assert_eq!(read, expected);
        assert_eq!(toml::from_str::<SwitchConfig>(&toml::to_string(&read).unwrap()), Ok(read));
        let circuit: SwitchConfig = toml::from_str("kind = 'circuit'\nidle = '5us'").unwrap();
        let idle = Picos(5 * Picos::MICRO);
        let expected = CircuitSwitchConfig { idle, ..CircuitSwitchConfig::default() };
        assert_eq!(circuit, SwitchConfig::Circuit(expected));
    }

    #[test]
    fn unknown_key_is_refused() {
        for text in [
            "kind = 'packet'\nlatancy = '1us'",
            "kind = 'packet'\nbuffer = { kind = 'per-input', bytes = '4KiB', alpha = '1' }",
            "kind = 'packet'\nbuffer = { kind = 'shared', bytes = '4KiB', alpha = '0/2' }",
            "kind = 'circuit'\nbuffer = { kind = 'per-input', bytes = '4KiB' }",
            "kind = 'optical'",
        ] {
            assert!(toml::from_str::<SwitchConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn value_out_of_range_is_named() {
        let packet = |change: fn(&mut PacketSwitchConfig)| {
            let mut config = PacketSwitchConfig::default();
            change(&mut config);
            SwitchConfig::Packet(config).check().map_err(|bad| bad.to_string())
        };
        assert_eq!(packet(|_| {}), Ok(()));
        let slow = packet(|config| config.latency = Picos(2 * Picos::SECOND));
        assert_eq!(slow, Err("latency: 2s is above 1s".into()));
        let none = packet(|config| config.buffer = BufferConfig::PerQueue { bytes: Bytes(0) });
        assert_eq!(none, Err("buffer.bytes: 0B is not from 1B to 1024GiB".into()));
        let circuit = CircuitSwitchConfig { circuits_per_port: 0, ..Default::default() };
        let error = SwitchConfig::Circuit(circuit).check().unwrap_err();
        assert_eq!(error.to_string(), "circuits-per-port: 0 is below 1");
    }
}
