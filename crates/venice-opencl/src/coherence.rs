//! Contents of memory objects on their way from donor to donor: directly where the donors reach each
//! other, else through this process.

use std::io::Write;
use std::sync::{Arc, Once};

use venice_accel::opencl::session::FetchError;
use venice_accel::opencl::wire::{Blob, CommandKind, Place};

use crate::call::{Done, session_code};
use crate::context::Context;
use crate::event::plain;
use crate::link::Link;
use crate::memory::{Memory, Shape};
use crate::object::{Shared, new_id};
use crate::rows::{PIECE_BYTES, pieces};

/// One end of the way: a memory object at a donor, where no command uses it.
pub struct End {
    link: Arc<Link>,
    context: Shared<Context>,
    /// Queue of the commands that load and store, unless the bytes lie in the region.
    queue: Option<u64>,
    /// Place of the first byte in the region.
    place: Option<u64>,
}

/// Bytes in the region of an end; a staging range is freed on drop.
struct Staged<'a> {
    end: &'a End,
    place: Place,
    is_staging: bool,
}

/// Makes the command that reads into a place of the region, or writes from there.
type Command<'a> = &'a dyn Fn(Place) -> CommandKind<'static>;

impl End {
    /// Makes an end of a memory object with that place.
    ///
    /// # Errors
    /// The code of a lost session.
    pub fn new(memory: &Memory, link: &Arc<Link>, place: Option<u64>) -> Done<Self> {
        let context = &memory.context;
        let queue = place.is_none().then(new_id);
        if let Some(id) = queue {
            let create =
                CommandKind::CreateQueue { id, context: context.id, part: 0, properties: 0 };
            link.session.submit(&plain(create)).map_err(session_code)?;
        }
        Ok(Self { link: Arc::clone(link), context: Shared::clone(context), queue, place })
    }

    /// Returns bytes of the object in the region: in place, or in a range for them.
    fn stage(&self, offset: u64, bytes: u64) -> Done<Staged<'_>> {
        let (at, is_staging) = match self.place {
            Some(place) => (place + offset, false),
            None => (self.link.session.allocate(bytes).map_err(session_code)?, true),
        };
        Ok(Staged { end: self, place: Place { offset: at, bytes }, is_staging })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.queue.iter().for_each(|queue| self.link.session.release(*queue));
    }
}

impl Staged<'_> {
    /// Runs the command between object and range, if there is one.
    fn run(&self, command: Command<'_>) -> Done {
        let End { link, context, queue, .. } = self.end;
        queue.map_or(Ok(()), |queue| link.run(context, queue, command(self.place.clone())))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if self.is_staging {
            self.end.link.session.free(self.place.offset);
        }
    }
}

/// Copies all contents of a memory object from a donor to another.
///
/// # Errors
/// The code of a lost session, or of a full device.
pub fn copy(memory: &Memory, from: &End, to: &End) -> Done {
    let (id, bytes) = (memory.id, memory.bytes);
    match &memory.shape {
        Shape::Image(image) => {
            let (extent, pixel_bytes) = (image.shape.extent(), image.pixel_bytes);
            let [width, height, depth] = extent;
            pieces([width * pixel_bytes, height, depth]).try_for_each(|piece| {
                let ((origin, region), memory) = (piece.of([0; 3], extent), id);
                let bytes = region.iter().product::<u64>() * pixel_bytes;
                let read = |place| CommandKind::ReadImage { memory, origin, region, place };
                let write = |place| CommandKind::WriteImage { memory, origin, region, place };
                copy_part((from, &read), (to, &write), 0, bytes)
            })
        }
        Shape::Buffer | Shape::Part { .. } => {
            let are_placed = from.place.is_some() && to.place.is_some();
            let is_direct = are_placed && to.link.session.can_fetch_from(&from.link.session);
            let chunk = if is_direct { bytes } else { PIECE_BYTES };
            (0..bytes).step_by(chunk as usize).try_for_each(|offset| {
                let bytes = (bytes - offset).min(chunk);
                let read = |place: Place| {
                    let place = Some(place.offset);
                    CommandKind::ReadBuffer { memory: id, offset, bytes, place }
                };
                let write = |place| {
                    let data = Blob::Region { place };
                    CommandKind::WriteBuffer { memory: id, offset, data }
                };
                copy_part((from, &read), (to, &write), offset, bytes)
            })
        }
    }
}

fn copy_part(
    (from, read): (&End, Command<'_>),
    (to, write): (&End, Command<'_>),
    offset: u64,
    bytes: u64,
) -> Done {
    let (source, target) = (from.stage(offset, bytes)?, to.stage(offset, bytes)?);
    source.run(read)?;
    carry(&source, &target)?;
    target.run(write)
}

/// Copies bytes from region to region.
fn carry(from: &Staged<'_>, to: &Staged<'_>) -> Done {
    let (source, target) = (&from.end.link.session, &to.end.link.session);
    if target.can_fetch_from(source) {
        match target.fetch(source, from.place.clone(), to.place.offset) {
            Ok(()) => return Ok(()),
            Err(FetchError::Session(error)) => return Err(session_code(error)),
            Err(FetchError::Apart(why)) => tell_apart(&why),
        }
    }
    let Place { offset, bytes } = &from.place;
    let (offset, bytes) = (*offset, *bytes);
    let mut chunk = vec![0; bytes.min(PIECE_BYTES) as usize];
    for at in (0..bytes).step_by(PIECE_BYTES as usize) {
        let part = &mut chunk[..(bytes - at).min(PIECE_BYTES) as usize];
        source.read(offset + at, part).map_err(session_code)?;
        target.write(to.place.offset + at, part).map_err(session_code)?;
    }
    Ok(())
}

/// Tells once that contents take the longer way.
fn tell_apart(why: &str) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let _ = writeln!(
            std::io::stderr(),
            "venice: accelerators do not reach each other ({why}): what they share passes this machine"
        );
    });
}
