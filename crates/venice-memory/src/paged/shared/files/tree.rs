//! The files of the mount: those with a name, and those that are only open.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use venice_fuse::{Attributes, Changes, ROOT};

use super::super::objects::UserId;
use super::memory::{Contents, OwnUser};

/// Mode of the root: a directory in which everyone makes files, and removes their own.
pub(super) const ROOT_MODE: u32 = 0o041777;
/// Mode bits of a regular file.
const REGULAR: u32 = 0o100000;
/// Names with this prefix are made and not kept: a file of `memfd_create`.
pub(super) const NAMELESS: &[u8] = b"memfd:";
/// Longest name, as in `/dev/shm`.
const MOST_NAME_BYTES: usize = 255;
const PUNCH_HOLE: u32 = 2;
const KEEP_SIZE: u32 = 1;

/// All files.
#[derive(Debug)]
pub(super) struct Tree {
    pub own: Arc<OwnUser>,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    by_inode: BTreeMap<u64, Arc<File>>,
    by_name: BTreeMap<Vec<u8>, u64>,
    last_inode: u64,
}

/// A file.
#[derive(Debug)]
pub(super) struct File {
    state: Mutex<State>,
    contents: RwLock<Contents>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Its length here is unused.
    attributes: Attributes,
    /// The kernel's references to the inode.
    lookups: u64,
    /// True once a process has asked for its memory.
    is_handed_out: bool,
}

impl Tree {
    /// Makes an empty tree.
    pub(super) fn new(own: Arc<OwnUser>) -> Tree {
        let files = Files { last_inode: ROOT, ..Files::default() };
        Tree { own, files: Mutex::new(files) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(super) fn file(&self, inode: u64) -> Result<Arc<File>, Errno> {
        self.files().by_inode.get(&inode).cloned().ok_or(Errno::NOENT)
    }

    /// Returns the attributes of a file or the root.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(super) fn attributes(&self, inode: u64) -> Result<Attributes, Errno> {
        if inode == ROOT {
            let (mode, owner, modified) = (ROOT_MODE, (0, 0), (0, 0));
            return Ok(Attributes { inode, mode, owner, links: 2, len_bytes: 0, modified });
        }
        Ok(self.file(inode)?.attributes())
    }

    /// Finds a file by its name, for the kernel to refer to.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(super) fn look_up(&self, name: &[u8]) -> Result<Attributes, Errno> {
        if name.len() > MOST_NAME_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let files = self.files();
        let found = files.by_name.get(name).and_then(|inode| files.by_inode.get(inode));
        let file = found.ok_or(Errno::NOENT)?;
        file.state().lookups += 1;
        Ok(file.attributes())
    }

    /// Makes a file.
    ///
    /// # Errors
    /// `EEXIST`; else it fails as [`Contents::new`] does.
    pub(super) fn create(
        &self,
        name: &[u8],
        mode: u32,
        owner: (u32, u32),
    ) -> Result<Attributes, Errno> {
        let is_nameless = name.starts_with(NAMELESS);
        if name.len() > MOST_NAME_BYTES + NAMELESS.len() {
            return Err(Errno::NAMETOOLONG);
        }
        let contents = RwLock::new(Contents::new(self.own.clone(), 0)?);
        let mut files = self.files();
        if files.by_name.contains_key(name) {
            return Err(Errno::EXIST);
        }
        files.last_inode += 1;
        let inode = files.last_inode;
        let mode = if is_nameless { REGULAR | 0o777 } else { REGULAR | mode & 0o7777 };
        let (links, modified) = (u32::from(!is_nameless), now());
        let attributes = Attributes { inode, mode, owner, links, len_bytes: 0, modified };
        let state = Mutex::new(State { attributes, lookups: 1, is_handed_out: false });
        files.by_inode.insert(inode, Arc::new(File { state, contents }));
        if !is_nameless {
            files.by_name.insert(name.to_owned(), inode);
        }
        Ok(attributes)
    }

