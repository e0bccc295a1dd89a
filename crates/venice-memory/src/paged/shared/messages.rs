//! Requests of a process to the shared pager of its run. They go over the connection to the
//! supervisor, each with its own reply socket ([`attach`](super::super::attach)).

use super::objects::UserId;
use crate::paged::page_table::PageNumber;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 1 + WORDS * size_of::<u64>();
const WORDS: usize = 4;
/// Pages of the user address space.
const MOST_PAGES: u64 = 1 << 35;

/// A range of pages in a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPages {
    /// The user.
    pub user: UserId,
    /// The first page there.
    pub start: PageNumber,
    /// The number of pages.
    pub pages: usize,
}

/// A request, with its reply: a number, and a descriptor. A number of 0 means that it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Makes the sender a user, by the userfaultfd that comes with it. The reply is its number.
    User,
    /// Makes an object of so many pages. The reply is the number of its first page, and its memory.
    Object {
        /// The user that will map it.
        user: UserId,
        /// Its length in pages.
        pages: usize,
    },
    /// A user that was about to map an object no longer is.
    GiveUp {
        /// The user.
        user: UserId,
        /// The number of its first page.
        first: PageNumber,
    },
    /// Pages are mapped, and not yet touched.
    Map {
        /// The pages in the user.
        at: UserPages,
        /// The number of the object's page at the first of them.
        first: PageNumber,
    },
    /// The same as [`Request::Map`] for a private mapping.
    MapPrivate {
        /// The pages in the user.
        at: UserPages,
        /// The number of the object's page at the first of them.
        first: PageNumber,
    },
    /// Pages are no longer mapped.
    Unmap(UserPages),
    /// A mapping is about to move or to change its length. The reply is the number of the object's
    /// page at the first of these pages, which are all of one mapping. Until [`Request::Settle`]
    /// the pages do not leave.
    BeginMove(UserPages),
    /// The mapping has moved, and was reported.
    Settle {
        /// Its user.
        user: UserId,
    },
    /// Contents are dropped (`MADV_REMOVE`).
    Remove(UserPages),
    /// Children do not get these pages (`MADV_DONTFORK`).
    DontFork(UserPages),
    /// Children get these pages again (`MADV_DOFORK`).
    DoFork(UserPages),
    /// Pages are locked: they do not leave while this user has them mapped.
    Lock(UserPages),
    /// Pages are no longer locked.
    Unlock(UserPages),
    /// Pages never leave, whoever has them mapped.
    Keep(UserPages),
    /// A thread of the user is about to fork. The reply is the child's number; 0: it inherits
    /// nothing.
    Fork {
        /// The user.
        user: UserId,
    },
    /// The sender is this child. The reply comes with its userfaultfd.
    Child {
        /// Its number.
        user: UserId,
    },
    /// The reply comes with the mount of the run's shared files.
    Files,
    /// The sender is about to map a file. The reply is the number of its first page, and its memory.
    File {
        /// The user that will map it.
        user: UserId,
        /// The file's inode number.
        inode: u64,
    },
    /// A file goes to a process outside of the run: from now on its pages stay. The reply comes
    /// with its memory.
    Release {
        /// The file's inode number.
        inode: u64,
        /// That process may write to it.
        is_writable: bool,
    },
}

impl Request {
    /// Encodes the request.
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let of =
            |at: UserPages, more: u64| [at.user.into(), at.start as u64, at.pages as u64, more];
        let (kind, words) = match self {
            Request::User => (1, [0; WORDS]),
            Request::Object { user, pages } => (2, [user.into(), 0, pages as u64, 0]),
            Request::GiveUp { user, first } => (3, [user.into(), 0, 0, first as u64]),
            Request::Map { at, first } => (4, of(at, first as u64)),
            Request::Unmap(at) => (5, of(at, 0)),
            Request::BeginMove(at) => (6, of(at, 0)),
            Request::Settle { user } => (7, [user.into(), 0, 0, 0]),
            Request::Remove(at) => (8, of(at, 0)),
            Request::DontFork(at) => (9, of(at, 0)),
            Request::DoFork(at) => (10, of(at, 0)),
            Request::Lock(at) => (13, of(at, 0)),
            Request::Unlock(at) => (14, of(at, 0)),
            Request::Keep(at) => (15, of(at, 0)),
            Request::Fork { user } => (11, [user.into(), 0, 0, 0]),
            Request::Child { user } => (12, [user.into(), 0, 0, 0]),
            Request::Files => (16, [0; WORDS]),
            Request::File { user, inode } => (17, [user.into(), 0, 0, inode]),
            Request::Release { inode, is_writable } => (19, [0, u64::from(is_writable), 0, inode]),
            Request::MapPrivate { at, first } => (18, of(at, first as u64)),
        };
        let mut bytes = [kind; REQUEST_BYTES];
        for (bytes, word) in bytes[1..].chunks_exact_mut(size_of::<u64>()).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a request; `None`: it is none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let start = 1 + at * size_of::<u64>();
            u64::from_le_bytes(bytes[start..start + size_of::<u64>()].try_into().expect("8 bytes"))
        };
        let user = UserId::try_from(word(0)).ok()?;
        let small = |at: usize| Some(word(at)).filter(|word| *word <= MOST_PAGES);
        let (start, pages) = (small(1)? as PageNumber, small(2)? as usize);
        let (at, first) = (UserPages { user, start, pages }, small(3)? as PageNumber);
        Some(match bytes[0] {
            1 => Request::User,
            2 => Request::Object { user, pages },
            3 => Request::GiveUp { user, first },
            4 => Request::Map { at, first },
            5 => Request::Unmap(at),
            6 => Request::BeginMove(at),
            7 => Request::Settle { user },
            8 => Request::Remove(at),
            9 => Request::DontFork(at),
            10 => Request::DoFork(at),
            11 => Request::Fork { user },
            12 => Request::Child { user },
            13 => Request::Lock(at),
            14 => Request::Unlock(at),
            15 => Request::Keep(at),
            16 => Request::Files,
            17 => Request::File { user, inode: first as u64 },
            18 => Request::MapPrivate { at, first },
            19 => Request::Release { inode: first as u64, is_writable: start != 0 },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_survives_its_bytes() {
        let at = UserPages { user: 7, start: 0x7_f001_2345, pages: 99 };
        for request in [
            Request::User,
            Request::Object { user: 3, pages: 4096 },
            Request::GiveUp { user: 3, first: 77 },
            Request::Map { at, first: 0x1234 },
            Request::Unmap(at),
            Request::BeginMove(at),
            Request::Settle { user: 3 },
            Request::Remove(at),
            Request::DontFork(at),
            Request::DoFork(at),
            Request::Lock(at),
            Request::Keep(at),
            Request::Unlock(at),
            Request::Fork { user: 8 },
            Request::Child { user: 9 },
            Request::Files,
            Request::File { user: 3, inode: 12 },
            Request::MapPrivate { at, first: 0x1234 },
            Request::Release { inode: 9, is_writable: true },
        ] {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[1..]), None);
        }
        assert_eq!(Request::decode(&[0; REQUEST_BYTES]), None);
        let far = UserPages { start: 1 << 40, ..at };
        assert_eq!(Request::decode(&Request::Unmap(far).encode()), None);
    }
}
