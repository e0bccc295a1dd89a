//! Applications that are third-party servers: started in one mode, filled, queried, and checked
//! value by value.

mod memcached;
mod memcached_server;
mod protocol;
mod redis;

pub(super) use memcached::run as memcached;
pub(super) use memcached_server::{Memcached, Room};
pub(super) use protocol::Client;
pub(super) use redis::run as redis;
