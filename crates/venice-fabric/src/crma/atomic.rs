//! Atomic accesses: eight bytes are read, and changed or not, as one step.

use venice_wire::Opcode;

/// What an atomic access does to eight bytes, taken as a little-endian number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, wrapping around at 2⁶⁴.
    FetchAdd(u64),
    /// Puts in `new` if what is there is `expected`.
    CompareSwap {
        /// What must be there.
        expected: u64,
        /// What is there afterwards.
        new: u64,
    },
}

impl Atomic {
    /// Bytes it works on; their address is a multiple of it.
    pub const BYTES: usize = 8;

    /// What it makes of `old`; `None`: it leaves it.
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

    /// Reads what [`Atomic::emit`] wrote; `None` if it is no atomic, or not its length.
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
