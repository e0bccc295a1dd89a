//! How much each user may have borrowed at a time.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use venice_wire::ByteSize;

/// Whom a quota is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuotaFor {
    /// The user of this name, on whatever nodes.
    User(String),
    /// Each user who has none of its own.
    Others,
}

/// A quota, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRecord {
    /// Whose it is.
    pub of: QuotaFor,
    /// Bytes that may be borrowed at a time; `None`: as many as there are.
    pub bytes: Option<u64>,
}

/// The quotas. Without any, everybody may borrow what there is.
#[derive(Debug, Default)]
pub struct Quotas(BTreeMap<QuotaFor, Option<u64>>);

impl Quotas {
    /// What a user may have at a time; `None`: as much as there is.
    pub fn bytes_of(&self, user: &str) -> Option<u64> {
        let own = self.0.get(&QuotaFor::User(user.to_owned()));
        own.copied().unwrap_or_else(|| self.bytes_of_others())
    }

    /// What those may have who have no quota of their own.
    pub fn bytes_of_others(&self) -> Option<u64> {
        self.0.get(&QuotaFor::Others).copied().flatten()
    }

    /// The users who have one of their own.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|of| match of {
            QuotaFor::User(user) => Some(&**user),
            QuotaFor::Others => None,
        })
    }

    /// Whether there is one for these.
    pub fn has(&self, of: &QuotaFor) -> bool {
        self.0.contains_key(of)
    }

    pub(crate) fn put(&mut self, record: QuotaRecord) {
        self.0.insert(record.of, record.bytes);
    }

    pub(crate) fn remove(&mut self, of: &QuotaFor) {
        self.0.remove(of);
    }
}

/// Says that a user may not borrow so much more, and what to do.
pub fn over_quota_text(user: &str, asked_bytes: u64, used_bytes: u64, quota_bytes: u64) -> String {
    let [asked, used, quota] = [asked_bytes, used_bytes, quota_bytes].map(ByteSize);
    format!(
        "{user} has borrowed {used} of a quota of {quota}, and {asked} more is too much (copies \
         count): ask for less, end what is no longer needed (`venice grants` lists it), or have \
         root on the Monitor Node's machine allow more (`venice quota set {user} SIZE`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_own_quota_comes_before_that_of_the_others() {
        let mut quotas = Quotas::default();
        let of = |user: &str| QuotaFor::User(user.to_owned());
        assert_eq!(quotas.bytes_of("ada"), None);
        quotas.put(QuotaRecord { of: QuotaFor::Others, bytes: Some(5) });
        quotas.put(QuotaRecord { of: of("ada"), bytes: Some(9) });
        quotas.put(QuotaRecord { of: of("root"), bytes: None });
        assert_eq!(
            ["ada", "bob", "root"].map(|user| quotas.bytes_of(user)),
            [Some(9), Some(5), None]
        );
        assert_eq!(quotas.users().collect::<Vec<_>>(), ["ada", "root"]);
        quotas.remove(&of("ada"));
        assert_eq!(quotas.bytes_of("ada"), Some(5));
        quotas.remove(&QuotaFor::Others);
        assert_eq!(quotas.bytes_of("ada"), None);
    }
}
