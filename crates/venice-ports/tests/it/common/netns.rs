//! Two network namespaces with a virtual wire between them.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const NEAR: Ipv4Addr = Ipv4Addr::new(10, 213, 78, 1);
pub const FAR: Ipv4Addr = Ipv4Addr::new(10, 213, 78, 2);
/// The interface at each end.
pub const DEVICE: &str = "eth0";

/// The wire; removed on drop.
pub struct Wire {
    names: [String; 2],
}

impl Wire {
    pub fn new(mtu: u32) -> Self {
        static LAID: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{}-{}", std::process::id(), LAID.fetch_add(1, Ordering::Relaxed));
        let wire = Self { names: ["n", "f"].map(|end| format!("venice-test-{unique}-{end}")) };
        let [near, far] = &wire.names;
        ip(&format!("netns add {near}"));
        ip(&format!("netns add {far}"));
        ip(&format!("link add {DEVICE} netns {near} type veth peer name {DEVICE} netns {far}"));
        for (name, address) in [(near, NEAR), (far, FAR)] {
            ip(&format!("-n {name} addr add {address}/24 dev {DEVICE}"));
            ip(&format!("-n {name} link set {DEVICE} mtu {mtu} up"));
            ip(&format!("-n {name} link set lo up"));
        }
        wire
    }

    /// Runs `what` at the near end. Sockets that it makes stay there.
    pub fn near<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        within(&self.names[0], what)
    }

    /// Runs `what` at the far end.
    pub fn far<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        within(&self.names[1], what)
    }

    /// Returns the output of `ip` for the far end's interface.
    pub fn far_link(&self) -> String {
        let words = ["-n", &self.names[1], "link", "show", DEVICE];
        let said = Command::new("ip").args(words).output().expect("ip is installed");
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| ip(&format!("netns del {name}")));
    }
}

fn within<T: Send>(name: &str, what: impl FnOnce() -> T + Send) -> T {
    let enter = || {
        let door = File::open(format!("/run/netns/{name}")).expect("the namespace exists");
        move_into_link_name_space(door.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
        what()
    };
    std::thread::scope(|scope| scope.spawn(enter).join().expect("ip prints its error"))
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.is_ok_and(|status| status.success()), "ip {words}");
}
