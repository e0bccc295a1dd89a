//! One want of a request: pieces of one kind.

use crate::kind::{ResourceKind, UnknownKind};
use crate::resource::ResourceSpec;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use venice_wire::{ByteSize, ParseByteSizeError, SLAB_BYTES};

/// One want of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The kind.
    pub kind: ResourceKind,
    /// Bytes of each piece: of a divisible kind rounded up to whole units; of a device that is lent
    /// whole its least size, 0: any.
    pub bytes: ByteSize,
    /// Pieces: devices; copies or fragments of memory, each granted in full, and no donor gives
    /// more than one.
    pub count: u32,
    /// Capabilities that each device must all have.
    pub capabilities: Vec<String>,
    /// Bandwidth that memory needs in bits a second, evenly over its slabs; 0: unstated. A donor
    /// gives no more slabs than its path has bandwidth for.
    pub bandwidth_bps: u64,
}

impl Want {
    /// Creates a want for memory.
    pub fn memory(bytes: u64, copies: u32) -> Self {
        Self { bytes: ByteSize(bytes), count: copies, ..Self::device(ResourceKind::Memory, 0) }
    }

    /// Creates a want for one device, of any capabilities.
    pub fn device(kind: ResourceKind, bytes: u64) -> Self {
        let capabilities = Vec::new();
        Self { kind, bytes: ByteSize(bytes), count: 1, capabilities, bandwidth_bps: 0 }
    }

    /// Returns the slabs of one piece. Too many to count exceed any donor's memory.
    pub(crate) fn slabs(&self) -> u32 {
        u32::try_from(self.bytes.0.div_ceil(SLAB_BYTES)).unwrap_or(u32::MAX)
    }

    /// Returns the amount of one piece: bytes of a divisible kind, or one whole device.
    pub(crate) fn amount(&self) -> u64 {
        if self.kind.is_divisible() { self.kind.in_units(self.bytes.0) } else { 1 }
    }

    /// Returns the amount of all pieces.
    pub(crate) fn total(&self) -> u64 {
        self.amount().saturating_mul(self.count.into())
    }

    /// True if a device satisfies it when none of that is lent.
    pub(crate) fn would_do(&self, spec: &ResourceSpec) -> bool {
        spec.kind == self.kind && spec.can(&self.capabilities) && spec.bytes >= self.bytes.0
    }

    /// Describes it in words.
    pub fn described(&self) -> String {
        let spec = self.kind.spec();
        let count = self.count;
        let mut text = match (self.kind.is_divisible(), self.bytes.0) {
            (true, _) if count > 1 => format!("{count} x {} of {}", self.bytes, spec.noun),
            (true, _) => format!("{} of {}", self.bytes, spec.noun),
            (false, _) if count > 1 => format!("{count} {}", spec.plural),
            (false, _) => spec.noun.to_owned(),
        };
        if !self.kind.is_divisible() && self.bytes.0 > 0 {
            text.push_str(&format!(" of {} at least", self.bytes));
        }
        if !self.capabilities.is_empty() {
            text.push_str(" with ");
            text.push_str(&self.capabilities.join(", "));
        }
        text
    }
}

/// The error for the text of a want.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidWant {
    /// Its kind is unknown.
    #[error(transparent)]
    Kind(#[from] UnknownKind),
    /// It names no amount, but its kind is granted by bytes.
    #[error("no amount: write {kind}=SIZE, for example {kind}=2GiB")]
    NoAmount {
        /// The kind.
        kind: ResourceKind,
    },
    /// Its amount is zero.
    #[error("amount 0: ask for at least 1")]
    Zero,
    /// Its amount is neither a count nor a size.
    #[error("{reason}; an amount is a count as 2, a size as 8GiB, or both as 2x8GiB")]
    Amount {
        /// The reason.
        reason: ParseByteSizeError,
    },
    /// Its amount is no count, and has no unit of a size.
    #[error(
        "{text:?} is no count: write a whole number of {}, as 2, or their least size, as 8GiB",
        .kind.spec().plural
    )]
    Count {
        /// The kind.
        kind: ResourceKind,
        /// The amount.
        text: String,
    },
    /// Capabilities are required of memory, which has none to choose by.
    #[error("{0} is granted without capabilities: write {0}=SIZE, and choose nodes by --donor")]
    Capabilities(ResourceKind),
    /// A capability is empty.
    #[error("empty capability: write {kind}:X or {kind}:X,Y")]
    EmptyCapability {
        /// The kind.
        kind: ResourceKind,
    },
}

impl FromStr for Want {
    type Err = InvalidWant;

    /// Parses `KIND[:CAPABILITY,...][=AMOUNT]`, for example `memory=2GiB`, `accelerator:cuda`,
    /// `nic:25Gbps=2`. The amount is a count, a size, or both: `2x8GiB`. A plain number is a count
    /// of devices that are lent whole; a size has a unit.
    fn from_str(text: &str) -> Result<Self, InvalidWant> {
        let (what, amount) = text.split_once('=').map_or((text, None), |(a, b)| (a, Some(b)));
        let (kind, capabilities) = what.split_once(':').map_or((what, None), |(a, b)| (a, Some(b)));
        let kind: ResourceKind = kind.parse()?;
        let mut want = Self::device(kind, 0);
        for capability in capabilities.into_iter().flat_map(|them| them.split(',')).map(str::trim) {
            if capability.is_empty() {
                return Err(InvalidWant::EmptyCapability { kind });
            }
            want.capabilities.push(capability.to_owned());
        }
        if !kind.is_device() && !want.capabilities.is_empty() {
            return Err(InvalidWant::Capabilities(kind));
        }
        match amount {
            None if kind.is_divisible() => return Err(InvalidWant::NoAmount { kind }),
            None => {}
            Some(amount) => want.set_amount(amount)?,
        }
        Ok(want)
    }
}

