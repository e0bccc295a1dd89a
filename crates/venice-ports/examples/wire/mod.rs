//! Two network namespaces with a veth pair between them.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const NEAR: &str = "vbw-near";
pub const FAR: &str = "vbw-far";
pub const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 213, 77, 1);
pub const FAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 213, 77, 2);

/// Moves this thread, and those it starts, into a namespace.
pub fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// The namespaces and the pair, gone when dropped.
pub struct Wire;

impl Wire {
    pub fn new(mtu: u32) -> Self {
        ip(&format!("netns add {NEAR}"));
        ip(&format!("netns add {FAR}"));
        ip(&format!("link add eth0 netns {NEAR} type veth peer name eth0 netns {FAR}"));
        for (namespace, address) in [(NEAR, NEAR_ADDRESS), (FAR, FAR_ADDRESS)] {
            ip(&format!("-n {namespace} addr add {address}/24 dev eth0"));
            ip(&format!("-n {namespace} link set eth0 mtu {mtu} up"));
            ip(&format!("-n {namespace} link set lo up"));
        }
        Self
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        ip(&format!("netns del {NEAR}"));
        ip(&format!("netns del {FAR}"));
    }
}

fn ip(words: &str) {
    let _ = Command::new("ip").args(words.split(' ')).status();
}
