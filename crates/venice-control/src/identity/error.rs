//! Errors of keys, certificates and tokens.

use std::path::PathBuf;
use thiserror::Error;

/// An error of a key, a certificate or a token.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// There is an authority already.
    #[error("{} already has the authority of a rack: left unchanged", .dir.display())]
    Exists {
        /// Directory.
        dir: PathBuf,
    },
    /// There is no authority.
    #[error(
        "no authority of a rack in {}: `venice restore FILE` brings a lost one back from its backup; \
         `venice init` makes a new rack, which no node trusts that joined another",
        .dir.display()
    )]
    NoAuthority {
        /// Directory.
        dir: PathBuf,
    },
    /// The authority is being rotated.
    #[error(
        "the authority is being rotated: end that with `venice identity rotate --finish` before the \
         next rotation"
    )]
    Rotating,
    /// The authority is not being rotated.
    #[error("the authority is not being rotated: begin with `venice identity rotate`")]
    NotRotating,
    /// This machine has not joined.
    #[error(
        "no certificate in {}: join the rack with `venice join TOKEN` (a token comes from \
         `venice token new` on the Monitor Node's machine)",
        .dir.display()
    )]
    NoCredential {
        /// Directory.
        dir: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has wrong contents.
    #[error("{} is damaged: {why}", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// A certificate request is malformed.
    #[error("malformed certificate request, or wrong signature")]
    BadRequest,
    /// A certificate has no subject in a rack.
    #[error("the certificate has no subject in a rack")]
    NamesNobody,
    /// A join token is malformed.
    #[error("invalid join token: {0}")]
    BadToken(&'static str),
    /// The system has no random numbers.
    #[error("no random numbers from the system")]
    NoRandom,
    /// Generating a key or a certificate failed.
    #[error("generating a key or a certificate")]
    Crypto(#[from] rcgen::Error),
    /// A key or certificate is unsuitable for TLS.
    #[error("unusable key or certificate for TLS")]
    Tls(#[from] rustls::Error),
}
