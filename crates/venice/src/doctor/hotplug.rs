//! Memory blocks: what this machine can lend of its own memory, and gain from devices.

use std::path::Path;

use venice_memory::hotplug::{Block, DaxBus, MemoryBlocks, record};

use super::Finding;
use venice_cli::terminal;

/// Default directory where an agent records the blocks it takes offline.
const STATE_DIR: &str = "/var/lib/venice/agent";

/// Rows about hot-plug; no mode of `venice run` needs it.
pub fn examine() -> Vec<Finding> {
    let bus = DaxBus::default();
    vec![memory_blocks(), kmem(bus.has_kmem()), dax_devices(&bus), cxl()]
}

fn memory_blocks() -> Finding {
    let what = "memory blocks";
    let blocks = MemoryBlocks::default();
    let (Ok(bytes), Ok(listed)) = (blocks.block_bytes(), blocks.list()) else {
        let remedy = "boot a kernel with CONFIG_MEMORY_HOTREMOVE=y (only `venice agent \
                    --lend-blocks` needs it)";
        return Finding::missing(what, "this kernel cannot take memory offline", remedy);
    };
    let left = record::left_offline(Path::new(STATE_DIR), &blocks);
    if left > 0 {
        return Finding::warn(
            what,
            format!("{left} of {} are offline: left by an agent, or lent", terminal::bytes(bytes)),
            "if no agent runs here: `venice agent --return-blocks`",
        );
    }
    let detail = described(&listed, bytes);
    if !rustix::process::geteuid().is_root() {
        let remedy = "run `venice agent --lend-blocks` as root";
        return Finding::warn(
            what,
            format!("{detail}; this user may not take any offline"),
            remedy,
        );
    }
    Finding::ok(what, detail)
}

/// Describes the blocks: how many there are, how many can surely go offline, and how many may.
fn described(blocks: &[Block], bytes: u64) -> String {
    let online = blocks.iter().filter(|block| block.is_online).count();
    let offline = blocks.len() - online;
    let may_go = blocks.iter().filter(|block| block.is_online && block.is_removable);
    let (movable, kernel): (Vec<_>, Vec<_>) = may_go.partition(|block| block.is_movable);
    let offline = if offline > 0 { format!(", {offline} offline") } else { String::new() };
    format!(
        "{online} of {}{offline}; removable: {} movable, {} with kernel memory (some of which can go \
         offline)",
        terminal::bytes(bytes),
        movable.len(),
        kernel.len()
    )
}

fn kmem(is_there: bool) -> Finding {
    let what = "dax/kmem";
    if is_there {
        return Finding::ok(what, "DAX devices can become system memory (venice window attach)");
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let modules = std::fs::read_to_string(format!("/lib/modules/{release}/modules.dep"));
    let is_module = modules.is_ok_and(|text| text.contains("/kmem.ko"));
    let (detail, remedy) = if is_module {
        ("a module that is not loaded", "`modprobe kmem` (only `venice window attach` needs it)")
    } else {
        (
            "not in this kernel",
            "boot a kernel with CONFIG_DEV_DAX_KMEM (only `venice window attach` needs it)",
        )
    };
    Finding::missing(what, detail, remedy)
}

fn dax_devices(bus: &DaxBus) -> Finding {
    let what = "DAX devices";
    let devices = bus.list();
    if devices.is_empty() {
        let remedy = "add a CXL memory expander, or an NVDIMM in devdax mode (only `venice window` and \
                    `venice agent --lend-dax` use them)";
        return Finding::missing(what, "none", remedy);
    }
    let said = devices.iter().map(|device| {
        let state = if device.is_memory() { "system memory" } else { "device" };
        format!("{} {} ({state})", device.name, terminal::bytes(device.bytes))
    });
    Finding::ok(what, said.collect::<Vec<_>>().join(", "))
}

fn cxl() -> Finding {
    let what = "CXL";
    let devices = std::fs::read_dir("/sys/bus/cxl/devices").into_iter().flatten().flatten();
    let names = devices.filter_map(|entry| entry.file_name().into_string().ok());
    let memories = names.filter(|name| name.starts_with("mem")).count();
    if memories > 0 {
        return Finding::ok(what, format!("{memories} memory devices"));
    }
    let remedy = "use a machine and a kernel with CXL (only for memory over hardware)";
    Finding::missing(what, "no CXL memory device", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_by_kind() {
        let block = |number, is_online, is_movable| Block {
            number,
            is_online,
            is_movable,
            is_removable: true,
            numa_node: None,
        };
        let blocks = [block(1, true, true), block(2, true, false), block(3, false, false)];
        let text = described(&blocks, 128 << 20);
        assert!(text.starts_with("2 of 128MiB, 1 offline; "), "{text}");
        assert!(text.contains("1 movable, 1 with kernel memory"), "{text}");
    }
}
