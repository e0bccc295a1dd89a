//! The kinds of resources, a row each.
//!
//! A kind is data: the tables, quotas, queue, forecasts, commands and libraries ask its row, and
//! name none. To add one, add a row here and a file of that name to the agent's device classes
//! (`docs/internals/adding-a-kind.md`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use venice_wire::ByteSize;

/// Calls the macro `$with` with the table of kinds. A row is `Variant(module) { fields of
/// [`KindSpec`] }`, where `module` is the file of the device class in the agent; memory and listed
/// kinds have none.
///
/// `number` is the kind's number on the wire, in messages and in `Resource.Kind`; it is never
/// reused.
#[macro_export]
macro_rules! resource_kinds {
    ($with:ident) => {
        $with! {
            /// Memory, lent in slabs.
            Memory {
                number: 1,
                name: "memory",
                noun: "memory",
                plural: "memory",
                unit_bytes: ::venice_wire::SLAB_BYTES,
                lending: Lending::Slabs,
            }
            /// Whole blocks of physical memory that the donor's kernel has released, for machines
            /// that reach them by hardware. The Monitor Node lists them and grants none.
            Window {
                number: 2,
                name: "window",
                noun: "memory blocks",
                plural: "memory blocks",
                unit_bytes: 0,
                lending: Lending::Listed,
            }
            /// A device that computes: a GPU, an FPGA. Lent whole.
            Accelerator(accelerator) {
                number: 3,
                name: "accelerator",
                noun: "accelerator",
                plural: "accelerators",
                unit_bytes: 0,
                lending: Lending::Device,
            }
            /// A network card. Lent whole.
            Nic(nic) {
                number: 4,
                name: "nic",
                noun: "network card",
                plural: "network cards",
                unit_bytes: 0,
                lending: Lending::Device,
            }
            /// A block device, or a part of a file system. Lent by bytes.
            Storage(storage) {
                number: 5,
                name: "storage",
                noun: "storage",
                plural: "storage",
                unit_bytes: 1 << 20,
                lending: Lending::Device,
            }
        }
    };
}

/// The row of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindSpec {
    /// The number on the wire.
    pub number: i32,
    /// The name in commands, tables, records and JSON.
    pub name: &'static str,
    /// The noun in messages, for one.
    pub noun: &'static str,
    /// The noun in messages, for several.
    pub plural: &'static str,
    /// The unit in which it is lent, in bytes; 0: whole, to one grant at a time.
    pub unit_bytes: u64,
    /// The way in which it is lent.
    pub lending: Lending,
}

/// The way in which a kind is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lending {
    /// In slabs of the donor's pool, from any donors together.
    Slabs,
    /// Device by device: each share comes from one device of one donor.
    Device,
    /// Not at all: the Monitor Node only lists it.
    Listed,
}

