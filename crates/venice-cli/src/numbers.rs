//! Negative numbers on the command line. For a size, a time or a count, `-1` is a wrong value with
//! an error message of its own, and not an unknown flag.

use std::any::TypeId;
use std::num::NonZeroU64;
use std::time::Duration;

use clap::builder::ValueRange;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use venice_control::Limit;
use venice_wire::ByteSize;

/// Returns `command`, with all its subcommands, changed so that options take a value that begins
/// with a `-`.
pub fn with_signs(command: Command) -> Command {
    let command = command.mut_args(|arg| match (takes_number(&arg), is_bare_size(&arg)) {
        (Takes::OneValue, _) | (_, true) => arg.allow_hyphen_values(true),
        (Takes::AtMostOne, _) => arg.allow_negative_numbers(true),
        (Takes::None, _) => arg,
    });
    command.mut_subcommands(with_signs)
}

/// Values of an option.
enum Takes {
    None,
    /// The next argument may be a flag.
    AtMostOne,
    OneValue,
}

fn takes_number(arg: &Arg) -> Takes {
    let numbers = [
        TypeId::of::<ByteSize>(),
        TypeId::of::<Duration>(),
        TypeId::of::<NonZeroU64>(),
        TypeId::of::<Limit>(),
        TypeId::of::<f64>(),
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ];
    let kind = arg.get_value_parser().type_id();
    let count = arg.get_num_args().unwrap_or(ValueRange::SINGLE);
    let takes = arg.get_action().takes_values() && !arg.is_positional();
    match (count.min_values(), count.max_values()) {
        _ if !takes || !numbers.iter().any(|number| kind == *number) => Takes::None,
        (1, 1) => Takes::OneValue,
        (0, 1) => Takes::AtMostOne,
        _ => Takes::None,
    }
}

/// True for a positional size. Known flags take precedence over it; an unknown one is detected
/// later ([`unknown_flag`]).
fn is_bare_size(arg: &Arg) -> bool {
    let kind = arg.get_value_parser().type_id();
    arg.is_positional() && (kind == TypeId::of::<ByteSize>() || kind == TypeId::of::<Limit>())
}

/// Returns the unknown flag that was taken for a size.
pub fn unknown_flag(error: &clap::Error) -> Option<&str> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_flag = |value: &&str| {
        let rest = value.strip_prefix('-').unwrap_or_default();
        rest.starts_with(|c: char| !c.is_ascii_digit() && c != '.')
    };
    let is_bare = text(ContextKind::InvalidArg).is_some_and(|arg| arg.starts_with(['<', '[']));
    let value = text(ContextKind::InvalidValue).filter(is_flag);
    value.filter(|_| is_bare && error.kind() == ErrorKind::ValueValidation)
}
