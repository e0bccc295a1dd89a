//! Identities for tests that run daemons within their own process: one authority for all racks of
//! the process, and real certificates of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use venice_control::client::{Access, Login};
use venice_control::identity::{Authority, Credential, Holder, Lifetimes};
use venice_control::server::TlsServer;
use venice_control::{Caller, User};

/// The files of the authority's directory, by name.
static AUTHORITY: LazyLock<Vec<(PathBuf, Vec<u8>)>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    Authority::create(dir.path()).expect("an authority");
    let entries = fs::read_dir(dir.path()).expect("its files");
    let file =
        |entry: fs::DirEntry| (entry.file_name().into(), fs::read(entry.path()).expect("its file"));
    entries.map(|entry| file(entry.expect("its file"))).collect()
});

/// Installs the authority in the state directory of a Monitor Node.
pub fn install(state_dir: &Path) {
    let dir = state_dir.join("identity");
    fs::create_dir_all(&dir).expect("a directory");
    for (name, bytes) in AUTHORITY.iter() {
        fs::write(dir.join(name), bytes).expect("a file");
    }
}

/// Opens the authority.
pub fn authority() -> Authority {
    let dir = tempfile::tempdir().expect("a directory");
    install(dir.path());
    Authority::open(&dir.path().join("identity")).expect("the authority")
}

/// Makes a certificate for the node `name` in `dir`; returns the path for an agent's `identity`.
pub fn node(dir: &Path, name: &str) -> PathBuf {
    let dir = dir.join(format!("identity-{name}"));
    credential(&Caller::Node(name.into())).save(&dir).expect("kept");
    dir
}

/// Makes one with this lifetime.
pub fn node_for(dir: &Path, name: &str, life: Duration) -> PathBuf {
    let dir = dir.join(format!("identity-{name}"));
    let authority = authority().with_lifetimes(Lifetimes { node: life, user: life });
    let credential = authority.credential(&Caller::Node(name.into())).expect("a certificate");
    credential.save(&dir).expect("kept");
    dir
}

/// Makes a certificate for any caller.
pub fn credential(caller: &Caller) -> Credential {
    authority().credential(caller).expect("a certificate")
}

/// Returns the login of `caller`.
pub fn login_of(caller: &Caller) -> Login {
    Login::held(Holder::new(credential(caller)).expect("TLS takes it"))
}

/// Returns an administrator's login.
pub fn login() -> Login {
    login_of(&Caller::User(User {
        node: "test".into(),
        uid: 0,
        name: "root".into(),
        is_admin: true,
    }))
}

/// Returns an administrator's access to the Monitor Node at `addr`.
pub fn access(addr: impl ToString) -> Access {
    Access::new(addr.to_string(), login())
}

/// Returns the door of the node `name`, for simulated agents.
pub fn door(name: &str) -> Arc<TlsServer> {
    let holder = Holder::new(credential(&Caller::Node(name.into()))).expect("TLS takes it");
    TlsServer::new(holder).expect("a door")
}
