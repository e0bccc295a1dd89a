//! Tasks, and their bytes in a request buffer.

use super::outcome::{ResultCode, TaskError};

/// Length of the fixed part of a request in bytes.
const FIXED_BYTES: usize = 88;
/// Length of an argument without its value in bytes.
const ARGUMENT_BYTES: usize = 24;
/// Longest name in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest options in bytes.
pub const MAX_OPTION_BYTES: usize = 4096;
/// Bytes of the input for each work item of a task that does not tell.
const ITEM_BYTES: u64 = 4;
/// Most arguments of a task.
pub const MAX_ARGUMENTS: usize = 64;
/// Longest value of an argument in bytes.
pub const MAX_VALUE_BYTES: usize = 4096;

/// Code that runs on an accelerator (Venice, section 5.2.2: the *executable*).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code {
    /// A function that the accelerator has, by the task's name.
    BuiltIn,
    /// Source in OpenCL C.
    OpenClSource(Vec<u8>),
    /// SPIR-V.
    SpirV(Vec<u8>),
    /// A program that the device's driver made.
    DeviceBinary(Vec<u8>),
}

/// Argument of a kernel or of a built-in function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A value, at most 4096 bytes.
    Value(Vec<u8>),
    /// A range of the input buffer.
    Input {
        /// First byte.
        offset: u64,
        /// Length in bytes; `u64::MAX`: to the end of the input.
        bytes: u64,
    },
    /// A range of the return buffer.
    Output {
        /// First byte.
        offset: u64,
        /// Length in bytes; `u64::MAX`: to the end of the output.
        bytes: u64,
    },
    /// Memory of a work-group, of so many bytes.
    Local(u64),
}

/// Code that an accelerator runs, without data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// The code.
    pub code: Code,
    /// Name of the built-in function or of the kernel.
    pub name: String,
    /// Options of the build.
    pub options: String,
    /// Work items in each of up to three dimensions; unused ones are 0. 0 in the first: one item for
    /// each so many bytes of the input as the second has, 4 if that is 0.
    pub global: [u64; 3],
    /// Work items of a group; 0: the device chooses.
    pub local: [u64; 3],
    /// The arguments in order.
    pub arguments: Vec<Argument>,
}

impl Executable {
    /// Returns a built-in function without arguments.
    pub fn built_in(name: impl Into<String>) -> Self {
        Self {
            code: Code::BuiltIn,
            name: name.into(),
            options: String::new(),
            global: [0; 3],
            local: [0; 3],
            arguments: Vec::new(),
        }
    }

    /// Returns the kernel `name` of source in OpenCL C, with the input and the output as its
    /// arguments, and a work item for every four bytes of the input.
    pub fn open_cl(source: impl Into<Vec<u8>>, name: impl Into<String>) -> Self {
        let (offset, bytes) = (0, u64::MAX);
        Self {
            code: Code::OpenClSource(source.into()),
            arguments: vec![Argument::Input { offset, bytes }, Argument::Output { offset, bytes }],
            ..Self::built_in(name)
        }
    }

    /// Returns the work items for an input of so many bytes; `None`: there are none.
    ///
    /// # Errors
    /// [`ResultCode::Malformed`] for a dimension that is 0 before one that is not.
    pub fn work_items(&self, input_bytes: u64) -> Result<Option<WorkItems>, TaskError> {
        let global = match self.global {
            [0, item_bytes, 0] => {
                [input_bytes / if item_bytes == 0 { ITEM_BYTES } else { item_bytes }, 0, 0]
            }
            global => global,
        };
        let dimensions = match global.map(|items| items > 0) {
            [false, false, false] => return Ok(None),
            [true, false, false] => 1,
            [true, true, false] => 2,
            [true, true, true] => 3,
            [false, ..] | [true, false, true] => {
                let [x, y, z] = global;
                let said =
                    format!("work items {x}, {y}, {z}: an unused dimension before a used one");
                return Err(TaskError::new(ResultCode::Malformed, said));
            }
        };
        let local = (self.local[0] > 0).then(|| self.local.map(|it| it.max(1)));
        Ok(Some(WorkItems { dimensions, global, local }))
    }

