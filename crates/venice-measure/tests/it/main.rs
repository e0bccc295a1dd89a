//! The demo end to end.

mod demo;
