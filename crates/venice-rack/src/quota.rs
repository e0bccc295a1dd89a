//! Quotas: the most memory and devices a user may have granted at a time.

use crate::resource::ResourceKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use venice_wire::ByteSize;

/// The users a quota applies to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QuotaFor {
    /// The user of this name, on any node.
    User(String),
    /// Each user without an own quota.
    Others,
}

/// A limit of one kind of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// At most this count, or this many bytes.
    AtMost(u64),
    /// No limit.
    Unlimited,
}

impl Limit {
    /// Returns the number; `None` if unlimited.
    pub fn at_most(self) -> Option<u64> {
        match self {
            Self::AtMost(most) => Some(most),
            Self::Unlimited => None,
        }
    }
}

/// The limits of a quota, by kind: bytes of a divisible kind, else a count. Memory counts all copies
/// together. A kind that is missing has no limit here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Limits(BTreeMap<ResourceKind, Limit>);

impl Limits {
    /// Creates limits of memory alone; `None` means unlimited.
    pub fn of_memory(bytes: Option<u64>) -> Self {
        let limit = bytes.map_or(Limit::Unlimited, Limit::AtMost);
        Self::from_iter([(ResourceKind::Memory, limit)])
    }

    /// Returns the limit of a kind.
    pub fn of(&self, kind: ResourceKind) -> Option<Limit> {
        self.0.get(&kind).copied()
    }

    /// Iterates over the limits, by kind.
    pub fn iter(&self) -> impl Iterator<Item = (ResourceKind, Limit)> {
        self.0.iter().map(|(kind, limit)| (*kind, *limit))
    }

    /// True if it limits nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns these limits, with those of `before` where they set none.
    pub(crate) fn over(self, mut before: Self) -> Self {
        before.0.extend(self.0);
        before
    }

    /// Returns the limits without those that are unlimited.
    pub(crate) fn limited(mut self) -> Self {
        self.0.retain(|_, limit| *limit != Limit::Unlimited);
        self
    }
}

impl FromIterator<(ResourceKind, Limit)> for Limits {
    fn from_iter<T: IntoIterator<Item = (ResourceKind, Limit)>>(limits: T) -> Self {
        Self(limits.into_iter().collect())
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (kind, limit) in self.iter() {
            write!(f, "{between}{} ", kind.spec().plural)?;
            match limit {
                Limit::Unlimited => f.write_str("unlimited")?,
                Limit::AtMost(bytes) if kind.is_divisible() => write!(f, "{}", ByteSize(bytes))?,
                Limit::AtMost(count) => write!(f, "{count}")?,
            }
            between = ", ";
        }
        Ok(())
    }
}

/// A quota, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRecord {
    /// The users it applies to.
    pub of: QuotaFor,
    /// The limit of each kind.
    pub limits: Limits,
}

/// The quotas of a rack. A user without any quota is unlimited.
#[derive(Debug, Default)]
pub struct Quotas(BTreeMap<QuotaFor, Limits>);

impl Quotas {
    /// Returns a user's limit of a kind: bytes, or a count of devices lent whole; `None`:
    /// unlimited.
    pub fn limit_of(&self, user: &str, kind: ResourceKind) -> Option<u64> {
        let own = self.0.get(&QuotaFor::User(user.to_owned()));
        let own = own.and_then(|limits| limits.of(kind));
        own.map_or_else(|| self.limit_of_others(kind), Limit::at_most)
    }

    /// Returns the limit of users without an own quota.
    pub fn limit_of_others(&self, kind: ResourceKind) -> Option<u64> {
        self.0.get(&QuotaFor::Others)?.of(kind)?.at_most()
    }

    /// Returns the users with an own quota.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|of| match of {
            QuotaFor::User(user) => Some(&**user),
            QuotaFor::Others => None,
        })
    }

    /// True if there is a quota for these users.
    pub fn has(&self, of: &QuotaFor) -> bool {
        self.0.contains_key(of)
    }

    /// Returns the limits of a quota; the default where there is none.
    pub(crate) fn limits_of(&self, of: &QuotaFor) -> Limits {
        self.0.get(of).cloned().unwrap_or_default()
    }

    pub(crate) fn put(&mut self, record: QuotaRecord) {
        self.0.insert(record.of, record.limits);
    }

    pub(crate) fn remove(&mut self, of: &QuotaFor) {
        self.0.remove(of);
    }
}

/// The error for a request beyond a user's quota of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverQuota {
    /// The user.
    pub user: String,
    /// The kind.
    pub kind: ResourceKind,
    /// The amount requested, all copies together: bytes of a divisible kind, else a count.
    pub asked: u64,
    /// The amount in use.
    pub used: u64,
    /// The limit.
    pub quota: u64,
}

