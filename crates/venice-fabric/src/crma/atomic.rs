//! Atomic accesses: eight bytes are read, and conditionally changed, in one step.

use venice_wire::Opcode;

/// An atomic operation on eight bytes, taken as a little-endian number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, wrapping around at 2⁶⁴.
    FetchAdd(u64),
    /// Stores `new` if the present value is `expected`.
    CompareSwap {
        /// The value that must be present.
        expected: u64,
        /// The value stored.
        new: u64,
    },
}

impl Atomic {
    /// The operand's length in bytes; its address must be a multiple of it.
    pub const BYTES: usize = 8;

    /// Returns the new value for `old`; `None` if the value stays.
    pub fn apply(self, old: u64) -> Option<u64> {
        match self {
            Self::FetchAdd(add) => Some(old.wrapping_add(add)),
            Self::CompareSwap { expected, new } => (old == expected).then_some(new),
        }
    }

    pub(crate) fn opcode(self) -> Opcode {
        match self {
            Self::FetchAdd(_) => Opcode::FetchAdd,
            Self::CompareSwap { .. } => Opcode::CompareSwap,
        }
    }

    /// Writes the operands as they travel; returns their length in bytes.
    pub(crate) fn emit(self, payload: &mut [u8; 16]) -> usize {
        match self {
            Self::FetchAdd(add) => {
                payload[..8].copy_from_slice(&add.to_le_bytes());
                8
            }
            Self::CompareSwap { expected, new } => {
                payload[..8].copy_from_slice(&expected.to_le_bytes());
                payload[8..].copy_from_slice(&new.to_le_bytes());
                16
            }
        }
    }

    /// Reads the operands written by [`Atomic::emit`]; `None` if the opcode is no atomic or the
    /// length differs.
    pub(crate) fn parse(opcode: Opcode, payload: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = payload.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        match (opcode, payload.len()) {
            (Opcode::FetchAdd, 8) => Some(Self::FetchAdd(word(0)?)),
            (Opcode::CompareSwap, 16) => {
                Some(Self::CompareSwap { expected: word(0)?, new: word(8)? })
            }
            _ => None,
        }
    }
}
