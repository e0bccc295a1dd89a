//! What can go wrong with keys and certificates.

use std::path::PathBuf;
use thiserror::Error;

/// Why a key, a certificate or a token cannot be had or used.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// There is an authority already.
    #[error("{} holds the authority of a rack already: it is left as it is", .dir.display())]
    Exists {
        /// Where.
        dir: PathBuf,
    },
    /// There is no authority.
    #[error("no authority of a rack in {}: make one with `venice init`", .dir.display())]
    NoAuthority {
        /// Where.
        dir: PathBuf,
    },
    /// This machine has not joined.
    #[error(
        "no certificate in {}: join the rack with `venice join TOKEN` (a token comes from \
         `venice token new` on the Monitor Node's machine)",
        .dir.display()
    )]
    NoCredential {
        /// Where.
        dir: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{} is damaged: {why}", .path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A request for a certificate is none.
    #[error("the request for a certificate cannot be read, or its signature is wrong")]
    BadRequest,
    /// A certificate names no part of a rack.
    #[error("the certificate names no part of a rack")]
    NamesNobody,
    /// A join token does not read as one.
    #[error("this is no join token: {0}")]
    BadToken(&'static str),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    NoRandom,
    /// The making of a key or certificate failed.
    #[error("making a key or a certificate")]
    Crypto(#[from] rcgen::Error),
    /// A key or certificate does not suit TLS.
    #[error("a key or a certificate that TLS cannot use")]
    Tls(#[from] rustls::Error),
}
