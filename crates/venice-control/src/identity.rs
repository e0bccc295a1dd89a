//! Identities in a rack: the authority, its certificates, and their verification.
//!
//! * [`Authority`] belongs to the Monitor Node: it signs for nodes, and on their word for users.
//! * [`Credential`] is a key with its certificate; a process keeps one in a [`Holder`] and may
//!   replace it while it runs.
//! * [`Trust`] verifies certificates.
//! * [`JoinToken`] lets a machine join once, and pins the authority of the Monitor Node.

mod authorities;
mod authority;
mod credential;
mod error;
mod files;
mod holder;
mod join_key;
mod random;
mod revocations_file;
mod role;
mod rotation;
mod token;
mod trust;
mod verifiers;

pub use authorities::Authorities;
pub use authority::{Authority, Fingerprint, Lifetimes};
pub use credential::{CertificateInfo, Credential, KeyPem};
pub use error::IdentityError;
pub use files::{Place, chown_like_directory, write_private};
pub use holder::Holder;
pub use join_key::remove_join_key;
pub use revocations_file::{load_revoked, save_revoked};
pub use token::{JoinToken, TokenSecret};
pub use trust::{NotAdmitted, Trust};

pub(crate) use authority::hash_of_requested_key;
pub(crate) use role::{MONITOR_DNS, NODE_DNS};
pub(crate) use verifiers::pinned_client;
