//! Everything that can be set, as data.
