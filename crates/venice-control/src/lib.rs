//! Venice: control.
