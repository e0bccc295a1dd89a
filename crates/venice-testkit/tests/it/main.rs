//! The kit itself.

mod guest;
