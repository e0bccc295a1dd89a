//! A host that goes to another part of the world.

use super::Host;
use super::socket::Kind;
use crate::part::Mover;

impl Host {
    /// Takes along the packets and the followed requests that it refers to.
    pub(crate) fn take_along(&mut self, mover: &mut Mover<'_>) {
        self.nic.received.iter_mut().for_each(|packet| mover.packet(packet));
        self.threads.iter_mut().for_each(|thread| mover.journey(&mut thread.journey));
        for socket in &mut self.sockets {
            match &mut socket.kind {
                Kind::Udp(udp) => udp.journeys().for_each(|journey| mover.journey(journey)),
                Kind::Tcp(tcp) => {
                    let followed = tcp.followed.iter_mut();
                    followed.for_each(|followed| mover.take_journey(&mut followed.journey));
                }
                Kind::Listener(_) | Kind::Closed => {}
            }
        }
    }
}
