//! The shared pager on the kernel, with this process as its user.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};

use super::super::PAGE;
use super::super::run_block::{PortKind, ReplicaAt, RunBlockMap};
use super::super::slab_window::SlabSource;
use super::super::sys;
use super::super::uffd::Uffd;
use super::messages::{Request, UserPages};
use super::objects::UserId;
use super::pager::SharedPager;

/// Pages that may be resident.
pub(super) const LOCAL: usize = 1024;
/// Pages of an object.
const PAGES: usize = 4 * LOCAL;

/// A shared pager over two slabs, and this process as its user.
pub(super) struct Fixture {
    pub(super) pager: SharedPager,
    block: Arc<RunBlockMap>,
    user: UserId,
    uffd: Uffd,
}

impl Fixture {
    /// `None` where shared memory cannot be paged.
    pub(super) fn new(test: &str) -> Option<Fixture> {
        const SLABS: usize = 2;
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, SLABS, 1).unwrap();
        let mut slabs = Vec::new();
        for index in 0..SLABS {
            let donor = block.add_donor(&format!("node{index}"), index as u32, "").unwrap();
            block.add_slab(ReplicaAt { donor, remote_addr: 0, grant: 1, key: 0 }).unwrap();
            let slab = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&slab, venice_wire::SLAB_BYTES).unwrap();
            slabs.push(slab);
        }
        let source: SlabSource = Box::new(move |replica| {
            slabs.get(replica).map(|slab: &OwnedFd| slab.try_clone().unwrap().into())
        });
        block.limit_pages.store(LOCAL as u64, Ordering::Relaxed);
        let block = Arc::new(block);
        let skip = |error: &dyn std::fmt::Display| eprintln!("SKIPPED {test}: no bpf ({error})");
        let pager = SharedPager::start(block.clone(), source).inspect_err(|it| skip(it)).ok()?;
        let uffd = Uffd::open_shared(-1).inspect_err(|it| skip(it)).ok()?;
        // SAFETY: opened above. The pager gets a descriptor of its own.
        let theirs = unsafe { OwnedFd::from_raw_fd(uffd.fd) };
        let ours = theirs.try_clone().unwrap();
        let (user, _) = pager.serve(Request::User, Some(theirs));
        assert_ne!(user, 0);
        let uffd = Uffd { fd: std::os::fd::IntoRawFd::into_raw_fd(ours) };
        Some(Fixture { pager, block, user: user as UserId, uffd })
    }

    /// Maps an object at `times` addresses.
    fn map(&self, times: usize) -> Vec<usize> {
        let made = self.pager.serve(Request::Object { user: self.user, pages: PAGES }, None);
        let (first, Some(memory)) = made else { panic!("no object") };
        (0..times).map(|_| self.map_object(first as usize, &memory)).collect()
    }

    fn map_object(&self, first: usize, memory: &OwnedFd) -> usize {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (anywhere, len_bytes) = (std::ptr::null_mut(), PAGES * PAGE);
        // SAFETY: a fresh mapping disturbs nothing. Other tests fork.
        let at = unsafe {
            let flags = MapFlags::SHARED;
            let at = mmap(anywhere, len_bytes, protection, flags, memory, 0).unwrap() as usize;
            sys::madvise(at, len_bytes, sys::MADV_NOHUGEPAGE).unwrap();
            sys::madvise(at, len_bytes, sys::MADV_DONTFORK).unwrap();
            at
        };
        self.uffd.register_shared(at, len_bytes).unwrap();
        let pages = UserPages { user: self.user, start: at / PAGE, pages: PAGES };
        assert_eq!(self.pager.serve(Request::Map { at: pages, first }, None).0, 1);
        at
    }

    pub(super) fn out(&self) -> u64 {
        self.block.counters.pages_out.load(Ordering::Relaxed)
    }

    /// Unmaps all, and ends the pager.
    pub(super) fn end(self, mappings: Vec<usize>) {
        for at in mappings {
            // SAFETY: mapped by `map`, and no longer used.
            unsafe { sys::unmap(at as *mut _, PAGES * PAGE) };
            let pages = UserPages { user: self.user, start: at / PAGE, pages: PAGES };
            assert_eq!(self.pager.serve(Request::Unmap(pages), None).0, 1);
        }
        self.pager.tidy();
        assert_eq!(self.block.slots_used.load(Ordering::Relaxed), 0, "its objects are gone");
        self.pager.end();
        sys::close(self.uffd.fd);
    }
}

