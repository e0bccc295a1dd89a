//! The shared objects of a run, and their users.
//!
//! An *object* is a memfd that only the supervisor holds, mapped once there: the number of a page
//! in that mapping is its number in the shared pager's page table. A file's object
//! ([`files`](super::files)) is mapped longer than the file is, so that it can grow. A *user* is an
//! address space with a userfaultfd for its mappings of objects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::super::page_table::PageNumber;
use super::super::regions::Regions;
use super::super::sys::SysResult;
use super::super::uffd::Uffd;
use super::super::{PAGE, address_of};
use super::given::GivenTo;

/// The number of a user. Numbers are not used again.
pub type UserId = u32;

/// The bit of all users that have none of their own.
const BIT_OF_OTHERS: u64 = 1 << 63;

/// An object.
#[derive(Debug)]
pub struct Object {
    /// The memory.
    pub memory: Arc<OwnedFd>,
    /// Its pages, as numbered in the supervisor.
    pub pages: Range<PageNumber>,
    /// The users that are about to map it.
    makers: Vec<UserId>,
    /// Its mappings, each with its user.
    mappings: Vec<(UserId, Mapping)>,
    /// Pages that never leave, whoever has them mapped.
    kept: Regions,
    /// For each page the bits of the users that it was given to since it last left.
    given: GivenTo,
}

/// A mapping of an object in a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first page in the user.
    pub start: PageNumber,
    /// The number of the object's page there.
    pub first: PageNumber,
    /// Its length in pages.
    pub pages: usize,
    /// True if children do not get it (`MADV_DONTFORK`).
    pub is_dont_fork: bool,
    /// True if it has its own copies of the pages that it writes to (`MAP_PRIVATE`).
    pub is_private: bool,
}

impl Mapping {
    /// The pages of the object, as numbered in the supervisor.
    pub fn keys(&self) -> Range<PageNumber> {
        self.first..self.first + self.pages
    }

    /// The part of the mapping over `pages` of the user.
    fn part(&self, pages: &Range<PageNumber>) -> Option<Mapping> {
        let start = self.start.max(pages.start);
        let end = (self.start + self.pages).min(pages.end);
        (start < end).then(|| {
            let first = self.first + (start - self.start);
            Mapping { start, first, pages: end - start, ..*self }
        })
    }
}

/// A user.
#[derive(Debug)]
pub struct User {
    /// Its userfaultfd.
    pub uffd: Arc<OwnedFd>,
    bit: u64,
    /// Its mappings by their first page.
    mappings: BTreeMap<PageNumber, Mapping>,
    /// Pages of objects whose mappings it is changing just now.
    pub moving: Option<Range<PageNumber>>,
    /// Pages of objects that it has locked.
    locked: Regions,
    /// The number that its next child gets.
    pub next_child: Option<UserId>,
}

impl User {
    /// Its userfaultfd.
    pub fn uffd(&self) -> Uffd {
        Uffd { fd: self.uffd.as_raw_fd() }
    }

    /// True if its children get any of its mappings.
    pub fn has_heritage(&self) -> bool {
        self.mappings.values().any(|mapping| !mapping.is_dont_fork)
    }

    /// Returns the number of the object's page that it has at its page `page`.
    pub fn key_at(&self, page: PageNumber) -> Option<PageNumber> {
        let (_, mapping) = self.mappings.range(..=page).next_back()?;
        (page < mapping.start + mapping.pages).then(|| mapping.first + (page - mapping.start))
    }

    /// Returns the mapping that contains all of `pages`.
    pub fn mapping_of(&self, pages: &Range<PageNumber>) -> Option<Mapping> {
        let (_, mapping) = self.mappings.range(..=pages.start).next_back()?;
        (pages.end <= mapping.start + mapping.pages).then_some(*mapping)
    }

    /// Locks what it has mapped in `pages`, or unlocks it.
    pub fn lock(&mut self, pages: &Range<PageNumber>, is_locked: bool) {
        for part in self.parts(pages) {
            match is_locked {
                true => self.locked.insert(part.keys()),
                false => self.locked.remove(part.keys()),
            }
        }
    }

