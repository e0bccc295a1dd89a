//! Descriptors that peers send to daemons' sockets by `SCM_RIGHTS`, whose last close sleeps.

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg, socket_with,
};
use rustix::process::Signal;
use serde_json::json;

use crate::common::{Place, finish, is_root, pid, signal, wait_until};
use crate::swap::by_helper::{Connection, DAEMON, Members, NOBODY, refusal, wants};
use crate::swap::can_swap;

/// More than a daemon has threads, and than a user may have connections.
const SHOTS: usize = 40;
/// A request to the paging helper for the device; the reply goes to the socket that comes with it.
const REQUEST: [u8; 9] = *b"D\0\0\0\0\0\0\0\0";
/// Time for which a close sleeps, far beyond a test's life.
const LINGER: Duration = Duration::from_secs(3600);

/// A connection whose last close sleeps as long as the other end is open and does not read.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    sent.set_nonblocking(true).unwrap();
    while sent.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&sent, Some(LINGER)).unwrap();
    (sent, other)
}

fn skips(test: &str) -> bool {
    let skips = !venice_sockets::can_refuse_descriptors();
    if skips {
        println!("SKIPPED: {test}: no pass-rights");
    }
    skips
}

fn send(to: &OwnedFd, fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(to, &[std::io::IoSlice::new(b"x")], &mut control, flags | SendFlags::NOSIGNAL)
}

/// Stops a daemon, with all its threads: so it does not close a descriptor before its sender has.
fn stop(daemon: u64) {
    signal(daemon, Signal::STOP);
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    wait_until("the daemon is stopped", || {
        std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().all(is_stopped)
    });
}

/// Connects to a daemon's socket and sends descriptors whose last close sleeps, again and again, and
/// closes its own. Returns what keeps the closes asleep.
fn shoot(daemon: u64, socket: &Path, kind: SocketType, flags: SendFlags) -> Vec<TcpStream> {
    let shoot = |_| {
        let to = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&to, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        let (sent, other) = lingering();
        if let Err(error) = send(&to, &[sent.as_fd()], flags) {
            assert_eq!(error, Errno::PERM);
            set_socket_linger(&sent, None).unwrap();
        }
        other
    };
    stop(daemon);
    let held = (0..SHOTS).map(shoot).collect();
    signal(daemon, Signal::CONT);
    held
}

#[test]
fn monitor_answers_under_sent_descriptors() {
    if skips("monitor_answers_under_sent_descriptors") {
        return;
    }
    let place = Place::new();
    place.up(1);
    let (monitor, socket) = (pid(&place.status()["monitor"]), place.run_dir().join("monitor.sock"));
    for flags in [SendFlags::empty(), SendFlags::OOB] {
        let held = shoot(monitor, &socket, SocketType::STREAM, flags);
        place.venice(&["nodes"]).expect(0);
        drop(held);
    }
}

#[test]
fn slabs_come_under_sent_descriptors() {
    if skips("slabs_come_under_sent_descriptors") {
        return;
    }
    let place = Place::new();
    place.up(1);
    let socket = place.run_dir().join("node1/shm.sock");
    let _held = shoot(node(&place), &socket, SocketType::SEQPACKET, SendFlags::empty());
    let words = ["run", "--mode", "window", "--port", "shm", "--copies", "1"];
    let words = [&words[..], &["--local", "8MiB", "--remote", "16MiB", "--", "true"]].concat();
    place.venice(&words).expect(0);
}

/// The process of the first node, in which its helpers are.
fn node(place: &Place) -> u64 {
    pid(&place.status()["agents"][0])
}

/// Connects to the paging helper; `None`: it closed the connection.
fn welcome(user: u32, socket: &Path) -> Option<Connection> {
    let connection = Connection::of(user, socket);
    let mut byte = [0];
    let heard = rustix::net::recv(&connection.0, &mut byte, RecvFlags::empty());
    matches!(heard, Ok((_, 1))).then_some(connection)
}

