//! What an object cache keeps its values in.

use venice_recipient::Copies;

use crate::Error;

/// Memory that is read and written by address, from any thread.
pub trait Store: Send + Sync {
    /// How much there is.
    fn len_bytes(&self) -> u64;

    /// How the copies of it are, where there are any.
    fn copies(&self) -> Option<Copies> {
        None
    }

    /// Fills `into` from address `at` on.
    ///
    /// # Errors
    /// [`Error::DonorLost`] where what is asked for was lost with its donor.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Error>;

    /// Stores `from` at address `at`; it is there when this returns.
    ///
    /// # Errors
    /// As [`Store::read_at`].
    fn write_at(&self, at: u64, from: &[u8]) -> Result<(), Error>;
}
