//! `--compress`: how much of `--local` compressed pages may take, and what came of it.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use venice_memory::paged::MOST_COMPRESSED_PERCENT;
use venice_memory::paged::run_block::RunBlock;
use venice_wire::{ByteSize, PAGE_BYTES};

use super::{Faults, Mode, PageSizes, RunArgs};
use venice_cli::failure::Usage;
use venice_cli::terminal::remark;

/// A part of `--local`, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u32);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Percent, String> {
        let digits = text.strip_suffix('%').filter(|digits| !digits.starts_with('+'));
        let percent = digits.and_then(|number| number.parse().ok());
        let possible = 1..=MOST_COMPRESSED_PERCENT;
        percent.filter(|percent| possible.contains(percent)).map(Percent).ok_or_else(|| {
            format!("write a part of --local from 1% to {MOST_COMPRESSED_PERCENT}%, such as 25%")
        })
    }
}

/// Where nothing can be compressed is said before anything is borrowed.
pub fn check(args: &RunArgs) -> Result<(), Usage> {
    if args.compress.is_none() {
        return Ok(());
    }
    let sizes = args.page_size.unwrap_or_default();
    let why = if args.mode == Mode::Window {
        "--compress is of --mode paged: what a window has mapped is used where it lies"
    } else if args.mode == Mode::Swap {
        "--compress is of --mode paged: with --mode swap the kernel can do it (zswap)"
    } else if sizes != PageSizes::Small {
        "--compress keeps pages of 4 KiB, one by one: it needs --page-size 4k"
    } else if args.faults == Faults::InThread {
        "--compress is of --faults handler: in a signal's handler there is no room to unpack a page"
    } else {
        return Ok(());
    };
    Err(Usage(why.into()))
}

/// Has the processes of a run do so.
pub fn put_into(percent: Option<Percent>, block: &RunBlock) {
    block.set_compress_percent(percent.map_or(0, |percent| percent.0));
}

/// Says at the end where it was not worth it, and with `--stats` what it brought.
pub fn tell(block: &RunBlock, with_stats: bool) {
    if block.compress_percent() == 0 {
        return;
    }
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &block.counters;
    let (badly, unpaid) = (get(&counters.packed_badly), get(&counters.paid_badly));
    let yielded = get(&counters.pools_yielded);
    if with_stats {
        let kept = get(&counters.compressed);
        let (from, to) = (kept * PAGE_BYTES, get(&counters.compressed_bytes));
        remark(format!(
            "venice: compressed: {kept} pages kept ({} in {}), {} did not get half as long; {} faults \
             answered from there, {} pages brought in",
            ByteSize(from),
            ByteSize(to),
            get(&counters.incompressible),
            get(&counters.compressed_faults),
            get(&counters.compressed_in),
        ));
    }
    if badly + unpaid + yielded > 0 {
        remark(format!(
            "venice: --compress was given up for a while {} times: {badly} times as few pages got \
             half as long, {unpaid} times as donors and plain local memory were worth more, {yielded} \
             times as far memory was used up",
            badly + unpaid + yielded
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_local_is_said_in_percent() {
        assert_eq!("25%".parse(), Ok(Percent(25)));
        for nonsense in
            ["", "%", "0%", "51%", "25", "64MiB", "-5%", "2.5%", "25 %", "+25%", "4294967297%"]
        {
            let refused = nonsense.parse::<Percent>().unwrap_err();
            assert!(refused.contains("1% to 50%"), "{nonsense}: {refused}");
        }
    }
}
