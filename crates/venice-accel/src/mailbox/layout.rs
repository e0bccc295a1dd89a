//! Places of the parts of a mailbox in a region. `docs/reference/wire.md` has the table.

/// Version of the layout and of the service's messages.
pub const VERSION: u32 = 1;
/// First bytes of a mailbox.
pub(crate) const MAGIC: [u8; 4] = *b"VNMB";
/// Length of the head of a mailbox in bytes: words, sizes, result.
pub const HEAD_BYTES: u64 = 4096;
/// Longest message of a result in bytes.
pub const MAX_MESSAGE_BYTES: usize = 256;
/// Longest message of a failure in bytes, whole: in the return buffer, which is as long at least.
pub const MAX_LOG_BYTES: usize = 4096;
/// Length of a result without its message in bytes.
pub(crate) const RESULT_BYTES: usize = 24;
/// Most mailboxes of an accelerator.
pub const MAX_MAILBOXES: u32 = 16;
/// Bounds of each buffer in bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = HEAD_BYTES..=4 << 30;

/// Offsets in a mailbox. Lines of 64 bytes that one side writes are apart from those of the other.
pub(crate) mod at {
    /// Letters, version, generation, and the lengths of the three buffers.
    pub(crate) const MAGIC: u64 = 0;
    /// Written by the host: [`super::Attention`].
    pub(crate) const ATTENTION: u64 = 64;
    /// Written by the recipient.
    pub(crate) const REQUEST_BYTES: u64 = 128;
    pub(crate) const START: u64 = 136;
    /// Written by the host, the result before the completion.
    pub(crate) const COMPLETION: u64 = 192;
    pub(crate) const RESULT: u64 = 200;
    /// Number behind the last byte that tasks have printed, as of the completion.
    pub(crate) const PRINTED: u64 = 512;
}

/// State of the host's thread, for recipients that map the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Attention {
    /// It sleeps: ring.
    Asleep = 0,
    /// It looks at the start words all the time.
    Looking = 1,
}

/// Sizes of the mailboxes of one accelerator, which are all alike and lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of mailboxes, 1 to 16: tasks that can be prepared while others run.
    pub mailboxes: u32,
    /// Length of a request buffer in bytes, a multiple of 4 KiB.
    pub request_bytes: u64,
    /// Length of an input buffer in bytes, a multiple of 4 KiB.
    pub input_bytes: u64,
    /// Length of a return buffer in bytes, a multiple of 4 KiB.
    pub return_bytes: u64,
}

impl Default for Shape {
    fn default() -> Self {
        let (request_bytes, buffer_bytes) = (1 << 20, 16 << 20);
        Self { mailboxes: 2, request_bytes, input_bytes: buffer_bytes, return_bytes: buffer_bytes }
    }
}

impl Shape {
    /// Checks all sizes.
    ///
    /// # Errors
    /// Names the one that is out of bounds.
    pub fn check(&self) -> Result<(), String> {
        if self.mailboxes == 0 || self.mailboxes > MAX_MAILBOXES {
            return Err(format!("{} mailboxes: expected 1 to {MAX_MAILBOXES}", self.mailboxes));
        }
        for (name, bytes) in [
            ("request", self.request_bytes),
            ("input", self.input_bytes),
            ("return", self.return_bytes),
        ] {
            if !BUFFER_BYTES.contains(&bytes) || !bytes.is_multiple_of(HEAD_BYTES) {
                return Err(format!(
                    "{name} buffer of {bytes} bytes: expected a multiple of 4096 up to 4 GiB"
                ));
            }
        }
        Ok(())
    }

    /// Returns the distance of two mailboxes in bytes.
    pub fn mailbox_bytes(&self) -> u64 {
        HEAD_BYTES + self.request_bytes + self.input_bytes + self.return_bytes
    }

    /// Returns the length of all mailboxes in bytes.
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.mailboxes) * self.mailbox_bytes()
    }

    /// Returns the places of a mailbox.
    ///
    /// # Panics
    /// If there is no such mailbox.
    pub(crate) fn places(&self, mailbox: u32) -> Places {
        assert!(mailbox < self.mailboxes, "mailbox {mailbox} of {}", self.mailboxes);
        let head = u64::from(mailbox) * self.mailbox_bytes();
        let request = head + HEAD_BYTES;
        let input = request + self.request_bytes;
        Places { head, request, input, output: input + self.input_bytes }
    }
}

/// Offsets of one mailbox's parts in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) head: u64,
    pub(crate) request: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_do_not_overlap() {
        let shape = Shape { mailboxes: 3, ..Shape::default() };
        shape.check().unwrap();
        let (first, second) = (shape.places(0), shape.places(1));
        assert_eq!((first.head, first.request, first.input), (0, 4096, 4096 + (1 << 20)));
        assert_eq!(first.output + shape.return_bytes, second.head);
        assert_eq!(shape.places(2).output + shape.return_bytes, shape.region_bytes());
    }

    #[test]
    fn unsound_shapes_are_refused() {
        let shape = Shape::default();
        for wrong in [
            Shape { mailboxes: 0, ..shape },
            Shape { mailboxes: 17, ..shape },
            Shape { input_bytes: 0, ..shape },
            Shape { return_bytes: 4097, ..shape },
            Shape { request_bytes: u64::MAX - 4095, ..shape },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
