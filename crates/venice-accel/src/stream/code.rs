//! Encoding of the messages: little-endian numbers, each list and text behind its length.

/// Error of a message that is not what its opcode says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

/// Takes values off the front of a message.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins at the front.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// True at the end.
    pub fn is_at_end(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns the bytes that are left.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Takes a value.
    ///
    /// # Errors
    /// [`Malformed`] if the rest is too short, or has another form.
    pub fn take<T: Field<'a>>(&mut self) -> Result<T, Malformed> {
        T::take(self)
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`Malformed`] if fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = self.left.split_at_checked(len).ok_or(Malformed)?;
        self.left = left;
        Ok(taken)
    }
}

/// A value in a message.
pub trait Field<'a>: Sized {
    /// Takes it off a message.
    ///
    /// # Errors
    /// [`Malformed`].
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed>;

    /// Appends it to a message.
    fn put(&self, into: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl<'a> Field<'a> for $number {
            fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
                let bytes = from.bytes(size_of::<Self>())?;
                Ok(Self::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
            }

            fn put(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

numbers!(u8, u16, u32, u64, i32);

impl<'a> Field<'a> for bool {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn put(&self, into: &mut Vec<u8>) {
        u8::from(*self).put(into);
    }
}

impl<'a, T: Field<'a> + Copy + Default, const N: usize> Field<'a> for [T; N] {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut taken = [T::default(); N];
        for value in &mut taken {
            *value = T::take(from)?;
        }
        Ok(taken)
    }

    fn put(&self, into: &mut Vec<u8>) {
        self.iter().for_each(|value| value.put(into));
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let len = u32::take(from)? as usize;
        from.bytes(len)
    }

    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u32).put(into);
        into.extend_from_slice(self);
    }
}

impl<'a> Field<'a> for &'a str {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        std::str::from_utf8(<&[u8]>::take(from)?).map_err(|_| Malformed)
    }

    fn put(&self, into: &mut Vec<u8>) {
        self.as_bytes().put(into);
    }
}

impl<'a> Field<'a> for String {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        <&str>::take(from).map(str::to_owned)
    }

    fn put(&self, into: &mut Vec<u8>) {
        self.as_str().put(into);
    }
}

impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = u32::take(from)? as usize;
        // Grows with what is there, whatever count the message names.
        let mut taken = Self::with_capacity(count.min(from.left.len()));
        for _ in 0..count {
            taken.push(T::take(from)?);
        }
        Ok(taken)
    }

    fn put(&self, into: &mut Vec<u8>) {
        (self.len() as u32).put(into);
        self.iter().for_each(|value| value.put(into));
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }

    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        self.iter().for_each(|value| value.put(into));
    }
}

/// Declares records and choices whose fields are written one after the other. A choice begins with
/// its number.
macro_rules! messages {
    () => {};
    (
        $(#[$doc:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_doc:meta])* pub $field:ident : $type:ty,)*
        }
        $($rest:tt)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$life>)? { $($(#[$field_doc])* pub $field: $type,)* }

        $crate::stream::code::messages!(@impl $name ($($life)?) {
            fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
                Ok(Self { $($field: from.take()?,)* })
            }
            fn put(&self, into: &mut Vec<u8>) {
                $(self.$field.put(into);)*
            }
        });
        $crate::stream::code::messages! { $($rest)* }
    };
    (
        $(#[$doc:meta])*
        pub enum $name:ident $(<$life:lifetime>)? {
            $($(#[$kind_doc:meta])* $kind:ident = $number:literal {
                $($(#[$field_doc:meta])* $field:ident : $type:ty,)*
            },)*
        }
        $($rest:tt)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name $(<$life>)? {
            $($(#[$kind_doc])* $kind { $($(#[$field_doc])* $field: $type,)* },)*
        }

        $crate::stream::code::messages!(@impl $name ($($life)?) {
            fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
                match u16::take(from)? {
                    $($number => Ok(Self::$kind { $($field: from.take()?,)* }),)*
                    _ => Err(Malformed),
                }
            }
            fn put(&self, into: &mut Vec<u8>) {
                match self {
                    $(Self::$kind { $($field,)* } => {
                        <u16 as Field<'_>>::put(&$number, into);
                        $($field.put(into);)*
                    })*
                }
            }
        });
        $crate::stream::code::messages! { $($rest)* }
    };
    (@impl $name:ident () { $($body:tt)* }) => {
        impl<'a> Field<'a> for $name { $($body)* }
    };
    (@impl $name:ident ($life:lifetime) { $($body:tt)* }) => {
        impl<'a> Field<'a> for $name<'a> { $($body)* }
    };
}
pub(crate) use messages;
