//! Keep-alive of the TCP connection beside the devices: either end detects that the other is gone.

use std::os::fd::AsFd;

/// Enables keep-alive: both ends detect within seconds that the other's machine is gone without a
/// goodbye message.
pub(super) fn enable_keep_alive(stream: impl AsFd) {
    use rustix::net::sockopt;
    let fd = stream.as_fd();
    let second = std::time::Duration::from_secs(1);
    // Without it the end is detected later, by the device's own time-outs.
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, second);
    let _ = sockopt::set_tcp_keepintvl(fd, second);
    let _ = sockopt::set_tcp_keepcnt(fd, 5);
    let _ = sockopt::set_tcp_nodelay(fd, true);
}
