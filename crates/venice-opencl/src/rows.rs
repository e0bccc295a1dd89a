//! Rows of the program's memory that commands fill or take: parts of images, rectangles of buffers.

use opencl_sys::*;
use venice_accel::opencl::wire::{CommandKind, Place};

use crate::call::{Done, session_code};
use crate::event::{Action, Event};
use crate::object::Shared;
use crate::queue::Enqueue;
use crate::transfer::{finish, outcome, write_staged};

/// Bytes that travel at once where the device has no room for all, or through this process.
pub const PIECE_BYTES: u64 = 4 << 20;

/// Rows of the program's memory: bytes of a row, rows of a slice, slices; bytes from row to row and
/// from slice to slice.
#[derive(Clone, Copy)]
pub struct Rows {
    pub start: *mut u8,
    pub region: [u64; 3],
    pub pitches: [u64; 2],
}

// SAFETY: until a command ends the program leaves the memory to it, as the specification says.
unsafe impl Send for Rows {}

/// Some of the rows, for one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First row, and first slice.
    first: [u64; 2],
    /// Rows of each slice, and slices.
    count: [u64; 2],
}

impl Piece {
    /// Returns origin and region of its command by those of all rows; the first dimension has the
    /// command's own unit.
    pub fn of(self, origin: [u64; 3], region: [u64; 3]) -> ([u64; 3], [u64; 3]) {
        let origin = [origin[0], origin[1] + self.first[0], origin[2] + self.first[1]];
        (origin, [region[0], self.count[0], self.count[1]])
    }
}

/// Divides a region (bytes of a row, rows of a slice, slices) into pieces that need little room.
pub fn pieces([row_bytes, rows, slices]: [u64; 3]) -> impl Iterator<Item = Piece> {
    let at_once = (PIECE_BYTES / row_bytes.max(1)).clamp(1, rows.max(1));
    (0..slices).flat_map(move |slice| {
        (0..rows).step_by(at_once as usize).map(move |row| {
            let count = [at_once.min(rows - row), 1];
            Piece { first: [row, slice], count }
        })
    })
}

/// Makes the command of a piece, by its tight bytes in the region.
type Kind<'a> = &'a dyn Fn(Piece, Place) -> CommandKind<'static>;

impl Rows {
    fn bytes(&self) -> u64 {
        self.region.iter().product()
    }

    fn whole(&self) -> Piece {
        Piece { first: [0, 0], count: [self.region[1], self.region[2]] }
    }

    fn part(&self, piece: Piece) -> Self {
        let ahead = piece.first[0] * self.pitches[0] + piece.first[1] * self.pitches[1];
        let region = [self.region[0], piece.count[0], piece.count[1]];
        Self { start: self.start.wrapping_add(ahead as usize), region, pitches: self.pitches }
    }

    /// Iterates over the rows: offset in the program's memory, and in tight memory.
    fn each(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ([x, y, z], [row, slice]) = (self.region, self.pitches);
        (0..z).flat_map(move |k| {
            (0..y).map(move |j| ((k * slice + j * row) as usize, ((k * y + j) * x) as usize))
        })
    }

    /// Copies them into tight memory.
    ///
    /// # Safety
    /// They are valid for reads.
    pub unsafe fn pack(&self) -> Vec<u8> {
        let row_bytes = self.region[0] as usize;
        let mut tight = vec![0; self.bytes() as usize];
        for (from, to) in self.each() {
            let row = &mut tight[to..to + row_bytes];
            // SAFETY: promised by the caller; the destination is as long as a row.
            unsafe { self.start.add(from).copy_to_nonoverlapping(row.as_mut_ptr(), row_bytes) };
        }
        tight
    }

    /// Fills them from tight memory.
    ///
    /// # Safety
    /// They are valid for writes.
    unsafe fn unpack(&self, tight: &[u8]) {
        let row_bytes = self.region[0] as usize;
        for (to, from) in self.each() {
            let row = &tight[from..from + row_bytes];
            // SAFETY: promised by the caller; the source is as long as a row.
            unsafe { self.start.add(to).copy_from_nonoverlapping(row.as_ptr(), row_bytes) };
        }
    }

