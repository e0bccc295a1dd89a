//! Erasure coding of far memory: what a page is cut into, and the arithmetic ([`Codec`]).
//!
//! A page of coded memory is cut into `k` fragments, and `m` more are computed of it, each as long;
//! every one lies on another node, at the same place of its slab there. Any `k` of the `k + m` give
//! the page back. The first `k` are the page's bytes as they are, so that nothing is computed for a
//! page of which no donor is lost.
//! Source: Hydra (FAST '22), section 4: splitting instead of coding over several pages means that a
//! page is written without reading others, and freed without moving them.

mod codec;

pub use codec::{Codec, Pieces};

use super::PAGE;

/// Most fragments that a page is cut into.
pub const MAX_DATA: usize = 8;
/// Most fragments computed besides.
pub const MAX_PARITY: usize = 3;
/// Most fragments of a page in all.
pub const MAX_FRAGMENTS: usize = MAX_DATA + MAX_PARITY;

/// How far memory is coded: `k+m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coding {
    data: u8,
    parity: u8,
}

/// Why there is no such coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write k+m: a page in 2, 4 or 8 fragments, and 1 to 3 computed ones, as in 4+2")]
pub struct NoSuchCoding;

impl Coding {
    /// Pages in `data` fragments (2, 4 or 8), with `parity` more (1 to 3).
    ///
    /// # Errors
    /// [`NoSuchCoding`].
    pub fn new(data: usize, parity: usize) -> Result<Coding, NoSuchCoding> {
        let is_known = matches!(data, 2 | 4 | MAX_DATA) && (1..=MAX_PARITY).contains(&parity);
        is_known.then_some(Coding { data: data as u8, parity: parity as u8 }).ok_or(NoSuchCoding)
    }

    /// Fragments that a page is cut into, which is how many give it back.
    pub fn data(self) -> usize {
        self.data.into()
    }

    /// Fragments computed besides, which is how many may be lost.
    pub fn parity(self) -> usize {
        self.parity.into()
    }

    /// All of them.
    pub fn fragments(self) -> usize {
        self.data() + self.parity()
    }

    /// Bytes of a fragment.
    pub fn fragment_bytes(self) -> usize {
        PAGE / self.data()
    }

    /// All codings there are.
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
    type Err = NoSuchCoding;

    fn from_str(text: &str) -> Result<Coding, NoSuchCoding> {
        let (data, parity) = text.split_once('+').ok_or(NoSuchCoding)?;
        let number = |text: &str| text.parse().map_err(|_| NoSuchCoding);
        Coding::new(number(data)?, number(parity)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_as_k_plus_m_is_read_as_such_and_nothing_else() {
        for coding in Coding::all() {
            assert_eq!(coding.to_string().parse(), Ok(coding));
            assert_eq!(coding.fragment_bytes() * coding.data(), PAGE);
            assert_eq!(coding.fragment_bytes() % 64, 0, "whole cache lines");
        }
        assert_eq!(Coding::all().count(), 9);
        for text in ["", "4", "4+", "+2", "3+1", "4+0", "4+4", "16+2", "4+2+1", "4 + 2", "-4+2"] {
            assert_eq!(text.parse::<Coding>(), Err(NoSuchCoding), "{text:?}");
        }
    }
}