    /// Adds a number as an argument: eight bytes, little-endian.
    #[must_use]
    pub fn with_number(mut self, number: u64) -> Self {
        self.arguments.push(Argument::Value(number.to_le_bytes().to_vec()));
        self
    }

    /// Returns the most bytes of output for an input: the end of the last range of the output among
    /// the arguments; the length of the input if there is none, or if one reaches to the end; 8 for
    /// the built-in function `sum`.
    pub fn output_bytes(&self, input_bytes: u64) -> u64 {
        if matches!(self.code, Code::BuiltIn) && self.name == "sum" {
            return 8;
        }
        let end = |argument: &Argument| match argument {
            Argument::Output { bytes: u64::MAX, .. } => Some(input_bytes),
            Argument::Output { offset, bytes } => Some(offset.saturating_add(*bytes)),
            Argument::Value(_) | Argument::Input { .. } | Argument::Local(_) => None,
        };
        self.arguments.iter().filter_map(end).max().unwrap_or(input_bytes)
    }

    /// Returns the number that is argument `at`, if it is one.
    pub fn number(&self, at: usize) -> Option<u64> {
        match self.arguments.get(at)? {
            Argument::Value(bytes) => Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?)),
            Argument::Input { .. } | Argument::Output { .. } | Argument::Local(_) => None,
        }
    }
}

/// Work items of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItems {
    /// Number of dimensions, 1 to 3.
    pub dimensions: u32,
    /// Items in each; 0 in unused ones.
    pub global: [u64; 3],
    /// Items of a group in each, at least 1; `None`: the device chooses.
    pub local: Option<[u64; 3]>,
}

/// One run of an executable on an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Code that runs.
    pub executable: Executable,
    /// Length of the input in bytes.
    pub input_bytes: u64,
    /// Longest output in bytes.
    pub output_bytes: u64,
}

/// A request that no host takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Shorter than its fields say, or longer.
    #[error("request length does not match its fields")]
    Length,
    /// A kind of code or of argument that does not exist.
    #[error("unknown kind of code or argument")]
    Kind,
    /// A name or options that are too long, or no text.
    #[error("malformed name or options")]
    Text,
    /// A field beyond its bound: lengths, arguments, dimensions.
    #[error("field beyond its bound")]
    Bound,
    /// A range that leaves its buffer.
    #[error("range of an argument leaves its buffer")]
    Range,
}

