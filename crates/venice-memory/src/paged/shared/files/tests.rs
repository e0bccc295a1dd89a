//! The files without their mount: a process that serves a mount and uses it hangs if it is killed.

use std::sync::Arc;

use rustix::io::Errno;
use venice_fuse::Changes;

use super::super::super::PAGE;
use super::super::tests::{Fixture, LOCAL};
use super::own_user;
use super::tree::Tree;

/// Pages of a file.
const PAGES: usize = 3 * LOCAL;

/// A tree with a shared pager of its own.
struct Files {
    fixture: Fixture,
    tree: Tree,
}

impl Files {
    /// `None` where shared memory cannot be paged.
    fn new(test: &str) -> Option<Files> {
        let fixture = Fixture::new(test)?;
        let own = own_user(fixture.pager.service().clone()).expect("it is a user");
        Some(Files { fixture, tree: Tree::new(Arc::new(own)) })
    }

    fn make(&self, name: &str) -> u64 {
        self.tree.create(name.as_bytes(), 0o600, (0, 0)).expect("it is made").inode
    }

    fn fill(&self, inode: u64) {
        for page in 0..PAGES {
            let bytes = [page as u8 ^ 0x5a; PAGE];
            self.tree.write(inode, (page * PAGE) as u64, &bytes).expect("it grows");
        }
    }

    fn byte(&self, inode: u64, offset: usize) -> Option<u8> {
        let mut byte = [0];
        let len = self.tree.read(inode, offset as u64, &mut byte).expect("no page is lost");
        (len == 1).then_some(byte[0])
    }

    fn set_length(&self, inode: u64, len_bytes: u64) -> Result<u64, Errno> {
        let changes = Changes { len_bytes: Some(len_bytes), ..Changes::default() };
        Ok(self.tree.change(inode, &changes)?.len_bytes)
    }

    /// Ends all files; nothing of them is left.
    fn end(self) {
        let own = self.tree.own.clone();
        drop(self.tree);
        own.service.home.remove_user(own.user);
        drop(own);
        self.fixture.end(Vec::new());
    }
}

fn filled(page: usize) -> Option<u8> {
    Some(page as u8 ^ 0x5a)
}

#[test]
fn written_file_reads_back() {
    let Some(files) = Files::new("written_file_reads_back") else { return };
    let inode = files.make("memfd:a");
    files.fill(inode);
    let wrong = (0..PAGES).find(|page| files.byte(inode, page * PAGE + 77) != filled(*page));
    assert_eq!(wrong, None);
    assert_eq!(files.byte(inode, PAGES * PAGE), None, "it ends there");
    assert!(files.fixture.out() > LOCAL as u64, "only {} pages went far", files.fixture.out());
    files.end();
}

#[test]
fn cut_part_reads_zero() {
    let Some(files) = Files::new("cut_part_reads_zero") else { return };
    let inode = files.make("memfd:a");
    files.fill(inode);
    let end = 100 * PAGE + 50;
    assert_eq!(files.set_length(inode, end as u64), Ok(end as u64));
    assert_eq!([files.byte(inode, end - 1), files.byte(inode, end)], [filled(100), None]);
    assert_eq!(files.set_length(inode, (PAGES * PAGE) as u64), Ok((PAGES * PAGE) as u64));
    let rest = (end..101 * PAGE).chain((101..PAGES).map(|page| page * PAGE));
    assert_eq!(rest.map(|at| files.byte(inode, at)).find(|byte| *byte != Some(0)), None);
    assert_eq!(files.byte(inode, 99 * PAGE), filled(99));
    files.end();
}

#[test]
fn hole_is_cut_by_bytes() {
    const PUNCH: u32 = 3;
    let Some(files) = Files::new("hole_is_cut_by_bytes") else { return };
    let inode = files.make("memfd:a");
    files.fill(inode);
    let (start, end) = (10 * PAGE + 5, 20 * PAGE + 7);
    files.tree.allocate(inode, (start as u64, (end - start) as u64), PUNCH).unwrap();
    let around = [start - 1, start, end - 1, end].map(|at| files.byte(inode, at));
    assert_eq!(around, [filled(10), Some(0), Some(0), filled(20)]);
    assert_eq!(files.byte(inode, 15 * PAGE), Some(0));
    files.tree.allocate(inode, (start as u64, 1 << 40), PUNCH).unwrap();
    assert_eq!(files.byte(inode, PAGES * PAGE - 1), Some(0));
    files.end();
}

#[test]
fn first_length_may_be_any() {
    let Some(files) = Files::new("first_length_may_be_any") else { return };
    let inode = files.make("memfd:a");
    assert_eq!(files.set_length(inode, 100 << 30), Ok(100 << 30));
    files.tree.write(inode, 99 << 30, b"far").unwrap();
    assert_eq!(files.byte(inode, 99 << 30), Some(b'f'));
    assert_eq!(files.set_length(inode, 1 << 40), Err(Errno::FBIG));
    files.end();
}

#[test]
fn named_file_outlives_users() {
    let Some(files) = Files::new("named_file_outlives_users") else { return };
    let inode = files.make("a");
    assert_eq!(files.tree.create(b"a", 0o600, (0, 0)), Err(Errno::EXIST));
    files.tree.write(inode, 0, b"x").unwrap();
    files.tree.forget(inode, 1);
    assert_eq!(files.tree.look_up(b"a").map(|found| found.inode), Ok(inode));
    files.tree.unlink(b"a").unwrap();
    assert_eq!(files.byte(inode, 0), Some(b'x'), "it is still open");
    files.tree.forget(inode, 1);
    assert_eq!(files.tree.attributes(inode), Err(Errno::NOENT));
    files.end();
}
