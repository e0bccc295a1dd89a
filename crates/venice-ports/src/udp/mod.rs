//! The udp port: one frame of the fabric in each datagram.

mod mmsg;
