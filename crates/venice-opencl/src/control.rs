//! The way to the process that holds the grants of this program: it asks for moves.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use venice_rack::types::ServiceAccess;
use venice_service::moves::{FromDriver, Lines, Move, SOCKET, ToDriver, send};

use crate::device::Device;
use crate::moving::move_device;
use crate::object::Shared;
use crate::thread;

/// Longest wait for the holder's first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// The way to the holder, and the moves before this program began to use its devices.
pub struct Control {
    socket: UnixStream,
    lines: Lines,
    moved: Vec<Move>,
}

impl Control {
    /// Connects to the holder; `None` if there is none that moves devices.
    ///
    /// # Errors
    /// The errors of the socket.
    pub fn connect() -> std::io::Result<Option<Self>> {
        let Some(path) = std::env::var_os(SOCKET).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let socket = UnixStream::connect(path)?;
        let mut lines = Lines::new(socket.try_clone()?);
        let hello = lines.receive(Some(HELLO_WITHIN)).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                std::io::Error::new(ErrorKind::TimedOut, "the run does not answer")
            }
            _ => error,
        });
        match hello? {
            Some(ToDriver::Hello { moved }) => Ok(Some(Self { socket, lines, moved })),
            Some(ToDriver::Move(_)) | None => {
                Err(std::io::Error::new(ErrorKind::InvalidData, "the run answers nonsense"))
            }
        }
    }

    /// Returns the way to a device, which may have moved.
    pub fn present<'a>(&'a self, access: &'a ServiceAccess) -> &'a ServiceAccess {
        let moved = self.moved.iter().find(|it| it.grant == access.grant);
        moved.map_or(access, |it| &it.to)
    }

    /// Moves devices when the holder asks, on a thread of its own, as long as the holder lives.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn start(self, devices: Vec<Shared<Device>>) -> std::io::Result<()> {
        let Self { socket, mut lines, moved: _ } = self;
        thread::start("venice-moves", move || {
            while let Ok(Some(message)) = lines.receive::<ToDriver>(None) {
                let ToDriver::Move(step) = message else { continue };
                if send(&socket, &follow(&devices, &step)).is_err() {
                    return;
                }
            }
        })
    }
}

/// Moves a device, unless it has moved already, and returns the answer.
fn follow(devices: &[Shared<Device>], step: &Move) -> FromDriver {
    let grant = step.grant;
    let device = devices.iter().find(|device| device.seat().grant == grant);
    let moved = match device {
        Some(device) if device.link().grant != step.to.grant => move_device(device, &step.to),
        // A device that could not be used is none of the program's.
        Some(_) | None => Ok(()),
    };
    match moved {
        Ok(()) => FromDriver::Moved { grant },
        Err(kept) => FromDriver::Kept { grant, why: kept.to_string() },
    }
}