    /// Returns the parts of its mappings over `pages`.
    pub fn parts(&self, pages: &Range<PageNumber>) -> Vec<Mapping> {
        self.mappings.range(..pages.end).filter_map(|(_, it)| it.part(pages)).collect()
    }
}

/// A stretch of pages in a user, to be write-protected.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The user's userfaultfd.
    pub uffd: Arc<OwnedFd>,
    /// The first page in the user.
    pub start: PageNumber,
    /// The number of the object's page there.
    pub first: PageNumber,
    /// Its length in pages.
    pub pages: usize,
}

impl Stretch {
    /// The pages of the object.
    pub fn keys(&self) -> Range<PageNumber> {
        self.first..self.first + self.pages
    }

    /// Each of its pages as a stretch.
    pub fn each_page(&self) -> impl Iterator<Item = Stretch> {
        let page = |at| Stretch {
            start: self.start + at,
            first: self.first + at,
            pages: 1,
            ..self.clone()
        };
        (0..self.pages).map(page)
    }

    /// Write-protects it, or ends that and wakes its threads.
    ///
    /// # Errors
    /// Fails as [`Uffd::protect`] does.
    pub fn protect(&self, is_protected: bool) -> SysResult<()> {
        let uffd = Uffd { fd: self.uffd.as_raw_fd() };
        uffd.protect(address_of(self.start), self.pages * PAGE, is_protected)
    }

    /// True if it is the same as `other`.
    pub fn is_same(&self, other: &Stretch) -> bool {
        let place = |it: &Stretch| (it.uffd.as_raw_fd(), it.start, it.first, it.pages);
        place(self) == place(other)
    }
}

/// All objects and users.
#[derive(Debug, Default)]
pub struct Objects {
    objects: BTreeMap<PageNumber, Object>,
    users: BTreeMap<UserId, User>,
    last_user: UserId,
}

impl Objects {
    /// Returns a number for a user to come.
    pub fn next_number(&mut self) -> UserId {
        self.last_user += 1;
        self.last_user
    }

    /// Adds a user.
    pub fn add_user(&mut self, number: UserId, uffd: Arc<OwnedFd>) {
        let taken = self.users.values().fold(BIT_OF_OTHERS, |bits, user| bits | user.bit);
        let bit = if taken == u64::MAX { BIT_OF_OTHERS } else { 1 << taken.trailing_ones() };
        let mappings = BTreeMap::new();
        let user = User {
            uffd,
            bit,
            mappings,
            moving: None,
            locked: Regions::default(),
            next_child: None,
        };
        self.users.insert(number, user);
    }

    /// Returns a user.
    pub fn user(&self, number: UserId) -> Option<&User> {
        self.users.get(&number)
    }

    /// Returns a user.
    pub fn user_mut(&mut self, number: UserId) -> Option<&mut User> {
        self.users.get_mut(&number)
    }

    /// The users.
    pub fn users(&self) -> impl Iterator<Item = (UserId, &User)> {
        self.users.iter().map(|(number, user)| (*number, user))
    }

    /// Adds a child of `parent` as a user, with what its parent has mapped and was given.
    pub fn fork(&mut self, parent: UserId, number: UserId, uffd: Arc<OwnedFd>) {
        self.add_user(number, uffd);
        let bit = self.users[&number].bit;
        let Some(forker) = self.users.get(&parent) else { return };
        let of_parent = forker.bit;
        let inherited = forker.mappings.values().filter(|mapping| !mapping.is_dont_fork);
        for mapping in inherited.copied().collect::<Vec<_>>() {
            self.add_mapping(number, mapping);
            let Some(object) = self.object_of(mapping.first) else { continue };
            object.given.inherit(mapping.keys(), of_parent, bit);
        }
    }

    /// Removes a user and its mappings.
    pub fn remove_user(&mut self, number: UserId) -> Option<User> {
        self.unmap(number, &(0..PageNumber::MAX));
        let user = self.users.remove(&number)?;
        if user.bit != BIT_OF_OTHERS {
            self.objects.values().for_each(|object| object.given.remove(user.bit));
        }
        Some(user)
    }