macro_rules! define_kinds {
    ($( $(#[$doc:meta])* $kind:ident $(($class:ident))? { $($field:ident: $value:expr),* $(,)? } )*) => {
        /// The kind of a resource.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum ResourceKind {
            $( $(#[$doc])* $kind, )*
        }

        impl ResourceKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            /// Returns the row.
            pub const fn spec(self) -> &'static KindSpec {
                match self {
                    $( Self::$kind => &KindSpec { $($field: $value),* }, )*
                }
            }
        }
    };
}

resource_kinds!(define_kinds);

/// The error for an unknown name of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown kind {name:?}: expected {}", names(.expected))]
pub struct UnknownKind {
    name: String,
    expected: Vec<ResourceKind>,
}

fn names(kinds: &[ResourceKind]) -> String {
    match kinds {
        [] => String::new(),
        [one] => one.name().to_owned(),
        [first @ .., last] => {
            let first: Vec<&str> = first.iter().map(|kind| kind.name()).collect();
            format!("{} or {last}", first.join(", "))
        }
    }
}

impl ResourceKind {
    /// The kinds that are granted, memory first.
    pub const GRANTED: [Self; granted_count()] = granted_kinds();

    /// Returns the name shown to users.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the kind of this number on the wire; `None`: a kind of a later release.
    pub fn of_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.spec().number == number)
    }

    /// True if it is granted device by device.
    pub fn is_device(self) -> bool {
        self.spec().lending == Lending::Device
    }

    /// True if it is granted.
    pub const fn is_granted(self) -> bool {
        !matches!(self.spec().lending, Lending::Listed)
    }

    /// True if it is granted by bytes, in whole units; if not, it is granted whole.
    pub fn is_divisible(self) -> bool {
        self.spec().unit_bytes > 0
    }

    /// Iterates over the kinds of devices.
    pub fn devices() -> impl Iterator<Item = Self> + Clone {
        Self::ALL.into_iter().filter(|kind| kind.is_device())
    }

    /// Iterates over the kinds that are granted.
    pub fn granted() -> impl Iterator<Item = Self> + Clone {
        Self::GRANTED.into_iter()
    }

    /// Parses the name of a kind that is lent device by device.
    ///
    /// # Errors
    /// [`UnknownKind`] lists the names.
    pub fn device_named(name: &str) -> Result<Self, UnknownKind> {
        Self::among(Self::devices(), name)
    }

    /// Returns these bytes in whole units, rounded up; a kind granted whole has no units.
    pub fn in_units(self, bytes: u64) -> u64 {
        match self.spec().unit_bytes {
            0 => bytes,
            unit => bytes.div_ceil(unit).saturating_mul(unit),
        }
    }

    /// Formats an amount: bytes of a divisible kind, else a count.
    pub fn amount_text(self, amount: u64) -> String {
        let KindSpec { noun, plural, .. } = self.spec();
        match (self.is_divisible(), amount) {
            (true, bytes) => format!("{} of {noun}", ByteSize(bytes)),
            (false, 1) => format!("1 {noun}"),
            (false, count) => format!("{count} {plural}"),
        }
    }

    fn among(kinds: impl Iterator<Item = Self>, name: &str) -> Result<Self, UnknownKind> {
        let expected: Vec<Self> = kinds.collect();
        let found = expected.iter().copied().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownKind { name: name.to_owned(), expected })
    }
}

const fn granted_count() -> usize {
    let (mut count, mut at) = (0, 0);
    while at < ResourceKind::ALL.len() {
        count += ResourceKind::ALL[at].is_granted() as usize;
        at += 1;
    }
    count
}

const fn granted_kinds() -> [ResourceKind; granted_count()] {
    let mut kinds = [ResourceKind::Memory; granted_count()];
    let (mut count, mut at) = (0, 0);
    while at < ResourceKind::ALL.len() {
        if ResourceKind::ALL[at].is_granted() {
            kinds[count] = ResourceKind::ALL[at];
            count += 1;
        }
        at += 1;
    }
    kinds
}

impl FromStr for ResourceKind {
    type Err = UnknownKind;

    /// Parses the name of a kind that is granted.
    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::among(Self::granted(), name)
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_distinct() {
        let numbers: BTreeSet<i32> = ResourceKind::ALL.map(|kind| kind.spec().number).into();
        let names: BTreeSet<&str> = ResourceKind::ALL.map(ResourceKind::name).into();
        assert_eq!(
            (numbers.len(), names.len()),
            (ResourceKind::ALL.len(), ResourceKind::ALL.len())
        );
        assert!(numbers.iter().all(|number| *number > 0), "0 is unspecified on the wire");
    }

    #[test]
    fn stored_name_is_shown_name() {
        for kind in ResourceKind::ALL {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("{:?}", kind.name()));
            assert_eq!(ResourceKind::of_number(kind.spec().number), Some(kind));
        }
    }

    #[test]
    fn unknown_kind_lists_names() {
        let error = "gpu".parse::<ResourceKind>().unwrap_err().to_string();
        assert!(error.starts_with("unknown kind \"gpu\": expected memory, "), "{error}");
        assert!(!error.contains("window"), "it is not granted: {error}");
        let error = ResourceKind::device_named("memory").unwrap_err().to_string();
        assert!(!error.contains("expected memory"), "{error}");
    }

    #[test]
    fn amounts_have_units_or_counts() {
        let said = |kind: ResourceKind, amount| kind.amount_text(amount);
        assert_eq!(said(ResourceKind::Storage, 3 << 20), "3MiB of storage");
        assert_eq!(said(ResourceKind::Nic, 1), "1 network card");
        assert_eq!(said(ResourceKind::Accelerator, 2), "2 accelerators");
        assert_eq!(ResourceKind::Storage.in_units((1 << 20) + 1), 2 << 20);
    }
}
