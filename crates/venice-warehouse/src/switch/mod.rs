//! Buffers, arbitration and timing of one switch.