impl Want {
    fn set_amount(&mut self, text: &str) -> Result<(), InvalidWant> {
        let (count, size) = match text.split_once('x') {
            Some((count, size)) => (Some(count), Some(size)),
            None if self.kind.is_divisible() || text.parse::<u32>().is_err() => (None, Some(text)),
            None => (Some(text), None),
        };
        let invalid = |reason| InvalidWant::Amount { reason };
        if let Some(count) = count {
            let not_a_number = |_| invalid(ParseByteSizeError::NotANumber(count.to_owned()));
            self.count = count.parse().map_err(not_a_number)?;
        }
        if let Some(size) = size {
            self.bytes = match ByteSize::parse_with_unit(size) {
                Err(ParseByteSizeError::MissingUnit(text))
                    if count.is_none() && !self.kind.is_divisible() =>
                {
                    return Err(InvalidWant::Count { kind: self.kind, text });
                }
                size => size.map_err(invalid)?,
            };
        }
        let is_zero = self.count == 0 || (size.is_some() && self.bytes.0 == 0);
        if is_zero { Err(InvalidWant::Zero) } else { Ok(()) }
    }
}

impl fmt::Display for Want {
    /// Formats it as it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, bytes, count, capabilities, .. } = self;
        write!(f, "{kind}")?;
        if !capabilities.is_empty() {
            write!(f, ":{}", capabilities.join(","))?;
        }
        match (count, bytes.0) {
            (1, 0) => Ok(()),
            (1, _) => write!(f, "={bytes}"),
            (count, 0) => write!(f, "={count}"),
            (count, _) => write!(f, "={count}x{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wants_are_described() {
        let accelerator = Want::device(ResourceKind::Accelerator, 0);
        let cuda = Want { capabilities: vec!["cuda".to_owned()], count: 2, ..accelerator.clone() };
        assert_eq!(accelerator.described(), "accelerator");
        assert_eq!(cuda.described(), "2 accelerators with cuda");
        let large = Want { bytes: ByteSize(1 << 30), ..accelerator };
        assert_eq!(large.described(), "accelerator of 1GiB at least");
        assert_eq!(Want::device(ResourceKind::Storage, 5 << 20).described(), "5MiB of storage");
        assert_eq!(Want::memory(64 << 20, 2).described(), "2 x 64MiB of memory");
    }

    #[test]
    fn text_is_parsed_as_shown() {
        let parsed = |text: &str| text.parse::<Want>().map(|want| want.described());
        assert_eq!(parsed("memory=2GiB").unwrap(), "2GiB of memory");
        assert_eq!(parsed("memory=2x1GiB").unwrap(), "2 x 1GiB of memory");
        assert_eq!(parsed("accelerator").unwrap(), "accelerator");
        assert_eq!(parsed("accelerator=2").unwrap(), "2 accelerators");
        let text = "accelerator:cuda,gpu=2x8GiB";
        assert_eq!(parsed(text).unwrap(), "2 accelerators of 8GiB at least with cuda, gpu");
        for text in ["memory=2GiB", "accelerator", text, "nic:25Gbps", "storage=1MiB", "nic=8GiB"] {
            assert_eq!(text.parse::<Want>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_want_names_remedy() {
        let spaced: Want = "accelerator:opencl, fp64=2".parse().unwrap();
        assert_eq!(spaced.to_string(), "accelerator:opencl,fp64=2");
        let error = |text: &str| text.parse::<Want>().unwrap_err().to_string();
        assert!(error("accelerator:a, ").contains("empty capability"));
        assert!(error("gpu").contains("expected memory, "), "{}", error("gpu"));
        assert!(error("memory").contains("write memory=SIZE"));
        assert!(error("accelerator:").contains("empty capability"));
        assert!(error("accelerator:a,,b").contains("empty capability"));
        assert!(error("memory:zzz=16MiB").contains("without capabilities"));
        for bare in ["memory=3", "storage=3", "storage=2x3", "storage:fast=1.5", "nic=2x8"] {
            assert!(error(bare).contains("missing unit"), "{bare}: {}", error(bare));
        }
        let count = error("accelerator=1.5");
        assert!(count.contains("whole number of accelerators"), "{count}");
        for zero in ["memory=0", "accelerator=0", "memory=0x1GiB", "nic=0GiB", "nic=2x0"] {
            assert!(error(zero).contains("amount 0"), "{zero}");
        }
        for wrong in ["memory=", "memory=much", "nic=", "nic=x", "nic=-1", "nic=1x", "nic=ax1GiB"] {
            assert!(error(wrong).contains("2x8GiB"), "{wrong}: {}", error(wrong));
        }
    }
}
