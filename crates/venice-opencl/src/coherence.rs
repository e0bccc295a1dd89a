//! Contents of memory objects on their way between devices.

use opencl_sys::{CL_COMMAND_READ_BUFFER, CL_COMMAND_WRITE_BUFFER, CL_OUT_OF_RESOURCES};
use venice_accel::opencl::wire::{Blob, CommandKind, Place};

use crate::call::{Done, session_code};
use crate::device::Device;
use crate::memory::{Memory, Shape};
use crate::object::{Object, Shared};
use crate::queue::Queue;

/// Loads all of a memory object from a device where nothing is stored in it any more.
///
/// # Errors
/// The code of a lost session.
pub fn load(memory: &Memory, device: &Shared<Device>) -> Done<Vec<u8>> {
    let mut bytes = vec![0; memory.bytes as usize];
    let session = device.session();
    if let Some(place) = memory.place_at(device)? {
        session.read(place, &mut bytes).map_err(session_code)?;
        return Ok(bytes);
    }
    let queue = Object::<Queue>::of_service(&memory.context, device)?;
    let at = session.allocate(memory.bytes).map_err(session_code)?;
    let loaded = run(&queue, CL_COMMAND_READ_BUFFER, read_all(memory, at))
        .and_then(|()| session.read(at, &mut bytes).map_err(session_code));
    session.free(at);
    loaded.map(|()| bytes)
}

/// Stores all of a memory object at a device where no command uses it.
///
/// # Errors
/// The code of a lost session.
pub fn store(memory: &Memory, device: &Shared<Device>, bytes: &[u8]) -> Done {
    let session = device.session();
    if let Some(place) = memory.place_at(device)? {
        return session.write(place, bytes).map_err(session_code);
    }
    let queue = Object::<Queue>::of_service(&memory.context, device)?;
    let place = session.stage(bytes).map_err(session_code)?;
    let at = place.offset;
    let stored = run(&queue, CL_COMMAND_WRITE_BUFFER, write_all(memory, place));
    session.free(at);
    stored
}

fn read_all(memory: &Memory, at: u64) -> CommandKind<'static> {
    let (id, bytes) = (memory.id, memory.bytes);
    match &memory.shape {
        Shape::Image(image) => CommandKind::ReadImage {
            memory: id,
            origin: [0; 3],
            region: image.shape.extent(),
            place: Place { offset: at, bytes },
        },
        Shape::Buffer | Shape::Part { .. } => {
            CommandKind::ReadBuffer { memory: id, offset: 0, bytes, place: Some(at) }
        }
    }
}

fn write_all(memory: &Memory, place: Place) -> CommandKind<'static> {
    match &memory.shape {
        Shape::Image(image) => CommandKind::WriteImage {
            memory: memory.id,
            origin: [0; 3],
            region: image.shape.extent(),
            place,
        },
        Shape::Buffer | Shape::Part { .. } => {
            let data = Blob::Region { place };
            CommandKind::WriteBuffer { memory: memory.id, offset: 0, data }
        }
    }
}

/// Runs a command and waits for its end.
fn run(queue: &Shared<Queue>, command: u32, kind: CommandKind<'_>) -> Done {
    let event = Object::<crate::event::Event>::of_command(queue, command);
    queue.send(&[], Some(&event), Vec::new(), kind)?;
    if event.wait()? < 0 { Err(CL_OUT_OF_RESOURCES) } else { Ok(()) }
}