/// Formats the error with remedies.
impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, kind, asked, used, quota } = self;
        let (name, is_divisible) = (kind.name(), kind.is_divisible());
        let copies = if kind.is_device() { "" } else { " (copies count)" };
        let bare = |amount: u64| match is_divisible {
            true => ByteSize(amount).to_string(),
            false => amount.to_string(),
        };
        // If the request alone exceeds the quota, ending grants does not help.
        let end = match asked > quota {
            true => "",
            false => {
                "end what is no longer needed (`venice grants` lists it), wait for it (--wait), "
            }
        };
        let less = if is_divisible { "ask for less, " } else { "" };
        let or = if end.is_empty() && less.is_empty() { "" } else { "or " };
        write!(
            f,
            "{user} has {} of a quota of {}, and {} more is too much{copies}: {less}{end}{or}have \
             root on the Monitor Node's machine allow more (`venice quota set {user} {name}={}`)",
            kind.amount_text(*used),
            bare(*quota),
            bare(*asked),
            if is_divisible { "SIZE" } else { "N" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: ResourceKind = ResourceKind::Accelerator;

    fn bytes_of(quotas: &Quotas, user: &str) -> Option<u64> {
        quotas.limit_of(user, ResourceKind::Memory)
    }

    #[test]
    fn own_quota_overrides_default() {
        let mut quotas = Quotas::default();
        let of = |user: &str| QuotaFor::User(user.to_owned());
        assert_eq!(bytes_of(&quotas, "ada"), None);
        quotas.put(QuotaRecord { of: QuotaFor::Others, limits: Limits::of_memory(Some(5)) });
        quotas.put(QuotaRecord { of: of("ada"), limits: Limits::of_memory(Some(9)) });
        quotas.put(QuotaRecord { of: of("root"), limits: Limits::of_memory(None) });
        assert_eq!(
            ["ada", "bob", "root"].map(|user| bytes_of(&quotas, user)),
            [Some(9), Some(5), None]
        );
        assert_eq!(quotas.users().collect::<Vec<_>>(), ["ada", "root"]);
        quotas.remove(&of("ada"));
        assert_eq!(bytes_of(&quotas, "ada"), Some(5));
        quotas.remove(&QuotaFor::Others);
        assert_eq!(bytes_of(&quotas, "ada"), None);
    }

    #[test]
    fn useless_remedies_are_not_proposed() {
        let over = |kind, asked, used, quota| {
            OverQuota { user: "ada".to_owned(), kind, asked, used, quota }.to_string()
        };
        let none = over(GPU, 1, 0, 0);
        assert!(!none.contains("--wait") && !none.contains("end what"), "{none}");
        assert!(none.contains(": have root") && none.contains("ada accelerator=N"), "{none}");
        assert!(over(GPU, 1, 2, 2).contains("--wait"));
        assert!(over(ResourceKind::Storage, 9, 0, 8).contains("ask for less, or have"));
    }

    #[test]
    fn kinds_have_separate_limits() {
        let mut quotas = Quotas::default();
        let ada = QuotaFor::User("ada".to_owned());
        let limits = Limits::from_iter([(GPU, Limit::AtMost(2))]);
        quotas.put(QuotaRecord { of: ada, limits: limits.clone() });
        quotas.put(QuotaRecord { of: QuotaFor::Others, limits: Limits::of_memory(Some(5)) });
        assert_eq!(quotas.limit_of("ada", GPU), Some(2));
        assert_eq!(quotas.limit_of("ada", ResourceKind::Nic), None);
        assert_eq!(bytes_of(&quotas, "ada"), Some(5), "her quota sets no limit of memory");
        let free = [ResourceKind::Memory, ResourceKind::Storage].map(|it| (it, Limit::Unlimited));
        let both = Limits::from_iter(free).over(limits.clone());
        assert_eq!(both.to_string(), "memory unlimited, accelerators 2, storage unlimited");
        assert_eq!(both.limited(), limits);
    }

    #[test]
    fn over_quota_text_names_remedy() {
        let over = |kind, asked, used, quota| {
            OverQuota { user: "ada".to_owned(), kind, asked, used, quota }.to_string()
        };
        let text = over(ResourceKind::Nic, 1, 1, 1);
        assert!(text.starts_with("ada has 1 network card of a quota of 1, and 1 more"), "{text}");
        assert!(text.ends_with("(`venice quota set ada nic=N`)"), "{text}");
        let text = over(ResourceKind::Memory, 2 << 20, 3 << 20, 4 << 20);
        let begin = "ada has 3MiB of memory of a quota of 4MiB, and 2MiB more is too much (copies";
        assert!(text.starts_with(begin), "{text}");
    }
}