    /// Fills them by commands, hands the event of the last one out, and waits if the call blocks.
    /// Without room for all bytes at once the call waits for one piece after the other.
    ///
    /// # Errors
    /// The code of a full device, of a lost session, or of a command that was waited for.
    ///
    /// # Safety
    /// They are valid for writes until the commands end.
    pub unsafe fn fill(self, call: &Enqueue, blocks: bool, kind: Kind<'_>) -> Done {
        // SAFETY: promised by the caller.
        match unsafe { self.fill_piece(call, self.whole(), kind) } {
            Err(CL_MEM_OBJECT_ALLOCATION_FAILURE) => call.queue.finish()?,
            filled => return finish(call, filled?, blocks),
        }
        let mut last = None;
        for piece in pieces(self.region) {
            // SAFETY: as above.
            let filled = unsafe { self.fill_piece(call, piece, kind)? };
            outcome(&filled)?;
            last = Some(filled);
        }
        last.map_or(Ok(()), |last| finish(call, last, blocks))
    }

    unsafe fn fill_piece(
        self,
        call: &Enqueue,
        piece: Piece,
        kind: Kind<'_>,
    ) -> Done<Shared<Event>> {
        let rows = self.part(piece);
        let session = call.queue.device.session();
        let bytes = rows.bytes();
        let offset = session.allocate(bytes).map_err(session_code)?;
        let fill: Action = Box::new(move |status, _| {
            let rows = rows;
            let mut tight = vec![0; bytes as usize];
            let read = session.read(offset, &mut tight);
            session.free(offset);
            if status == CL_COMPLETE && read.is_ok() {
                // SAFETY: the command has not ended for the program, whose memory is ours so long.
                unsafe { rows.unpack(&tight) };
            }
        });
        call.send_with(kind(piece, Place { offset, bytes }), fill)
    }

    /// Takes them by commands; they are copied before this returns. Without room for all bytes at
    /// once the call waits for one piece after the other.
    ///
    /// # Errors
    /// The code of a full device, of a lost session, or of a command that was waited for.
    ///
    /// # Safety
    /// They are valid for reads.
    pub unsafe fn take(self, call: &Enqueue, kind: Kind<'_>) -> Done<Shared<Event>> {
        let take = |piece| {
            // SAFETY: promised by the caller.
            let tight = unsafe { self.part(piece).pack() };
            write_staged(call, &tight, |place| kind(piece, place))
        };
        let mut taken = take(self.whole());
        if let Err(CL_MEM_OBJECT_ALLOCATION_FAILURE) = taken {
            call.queue.finish()?;
            for piece in pieces(self.region) {
                taken = take(piece);
                outcome(taken.as_ref().map_err(|code| *code)?)?;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_rows_once() {
        let images = [[16, 1, 1], [48_000, 4000, 1], [256, 7, 9], [16 << 21, 3, 2]];
        let others = [[1, 1, 1], [4096, 3000, 2], [16 << 20, 3, 1], [5, 7, 9]];
        for region in images.into_iter().chain(others) {
            let mut seen = std::collections::BTreeSet::new();
            for piece in pieces(region) {
                let ([x, y, z], [width, height, depth]) = piece.of([3, 20, 30], region);
                assert_eq!((x, width, depth), (3, region[0], 1));
                assert!(height == 1 || width * height <= PIECE_BYTES);
                assert!((y..y + height).all(|row| seen.insert((row - 20, z - 30))));
            }
            assert_eq!(seen.len() as u64, region[1] * region[2]);
            assert_eq!(seen.last(), Some(&(region[1] - 1, region[2] - 1)));
        }
    }

    #[test]
    fn rows_come_back() {
        let mut memory: Vec<u8> = (0..200).collect();
        let rows = Rows { start: memory.as_mut_ptr(), region: [3, 4, 2], pitches: [10, 90] };
        // SAFETY: the last row ends at byte 123.
        let tight = unsafe { rows.pack() };
        assert_eq!((tight[0], tight[3], tight[12], tight[23]), (0, 10, 90, 122));
        let former = memory.clone();
        let tight: Vec<u8> = tight.iter().map(|byte| byte ^ 0xff).collect();
        // SAFETY: as above.
        unsafe { rows.unpack(&tight) };
        assert_eq!(memory.iter().zip(&former).filter(|(now, then)| now != then).count(), 24);
        // SAFETY: as above.
        assert_eq!(unsafe { rows.pack() }, tight);
    }
}
