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

/// The limits of a quota, by kind; `None`: the quota sets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes of memory, all copies together.
    pub memory_bytes: Option<Limit>,
    /// Count of accelerators.
    pub accelerators: Option<Limit>,
    /// Count of network cards.
    pub nics: Option<Limit>,
    /// Bytes of storage.
    pub storage_bytes: Option<Limit>,
}

impl Limits {
    /// Creates limits of memory alone; `None` means unlimited.
    pub fn of_memory(bytes: Option<u64>) -> Self {
        let memory_bytes = Some(bytes.map_or(Limit::Unlimited, Limit::AtMost));
        Self { memory_bytes, ..Self::default() }
    }

    /// Returns the limit of a kind.
    pub fn of(&self, kind: ResourceKind) -> Option<Limit> {
        match kind {
            ResourceKind::Memory => self.memory_bytes,
            ResourceKind::Accelerator => self.accelerators,
            ResourceKind::Nic => self.nics,
            ResourceKind::Storage => self.storage_bytes,
            ResourceKind::Window => None,
        }
    }

    /// Returns these limits, with those of `before` where they set none.
    pub(crate) fn over(self, before: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.or(before.memory_bytes),
            accelerators: self.accelerators.or(before.accelerators),
            nics: self.nics.or(before.nics),
            storage_bytes: self.storage_bytes.or(before.storage_bytes),
        }
    }

    /// Returns the limits without those that are unlimited.
    pub(crate) fn limited(self) -> Self {
        let limited = |limit: Option<Limit>| limit.filter(|limit| *limit != Limit::Unlimited);
        Self {
            memory_bytes: limited(self.memory_bytes),
            accelerators: limited(self.accelerators),
            nics: limited(self.nics),
            storage_bytes: limited(self.storage_bytes),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("memory", self.memory_bytes, true),
            ("accelerators", self.accelerators, false),
            ("nics", self.nics, false),
            ("storage", self.storage_bytes, true),
        ];
        let mut between = "";
        for (what, limit, is_bytes) in all {
            let Some(limit) = limit else { continue };
            write!(f, "{between}{what} ")?;
            match limit {
                Limit::Unlimited => f.write_str("unlimited")?,
                Limit::AtMost(bytes) if is_bytes => write!(f, "{}", ByteSize(bytes))?,
                Limit::AtMost(count) => write!(f, "{count}")?,
            }
            between = ", ";
        }
        Ok(())
    }
}

/// A quota, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct QuotaRecord {
    /// The users it applies to.
    pub of: QuotaFor,
    /// The limit of each kind.
    pub limits: Limits,
}

/// The stored form. A quota of memory alone has the format of the time before device quotas.
#[derive(Serialize, Deserialize)]
struct Stored {
    of: QuotaFor,
    /// Bytes of memory; `None`: unlimited.
    bytes: Option<u64>,
    /// True if the quota sets no limit of memory.
    #[serde(default, skip_serializing_if = "is_false")]
    no_memory: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accelerators: Option<Limit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nics: Option<Limit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storage_bytes: Option<Limit>,
}

fn is_false(it: &bool) -> bool {
    !it
}

impl From<Stored> for QuotaRecord {
    fn from(stored: Stored) -> Self {
        let Stored { of, bytes, no_memory, accelerators, nics, storage_bytes } = stored;
        let Limits { memory_bytes, .. } = Limits::of_memory(bytes);
        let memory_bytes = memory_bytes.filter(|_| !no_memory);
        Self { of, limits: Limits { memory_bytes, accelerators, nics, storage_bytes } }
    }
}

impl From<QuotaRecord> for Stored {
    fn from(record: QuotaRecord) -> Self {
        let Limits { memory_bytes, accelerators, nics, storage_bytes } = record.limits;
        let bytes = memory_bytes.and_then(Limit::at_most);
        let no_memory = memory_bytes.is_none();
        Self { of: record.of, bytes, no_memory, accelerators, nics, storage_bytes }
    }
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

    /// Returns a user's limit of memory in bytes; `None`: unlimited.
    pub fn bytes_of(&self, user: &str) -> Option<u64> {
        self.limit_of(user, ResourceKind::Memory)
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
        self.0.get(of).copied().unwrap_or_default()
    }

    pub(crate) fn put(&mut self, record: QuotaRecord) {
        self.0.insert(record.of, record.limits);
    }

    pub(crate) fn remove(&mut self, of: &QuotaFor) {
        self.0.remove(of);
    }
}

/// Formats the error for a request beyond a user's memory quota, with remedies.
pub fn over_quota_text(user: &str, asked_bytes: u64, used_bytes: u64, quota_bytes: u64) -> String {
    let [asked, used, quota] = [asked_bytes, used_bytes, quota_bytes].map(ByteSize);
    // If the request alone exceeds the quota, ending grants does not help.
    let end = match asked_bytes > quota_bytes {
        true => "",
        false => ", end what is no longer needed (`venice grants` lists it)",
    };
    format!(
        "{user} has borrowed {used} of a quota of {quota}, and {asked} more is too much (copies \
         count): ask for less{end}, or have root on the Monitor Node's machine allow more (`venice \
         quota set {user} SIZE`)"
    )
}