impl Task {
    /// Appends the request to `into`.
    ///
    /// # Errors
    /// A [`RequestError`] that a host would find.
    pub fn emit(&self, into: &mut Vec<u8>) -> Result<(), RequestError> {
        self.check()?;
        let executable = &self.executable;
        let (kind, code): (u32, &[u8]) = match &executable.code {
            Code::BuiltIn => (1, &[]),
            Code::OpenClSource(code) => (2, code),
            Code::SpirV(code) => (3, code),
            Code::DeviceBinary(code) => (4, code),
        };
        let code_len = u32::try_from(code.len()).map_err(|_| RequestError::Bound)?;
        let lens = [executable.name.len() as u32, executable.options.len() as u32, code_len];
        into.extend_from_slice(&kind.to_le_bytes());
        lens.iter().for_each(|len| into.extend_from_slice(&len.to_le_bytes()));
        into.extend_from_slice(&(executable.arguments.len() as u32).to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        let sizes = executable.global.iter().chain(&executable.local);
        let sizes = sizes.chain([&self.input_bytes, &self.output_bytes]);
        sizes.for_each(|size| into.extend_from_slice(&size.to_le_bytes()));
        for bytes in [executable.name.as_bytes(), executable.options.as_bytes(), code] {
            into.extend_from_slice(bytes);
        }
        executable.arguments.iter().for_each(|argument| argument.emit(into));
        Ok(())
    }

    /// Reads a request. Every field of it is checked here.
    ///
    /// # Errors
    /// Fails if the bytes are not exactly one request.
    pub fn parse(bytes: &[u8]) -> Result<Self, RequestError> {
        let mut rest = Reader(bytes);
        let kind = rest.number()?;
        let [name_len, options_len, code_len] = [rest.number()?, rest.number()?, rest.number()?];
        let arguments = rest.number()? as usize;
        rest.number()?;
        if arguments > MAX_ARGUMENTS {
            return Err(RequestError::Bound);
        }
        let mut sizes = [0; 8];
        for size in &mut sizes {
            *size = rest.long()?;
        }
        let [g0, g1, g2, l0, l1, l2, input_bytes, output_bytes] = sizes;
        let name = text(rest.bytes(name_len)?)?;
        let options = text(rest.bytes(options_len)?)?;
        let code = rest.bytes(code_len)?;
        let code = match kind {
            1 if code.is_empty() => Code::BuiltIn,
            1 => return Err(RequestError::Length),
            2 => Code::OpenClSource(code.to_vec()),
            3 => Code::SpirV(code.to_vec()),
            4 => Code::DeviceBinary(code.to_vec()),
            _ => return Err(RequestError::Kind),
        };
        let arguments = (0..arguments).map(|_| Argument::parse(&mut rest));
        let arguments = arguments.collect::<Result<_, _>>()?;
        let (global, local) = ([g0, g1, g2], [l0, l1, l2]);
        let executable = Executable { code, name, options, global, local, arguments };
        let task = Self { executable, input_bytes, output_bytes };
        match rest.0 {
            [] => task.check().map(|()| task),
            _ => Err(RequestError::Length),
        }
    }

    fn check(&self) -> Result<(), RequestError> {
        let Executable { name, options, arguments, .. } = &self.executable;
        if name.is_empty() || name.len() > MAX_NAME_BYTES || options.len() > MAX_OPTION_BYTES {
            return Err(RequestError::Text);
        }
        if arguments.len() > MAX_ARGUMENTS {
            return Err(RequestError::Bound);
        }
        arguments.iter().try_for_each(|argument| match argument {
            Argument::Value(value) if value.len() > MAX_VALUE_BYTES => Err(RequestError::Bound),
            Argument::Value(_) | Argument::Local(_) => Ok(()),
            Argument::Input { offset, bytes } => check_range(*offset, *bytes, self.input_bytes),
            Argument::Output { offset, bytes } => check_range(*offset, *bytes, self.output_bytes),
        })
    }
}

impl Argument {
    fn emit(&self, into: &mut Vec<u8>) {
        let (kind, value, offset, bytes): (u32, &[u8], u64, u64) = match self {
            Self::Value(value) => (1, value, 0, 0),
            Self::Input { offset, bytes } => (2, &[], *offset, *bytes),
            Self::Output { offset, bytes } => (3, &[], *offset, *bytes),
            Self::Local(bytes) => (4, &[], 0, *bytes),
        };
        into.extend_from_slice(&kind.to_le_bytes());
        into.extend_from_slice(&(value.len() as u32).to_le_bytes());
        into.extend_from_slice(&offset.to_le_bytes());
        into.extend_from_slice(&bytes.to_le_bytes());
        into.extend_from_slice(value);
    }

    fn parse(rest: &mut Reader<'_>) -> Result<Self, RequestError> {
        let (kind, value_len) = (rest.number()?, rest.number()?);
        let (offset, bytes) = (rest.long()?, rest.long()?);
        if value_len as usize > MAX_VALUE_BYTES {
            return Err(RequestError::Bound);
        }
        let value = rest.bytes(value_len)?;
        match kind {
            1 => Ok(Self::Value(value.to_vec())),
            2..=4 if !value.is_empty() => Err(RequestError::Length),
            2 => Ok(Self::Input { offset, bytes }),
            3 => Ok(Self::Output { offset, bytes }),
            4 => Ok(Self::Local(bytes)),
            _ => Err(RequestError::Kind),
        }
    }
}

fn check_range(offset: u64, bytes: u64, room: u64) -> Result<(), RequestError> {
    let end = if bytes == u64::MAX { Some(offset) } else { offset.checked_add(bytes) };
    if end.is_some_and(|end| end <= room) { Ok(()) } else { Err(RequestError::Range) }
}

fn text(bytes: &[u8]) -> Result<String, RequestError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| RequestError::Text)
}

