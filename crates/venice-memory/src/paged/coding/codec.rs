//! Reed-Solomon arithmetic on the fragments of one page, without allocation.
//!
//! The library provides the field GF(2^16) and the products with whole fragments (by SSSE3, AVX2 or
//! NEON). This file chooses the matrix: a Cauchy matrix, of which every square part is invertible,
//! so that missing fragments are restored from as many parity fragments. The columns are scaled so
//! that the first row is all ones: the first parity fragment is the sum of the data fragments.

use reed_solomon_simd::engine::{DefaultEngine, Engine, GF_MODULUS, GfElement, tables, utils};

use super::super::PAGE;
use super::{Coding, MAX_DATA, MAX_PARITY};

/// The unit of the engine's multiplication.
type Block = [u8; 64];
const PAGE_BLOCKS: usize = PAGE / size_of::<Block>();
/// Blocks of the longest fragment.
const FRAGMENT_BLOCKS: usize = PAGE_BLOCKS / 2;

/// The fragments of one page: the data fragments in order, then the parity fragments.
#[derive(Clone)]
pub struct Pieces {
    /// Blocks of each fragment.
    blocks: usize,
    all: Box<[Block]>,
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl Pieces {
    /// Creates room for the fragments of one page.
    pub fn new(coding: Coding) -> Pieces {
        let blocks = PAGE_BLOCKS / coding.data();
        Pieces { blocks, all: vec![[0; 64]; blocks * coding.fragments()].into() }
    }

    /// The bytes of a fragment, to be read or filled.
    pub fn fragment(&mut self, fragment: usize) -> &mut [u8] {
        self.all[fragment * self.blocks..][..self.blocks].as_flattened_mut()
    }

    /// The page.
    pub fn page(&mut self) -> &mut [u8] {
        self.all[..PAGE_BLOCKS].as_flattened_mut()
    }

    /// The data fragments and the parity fragments.
    fn split(&mut self) -> (&mut [Block], &mut [Block]) {
        self.all.split_at_mut(PAGE_BLOCKS)
    }
}

/// An encoder and decoder for one page at a time.
pub struct Codec {
    coding: Coding,
    engine: DefaultEngine,
    /// The matrix, by parity and data fragment.
    matrix: [[GfElement; MAX_DATA]; MAX_PARITY],
    scratch: Box<[Block; FRAGMENT_BLOCKS]>,
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").field("coding", &self.coding).finish_non_exhaustive()
    }
}

impl Codec {
    /// Creates a codec. The first one of a process builds the engine's tables (8 MiB).
    pub fn new(coding: Coding) -> Codec {
        let scratch = Box::new([[0; 64]; FRAGMENT_BLOCKS]);
        Codec { coding, engine: DefaultEngine::new(), matrix: matrix(coding), scratch }
    }

    /// The coding.
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Computes a parity fragment of the page.
    pub fn compute(&mut self, pieces: &mut Pieces, fragment: usize) {
        let (row, blocks) = (fragment - self.coding.data(), pieces.blocks);
        let (page, computed) = pieces.split();
        let sum = &mut computed[row * blocks..][..blocks];
        sum.fill([0; 64]);
        for (column, of_page) in page.chunks_exact(blocks).enumerate() {
            self.add_product(sum, of_page, self.matrix[row][column]);
        }
    }

    /// Copies a data or parity fragment of the page to the beginning of `into`.
    pub fn copy_fragment(&mut self, pieces: &mut Pieces, fragment: usize, into: &mut [u8]) {
        if fragment >= self.coding.data() {
            self.compute(pieces, fragment);
        }
        into[..self.coding.fragment_bytes()].copy_from_slice(pieces.fragment(fragment));
    }