    /// Removes a name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(super) fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        let mut files = self.files();
        let inode = files.by_name.remove(name).ok_or(Errno::NOENT)?;
        let file = files.by_inode.get(&inode).cloned();
        drop(files);
        if let Some(file) = file {
            file.state().attributes.links = 0;
            self.forget(inode, 0);
        }
        Ok(())
    }

    /// Ends some of the kernel's references to a file. Without one and without a name it is gone.
    pub(super) fn forget(&self, inode: u64, lookups: u64) {
        let mut files = self.files();
        let Some(file) = files.by_inode.get(&inode) else { return };
        let mut state = file.state();
        state.lookups = state.lookups.saturating_sub(lookups);
        let is_gone = state.lookups == 0 && state.attributes.links == 0;
        drop(state);
        let gone = if is_gone { files.by_inode.remove(&inode) } else { None };
        drop(files);
        drop(gone);
    }

    /// Returns the number of a file's first page, and its memory, for a user that is about to map
    /// it.
    ///
    /// # Errors
    /// Fails as [`Contents::new`] does.
    pub(super) fn open(&self, inode: u64, user: UserId) -> Result<(u64, OwnedFd), Errno> {
        let file = self.file(inode)?;
        let contents = file.contents.read().unwrap_or_else(PoisonError::into_inner);
        file.state().is_handed_out = true;
        self.own.service.home.change().begin_making(contents.first, user);
        Ok((contents.first as u64, contents.memory()?))
    }

    /// Brings in all pages of a file, for good, and returns its memory.
    ///
    /// # Errors
    /// Fails as [`Contents::release`] does.
    pub(super) fn release(&self, inode: u64, is_writable: bool) -> Result<OwnedFd, Errno> {
        let file = self.file(inode)?;
        let contents = file.contents.read().unwrap_or_else(PoisonError::into_inner);
        file.state().is_handed_out = true;
        contents.release(is_writable)
    }

    /// Sets the length of a file. The first length may be any.
    fn resize(&self, file: &File, contents: &mut Contents, len_bytes: u64) -> Result<(), Errno> {
        let is_unused = contents.len_bytes == 0 && !file.state().is_handed_out;
        if is_unused && !contents.has_room(len_bytes) {
            *contents = Contents::new(self.own.clone(), len_bytes)?;
        }
        contents.resize(len_bytes)
    }

    /// Changes a file's attributes.
    ///
    /// # Errors
    /// Fails as [`Contents::resize`] does.
    pub(super) fn change(&self, inode: u64, changes: &Changes) -> Result<Attributes, Errno> {
        if inode == ROOT {
            return Err(Errno::PERM);
        }
        let file = self.file(inode)?;
        if let Some(len_bytes) = changes.len_bytes {
            let mut contents = file.contents.write().unwrap_or_else(PoisonError::into_inner);
            self.resize(&file, &mut contents, len_bytes)?;
        }
        let mut state = file.state();
        let attributes = &mut state.attributes;
        if changes.len_bytes.is_some() {
            attributes.modified = now();
        }
        attributes.modified = changes.modified.unwrap_or(attributes.modified);
        attributes.mode = changes.mode.map_or(attributes.mode, |mode| REGULAR | mode & 0o7777);
        attributes.owner.0 = changes.user.unwrap_or(attributes.owner.0);
        attributes.owner.1 = changes.group.unwrap_or(attributes.owner.1);
        drop(state);
        Ok(file.attributes())
    }

    /// Reads at most `to`. Returns the bytes read: fewer at the end of the file.
    ///
    /// # Errors
    /// Fails as [`Contents::read`] does.
    pub(super) fn read(&self, inode: u64, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
        let file = self.file(inode)?;
        let contents = file.contents.read().unwrap_or_else(PoisonError::into_inner);
        let len = contents.len_bytes.saturating_sub(offset).min(to.len() as u64) as usize;
        contents.read(offset, &mut to[..len])?;
        Ok(len)
    }

    /// Writes bytes. The file grows as far as they reach.
    ///
    /// # Errors
    /// Fails as [`Contents::resize`] and [`Contents::write`] do.
    pub(super) fn write(&self, inode: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.file(inode)?;
        file.state().attributes.modified = now();
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        let contents = file.contents.read().unwrap_or_else(PoisonError::into_inner);
        if end <= contents.len_bytes {
            return contents.write(offset, bytes);
        }
        drop(contents);
        let mut contents = file.contents.write().unwrap_or_else(PoisonError::into_inner);
        if end > contents.len_bytes {
            self.resize(&file, &mut contents, end)?;
        }
        contents.write(offset, bytes)
    }

    /// Allocates a range or punches it out (`fallocate(2)`). Memory is not reserved.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, as for shared memory of the kernel's; else it fails as [`Contents::resize`] does.
    pub(super) fn allocate(
        &self,
        inode: u64,
        (offset, len): (u64, u64),
        mode: u32,
    ) -> Result<(), Errno> {
        let file = self.file(inode)?;
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        let mut contents = file.contents.write().unwrap_or_else(PoisonError::into_inner);
        match mode {
            KEEP_SIZE => Ok(()),
            0 if end > contents.len_bytes => self.resize(&file, &mut contents, end),
            0 => Ok(()),
            _ if mode == PUNCH_HOLE | KEEP_SIZE => contents.punch(offset, len),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

impl File {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self) -> Attributes {
        let attributes = self.state().attributes;
        let contents = self.contents.read().unwrap_or_else(PoisonError::into_inner);
        Attributes { len_bytes: contents.len_bytes, ..attributes }
    }
}

fn now() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_nanos())
}
