//! Ports and channels, over this machine's sockets, rings and devices.

mod adaptive;
mod channels;
mod common;
mod loom_ring;
mod qpair;
mod qpair_tokio;
mod relays;
mod ring;
mod ring_fabric;
mod shm;
mod udp;
mod udp_lent;
mod verbs_abi;
mod verbs_in_guest;
mod xdp;
