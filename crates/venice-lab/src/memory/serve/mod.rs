//! Applications that are servers of other people's: started in one mode, filled, asked, and checked
//! value by value.

mod memcached;
mod memcached_server;
mod protocol;
mod redis;

pub(super) use memcached::run as memcached;
pub(super) use memcached_server::{Memcached, Room};
pub(super) use protocol::Client;
pub(super) use redis::run as redis;