/// Writes a page: its first and its last word.
fn write(base: usize, page: usize, value: u64) {
    for word in [0, PAGE - 8] {
        // SAFETY: within a mapping of this test.
        unsafe { ((base + page * PAGE + word) as *mut u64).write_volatile(value + word as u64) };
    }
}

fn is_there(base: usize, page: usize, value: u64) -> bool {
    // SAFETY: within a mapping of this test.
    let has = |word| unsafe { ((base + page * PAGE + word) as *const u64).read_volatile() };
    has(0) == value && has(PAGE - 8) == value + PAGE as u64 - 8
}

#[test]
fn evicted_pages_return() {
    let Some(fixture) = Fixture::new("evicted_pages_return") else { return };
    let mappings = fixture.map(2);
    let [one, two] = mappings[..] else { panic!("two addresses") };
    for round in 1..4 {
        (0..PAGES).for_each(|page| write(one, page, (round * PAGES + page) as u64));
        let wrong = (0..PAGES).find(|&page| !is_there(two, page, (round * PAGES + page) as u64));
        assert_eq!(wrong, None, "in round {round}");
    }
    assert!(fixture.out() > 2 * LOCAL as u64, "only {} pages went far", fixture.out());
    fixture.end(mappings);
}

/// Puts a page into a pipe of the program, has it and many others evicted if possible, and writes 9
/// to it. Returns what is read from the pipe.
fn read_of_pinned_page(test: &str, is_blind: bool) -> Option<u64> {
    const PINNED: usize = 77;
    let fixture = Fixture::new(test)?;
    fixture.pager.service().home.look().is_blind = is_blind;
    let mappings = fixture.map(1);
    let base = mappings[0];
    write(base, PINNED, 1);
    let (out, into) = rustix::pipe::pipe().unwrap();
    // SAFETY: the page is mapped until the end of the test.
    let page = unsafe { std::slice::from_raw_parts((base + PINNED * PAGE) as *const u8, PAGE) };
    let page = [IoSliceRaw::from_slice(page)];
    // SAFETY: as above.
    assert_eq!(unsafe { vmsplice(&into, &page, SpliceFlags::empty()) }, Ok(PAGE));
    for round in 0..3 {
        (0..PAGES).filter(|page| *page != PINNED).for_each(|page| write(base, page, round));
    }
    write(base, PINNED, 9);
    let mut first = [0u8; 8];
    assert_eq!(sys::read(out.as_raw_fd(), &mut first), Ok(8));
    assert!(fixture.out() > LOCAL as u64, "only {} pages went far", fixture.out());
    fixture.end(mappings);
    Some(u64::from_ne_bytes(first))
}

/// A page in a pipe of the program stays the page that it is: what is written to it is read from
/// the pipe.
#[test]
fn pinned_page_stays() {
    let read = read_of_pinned_page("pinned_page_stays", false);
    assert!(read.is_none_or(|read| read == 9), "{read:?}");
}

/// The test above fails without the look.
#[test]
fn blind_look_loses_pin() {
    let read = read_of_pinned_page("blind_look_loses_pin", true);
    assert!(read.is_none_or(|read| read == 1), "{read:?}");
}

#[test]
fn removed_pages_read_zero() {
    let Some(fixture) = Fixture::new("removed_pages_read_zero") else { return };
    let mappings = fixture.map(1);
    let base = mappings[0];
    (0..PAGES).for_each(|page| write(base, page, page as u64));
    let removed = 100..PAGES - 100;
    let (start, pages) = (base / PAGE + removed.start, removed.len());
    let request = Request::Remove(UserPages { user: fixture.user, start, pages });
    assert_eq!(fixture.pager.serve(request, None).0, 1);
    for page in 0..PAGES {
        // SAFETY: mapped by `map`.
        let last = unsafe { ((base + page * PAGE + PAGE - 8) as *const u64).read_volatile() };
        let expected = if removed.contains(&page) { 0 } else { (page + PAGE - 8) as u64 };
        assert_eq!(last, expected, "page {page}");
    }
    fixture.end(mappings);
}