    /// Restores the page from the fragments present, a bit each in `put`: at least as many as it
    /// has data fragments. Overwrites the parity fragments.
    ///
    /// # Panics
    /// If fewer are present.
    pub fn complete(&mut self, pieces: &mut Pieces, put: u32) {
        let (data, blocks) = (self.coding.data(), pieces.blocks);
        let missing = Chosen::of((0..data).filter(|fragment| put & 1 << fragment == 0));
        if missing.count == 0 {
            return;
        }
        let computed = (0..self.coding.parity()).filter(|row| put & 1 << (data + row) != 0);
        let rows = Chosen::of(computed.take(missing.count));
        assert_eq!(rows.count, missing.count, "{} fragments give a page", self.coding);
        let (page, computed) = pieces.split();
        for &row in rows.all() {
            // The rest of the sum is the part of the missing fragments.
            let sum = &mut computed[row * blocks..][..blocks];
            for fragment in (0..data).filter(|fragment| put & 1 << fragment != 0) {
                let of_page = &page[fragment * blocks..][..blocks];
                self.add_product(sum, of_page, self.matrix[row][fragment]);
            }
        }
        for (factors, &fragment) in self.inverse(&rows, &missing).iter().zip(missing.all()) {
            let sum = &mut page[fragment * blocks..][..blocks];
            sum.fill([0; 64]);
            for (&row, &factor) in rows.all().iter().zip(factors) {
                self.add_product(sum, &computed[row * blocks..][..blocks], factor);
            }
        }
    }

    /// `sum += factor * fragment`
    fn add_product(&mut self, sum: &mut [Block], fragment: &[Block], factor: GfElement) {
        if factor == one() {
            return utils::xor(sum, fragment);
        }
        let scratch = &mut self.scratch[..fragment.len()];
        scratch.copy_from_slice(fragment);
        self.engine.mul(scratch, log(factor));
        utils::xor(sum, scratch);
    }

    /// The inverse of the matrix's part that maps `missing` to `rows`, by Gauss-Jordan elimination.
    fn inverse(&self, rows: &Chosen, missing: &Chosen) -> [[GfElement; MAX_PARITY]; MAX_PARITY] {
        let count = rows.count;
        let part = |row: usize, column: usize| self.matrix[rows.at[row]][missing.at[column]];
        let mut left: Square = std::array::from_fn(|row| {
            std::array::from_fn(|column| match row < count && column < count {
                true => part(row, column),
                false => 0,
            })
        });
        let mut right = [[0; MAX_PARITY]; MAX_PARITY];
        (0..count).for_each(|at| right[at][at] = one());
        for at in 0..count {
            let pivot = (at..count).find(|&row| left[row][at] != 0);
            let pivot = pivot.expect("a square part of a Cauchy matrix is invertible");
            left.swap(at, pivot);
            right.swap(at, pivot);
            let factor = inverse_of(left[at][at]);
            for column in 0..count {
                left[at][column] = product(left[at][column], factor);
                right[at][column] = product(right[at][column], factor);
            }
            for row in (0..count).filter(|&row| row != at) {
                let factor = left[row][at];
                for column in 0..count {
                    left[row][column] ^= product(left[at][column], factor);
                    right[row][column] ^= product(right[at][column], factor);
                }
            }
        }
        right
    }
}

type Square = [[GfElement; MAX_PARITY]; MAX_PARITY];

/// A list of fragments, or rows.
struct Chosen {
    at: [usize; MAX_DATA],
    count: usize,
}

impl Chosen {
    fn of(all: impl Iterator<Item = usize>) -> Chosen {
        let mut chosen = Chosen { at: [0; MAX_DATA], count: 0 };
        for one in all {
            chosen.at[chosen.count] = one;
            chosen.count += 1;
        }
        chosen
    }

    fn all(&self) -> &[usize] {
        &self.at[..self.count]
    }
}

/// The matrix `1 / (x + y)` of distinct `x` and `y`, each column divided by its first element.
fn matrix(coding: Coding) -> [[GfElement; MAX_DATA]; MAX_PARITY] {
    // The elements depend on the fragments alone, not on their number.
    let cauchy = |row: usize, column: usize| {
        inverse_of((row as GfElement) ^ ((MAX_PARITY + 1 + column) as GfElement))
    };
    let mut matrix = [[0; MAX_DATA]; MAX_PARITY];
    for (row, factors) in matrix.iter_mut().enumerate().take(coding.parity()) {
        for (column, factor) in factors.iter_mut().enumerate().take(coding.data()) {
            *factor = product(cauchy(row, column), inverse_of(cauchy(0, column)));
        }
    }
    matrix
}

