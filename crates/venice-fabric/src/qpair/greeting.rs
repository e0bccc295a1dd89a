//! The payload of Connect and Accept: one end's settings.

use venice_wire::GrantKey;

use super::{
    CreditMode, QPairKind,
    config::{MAX_BUFFER_BYTES, MAX_QUEUED_MESSAGES},
    credit::Capacity,
};

/// Bytes of a greeting on the wire; longer ones, of later versions, are read up to this length.
pub(super) const GREETING_BYTES: usize = 32;

const STREAM: u32 = 1 << 0;
const IN_BAND: u32 = 1 << 1;

/// The settings that one end sends to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub capacity: Capacity,
    /// Address and key of this end's credit in the sender's credit region.
    pub credit_address: u64,
    pub credit_key: GrantKey,
    pub kind: QPairKind,
    pub mode: CreditMode,
    /// The requested service; 0 in an Accept.
    pub service: u32,
}

impl Greeting {
    pub(super) fn emit(&self, into: &mut [u8]) {
        let is_stream = self.kind == QPairKind::Stream;
        let is_in_band = self.mode == CreditMode::InBand;
        let flags = if is_stream { STREAM } else { 0 } | if is_in_band { IN_BAND } else { 0 };
        into[..4].copy_from_slice(&(self.capacity.bytes as u32).to_le_bytes());
        into[4..8].copy_from_slice(&(self.capacity.messages as u32).to_le_bytes());
        into[8..16].copy_from_slice(&self.credit_address.to_le_bytes());
        into[16..24].copy_from_slice(&self.credit_key.0.to_le_bytes());
        into[24..28].copy_from_slice(&flags.to_le_bytes());
        into[28..32].copy_from_slice(&self.service.to_le_bytes());
    }

    /// Parses a greeting; `None` if it is too short, or its values are out of range.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..GREETING_BYTES)?;
        let u32_at =
            |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let u64_at = |at: usize| u64::from(u32_at(at + 4)) << 32 | u64::from(u32_at(at));
        let flags = u32_at(24);
        let is_credible = (1..=MAX_BUFFER_BYTES).contains(&u32_at(0))
            && (1..=MAX_QUEUED_MESSAGES).contains(&u32_at(4))
            && flags & !(STREAM | IN_BAND) == 0;
        is_credible.then(|| Self {
            capacity: Capacity { bytes: u32_at(0).into(), messages: u32_at(4).into() },
            credit_address: u64_at(8),
            credit_key: GrantKey(u64_at(16)),
            kind: if flags & STREAM != 0 { QPairKind::Stream } else { QPairKind::Messages },
            mode: if flags & IN_BAND != 0 { CreditMode::InBand } else { CreditMode::CrmaWrite },
            service: u32_at(28),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_roundtrips() {
        let greeting = Greeting {
            capacity: Capacity { bytes: 0x0010_2030, messages: 7 },
            credit_address: 0x1122_3344_5566_7788,
            credit_key: GrantKey(0x99aa_bbcc_ddee_ff00),
            kind: QPairKind::Stream,
            mode: CreditMode::InBand,
            service: 0x0102_0304,
        };
        let mut bytes = [0; 40];
        greeting.emit(&mut bytes);
        assert_eq!(Greeting::parse(&bytes), Some(greeting));
        assert_eq!(Greeting::parse(&bytes[..31]), None);
        bytes[24] = 4;
        assert_eq!(Greeting::parse(&bytes), None, "a flag of a later version");
    }
}