    /// Adds an object that `maker` is about to map.
    pub fn add_object(
        &mut self,
        memory: impl Into<Arc<OwnedFd>>,
        pages: Range<PageNumber>,
        maker: UserId,
    ) {
        let memory = memory.into();
        let given = GivenTo::new(pages.clone());
        let kept = Regions::default();
        let object =
            Object { memory, pages, makers: vec![maker], mappings: Vec::new(), kept, given };
        self.objects.insert(object.pages.start, object);
    }

    /// Returns the object that has a page.
    pub fn object_of(&self, key: PageNumber) -> Option<&Object> {
        let (_, object) = self.objects.range(..=key).next_back()?;
        object.pages.contains(&key).then_some(object)
    }

    /// Returns objects that nothing maps, or is about to map.
    pub fn unused(&self) -> Vec<Range<PageNumber>> {
        let lives = |maker: &UserId| self.users.contains_key(maker);
        let is_unused =
            |object: &&Object| object.mappings.is_empty() && !object.makers.iter().any(lives);
        let unused = self.objects.values().filter(is_unused);
        unused.map(|object| object.pages.clone()).collect()
    }

    /// Removes an object.
    pub fn remove_object(&mut self, first: PageNumber) -> Option<Object> {
        self.objects.remove(&first)
    }

    /// Keeps an object for a user that is about to map it.
    pub fn begin_making(&mut self, first: PageNumber, maker: UserId) {
        if let Some(object) = self.objects.get_mut(&first) {
            object.makers.push(maker);
        }
    }

    /// A user was about to map an object, and no longer is.
    pub fn end_making(&mut self, first: PageNumber, maker: UserId) {
        if let Some(object) = self.objects.get_mut(&first) {
            object.makers.retain(|it| *it != maker);
        }
    }

    /// Adds a mapping, as far as its object reaches. It replaces those that the user has there.
    pub fn map(&mut self, number: UserId, mapping: Mapping) {
        self.unmap(number, &(mapping.start..mapping.start + mapping.pages));
        let Some(object) = self.object_of(mapping.first) else { return };
        let (first, end) = (object.pages.start, object.pages.end);
        self.end_making(first, number);
        let pages = mapping.pages.min(end - mapping.first);
        self.add_mapping(number, Mapping { pages, ..mapping });
    }

    fn add_mapping(&mut self, number: UserId, mapping: Mapping) {
        let first = self.object_of(mapping.first).map(|object| object.pages.start);
        let object = first.and_then(|first| self.objects.get_mut(&first));
        let (Some(object), Some(user)) = (object, self.users.get_mut(&number)) else { return };
        object.mappings.push((number, mapping));
        user.mappings.insert(mapping.start, mapping);
    }

    /// Removes what the user has mapped in `pages`. Its bits stay: a bit too many does no harm.
    pub fn unmap(&mut self, number: UserId, pages: &Range<PageNumber>) {
        if let Some(user) = self.users.get_mut(&number) {
            user.lock(pages, false);
        }
        self.change(number, pages, |_| None);
    }

    /// Sets if children get what the user has mapped in `pages`.
    pub fn set_dont_fork(&mut self, number: UserId, pages: &Range<PageNumber>, is: bool) {
        self.change(number, pages, |part| Some(Mapping { is_dont_fork: is, ..part }));
    }

    /// Replaces the parts of the user's mappings in `pages`.
    fn change(
        &mut self,
        number: UserId,
        pages: &Range<PageNumber>,
        replace: impl Fn(Mapping) -> Option<Mapping>,
    ) {
        let Some(user) = self.users.get_mut(&number) else { return };
        let touched = user.mappings.range(..pages.end).filter(|(_, it)| it.part(pages).is_some());
        for (start, mapping) in touched.map(|(at, it)| (*at, *it)).collect::<Vec<_>>() {
            let user = self.users.get_mut(&number).expect("found above");
            user.mappings.remove(&start);
            let first = self.object_of(mapping.first).expect("it is mapped").pages.start;
            let object = self.objects.get_mut(&first).expect("found above");
            object.mappings.retain(|it| *it != (number, mapping));
            let (before, after) = (0..pages.start, pages.end..PageNumber::MAX);
            let changed = mapping.part(pages).and_then(&replace);
            let rest = [mapping.part(&before), changed, mapping.part(&after)];
            rest.into_iter().flatten().for_each(|part| self.add_mapping(number, part));
        }
    }