fn log(of: GfElement) -> GfElement {
    tables::get_exp_log().log[usize::from(of)]
}

fn exp(of: GfElement) -> GfElement {
    tables::get_exp_log().exp[usize::from(of)]
}

/// The field's one. Its bits depend on the basis.
fn one() -> GfElement {
    exp(0)
}

fn product(one: GfElement, other: GfElement) -> GfElement {
    let tables::ExpLog { exp, log } = tables::get_exp_log();
    match other {
        0 => 0,
        _ => tables::mul(one, log[usize::from(other)], exp, log),
    }
}

fn inverse_of(of: GfElement) -> GfElement {
    assert_ne!(of, 0, "zero has no inverse");
    exp(GF_MODULUS - log(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(seed: usize) -> Vec<u8> {
        (0..PAGE).map(|at| ((at * 2654435761 + seed * 97) >> 7) as u8).collect()
    }

    fn all_of(coding: Coding) -> std::ops::Range<usize> {
        0..coding.fragments()
    }

    /// All fragments of a page.
    fn fragments(codec: &mut Codec, page: &[u8]) -> Vec<Vec<u8>> {
        let (coding, mut pieces) = (codec.coding(), Pieces::new(codec.coding()));
        pieces.page().copy_from_slice(page);
        (coding.data()..coding.fragments()).for_each(|at| codec.compute(&mut pieces, at));
        all_of(coding).map(|fragment| pieces.fragment(fragment).to_vec()).collect()
    }

    /// Restores the page from the fragments of `all` whose bits are set in `put`.
    fn page_of(codec: &mut Codec, all: &[Vec<u8>], put: u32) -> Pieces {
        let mut pieces = Pieces::new(codec.coding());
        pieces.all.fill([0xa5; 64]);
        for fragment in (0..all.len()).filter(|at| put & 1 << at != 0) {
            pieces.fragment(fragment).copy_from_slice(&all[fragment]);
        }
        codec.complete(&mut pieces, put);
        pieces
    }

    #[test]
    fn every_bearable_loss_is_restored() {
        for coding in Coding::all() {
            let (mut codec, every) = (Codec::new(coding), (1u32 << coding.fragments()) - 1);
            let is_borne = |lost: &u32| lost.count_ones() as usize <= coding.parity();
            for lost in (0..=every).filter(is_borne) {
                let page = filled(lost as usize);
                let all = fragments(&mut codec, &page);
                let mut pieces = page_of(&mut codec, &all, every & !lost);
                assert!(pieces.page() == page, "{coding} without {lost:b}");
                for (fragment, computed) in all.iter().enumerate().skip(coding.data()) {
                    codec.compute(&mut pieces, fragment);
                    assert!(pieces.fragment(fragment) == computed, "{coding} {fragment}");
                }
            }
        }
    }

    #[test]
    fn any_k_fragments_restore_page() {
        for coding in Coding::all() {
            let (mut codec, page) = (Codec::new(coding), filled(coding.fragments()));
            let all = fragments(&mut codec, &page);
            let is_enough = |put: &u32| put.count_ones() as usize == coding.data();
            for put in (0..1u32 << coding.fragments()).filter(is_enough) {
                let mut pieces = page_of(&mut codec, &all, put);
                assert!(pieces.page() == page, "{coding} of {put:b}");
            }
        }
    }

    #[test]
    fn first_parity_is_sum_of_data() {
        let all = fragments(&mut Codec::new(Coding::new(4, 2).unwrap()), &filled(3));
        let sum = |at: usize| all[..4].iter().fold(0, |sum, fragment| sum ^ fragment[at]);
        assert!((0..1024).all(|at| all[4][at] == sum(at)));
        assert_ne!(all[4], all[5]);
    }

    #[test]
    #[should_panic(expected = "fragments give a page")]
    fn fewer_fragments_panic() {
        let mut codec = Codec::new(Coding::new(4, 2).unwrap());
        codec.complete(&mut Pieces::new(codec.coding()), 0b10_0011);
    }
}
