//! monitor.