    /// Keeps what the user has mapped in `pages` from leaving, as long as its object lives.
    pub fn keep(&mut self, number: UserId, pages: &Range<PageNumber>) {
        let parts = self.users.get(&number).map(|user| user.parts(pages));
        for part in parts.into_iter().flatten() {
            let first = self.object_of(part.first).expect("it is mapped").pages.start;
            self.objects.get_mut(&first).expect("found above").kept.insert(part.keys());
        }
    }

    /// Keeps pages of one object from leaving, as long as it lives.
    pub fn keep_pages(&mut self, keys: Range<PageNumber>) {
        let first = self.object_of(keys.start).map(|object| object.pages.start);
        if let Some(object) = first.and_then(|first| self.objects.get_mut(&first)) {
            object.kept.insert(keys);
        }
    }

    /// Returns the part of `pages`, which are of one object, that may not leave: their mappings are
    /// changing just now, or they are locked, or kept.
    pub fn kept(&self, pages: &Range<PageNumber>) -> Regions {
        let mut kept = Regions::default();
        let object = self.object_of(pages.start);
        let parts = object.into_iter().flat_map(|object| object.kept.parts(pages.clone()));
        parts.for_each(|part| kept.insert(part));
        for user in self.users.values() {
            user.moving.iter().for_each(|moving| kept.insert(moving.clone()));
            user.locked.parts(pages.clone()).for_each(|locked| kept.insert(locked));
        }
        kept
    }
}

impl Object {
    /// Records that a user is given pages.
    pub fn give(&self, keys: Range<PageNumber>, user: &User) {
        self.given.add(keys, user.bit);
    }

    /// Records that a page has left all users.
    pub fn take(&self, key: PageNumber) {
        self.given.clear(key);
    }

    /// Returns the bits of the users that a page was given to.
    pub fn given(&self, key: PageNumber) -> u64 {
        self.given.of(key)
    }

    /// Returns the offset of a page in bytes.
    pub fn offset(&self, key: PageNumber) -> u64 {
        ((key - self.pages.start) * PAGE) as u64
    }

