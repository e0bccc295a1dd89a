//! Membership and access control, over a rack's real processes.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{Place, pid, signal, wait_until};
use rustix::process::Signal;
use venice_control::client::{Access, AgentClient, EnrolmentClient, Login, MonitorClient};
use venice_control::identity::{Authority, Credential, Holder, KeyPem, Lifetimes};
use venice_control::{AllocationRequest, Caller, ControlError, DonorCall, LeaseState, User, Want};
use venice_memory::paged::run_block::Fate;
use venice_recipient::{AllocationSpec, MemorySpec, News, PortKind, RemoteMemory, Request};
use venice_wire::GrantKey;

/// A rack of one node, and an issuer of certificates for it.
struct Rack {
    place: Place,
    addr: String,
    runtime: tokio::runtime::Runtime,
}

impl Rack {
    fn new() -> Rack {
        let place = Place::new();
        place.up(1);
        let addr = place.status()["monitor"]["addr"].as_str().unwrap().to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Rack { place, addr, runtime }
    }

    fn authority(&self) -> Authority {
        let dir = self.place.run_dir().join("monitor/state/identity");
        Authority::open(&dir).unwrap()
    }

    fn login(&self, caller: Caller) -> Login {
        held(self.authority().credential(&caller).unwrap())
    }

    fn access(&self, login: Login) -> Access {
        Access::new(&self.addr, login)
    }

    /// Result of a request for the nodes.
    fn ask(&self, login: Login) -> Result<usize, ControlError> {
        let access = self.access(login);
        self.runtime.block_on(async {
            MonitorClient::connect(&access).await?.nodes().await.map(|nodes| nodes.len())
        })
    }

    /// Fails unless this login is refused for this reason.
    fn expect_refused(&self, login: Login, why: &str) {
        match self.ask(login) {
            Err(ControlError::NotAdmitted { why: said, .. }) if said.contains(why) => {}
            other => panic!("not refused because {why:?}: {other:?}"),
        }
    }

    /// Count of refusals for a reason, as `venice identity` shows it.
    fn refused(&self, why: &str) -> u64 {
        let shown = self.place.venice(&["identity", "--json"]).expect(0).json();
        shown["refused"][why].as_u64().unwrap()
    }

    /// Waits until the node has a certificate of the new authority, in a rotation.
    fn wait_until_renewed(&self) {
        wait_until("the node has renewed", || {
            let now = self.place.venice(&["identity", "--json"]);
            now.code() == 0 && now.json()["rotation"]["not_renewed"] == serde_json::json!([])
        });
    }

    fn log(&self, process: &str) -> String {
        fs::read_to_string(self.place.run_dir().join(process).join("log")).unwrap()
    }
}

fn held(credential: Credential) -> Login {
    Login::held(Holder::new(credential).unwrap())
}

fn node(name: &str) -> Caller {
    Caller::Node(name.into())
}

fn user(is_admin: bool) -> Caller {
    Caller::User(User { node: "elsewhere".into(), uid: 1234, name: "somebody".into(), is_admin })
}

