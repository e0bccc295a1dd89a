//! Negative numbers on the command line. Where a size, a time or a count is taken, `-1` is a wrong
//! value, about which there is something to say, and no unknown flag.

use std::any::TypeId;
use std::num::NonZeroU64;
use std::time::Duration;

use clap::builder::ValueRange;
use clap::{Arg, Command};
use venice_control::Limit;
use venice_wire::ByteSize;

/// `command` and all below it, with options that take what begins with a `-` for their value.
pub fn with_signs(command: Command) -> Command {
    let command = command.mut_args(|arg| match takes_number(&arg) {
        true => arg.allow_hyphen_values(true),
        false => arg,
    });
    command.mut_subcommands(with_signs)
}

/// An option with a number: to a bare one a flag would be a value too.
fn takes_number(arg: &Arg) -> bool {
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
    let is_one = |count: ValueRange| (count.min_values(), count.max_values()) == (1, 1);
    let is_sole = arg.get_num_args().is_none_or(is_one);
    let takes = arg.get_action().takes_values() && !arg.is_positional() && is_sole;
    takes && numbers.iter().any(|number| kind == *number)
}
