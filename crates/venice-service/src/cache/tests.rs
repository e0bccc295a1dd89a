//! Hosts of two owners, and hostile ones, with directories in place of their tmpfs.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};

use super::index::{Entry, Index};
use super::keep::keep;
use super::*;

const OWNER_BYTES: u64 = 1 << 20;

struct World {
    dir: tempfile::TempDir,
    store: Option<CacheStore>,
}

/// A host's `/cache`.
struct HostDir(PathBuf);

impl World {
    fn new() -> Self {
        let mut world = Self { dir: tempfile::tempdir().unwrap(), store: None };
        world.reopen();
        world
    }

    fn config(&self) -> CacheConfig {
        CacheConfig { dir: self.dir.path().join("store"), owner_bytes: OWNER_BYTES }
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(CacheStore::open(&self.config()).unwrap());
    }

    fn owner(&self, owner: &str) -> KeptCache {
        self.store.as_ref().unwrap().owner(owner).unwrap()
    }

    fn start(&self, owner: &str) -> HostDir {
        let host = tempfile::Builder::new().tempdir_in(self.dir.path()).unwrap().keep();
        let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        fill(&host, ids, &dirs(), Some(&self.owner(owner))).unwrap();
        HostDir(host)
    }

    /// Ends a host; returns the number of changed entries.
    fn end(&self, owner: &str, host: &HostDir) -> usize {
        keep(File::open(&host.0).unwrap(), &dirs(), &self.owner(owner)).unwrap()
    }

    fn index(&self, owner: &str) -> Index {
        Index::read(&self.owner(owner).dir)
    }
}

fn dirs() -> Vec<CacheDir> {
    let dir = |name: &str, entries| CacheDir { name: name.into(), entries };
    vec![dir("pocl", CacheEntries::Below(2)), dir("cuda", CacheEntries::Whole)]
}

impl HostDir {
    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(self.0.join(path)).ok()
    }
}