#[test]
fn invalid_credentials_are_refused_and_counted() {
    let rack = Rack::new();
    let authority = rack.authority();
    assert_eq!(rack.ask(rack.login(user(false))).unwrap(), 1);

    let nobody = Login::nobody(authority.fingerprint()).unwrap();
    rack.expect_refused(nobody, "venice join");
    assert_eq!(rack.refused("no_certificate"), 1);

    let over = Lifetimes { node: Duration::ZERO, user: Duration::ZERO };
    let over = rack.authority().with_lifetimes(over);
    let expired = over.credential(&node("late")).unwrap();
    wait_until("it is over", || expired.info().is_over());
    rack.expect_refused(held(expired), "has expired");
    assert_eq!(rack.refused("expired"), 1);

    let temp = tempfile::tempdir().unwrap();
    let other = Authority::create(temp.path()).unwrap();
    let key = KeyPem::generate().unwrap();
    let certificate = other.answer(&user(true), &key.request().unwrap()).unwrap();
    let foreign = Credential::new(certificate, authority.authorities().clone(), key).unwrap();
    rack.expect_refused(held(foreign), "another rack");
    assert_eq!(rack.refused("foreign"), 1);

    // A caller that trusts another authority sends nothing to this Monitor Node.
    match rack.ask(held(other.credential(&user(true)).unwrap())) {
        Err(ControlError::WrongPeer { .. }) => {}
        other => panic!("{other:?}"),
    }
    // A plain connection without TLS.
    let mut plain = std::net::TcpStream::connect(&rack.addr).unwrap();
    std::io::Write::write_all(&mut plain, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    wait_until("it is counted", || rack.refused("no_tls") == 1);

    let log = rack.log("monitor");
    for why in ["no certificate", "late has expired", "another rack", "TLS error"] {
        assert!(log.contains(why), "{why}: {log}");
    }
    let said = rack.place.venice(&["status"]).expect(0);
    assert!(said.out.contains("1 without a certificate"), "{}", said.out);
}

#[test]
fn token_is_single_use_revoked_node_rejoins() {
    let rack = Rack::new();
    let place = &rack.place;
    let token = place.venice(&["token", "new"]).expect(0).out.trim().to_string();
    let dir = place.file("identity").display().to_string();
    let join = ["join", "--name", "guest", "--identity", &dir, &token];
    place.venice(&join).expect(0);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(place.file("identity/identity.pem")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    // A machine that cannot write does not use the token.
    let spare = place.venice(&["token", "new"]).expect(0).out;
    fs::write(place.file("plain"), "").unwrap();
    let nowhere = place.file("plain/identity").display().to_string();
    let join = ["join", "--name", "third", "--identity", &nowhere, spare.trim()];
    let said = place.venice(&join).expect(1);
    assert!(said.complaint().contains("the token is not used"), "{}", said.err);
    let third = place.file("third").display().to_string();
    let join = ["join", "--name", "third", "--identity", &third, spare.trim()];
    // If the certificate cannot be stored after all, the same machine may ask again.
    fs::create_dir_all(place.file("third/identity.pem/in the way")).unwrap();
    let said = place.venice(&join).expect(1);
    assert!(said.complaint().contains("again with the same token"), "{}", said.err);
    fs::remove_dir_all(place.file("third/identity.pem")).unwrap();
    let said = place.venice(&join);
    assert!(!place.file("third/joining.key").exists());
    let hint = format!("--identity {third} --lend");
    assert!(said.expect(0).out.contains(&hint));

    let second = place.file("second").display().to_string();
    let said = place.venice(&["join", "--name", "second", "--identity", &second, &token]);
    let said = said.expect(1);
    assert!(!place.file("second").exists(), "nothing is left of what it made");
    assert!(said.complaint().contains("used before, by guest"), "{}", said.err);
    assert_eq!(rack.refused("bad_token"), 1);
    assert!(rack.log("monitor").contains("refused to let a machine join"));
    let tokens = place.venice(&["token", "list", "--json"]).expect(0).json();
    let used_by_guest = |token: &&serde_json::Value| token["used_by"] == "guest";
    assert_eq!(tokens.as_array().unwrap().iter().filter(used_by_guest).count(), 1);

    let guest = || held(Credential::load(&PathBuf::from(&dir)).unwrap());
    assert_eq!(rack.ask(guest()).unwrap(), 1);
    // An open connection does not bypass the revocation.
    let access = rack.access(guest());
    let mut open = rack.runtime.block_on(MonitorClient::connect(&access)).unwrap();
    rack.runtime.block_on(open.nodes()).unwrap();
    let vouched = KeyPem::generate().unwrap();
    let vouched = rack.runtime.block_on(async {
        let mut gate = EnrolmentClient::connect(&rack.access(guest())).await.unwrap();
        let certified = gate.certify_user((7, "eve".into()), vouched.request().unwrap()).await;
        let certified = certified.unwrap();
        Credential::new(certified.certificate.into(), certified.authorities, vouched).unwrap()
    });
    let vouched = held(vouched);
    assert_eq!(rack.ask(vouched.clone()).unwrap(), 1);

    place.venice(&["node", "revoke", "guest"]).expect(0);
    let error = rack.runtime.block_on(open.nodes()).unwrap_err();
    assert!(error.to_string().contains("was revoked"), "{error}");
    rack.expect_refused(guest(), "was revoked");
    rack.expect_refused(vouched, "was revoked");
    assert!(rack.refused("revoked") >= 3);
    assert!(rack.log("monitor").contains("was revoked"));

    let token = place.venice(&["token", "new", "--node", "guest"]).expect(0).out;
    place.venice(&["join", "--name", "guest", "--identity", &dir, token.trim()]).expect(0);
    assert_eq!(rack.ask(guest()).unwrap(), 1);
    let said = place.venice(&["node", "revoke", "nobody"]).expect(1);
    assert!(said.complaint().contains("no node named nobody"), "{}", said.err);
    let said = place.venice(&["node", "revoke", "--unknown", "nobody"]).expect(0);
    assert!(!said.out.contains("memory"), "{}", said.out);
    let shown = place.venice(&["identity", "--json"]).expect(0).json();
    assert_eq!(shown["revoked"][1]["node"], "nobody");

    let spare = place.venice(&["token", "new"]).expect(0).out;
    let id = &spare[..16];
    place.venice(&["token", "delete", id]).expect(0);
    let said = place.venice(&["join", "--name", "x", "--identity", &dir, spare.trim()]).expect(1);
    assert!(said.complaint().contains("unknown or expired join token"), "{}", said.err);
    let said = place.venice(&["token", "delete", id]).expect(1);
    assert!(said.complaint().contains("no join token"), "{}", said.err);
    place.venice(&["token", "delete", "x"]).expect(2);
    for wrong in ["x", "a.b.c@h:1", &token[1..]] {
        place.venice(&["join", wrong]).expect(2);
    }
}

#[test]
fn caller_cannot_exceed_its_role() {
    let rack = Rack::new();
    let forbidden = |result: Result<(), ControlError>, who: &str| match result {
        Err(ControlError::Forbidden(said)) if said.contains(who) => {}
        other => panic!("not kept for {who}: {other:?}"),
    };
    let access = rack.access(rack.login(user(false)));
    rack.runtime.block_on(async {
        let mut gate = EnrolmentClient::connect(&access).await.unwrap();
        let hour = Duration::from_secs(3600);
        let admins = "root on the Monitor Node's machine";
        forbidden(gate.new_token(hour, "").await.map(drop), admins);
        forbidden(gate.revoke("node1", false).await, admins);
        let mut monitor = MonitorClient::connect(&access).await.unwrap();
        forbidden(monitor.drain("node1", false).await, "root on node1");
        // Only the Monitor Node may run the grant handshake.
        let row = monitor.nodes().await.unwrap().remove(0);
        let patience = Duration::from_secs(20);
        let agent = AgentClient::connect(&access.login, "node1", &row.control_addr, patience);
        let mut agent = agent.await.unwrap();
        let released = agent.call(DonorCall::Release(vec![venice_wire::GrantId(1)])).await;
        forbidden(released.map(drop), "the Monitor Node");
        // The certificate of another node at that address is detected.
        let other = AgentClient::connect(&access.login, "node2", &row.control_addr, patience).await;
        assert!(matches!(other, Err(ControlError::WrongPeer { .. })), "{other:?}");
    });
    assert_eq!(rack.refused("forbidden"), 3);
}

#[test]
fn forged_grant_key_is_refused() {
    let rack = Rack::new();
    let access = rack.access(rack.login(user(false)));
    rack.runtime.block_on(async {
        let mut monitor = MonitorClient::connect(&access).await.unwrap();
        let request = AllocationRequest {
            client_id: 1,
            recipient: "test".into(),
            wants: vec![Want::memory(16 << 20, 1)],
            donors: vec![],
            home: String::new(),
            placement: None,
            purpose: "forging".into(),
            queueing: Default::default(),
        };
        let grant = monitor.allocate(request).await.unwrap().remove(0);
        let patience = Duration::from_secs(20);
        let agent =
            AgentClient::connect(&access.login, &grant.donor, &grant.control_addr, patience);
        let mut agent = agent.await.unwrap();
        let forged = [(grant.id, GrantKey(grant.key.0 ^ 1))];
        assert_eq!(agent.renew(&forged).await.unwrap(), [LeaseState::Unknown]);
        agent.give_back(&forged).await.unwrap();
        let state = &agent.renew(&[(grant.id, grant.key)]).await.unwrap()[0];
        assert!(matches!(state, LeaseState::Live { .. }), "given back by a forged key");
        monitor.release(&[(grant.id, grant.key)]).await.unwrap();
    });
    wait_until("the node's count is told", || {
        rack.place.venice(&["nodes", "--json"]).expect(0).json()[0]["refused"] == 2
    });
    assert!(rack.log("node1").contains("the key is not the grant's"));
}

#[test]
fn program_uses_its_racks_socket() {
    let (one, other) = (Rack::new(), Rack::new());
    let socket = |rack: &Rack| rack.place.run_dir().join("monitor.sock");
    let sockets = || Login::at_sockets(vec![socket(&other), socket(&one)]);
    assert_eq!(one.ask(sockets()).unwrap(), 1);
    // Once found, the rack is remembered; another rack is found for its own address.
    let login = sockets();
    assert_eq!(one.ask(login.clone()).unwrap(), 1);
    assert_eq!(one.ask(login.clone()).unwrap(), 1);
    assert_eq!(other.ask(login).unwrap(), 1);
    let refused = one.ask(Login::at_sockets(vec![socket(&other)]));
    assert!(matches!(refused, Err(ControlError::WrongPeer { .. })), "{refused:?}");
}

#[test]
fn left_behind_agent_is_told_to_join() {
    let rack = Rack::new();
    let place = &rack.place;
    let agent = pid(&place.status()["agents"][0]);
    signal(agent, Signal::STOP);
    place.venice(&["identity", "rotate"]).expect(0);
    place.venice(&["identity", "rotate", "--finish", "--force"]).expect(0);
    signal(agent, Signal::CONT);
    wait_until("the agent says that its authority is retired", || {
        let log = rack.log("node1");
        log.contains("that authority was retired") && log.contains("`venice join TOKEN`")
    });
}

#[test]
fn program_of_retired_authority_is_told() {
    let rack = Rack::new();
    let place = &rack.place;
    let user =
        Caller::User(User { node: "node1".into(), uid: 0, name: "root".into(), is_admin: true });
    let memory = MemorySpec {
        remote_bytes: Some(venice_wire::SLAB_BYTES),
        copies: Some(1),
        ..MemorySpec::default()
    };
    let request = Request {
        access: rack.access(rack.login(user)),
        port: PortKind::Shm,
        node: None,
        spec: AllocationSpec::of_memory(memory),
    };
    let (tell, events) = mpsc::channel();
    let _memory = RemoteMemory::borrow(&request, move |news| drop(tell.send(news))).unwrap();
    place.venice(&["identity", "rotate"]).expect(0);
    rack.wait_until_renewed();
    place.venice(&["identity", "rotate", "--finish", "--force"]).expect(0);
    let News::Lost(lost) = events.recv().unwrap() else { panic!("another event came first") };
    assert_eq!((lost.fate, lost.lost_slabs), (Fate::NotAdmitted, 1), "{}", lost.what());
    assert!(lost.what().contains("retired authority"), "{}", lost.what());
}

#[test]
fn rotated_authority_refuses_former_one() {
    let rack = Rack::new();
    let place = &rack.place;
    let user =
        Caller::User(User { node: "node1".into(), uid: 0, name: "root".into(), is_admin: true });
    let before = rack.authority();
    let old = held(before.credential(&user).unwrap());
    let tokens: Vec<String> =
        (0..2).map(|_| place.venice(&["token", "new"]).expect(0).out.trim().to_owned()).collect();
    let join = |token: &str, name: &str| {
        let dir = place.file(name).display().to_string();
        place.venice(&["join", "--name", name, "--identity", &dir, token])
    };
    let rotation = || place.venice(&["identity", "--json"]).expect(0).json()["rotation"].clone();
    assert!(rotation().is_null());

    let refused = place.venice(&["identity", "rotate", "--finish"]).expect(1);
    assert!(refused.complaint().contains("begin with"), "{refused:?}");
    let begun = place.venice(&["identity", "rotate", "--json"]).expect(0).json();
    assert_eq!(begun["authority"], rack.authority().fingerprint().to_string());
    rack.wait_until_renewed();
    assert_eq!(rotation()["former"], before.fingerprint().to_string());
    // Both authorities are good, in both directions.
    assert_eq!(rack.ask(old.clone()).unwrap(), 1);
    assert_eq!(rack.ask(rack.login(user.clone())).unwrap(), 1);
    join(&tokens[0], "early").expect(0);
    let again = place.venice(&["identity", "rotate"]).expect(1);
    assert!(again.complaint().contains("--finish"), "{again:?}");

    let between = rack.login(user.clone());
    let early = place.venice(&["identity", "rotate", "--finish"]).expect(1);
    assert!(early.complaint().contains("programs may still hold"), "{early:?}");
    place.venice(&["identity", "rotate", "--finish", "--force"]).expect(0);
    wait_until("the Monitor Node has the authority alone", || {
        let now = place.venice(&["identity", "--json"]);
        now.code() == 0 && now.json()["rotation"].is_null()
    });
    assert_eq!(rack.ask(between).unwrap(), 1);
    assert!(matches!(rack.ask(old), Err(ControlError::WrongPeer { .. })));
    // One that trusts the new authority and shows a certificate of the former one.
    let key = KeyPem::generate().unwrap();
    let certificate = before.answer(&user, &key.request().unwrap()).unwrap();
    let present = rack.authority().authorities().clone();
    let forged = Credential::new(certificate, present, key).unwrap();
    rack.expect_refused(held(forged), "another rack");
    join(&tokens[1], "late").expect(1);
    // The agent goes on.
    place.venice(&["get", "memory=16MiB", "--", "true"]).expect(0);
}
