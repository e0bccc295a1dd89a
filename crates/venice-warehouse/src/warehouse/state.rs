//! The state of a warehouse as bytes: what all parts have in common, and the parts one after the other.

use serde::{Deserialize, Serialize};
use venice_experiment::BadState;

/// A state, with the bytes of each part.
pub(super) struct State<P> {
    /// The link that is captured.
    pub(super) link: String,
    /// The virtual time.
    pub(super) now: u64,
    /// The parts, as [`Engine::save_parts`](venice_simkernel::engine::Engine::save_parts) returns them.
    pub(super) parts: Vec<P>,
}

/// The first bytes of a state.
#[derive(Serialize, Deserialize)]
struct Head {
    link: String,
    now: u64,
    sizes: Vec<u64>,
}

impl<P: AsRef<[u8]>> State<P> {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let sizes = self.parts.iter().map(|part| part.as_ref().len() as u64).collect();
        let head = Head { link: self.link.clone(), now: self.now, sizes };
        let mut bytes = rmp_serde::to_vec_named(&head).expect("it is data");
        self.parts.iter().for_each(|part| bytes.extend_from_slice(part.as_ref()));
        bytes
    }
}

impl<'a> State<&'a [u8]> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, BadState> {
        let mut rest = bytes;
        let head: Result<Head, _> = rmp_serde::from_read(&mut rest);
        let Head { link, now, sizes } = head.map_err(|error| BadState(error.to_string()))?;
        let mut part = |size| {
            let (part, after) = rest.split_at_checked(usize::try_from(size).ok()?)?;
            rest = after;
            Some(part)
        };
        let parts: Option<Vec<_>> = sizes.into_iter().map(&mut part).collect();
        let parts = parts.filter(|_| rest.is_empty());
        let parts = parts.ok_or_else(|| BadState("parts are missing".to_owned()))?;
        Ok(Self { link, now, parts })
    }
}
