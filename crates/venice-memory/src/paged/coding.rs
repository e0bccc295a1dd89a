//! Erasure coding of far memory: the division of a page into fragments, and the arithmetic
//! ([`Codec`]).
//!
//! A coded page is split into `k` data fragments, and `m` parity fragments of the same length are
//! computed from them. Each fragment lies on another node, at the same offset of its slab. Any `k`
//! of the `k + m` fragments restore the page. The data fragments are the page's own bytes, so a
//! page without a lost donor needs no computation.
//!
//! Source: Hydra (FAST '22), section 4. Splitting pages, instead of coding over several pages,
//! means that a page is written without reading others, and freed without moving them.

mod codec;

pub use codec::{Codec, Pieces};

use super::PAGE;

/// Most data fragments of a page.
pub const MAX_DATA: usize = 8;
/// Most parity fragments of a page.
pub const MAX_PARITY: usize = 3;
/// Most fragments of a page.
pub const MAX_FRAGMENTS: usize = MAX_DATA + MAX_PARITY;

/// A coding `k+m`: data and parity fragments of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coding {
    data: u8,
    parity: u8,
}

/// An error: the numbers form no supported coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid coding: write K+M with 2, 4 or 8 data and 1 to 3 parity fragments, as in 4+2")]
pub struct InvalidCoding;

impl Coding {
    /// Creates a coding with `data` data fragments (2, 4 or 8) and `parity` parity fragments (1 to
    /// 3).
    ///
    /// # Errors
    /// [`InvalidCoding`] for other numbers.
    pub fn new(data: usize, parity: usize) -> Result<Coding, InvalidCoding> {
        let is_known = matches!(data, 2 | 4 | MAX_DATA) && (1..=MAX_PARITY).contains(&parity);
        is_known.then_some(Coding { data: data as u8, parity: parity as u8 }).ok_or(InvalidCoding)
    }

    /// Data fragments of a page: any so many restore it.
    pub fn data(self) -> usize {
        self.data.into()
    }

    /// Parity fragments of a page: so many may be lost.
    pub fn parity(self) -> usize {
        self.parity.into()
    }

    /// Data and parity fragments of a page.
    pub fn fragments(self) -> usize {
        self.data() + self.parity()
    }

    /// Length of a fragment, bytes.
    pub fn fragment_bytes(self) -> usize {
        PAGE / self.data()
    }

    /// All supported codings.
    pub fn all() -> impl Iterator<Item = Coding> {
        let pairs = [2, 4, 8].into_iter().flat_map(|data| (1..=MAX_PARITY).map(move |m| (data, m)));
        pairs.map(|(data, parity)| Coding { data, parity: parity as u8 })
    }
}

impl std::fmt::Display for Coding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl std::str::FromStr for Coding {
    type Err = InvalidCoding;

    fn from_str(text: &str) -> Result<Coding, InvalidCoding> {
        let (data, parity) = text.split_once('+').ok_or(InvalidCoding)?;
        let number = |text: &str| text.parse().map_err(|_| InvalidCoding);
        Coding::new(number(data)?, number(parity)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coding_text_roundtrip_rejects_garbage() {
        for coding in Coding::all() {
            assert_eq!(coding.to_string().parse(), Ok(coding));
            assert_eq!(coding.fragment_bytes() * coding.data(), PAGE);
            assert_eq!(coding.fragment_bytes() % 64, 0, "whole cache lines");
        }
        assert_eq!(Coding::all().count(), 9);
        for text in ["", "4", "4+", "+2", "3+1", "4+0", "4+4", "16+2", "4+2+1", "4 + 2", "-4+2"] {
            assert_eq!(text.parse::<Coding>(), Err(InvalidCoding), "{text:?}");
        }
    }
}