/// Bytes that are left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: u32) -> Result<&'a [u8], RequestError> {
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(RequestError::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u32, RequestError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(RequestError::Length)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*bytes))
    }

    fn long(&mut self) -> Result<u64, RequestError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(RequestError::Length)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }
}

const _: () = assert!(FIXED_BYTES == 24 + 64 && ARGUMENT_BYTES == 24, "as the wire reference says");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task() -> Task {
        let executable = Executable {
            code: Code::SpirV(vec![3, 2, 35, 7]),
            options: "-cl-fast-relaxed-math".into(),
            global: [64, 2, 1],
            arguments: vec![
                Argument::Input { offset: 8, bytes: u64::MAX },
                Argument::Output { offset: 0, bytes: 16 },
                Argument::Local(128),
            ],
            ..Executable::built_in("scale").with_number(9)
        };
        Task { executable, input_bytes: 100, output_bytes: 16 }
    }

    fn emitted(task: &Task) -> Vec<u8> {
        let mut bytes = Vec::new();
        task.emit(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn work_items_follow_input() {
        let items = |global, local, input_bytes| {
            let kernel = Executable { global, local, ..Executable::open_cl("", "f") };
            kernel.work_items(input_bytes).map(|items| items.map(|it| (it.dimensions, it.global)))
        };
        let none = [0; 3];
        assert_eq!(items(none, none, 41), Ok(Some((1, [10, 0, 0]))));
        assert_eq!(items([0, 8, 0], none, 41), Ok(Some((1, [5, 0, 0]))));
        assert_eq!(items([0, 8, 0], none, 7), Ok(None));
        assert_eq!(items([3, 2, 0], none, 0), Ok(Some((2, [3, 2, 0]))));
        assert_eq!(items([3, 2, 1], none, 0), Ok(Some((3, [3, 2, 1]))));
        for gap in [[0, 2, 2], [2, 0, 2], [0, 0, 2]] {
            assert_eq!(items(gap, none, 8).unwrap_err().code, ResultCode::Malformed, "{gap:?}");
        }
        let local = |local| {
            let kernel = Executable { local, ..Executable::open_cl("", "f") };
            kernel.work_items(8).unwrap().unwrap().local
        };
        assert_eq!([local(none), local([4, 0, 0])], [None, Some([4, 1, 1])]);
    }

    #[test]
    fn request_reads_back() {
        let bytes = emitted(&task());
        assert_eq!(Task::parse(&bytes).unwrap(), task());
        for cut in 0..bytes.len() {
            assert!(Task::parse(&bytes[..cut]).is_err(), "cut to {cut}");
        }
        assert_eq!(Task::parse(&[&bytes[..], &[0]].concat()), Err(RequestError::Length));
        let number = Executable::built_in("fft").with_number(1024);
        assert_eq!((number.number(0), number.number(1)), (Some(1024), None));
    }

    #[test]
    fn ranges_stay_in_buffers() {
        for (offset, bytes) in
            [(101, 0), (0, 101), (u64::MAX, 1), (1, u64::MAX - 1), (101, u64::MAX)]
        {
            let mut wrong = task();
            wrong.executable.arguments = vec![Argument::Input { offset, bytes }];
            assert_eq!(wrong.emit(&mut Vec::new()), Err(RequestError::Range), "{offset} {bytes}");
        }
    }

    #[test]
    fn fields_are_bounded() {
        let mut long = task();
        long.executable.name = "x".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(long.emit(&mut Vec::new()), Err(RequestError::Text));
        let mut many = task();
        many.executable.arguments = vec![Argument::Local(1); MAX_ARGUMENTS + 1];
        assert_eq!(many.emit(&mut Vec::new()), Err(RequestError::Bound));
        let mut bytes = emitted(&task());
        bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Task::parse(&bytes), Err(RequestError::Bound));
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Task::parse(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
            let mut bytes = emitted(&task());
            for (at, byte) in noise {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(task) = Task::parse(&bytes) {
                prop_assert_eq!(emitted(&task).len(), bytes.len());
            }
        }
    }
}
