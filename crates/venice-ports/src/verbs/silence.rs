//! The TCP connection beside the devices: how either end notices that the other is gone.

use std::os::fd::AsFd;

/// Both ends notice within seconds when the other's machine is gone without a word.
pub(super) fn watch_over(stream: impl AsFd) {
    use rustix::net::sockopt;
    let fd = stream.as_fd();
    let second = std::time::Duration::from_secs(1);
    // Without it the end comes later, by the device's own time-outs.
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, second);
    let _ = sockopt::set_tcp_keepintvl(fd, second);
    let _ = sockopt::set_tcp_keepcnt(fd, 5);
    let _ = sockopt::set_tcp_nodelay(fd, true);
}
