//! Contents of memory objects on their way from donor to donor.

use std::sync::Arc;

use venice_accel::opencl::wire::{Blob, CommandKind, Place};

use crate::call::{Done, session_code};
use crate::context::Context;
use crate::event::plain;
use crate::link::Link;
use crate::memory::{Memory, Shape};
use crate::object::{Shared, new_id};

/// Bytes of a buffer that travel at once.
const CHUNK_BYTES: u64 = 4 << 20;

/// One end of the way: a memory object at a donor, where no command uses it.
pub struct End {
    link: Arc<Link>,
    context: Shared<Context>,
    /// Queue of the commands that load and store, unless the bytes lie in the region.
    queue: Option<u64>,
    /// Place of the first byte in the region.
    place: Option<u64>,
}

impl End {
    /// Makes an end of a memory object with that place.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn new(memory: &Memory, link: &Arc<Link>, place: Option<u64>) -> Done<Self> {
        let context = &memory.context;
        let queue = place.is_none().then(new_id);
        if let Some(id) = queue {
            let create = CommandKind::CreateQueue { id, context: context.id, properties: 0 };
            link.session.submit(&plain(create)).map_err(session_code)?;
        }
        Ok(Self { link: Arc::clone(link), context: Shared::clone(context), queue, place })
    }

    /// Loads bytes, by a command if they do not lie in the region.
    fn load(
        &self,
        at: u64,
        into: &mut [u8],
        read: impl FnOnce(Place) -> CommandKind<'static>,
    ) -> Done {
        let session = &self.link.session;
        let Some(queue) = self.queue else {
            let place = self.place.unwrap_or_default() + at;
            return session.read(place, into).map_err(session_code);
        };
        let bytes = into.len() as u64;
        let offset = session.allocate(bytes).map_err(session_code)?;
        let loaded = self
            .link
            .run(&self.context, queue, read(Place { offset, bytes }))
            .and_then(|()| session.read(offset, into).map_err(session_code));
        session.free(offset);
        loaded
    }

    /// Stores bytes, by a command if they do not lie in the region.
    fn store(
        &self,
        at: u64,
        from: &[u8],
        write: impl FnOnce(Place) -> CommandKind<'static>,
    ) -> Done {
        let session = &self.link.session;
        let Some(queue) = self.queue else {
            let place = self.place.unwrap_or_default() + at;
            return session.write(place, from).map_err(session_code);
        };
        let place = session.stage(from).map_err(session_code)?;
        let offset = place.offset;
        let stored = self.link.run(&self.context, queue, write(place));
        session.free(offset);
        stored
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.queue.iter().for_each(|queue| self.link.session.release(*queue));
    }
}

/// Copies all contents of a memory object from a donor to another.
///
/// # Errors
/// The code of a lost session, or of a full device.
pub fn copy(memory: &Memory, from: &End, to: &End) -> Done {
    match &memory.shape {
        Shape::Image(image) => {
            let (len, memory, origin) = (memory.bytes as usize, memory.id, [0; 3]);
            let region = image.shape.extent();
            let mut pixels = vec![0; len];
            from.load(0, &mut pixels, |place| CommandKind::ReadImage {
                memory,
                origin,
                region,
                place,
            })?;
            to.store(0, &pixels, |place| CommandKind::WriteImage { memory, origin, region, place })
        }
        Shape::Buffer | Shape::Part { .. } => copy_buffer(memory, from, to),
    }
}

fn copy_buffer(memory: &Memory, from: &End, to: &End) -> Done {
    let id = memory.id;
    let mut chunk = vec![0; memory.bytes.min(CHUNK_BYTES) as usize];
    for offset in (0..memory.bytes).step_by(CHUNK_BYTES as usize) {
        let bytes = (memory.bytes - offset).min(CHUNK_BYTES);
        let part = &mut chunk[..bytes as usize];
        from.load(offset, part, |place| {
            let place = Some(place.offset);
            CommandKind::ReadBuffer { memory: id, offset, bytes, place }
        })?;
        to.store(offset, part, |place| {
            let data = Blob::Region { place };
            CommandKind::WriteBuffer { memory: id, offset, data }
        })?;
    }
    Ok(())
}
