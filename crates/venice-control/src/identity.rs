//! Who is who in a rack: an authority, the certificates it signs, and what they are worth.
//!
//! * [`Authority`] is the Monitor Node's: it signs for nodes, and on their word for users.
//! * [`Credential`] is a key with its certificate; a process holds one in a [`Holder`] and may
//!   change it while it runs.
//! * [`Trust`] says whom a certificate names, or why it is worth nothing.
//! * [`JoinToken`] lets a machine in once, and lets it know the Monitor Node for the right one.

mod authority;
mod credential;
mod error;
mod files;
mod holder;
mod joining;
mod random;
mod role;
mod token;
mod trust;
mod turned_out;
mod verifiers;

pub use authority::{Authority, Fingerprint, Lifetimes};
pub use credential::{Credential, KeyPem, Said};
pub use error::IdentityError;
pub use files::{Place, give_to_owner_of_folder, write_private};
pub use holder::Holder;
pub use joining::forget_joining_key;
pub use token::{JoinToken, TokenSecret};
pub use trust::{NotAdmitted, Trust};
pub use turned_out::{load_revoked, save_revoked};

pub(crate) use authority::hash_of_requested_key;
pub(crate) use role::{MONITOR_DNS, NODE_DNS};
pub(crate) use verifiers::pinned_client;
