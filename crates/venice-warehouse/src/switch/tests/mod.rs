//! Tests of both kinds of switches.
