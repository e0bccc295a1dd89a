//! Join tokens: `ID.SECRET.FINGERPRINT@HOST:PORT`, in hexadecimal.

use super::authority::Fingerprint;
use super::error::IdentityError;
use ring::digest::{SHA256, digest};
use std::fmt;
use std::str::FromStr;

/// A token with which a machine joins, once.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Id of the token.
    pub id: u64,
    /// Proof of possession.
    pub secret: TokenSecret,
    /// Fingerprint of the authority of its rack.
    pub authority: Fingerprint,
    /// `host:port` of the Monitor Node.
    pub monitor: String,
}

/// The secret of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenSecret(pub [u8; 16]);

impl TokenSecret {
    /// Draws a secret, with the id of its token.
    ///
    /// # Errors
    /// [`IdentityError::NoRandom`].
    pub fn draw() -> Result<(u64, Self), IdentityError> {
        let (mut id, mut secret) = ([0; 8], [0; 16]);
        super::random::fill(&mut id)?;
        super::random::fill(&mut secret)?;
        Ok((u64::from_be_bytes(id), Self(secret)))
    }

    /// Returns the hash that the Monitor Node stores.
    pub fn hash(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, &self.0).as_ref());
        bytes
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.", self.id)?;
        self.secret.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ".{}@{}", self.authority, self.monitor)
    }
}

impl fmt::Debug for JoinToken {
    /// Omits the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({:016x}@{})", self.id, self.monitor)
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

impl FromStr for JoinToken {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let (parts, monitor) = text
            .trim()
            .split_once('@')
            .ok_or(IdentityError::BadToken("expected ID.SECRET.FINGERPRINT@HOST:PORT"))?;
        let parts: Vec<&str> = parts.split('.').collect();
        let [id, secret, authority] = parts[..] else {
            return Err(IdentityError::BadToken("expected three parts before the @"));
        };
        let has_port =
            monitor.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !has_port {
            return Err(IdentityError::BadToken("expected HOST:PORT after the @"));
        }
        let wrong = IdentityError::BadToken("a part is truncated or mistyped");
        let read = || Some((unhex::<8>(id)?, unhex::<16>(secret)?, unhex::<32>(authority)?));
        let (id, secret, authority) = read().ok_or(wrong)?;
        Ok(Self {
            id: u64::from_be_bytes(id),
            secret: TokenSecret(secret),
            authority: Fingerprint(authority),
            monitor: monitor.to_owned(),
        })
    }
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_text_roundtrips() {
        let (id, secret) = TokenSecret::draw().unwrap();
        for monitor in ["10.0.0.1:7470", "[::1]:7470", "rack.example:1"] {
            let authority = Fingerprint([7; 32]);
            let token = JoinToken { id, secret, authority, monitor: monitor.into() };
            assert_eq!(format!(" {token}\n").parse::<JoinToken>().unwrap(), token);
            assert!(!format!("{token:?}").contains(&token.to_string()[17..49]));
        }
    }

    #[test]
    fn malformed_token_is_refused() {
        let (id, secret) = TokenSecret::draw().unwrap();
        let token =
            JoinToken { id, secret, authority: Fingerprint([7; 32]), monitor: "h:1".into() };
        let text = token.to_string();
        for wrong in
            ["", "x", "a.b@h:1", &text[1..], &text[..text.len() - 2], &text.replace('0', "g")]
        {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
