//! Ranges of user and group ids for hosts: each supervisor has its own.

use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use crate::supervisor::{SupervisorConfig, path_hash};

/// Ids of a range.
const IDS: u32 = 4096;
/// Ranges from [`SupervisorConfig::FIRST_ID`] on.
const RANGES: u32 = (0x8000_0000 - SupervisorConfig::FIRST_ID) / IDS;
/// Ranges that are tried.
const MOST_TRIES: u32 = 1024;

/// A range of ids: the first and the number of them.
#[derive(Debug)]
pub(crate) struct IdRange {
    pub(crate) ids: (u32, u32),
    /// Name in the abstract name space, which the kernel frees with its process.
    _claim: Option<UnixListener>,
}

impl IdRange {
    /// Returns a range that its owner vouches for.
    pub(crate) fn given(ids: (u32, u32)) -> Self {
        Self { ids, _claim: None }
    }

    /// Claims a range that no other supervisor of this network namespace has. The search begins at
    /// a place that the directory determines, so that a supervisor finds its old range again, and
    /// those of other network namespaces mostly take others.
    pub(crate) fn claim(dir: &Path) -> io::Result<Self> {
        let range = |number: u32| (SupervisorConfig::FIRST_ID + number * IDS, IDS);
        let first = (path_hash(dir) % u64::from(RANGES)) as u32;
        if !rustix::process::geteuid().is_root() {
            // Such a supervisor's hosts keep its own id.
            return Ok(Self::given(range(first)));
        }
        for step in 0..MOST_TRIES {
            let number = (first + step) % RANGES;
            let name = SocketAddr::from_abstract_name(format!("venice-host-ids-{number:x}"))?;
            match UnixListener::bind_addr(&name) {
                Ok(claim) => return Ok(Self { ids: range(number), _claim: Some(claim) }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no range of user ids is free for service hosts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_ranges_are_disjoint() {
        let dir = Path::new("/run/venice/test-of-id-ranges");
        let (first, second) = (IdRange::claim(dir).unwrap(), IdRange::claim(dir).unwrap());
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(first.ids != second.ids, is_root);
        let (begin, count) = first.ids;
        assert!(begin >= SupervisorConfig::FIRST_ID && begin.checked_add(count).is_some());
        drop(first);
        assert_eq!(IdRange::claim(dir).unwrap().ids.0, begin);
    }
}
