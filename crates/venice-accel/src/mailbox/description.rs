//! Description of an accelerator's mailboxes, as its host sends it.

use super::layout::{Shape, VERSION};

/// Length of the fixed part in bytes.
const FIXED_BYTES: usize = 48;
/// Most bytes of functions' names.
const MAX_FUNCTION_BYTES: usize = 4096;

/// The mailboxes of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) shape: Shape,
    pub(crate) generation: u64,
    /// UDP port of the region.
    pub(crate) udp_port: Option<u16>,
    pub(crate) functions: Vec<String>,
}

impl Description {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let Self { shape, generation, udp_port, functions } = self;
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&shape.mailboxes.to_le_bytes());
        let sizes = [*generation, shape.request_bytes, shape.input_bytes, shape.return_bytes];
        sizes.iter().for_each(|size| bytes.extend_from_slice(&size.to_le_bytes()));
        bytes.extend_from_slice(&udp_port.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&[0; 6]);
        let mut names = functions.join(",").into_bytes();
        names.truncate(MAX_FUNCTION_BYTES);
        bytes.extend_from_slice(&names);
        bytes
    }

    /// Reads a description and checks it.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let short = || "description too short".to_owned();
        let (head, names) = bytes.split_first_chunk::<FIXED_BYTES>().ok_or_else(short)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        if number(0) != VERSION {
            return Err(format!("mailboxes of version {}: expected {VERSION}", number(0)));
        }
        let shape = Shape {
            mailboxes: number(4),
            request_bytes: long(16),
            input_bytes: long(24),
            return_bytes: long(32),
        };
        shape.check()?;
        let names = std::str::from_utf8(names).map_err(|_| "malformed names".to_owned())?;
        let functions = names.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect();
        let udp_port = Some(u16::from_le_bytes([head[40], head[41]])).filter(|port| *port > 0);
        Ok(Self { shape, generation: long(8), udp_port, functions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_reads_back() {
        for (udp_port, functions) in
            [(Some(7), vec!["fft".to_owned(), "sum".to_owned()]), (None, vec![])]
        {
            let it = Description { shape: Shape::default(), generation: 9, udp_port, functions };
            let bytes = it.emit();
            assert_eq!(Description::parse(&bytes).unwrap(), it);
            assert!(Description::parse(&bytes[..FIXED_BYTES - 1]).is_err());
            for (at, byte) in [(0, 2), (4, 0), (7, 1), (16, 1)] {
                let mut wrong = bytes.clone();
                wrong[at] = byte;
                assert!(Description::parse(&wrong).is_err(), "byte {at}");
            }
        }
    }
}
