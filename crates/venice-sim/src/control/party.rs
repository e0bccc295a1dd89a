//! Participants, by kind and number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A participant. Numbers begin at 0; written `monitor0`, `donor2`, `recipient1`, `store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Party {
    /// A Monitor Node.
    Monitor(u16),
    /// A donor's agent.
    Donor(u16),
    /// A program that borrows.
    Recipient(u16),
    /// The store that several Monitor Nodes share.
    Store,
    /// The operator, who drains nodes. No fault affects it.
    Operator,
}

/// A text that is not a participant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no participant: write monitor0, donor2, recipient1 or store")]
pub struct ParsePartyError(String);

impl FromStr for Party {
    type Err = ParsePartyError;

    fn from_str(text: &str) -> Result<Self, ParsePartyError> {
        let error = || ParsePartyError(text.to_owned());
        if text == "store" {
            return Ok(Self::Store);
        }
        let number_at = text.find(|c: char| c.is_ascii_digit()).ok_or_else(error)?;
        let number = text[number_at..].parse().map_err(|_| error())?;
        match &text[..number_at] {
            "monitor" => Ok(Self::Monitor(number)),
            "donor" => Ok(Self::Donor(number)),
            "recipient" => Ok(Self::Recipient(number)),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Monitor(number) => write!(f, "monitor{number}"),
            Self::Donor(number) => write!(f, "donor{number}"),
            Self::Recipient(number) => write!(f, "recipient{number}"),
            Self::Store => f.write_str("store"),
            Self::Operator => f.write_str("operator"),
        }
    }
}

impl TryFrom<String> for Party {
    type Error = ParsePartyError;

    fn try_from(text: String) -> Result<Self, ParsePartyError> {
        text.parse()
    }
}

impl From<Party> for String {
    fn from(party: Party) -> String {
        party.to_string()
    }
}

impl Party {
    /// Returns unique numbers for random streams and the trace.
    pub(super) fn numbers(self) -> [u64; 2] {
        match self {
            Self::Monitor(number) => [0, number.into()],
            Self::Donor(number) => [1, number.into()],
            Self::Recipient(number) => [2, number.into()],
            Self::Store => [3, 0],
            Self::Operator => [4, 0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn participant_text_round_trips() {
        for party in [Party::Monitor(0), Party::Donor(17), Party::Recipient(3), Party::Store] {
            assert_eq!(party.to_string().parse(), Ok(party));
        }
        for wrong in ["", "donor", "7", "agent1", "donor-1", "operator"] {
            assert!(wrong.parse::<Party>().is_err(), "{wrong}");
        }
    }
}