/// The error for a request beyond a user's quota of devices or storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverDevices {
    /// The user.
    pub user: String,
    /// The kind requested.
    pub kind: ResourceKind,
    /// The amount requested: bytes of storage, or one device.
    pub asked: u64,
    /// The amount in use.
    pub used: u64,
    /// The limit.
    pub quota: u64,
}

/// Formats the error with remedies.
impl fmt::Display for OverDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, kind, asked, used, quota } = self;
        let devices = |count: u64| {
            let what = if *kind == ResourceKind::Nic { "network card" } else { "accelerator" };
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        match kind {
            ResourceKind::Storage => {
                let [asked, used, quota] = [asked, used, quota].map(|bytes| ByteSize(*bytes));
                write!(
                    f,
                    "{user} has borrowed {used} of a quota of {quota} of storage, and {asked} more is \
                     too much"
                )?;
            }
            ResourceKind::Accelerator
            | ResourceKind::Nic
            | ResourceKind::Memory
            | ResourceKind::Window => write!(
                f,
                "{user} has {} of a quota of {quota}, and {asked} more is too much",
                devices(*used)
            )?,
        }
        let flag = match kind {
            ResourceKind::Storage => "--storage SIZE",
            ResourceKind::Nic => "--nics N",
            ResourceKind::Accelerator | ResourceKind::Memory | ResourceKind::Window => {
                "--accelerators N"
            }
        };
        let help = match (asked > quota, kind) {
            // Ending grants does not make room for it.
            (true, ResourceKind::Storage) => "ask for less, or ",
            (true, _) => "",
            (false, _) => {
                "end what is no longer needed (`venice grants` lists it), wait for it (--wait), or "
            }
        };
        write!(
            f,
            ": {help}have root on the Monitor Node's machine allow more (`venice quota set {user} \
             {flag}`)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_quota_overrides_default() {
        let mut quotas = Quotas::default();
        let of = |user: &str| QuotaFor::User(user.to_owned());
        assert_eq!(quotas.bytes_of("ada"), None);
        quotas.put(QuotaRecord { of: QuotaFor::Others, limits: Limits::of_memory(Some(5)) });
        quotas.put(QuotaRecord { of: of("ada"), limits: Limits::of_memory(Some(9)) });
        quotas.put(QuotaRecord { of: of("root"), limits: Limits::of_memory(None) });
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

    #[test]
    fn useless_remedies_are_not_proposed() {
        let over = |kind, asked, used, quota| {
            let user = "ada".to_owned();
            OverDevices { user, kind, asked, used, quota }.to_string()
        };
        let none = over(ResourceKind::Accelerator, 1, 0, 0);
        assert!(!none.contains("--wait") && !none.contains("end what"), "{none}");
        assert!(none.contains("venice quota set ada --accelerators N"), "{none}");
        assert!(over(ResourceKind::Accelerator, 1, 2, 2).contains("--wait"));
        assert!(over(ResourceKind::Storage, 9, 0, 8).contains("ask for less"));
    }

    #[test]
    fn kinds_have_separate_limits() {
        let mut quotas = Quotas::default();
        let ada = QuotaFor::User("ada".to_owned());
        let accelerators = Some(Limit::AtMost(2));
        let limits = Limits { accelerators, ..Limits::default() };
        quotas.put(QuotaRecord { of: ada.clone(), limits });
        quotas.put(QuotaRecord { of: QuotaFor::Others, limits: Limits::of_memory(Some(5)) });
        assert_eq!(quotas.limit_of("ada", ResourceKind::Accelerator), Some(2));
        assert_eq!(quotas.limit_of("ada", ResourceKind::Nic), None);
        assert_eq!(quotas.bytes_of("ada"), Some(5), "her quota sets no limit of memory");
        let storage_bytes = Some(Limit::Unlimited);
        let both = Limits { storage_bytes, ..Limits::of_memory(None) }.over(limits);
        assert_eq!(both.to_string(), "memory unlimited, accelerators 2, storage unlimited");
        assert_eq!(both.limited(), limits);
    }

    #[test]
    fn over_quota_text_names_remedy() {
        let over = |kind, asked, used, quota| {
            OverDevices { user: "ada".to_owned(), kind, asked, used, quota }.to_string()
        };
        let text = over(ResourceKind::Nic, 1, 1, 1);
        assert!(text.starts_with("ada has 1 network card of a quota of 1, and 1 more"), "{text}");
        assert!(text.ends_with("(`venice quota set ada --nics N`)"), "{text}");
        let text = over(ResourceKind::Storage, 2 << 20, 3 << 20, 4 << 20);
        let begin =
            "ada has borrowed 3MiB of a quota of 4MiB of storage, and 2MiB more is too much:";
        assert!(text.starts_with(begin), "{text}");
    }
}