#[test]
fn owner_finds_earlier_builds() {
    let mut world = World::new();
    let first = world.start("a@n1");
    first.write("pocl/EJ/LJ/program.bc", b"bitcode");
    first.write("pocl/EJ/LJ/k/64/k.so", b"code");
    first.write("pocl/tempfile", b"half");
    first.write("cuda/index", b"1");
    assert_eq!(world.end("a@n1", &first), 2);
    world.reopen();
    let second = world.start("a@n1");
    assert_eq!(second.read("pocl/EJ/LJ/k/64/k.so").unwrap(), b"code");
    assert_eq!(second.read("cuda/index").unwrap(), b"1");
    assert_eq!(second.read("pocl/tempfile"), None, "above the entries");
    let mode = fs::metadata(second.0.join("pocl/EJ")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(world.end("a@n1", &second), 0, "nothing is new");
    for other in ["b@n1", "a@n2"] {
        let host = world.start(other);
        assert_eq!(fs::read_dir(host.0.join("pocl")).unwrap().count(), 0, "{other}");
    }
}

#[test]
fn hosts_at_once_keep_both() {
    let world = World::new();
    let (one, two) = (world.start("a"), world.start("a"));
    one.write("pocl/EJ/LJ/program.bc", b"p");
    one.write("pocl/EJ/LJ/k/1.so", b"1");
    one.write("cuda/index", b"1");
    one.write("cuda/1", b"1");
    two.write("pocl/EJ/LJ/program.bc", b"p");
    two.write("pocl/EJ/LJ/k/2.so", b"2");
    two.write("cuda/index", b"2");
    two.write("cuda/2", b"2");
    assert_eq!((world.end("a", &one), world.end("a", &two)), (2, 2));
    let next = world.start("a");
    for file in ["pocl/EJ/LJ/k/1.so", "pocl/EJ/LJ/k/2.so", "cuda/2"] {
        assert!(next.read(file).is_some(), "{file}");
    }
    assert_eq!(next.read("cuda/1"), None, "the whole of a cache with an index is replaced");
    assert_eq!(next.read("cuda/index").unwrap(), b"2");
}

#[test]
fn only_plain_files_are_kept() {
    let world = World::new();
    let host = world.start("a");
    let secret = world.dir.path().join("secret");
    fs::write(&secret, "of the donor").unwrap();
    host.write("pocl/AA/link/real", b"1");
    symlink(&secret, host.0.join("pocl/AA/link/to")).unwrap();
    symlink(world.dir.path(), host.0.join("pocl/AA/dir")).unwrap();
    symlink(world.dir.path(), host.0.join("pocl/BB")).unwrap();
    let fifo = host.0.join("pocl/AA/link/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    host.write("pocl/AA/sparse/file", b"");
    let sparse = File::options().write(true).open(host.0.join("pocl/AA/sparse/file")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    host.write(&format!("pocl/AA/deep/{}x", "d/".repeat(40)), b"x");
    fs::remove_dir(host.0.join("cuda")).unwrap();
    symlink(world.dir.path(), host.0.join("cuda")).unwrap();
    let ended = keep(File::open(&host.0).unwrap(), &dirs(), &world.owner("a"));
    assert!(ended.is_err() || ended.unwrap() == 1);
    let next = world.start("a");
    let names = |dir: &str| -> Vec<_> {
        let found = fs::read_dir(next.0.join(dir)).unwrap();
        found.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!((names("pocl"), names("pocl/AA")), (vec!["AA".to_owned()], vec!["link".to_owned()]));
    assert_eq!(names("pocl/AA/link"), ["real"]);
    assert_eq!(names("cuda"), Vec::<String>::new());
}

#[test]
fn oldest_entries_are_evicted() {
    let world = World::new();
    let host = world.start("a");
    for entry in ["old", "used", "new"] {
        host.write(&format!("pocl/AA/{entry}/x"), &vec![1; OWNER_BYTES as usize / 4]);
    }
    assert_eq!(world.end("a", &host), 3);
    let mut index = world.index("a");
    for (at, entry) in ["old", "used", "new"].into_iter().enumerate() {
        index.entries.get_mut(&format!("pocl/AA/{entry}")).unwrap().used_s = 1000 + at as u64;
    }
    index.write(&world.owner("a").dir).unwrap();
    let host = world.start("a");
    host.read("pocl/AA/used/x").unwrap();
    host.write("pocl/AA/newest/x", &vec![1; OWNER_BYTES as usize / 4]);
    host.write("pocl/AA/huge/x", &vec![1; OWNER_BYTES as usize]);
    assert_eq!(world.end("a", &host), 1);
    let index = world.index("a");
    let left: Vec<_> = index.entries.keys().map(String::as_str).collect();
    assert_eq!(left, ["pocl/AA/new", "pocl/AA/newest", "pocl/AA/used"]);
    assert!(index.bytes() <= OWNER_BYTES);
    assert!(!world.owner("a").dir.join("files/pocl/AA/old").exists());
    world.store.as_ref().unwrap().evict();
    assert_eq!(world.index("a").entries.len(), 2, "one was not used for a month");
}

#[test]
fn owners_together_are_bounded() {
    let world = World::new();
    for number in 0..20_u64 {
        let owner = world.owner(&format!("o{number}")).dir;
        let entry = Entry { used_s: super::store::now_s() - number, bytes: OWNER_BYTES };
        let index = Index { entries: [("pocl/AA/x".to_owned(), entry)].into() };
        index.write(&owner).unwrap();
    }
    world.store.as_ref().unwrap().evict();
    let has = |number: u64| !world.index(&format!("o{number}")).entries.is_empty();
    assert_eq!(
        (0..20).filter(|number| has(*number)).collect::<Vec<_>>(),
        (0..16).collect::<Vec<_>>()
    );
}

#[test]
fn store_of_earlier_boot_is_emptied() {
    let mut world = World::new();
    let host = world.start("a");
    host.write("pocl/AA/x/k.so", b"torn?");
    world.end("a", &host);
    fs::write(world.config().dir.join("boot"), "another").unwrap();
    world.reopen();
    assert_eq!(world.start("a").read("pocl/AA/x/k.so"), None);
    assert!(CacheStore::open(&world.config()).is_err(), "in use");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&world.config().dir), mode(&world.owner("a").dir)), (0o700, 0o700));
}
