//! Commands on boxes of buffers and on images. Data in the region is tight: rows and slices follow
//! one another.

use opencl_sys::{CL_INVALID_VALUE, cl_int};

use super::execute::{Executor, Target};
use crate::opencl::library::{OpenClError, call};
use crate::opencl::wire::CommandKind;

/// Outcome of a call, or the error of a check before it.
type Enqueued = Result<Result<cl_int, OpenClError>, cl_int>;

fn sizes(values: [u64; 3]) -> [usize; 3] {
    values.map(|it| it as usize)
}

impl Executor<'_> {
    pub(super) fn enqueue_rectangle(&self, to: &Target, kind: &CommandKind<'_>) -> Enqueued {
        let library = self.donor.library;
        let &Target { queue, count, waits, event } = to;
        const START: [usize; 3] = [0; 3];
        Ok(match *kind {
            CommandKind::ReadRectangle { memory, origin, region, pitches, place }
            | CommandKind::WriteRectangle { memory, origin, region, pitches, place } => {
                let (memory, at) = (self.memory(memory)?, self.place(place, volume(region)?)?);
                let (origin, region) = (sizes(origin), sizes(region));
                let [row, slice] = pitches.map(|it| it as usize);
                let (start, first, extent) = (START.as_ptr(), origin.as_ptr(), region.as_ptr());
                if matches!(kind, CommandKind::ReadRectangle { .. }) {
                    call!(
                        library,
                        clEnqueueReadBufferRect(
                            queue, memory, 0, first, start, extent, row, slice, 0, 0, at, count,
                            waits, event
                        )
                    )
                } else {
                    call!(
                        library,
                        clEnqueueWriteBufferRect(
                            queue, memory, 0, first, start, extent, row, slice, 0, 0, at, count,
                            waits, event
                        )
                    )
                }
            }
            CommandKind::CopyRectangle {
                from,
                to,
                from_origin,
                to_origin,
                region,
                from_pitches,
                to_pitches,
            } => {
                let (from, to) = (self.memory(from)?, self.memory(to)?);
                let (from_origin, to_origin) = (sizes(from_origin), sizes(to_origin));
                let region = sizes(region);
                let [from_row, from_slice] = from_pitches.map(|it| it as usize);
                let [to_row, to_slice] = to_pitches.map(|it| it as usize);
                let (first, second) = (from_origin.as_ptr(), to_origin.as_ptr());
                let extent = region.as_ptr();
                call!(
                    library,
                    clEnqueueCopyBufferRect(
                        queue, from, to, first, second, extent, from_row, from_slice, to_row,
                        to_slice, count, waits, event
                    )
                )
            }
            _ => return Err(CL_INVALID_VALUE),
        })
    }

    pub(super) fn enqueue_image(&self, to: &Target, kind: &CommandKind<'_>) -> Enqueued {
        let library = self.donor.library;
        let &Target { queue, count, waits, event } = to;
        Ok(match *kind {
            CommandKind::ReadImage { memory, origin, region, ref place }
            | CommandKind::WriteImage { memory, origin, region, ref place } => {
                let image = self.memory(memory)?;
                let at = self.place(place.offset, self.image_bytes(image, region, place.bytes)?)?;
                let (origin, region) = (sizes(origin), sizes(region));
                let (first, extent) = (origin.as_ptr(), region.as_ptr());
                if matches!(kind, CommandKind::ReadImage { .. }) {
                    call!(
                        library,
                        clEnqueueReadImage(
                            queue, image, 0, first, extent, 0, 0, at, count, waits, event
                        )
                    )
                } else {
                    call!(
                        library,
                        clEnqueueWriteImage(
                            queue, image, 0, first, extent, 0, 0, at, count, waits, event
                        )
                    )
                }
            }
            CommandKind::CopyImage { from, to, from_origin, to_origin, region } => {
                let (from, to) = (self.memory(from)?, self.memory(to)?);
                let (from_origin, to_origin) = (sizes(from_origin), sizes(to_origin));
                let region = sizes(region);
                let (first, second) = (from_origin.as_ptr(), to_origin.as_ptr());
                let extent = region.as_ptr();
                call!(
                    library,
                    clEnqueueCopyImage(queue, from, to, first, second, extent, count, waits, event)
                )
            }
            CommandKind::CopyImageToBuffer { from, to, origin, region, offset } => {
                let (from, to) = (self.memory(from)?, self.memory(to)?);
                let (origin, region) = (sizes(origin), sizes(region));
                let (first, extent, offset) = (origin.as_ptr(), region.as_ptr(), offset as usize);
                call!(
                    library,
                    clEnqueueCopyImageToBuffer(
                        queue, from, to, first, extent, offset, count, waits, event
                    )
                )
            }
            CommandKind::CopyBufferToImage { from, to, offset, origin, region } => {
                let (from, to) = (self.memory(from)?, self.memory(to)?);
                let (origin, region) = (sizes(origin), sizes(region));
                let (first, extent, offset) = (origin.as_ptr(), region.as_ptr(), offset as usize);
                call!(
                    library,
                    clEnqueueCopyBufferToImage(
                        queue, from, to, offset, first, extent, count, waits, event
                    )
                )
            }
            CommandKind::FillImage { memory, color, origin, region } => {
                let image = self.memory(memory)?;
                let (origin, region) = (sizes(origin), sizes(region));
                let (first, extent) = (origin.as_ptr(), region.as_ptr());
                let color = color.as_ptr().cast();
                call!(
                    library,
                    clEnqueueFillImage(queue, image, color, first, extent, count, waits, event)
                )
            }
            _ => return Err(CL_INVALID_VALUE),
        })
    }

    /// Returns the tight length of a part of an image, which the recipient's place has to have.
    fn image_bytes(
        &self,
        image: *mut std::ffi::c_void,
        region: [u64; 3],
        said: u64,
    ) -> Result<u64, cl_int> {
        let bytes = super::describe::image_info(
            self.donor.library,
            image,
            opencl_sys::CL_IMAGE_ELEMENT_SIZE,
        )
        .map_err(|error| error.code())?;
        let pixels = volume(region)?;
        let needed = pixels.checked_mul(bytes).ok_or(CL_INVALID_VALUE)?;
        if needed <= said { Ok(said) } else { Err(CL_INVALID_VALUE) }
    }
}

fn volume([x, y, z]: [u64; 3]) -> Result<u64, cl_int> {
    x.checked_mul(y).and_then(|it| it.checked_mul(z)).ok_or(CL_INVALID_VALUE)
}