    /// Returns each place of a page: the user's userfaultfd, and its page there.
    pub fn places<'a>(
        &'a self,
        objects: &'a Objects,
        key: PageNumber,
    ) -> impl Iterator<Item = (&'a User, PageNumber)> {
        let here = self.mappings.iter().filter(move |(_, it)| it.keys().contains(&key));
        here.filter_map(move |(user, it)| Some((objects.user(*user)?, it.start + (key - it.first))))
    }

    /// Returns where users have the pages of `keys` for which `is_in` is true and which they were
    /// given, in stretches as long as possible.
    pub fn stretches(
        &self,
        objects: &Objects,
        keys: &Range<PageNumber>,
        is_in: impl Fn(PageNumber) -> bool,
    ) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        // A private mapping writes to its own copies.
        for (number, mapping) in self.mappings.iter().filter(|(_, it)| !it.is_private) {
            let Some(user) = objects.user(*number) else { continue };
            let shared = mapping.first.max(keys.start)..mapping.keys().end.min(keys.end);
            let has = |key: &PageNumber| is_in(*key) && self.given(*key) & user.bit != 0;
            let mut key = shared.start;
            while let Some(first) = (key..shared.end).find(has) {
                key = (first..shared.end).find(|key| !has(key)).unwrap_or(shared.end);
                let start = mapping.start + (first - mapping.first);
                let (uffd, pages) = (user.uffd.clone(), key - first);
                stretches.push(Stretch { uffd, start, first, pages });
            }
        }
        stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    const KEYS: Range<PageNumber> = 1000..1100;

    fn fd() -> OwnedFd {
        memfd_create("venice-test", MemfdFlags::CLOEXEC).unwrap()
    }

    fn mapping(start: PageNumber, first: PageNumber, pages: usize) -> Mapping {
        Mapping { start, first, pages, is_dont_fork: false, is_private: false }
    }

    fn one_user() -> (Objects, UserId) {
        let mut objects = Objects::default();
        let user = objects.next_number();
        objects.add_user(user, Arc::new(fd()));
        objects.add_object(fd(), KEYS, user);
        (objects, user)
    }

    #[test]
    fn part_is_unmapped() {
        let (mut objects, user) = one_user();
        assert!(objects.unused().is_empty(), "its maker will map it");
        objects.map(user, mapping(50, 1010, 20));
        objects.unmap(user, &(55..60));
        let key = |page| objects.user(user).unwrap().key_at(page);
        assert_eq!([key(54), key(55), key(60), key(70)], [Some(1014), None, Some(1020), None]);
        let places = |key| {
            let object = objects.object_of(key).unwrap();
            object.places(&objects, key).map(|(_, page)| page).collect::<Vec<_>>()
        };
        assert_eq!((places(1012), places(1017)), (vec![52], vec![]));
        objects.unmap(user, &(0..100));
        assert_eq!(objects.unused(), [KEYS]);
    }

    #[test]
    fn child_has_what_parent_had() {
        let (mut objects, user) = one_user();
        objects.map(user, mapping(50, 1000, 10));
        objects.map(user, mapping(80, 1000, 10));
        objects.set_dont_fork(user, &(80..85), true);
        let object = objects.object_of(1000).unwrap();
        object.give(1003..1004, objects.user(user).unwrap());
        let child = objects.next_number();
        objects.fork(user, child, Arc::new(fd()));
        let key = |page| objects.user(child).unwrap().key_at(page);
        assert_eq!([key(53), key(82), key(86)], [Some(1003), None, Some(1006)]);
        let object = objects.object_of(1000).unwrap();
        assert_eq!(object.given(1003).count_ones(), 2);
        assert_eq!(object.stretches(&objects, &KEYS, |_| true).len(), 3);
        objects.remove_user(user);
        let object = objects.object_of(1000).unwrap();
        assert_eq!(object.given(1003).count_ones(), 1);
        assert_eq!(object.stretches(&objects, &KEYS, |_| true).len(), 1);
    }

    #[test]
    fn locked_and_moving_are_kept() {
        let (mut objects, user) = one_user();
        objects.map(user, mapping(50, 1000, 10));
        objects.user_mut(user).unwrap().lock(&(52..54), true);
        objects.user_mut(user).unwrap().moving = Some(1008..1009);
        let kept = |objects: &Objects| {
            objects.kept(&KEYS).parts(KEYS).flatten().collect::<Vec<PageNumber>>()
        };
        assert_eq!(kept(&objects), [1002, 1003, 1008]);
        objects.user_mut(user).unwrap().moving = None;
        objects.unmap(user, &(53..60));
        assert_eq!(kept(&objects), [1002]);
    }

    #[test]
    fn kept_pages_outlive_users() {
        let (mut objects, user) = one_user();
        objects.map(user, mapping(50, 1000, 10));
        objects.keep(user, &(52..53));
        let child = objects.next_number();
        objects.fork(user, child, Arc::new(fd()));
        objects.remove_user(user);
        assert!(objects.kept(&KEYS).contains(1002..1003));
    }

    #[test]
    fn mapping_ends_with_object() {
        let (mut objects, user) = one_user();
        objects.map(user, mapping(10, 1090, 50));
        assert_eq!(objects.user(user).unwrap().mapping_of(&(10..20)), Some(mapping(10, 1090, 10)));
        assert_eq!(objects.user(user).unwrap().mapping_of(&(10..21)), None);
    }

    #[test]
    fn users_beyond_bits_share_one() {
        let mut objects = Objects::default();
        for _ in 0..70 {
            let number = objects.next_number();
            objects.add_user(number, Arc::new(fd()));
        }
        let bits: Vec<_> = objects.users().map(|(_, user)| user.bit).collect();
        assert_eq!(bits.iter().filter(|bit| **bit == BIT_OF_OTHERS).count(), 7);
        assert_eq!(bits.iter().fold(0, |all, bit| all | bit), u64::MAX);
    }
}
