//! The summary of `--stats`.

use std::sync::atomic::{AtomicU64, Ordering};

use venice_memory::paged::PageSize;
use venice_memory::paged::run_block::RunBlockMap;
use venice_recipient::runs::{RefaultCounts, RunTime, Unmanaged};
use venice_wire::{ByteSize, PAGE_BYTES};

use venice_cli::terminal::remark;

/// Prints the summary of a run on stderr.
pub fn print(block: &RunBlockMap) {
    let counters = &block.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let faults = get(&counters.faults);
    let far = get(&counters.far_faults);
    let micros = |quantile| match block.fault_ns_at(quantile) {
        Some(ns) => format!("{:.1} us", ns as f64 / 1000.0),
        None => "-".to_string(),
    };
    let hit_ratio = if faults == 0 { 1.0 } else { 1.0 - far as f64 / faults as f64 };
    let pages = |counter: &AtomicU64| {
        let pages = get(counter);
        format!("{pages} ({})", ByteSize(pages * PAGE_BYTES))
    };
    remark(format!(
        "venice: mode paged, port {}; {} local, {}",
        block.port(),
        local(block),
        processes(block)
    ));
    remark(format!(
        "venice: faults {faults}: {} first touches, {} staged, {far} far; hit ratio {:.1} % \
         (served without a donor)",
        get(&counters.zero_faults),
        get(&counters.staged_faults),
        100.0 * hit_ratio,
    ));
    if block.faults_in_thread() {
        let in_thread = get(&counters.in_thread_faults);
        remark(format!("venice: in-thread faults: {in_thread}"));
    }
    let left_to_waker = get(&counters.left_to_waker);
    if left_to_waker > 0 {
        remark(format!(
            "venice: waker: {left_to_waker} wake-ups, {} late; {} handler migrations",
            get(&counters.woken_late),
            get(&counters.handler_moves),
        ));
    }
    remark(format!(
        "venice: pages in {}, {} prefetched; pages out {}; dropped {} clean, {} zero",
        pages(&counters.pages_in),
        get(&counters.read_ahead),
        pages(&counters.pages_out),
        get(&counters.clean_drops),
        get(&counters.zero_drops),
    ));
    remark(format!(
        "venice: prefetch: {} used, {} wasted; {} from far memory, {} from the staging buffer",
        get(&counters.prefetch_used),
        get(&counters.prefetch_wasted),
        get(&counters.read_ahead),
        get(&counters.staged_ahead),
    ));
    let beside = get(&counters.large_in);
    let largest = block.largest_page_size();
    if largest != PageSize::Small {
        remark(format!("venice: {beside} pages brought in with a large page"));
    }
    if largest == PageSize::Huge {
        remark(format!(
            "venice: huge pages in {} whole, {} split; {} partial faults; huge pages out {}",
            get(&counters.huge_in),
            get(&counters.huge_in_small),
            get(&counters.huge_in_part),
            get(&counters.huge_out),
        ));
    }
    remark(format!(
        "venice: madvise: pages in {}, out {}",
        pages(&counters.wanted_in),
        pages(&counters.advised_out),
    ));
    remark(format!("venice: fault time p50 {}, p99 {}", micros(0.5), micros(0.99)));
    remark(match block.coding() {
        None => {
            let copies = block.copies.load(Ordering::Relaxed);
            format!("venice: copies {copies}{}", repaired(block, "slabs"))
        }
        Some(coding) => {
            let far = block.holders().len() as u64 * PAGE_BYTES;
            let lent = far / coding.data() as u64 * coding.fragments() as u64;
            format!(
                "venice: coded {coding}, {} of donors' memory for {}{}",
                ByteSize(lent),
                ByteSize(far),
                repaired(block, "fragments"),
            )
        }
    });
    if block.first_on_disk().is_some() {
        remark(format!(
            "venice: write-behind: out {}, in {}; waited {} times",
            pages(&counters.behind_out),
            pages(&counters.behind_in),
            get(&counters.behind_waits),
        ));
    }
    let (moved, to_move) = (get(&block.moved), get(&block.to_move));
    if to_move > 0 {
        remark(format!("venice: slabs reclaimed by donors {to_move}, moved {moved}"));
    }
    let lost = block.donors().iter().filter(|donor| donor.is_lost());
    let lost: std::collections::BTreeSet<String> = lost.map(|donor| donor.name()).collect();
    for name in lost {
        remark(format!(
            "venice: node {name} is lost: {} lost pages were touched",
            get(&counters.lost_pages)
        ));
    }
}

/// Describes the repairs of `parts`; nothing if none was lost.
fn repaired(block: &RunBlockMap, parts: &str) -> String {
    let [rebuilt, to_rebuild] =
        [&block.rebuilt, &block.to_rebuild].map(|count| count.load(Ordering::Relaxed));
    match to_rebuild {
        0 => String::new(),
        _ => format!("; {parts} repaired {rebuilt} of {to_rebuild}"),
    }
}

/// Prints the summary of a `--mode window` run on stderr.
pub fn print_window(block: &RunBlockMap) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &block.counters;
    remark(format!(
        "venice: mode window, port {}; {} local, {}; {} placed on borrowed memory in all",
        block.port(),
        local(block),
        processes(block),
        ByteSize(get(&counters.pages_out) * PAGE_BYTES)
    ));
}

fn processes(block: &RunBlockMap) -> String {
    match block.counters.processes.load(Ordering::Relaxed) {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    }
}

/// Prints the refaults of a paged run on stderr: always if the run was bound by them, their number
/// with `stats`.
pub fn print_refaults(counts: &RefaultCounts, time: RunTime, stats: bool) {
    if stats && counts.refaults > 0 {
        remark(format!(
            "venice: refaults {}: {:.1} s, {:.0} % of the time, waited for pages that had been evicted",
            counts.refaults,
            counts.wait_s,
            100.0 * counts.wait_ratio(time)
        ));
    }
    if let Some(bound) = counts.bound(time) {
        remark(format!("venice: {bound}"));
    }
}

/// Prints the unmanaged memory of a run at the moment of the most, on stderr.
pub fn print_unmanaged(most: &[Unmanaged]) {
    if most.is_empty() {
        remark("venice: all memory was managed (parts below 4MiB are not counted)");
    }
    for part in most {
        remark(format!("venice: {part}"));
    }
}

/// Returns the local budget at the end of the run.
fn local(block: &RunBlockMap) -> ByteSize {
    ByteSize(block.limit_pages.load(Ordering::Relaxed) * PAGE_BYTES)
}
