//! Applications that are servers of other people's: started in one mode, filled, asked, and checked
//! value by value.

mod memcached;
mod protocol;
mod redis;

pub(super) use memcached::run as memcached;
pub(super) use redis::run as redis;