fn helper_serves(user: u32, socket: &Path) -> bool {
    let Some(connection) = welcome(user, socket) else { return false };
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (here, there) = rustix::net::socketpair(kind.0, kind.1, kind.2, None).unwrap();
    assert_eq!(connection.try_send(&REQUEST, &[there.as_fd()]), Ok(9));
    drop(there);
    let mut number = [0; 8];
    matches!(rustix::net::recv(&here, &mut number, RecvFlags::empty()), Ok((_, 8)))
}

#[test]
fn users_page_under_sent_descriptors() {
    let test = "users_page_under_sent_descriptors";
    if skips(test) {
        return;
    }
    if !is_root() {
        return println!("SKIPPED: {test}: no root");
    }
    let members = Members::of_rack(1, "64MiB");
    let socket: PathBuf = members.place.run_dir().join("helper.sock");
    if !socket.exists() {
        return println!("SKIPPED: {test}: no userfaultfd");
    }
    // Before the welcome.
    let helper = node(&members.place);
    let held = shoot(helper, &socket, SocketType::SEQPACKET, SendFlags::empty());
    assert!(helper_serves(NOBODY, &socket));
    drop(held);

    // After it, as many as a user may have. A slow machine needs more than one try.
    let mut held = Vec::new();
    wait_until("the user has all connections", || {
        let connections: Vec<_> = (0..32).map_while(|_| welcome(DAEMON, &socket)).collect();
        stop(helper);
        for connection in connections {
            let (sent, other) = lingering();
            // Also as the socket for the reply: it takes no more.
            if connection.try_send(&REQUEST, &[sent.as_fd(), sent.as_fd()]).is_err() {
                set_socket_linger(&sent, None).unwrap();
            }
            held.push(other);
        }
        signal(helper, Signal::CONT);
        welcome(DAEMON, &socket).is_none()
    });
    assert!(helper_serves(NOBODY, &socket));
    let words = ["doctor", "--json"];
    let said = finish(members.command_of(NOBODY, NOBODY, &words), &words).json();
    let row = said.as_array().unwrap().iter().find(|row| row["check"] == "userfaultfd").unwrap();
    assert!(row["detail"].as_str().unwrap().contains("usable"), "{row}");
    assert!(!helper_serves(DAEMON, &socket));
    drop(held);
    wait_until("the user is served again", || helper_serves(DAEMON, &socket));
}

#[test]
fn users_swap_under_sent_descriptors() {
    let test = "users_swap_under_sent_descriptors";
    if skips(test) {
        return;
    }
    let Some(_alone) = can_swap(test) else { return };
    let members = Members::of_rack(2, "64MiB");
    let socket = members.socket();
    let held = shoot(node(&members.place), &socket, SocketType::SEQPACKET, SendFlags::empty());
    let check = || {
        let answer = Connection::of(NOBODY, &socket).ask(&json!("Check"));
        answer["Works"].is_object()
    };
    assert!(check());
    drop(held);

    // An open session takes a process, and closes what else comes without waiting for it.
    let connection = Connection::of(DAEMON, &socket);
    assert_eq!(connection.try_send(b"x", &[connection.0.as_fd()]), Err(Errno::PERM));
    let opened = connection.ask(&json!({ "Open": wants() }));
    assert_eq!(opened["Device"]["state"], "up", "{opened}");
    let mut held = Vec::new();
    for _ in 0..4 {
        let (sent, other) = lingering();
        held.push(other);
        let answer = {
            assert!(connection.try_send(b"\"Admit\"", &[sent.as_fd(), sent.as_fd()]).is_ok());
            // Asleep if the session has closed its own already.
            std::thread::spawn(move || drop(sent));
            connection.hear()
        };
        assert!(refusal(&answer).contains("names no process"), "{answer}");
    }
    assert!(connection.ask(&json!("Group"))["Group"].is_object());
    assert!(check());
    assert_eq!(connection.ask(&json!("Close")), json!("Done"));
    drop(connection);
    members.expect_nothing_left();
}
