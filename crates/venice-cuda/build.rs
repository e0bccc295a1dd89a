//! Makes a refusing function for each one of the driver API that `functions.txt` names and that is
//! not served, the forms for the default stream of a thread, and the table of all names.

use std::fmt::Write;

/// Functions whose first form takes the same arguments as the second one.
const UNCHANGED: [&str; 10] = [
    "cuCtxDestroy_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxSetFlags_v2",
    "cuEventDestroy_v2",
    "cuGraphInstantiate_v2",
    "cuMemHostRegister_v2",
    "cuStreamDestroy_v2",
];

fn main() {
    println!("cargo::rerun-if-changed=functions.txt");
    let list = std::fs::read_to_string("functions.txt").expect("functions.txt is beside build.rs");
    let (mut text, mut externs, mut rows) = (String::new(), String::new(), Vec::new());
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        let (name, rest) = (words[0], &words[3..]);
        let since: u32 = words[2].parse().expect("the version");
        if rest.contains(&"served") {
            writeln!(externs, "    fn {name}();").expect("memory");
        } else {
            // Arguments stay in the caller's registers and stack.
            write!(
                text,
                "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> i32 {{\n    \
                 crate::names::refuse(\"{name}\")\n}}\n"
            )
            .expect("memory");
        }
        for form in rest.iter().filter(|it| it.starts_with("pt")) {
            text.push_str(&jump(&format!("{name}_{form}"), name));
        }
        if UNCHANGED.contains(&name) {
            text.push_str(&jump(base(name), name));
        }
        rows.push((base(name).to_owned(), since, name.to_owned()));
    }
    rows.sort();
    let mut table = String::new();
    for (base, since, name) in rows {
        writeln!(table, "    (\"{base}\", {since}, {name} as *const () as usize),")
            .expect("memory");
    }
    let text = format!(
        "{text}\nunsafe extern \"C\" {{\n{externs}}}\n\n\
         /// Name without version, version that brought it, and address of each function.\n\
         pub(crate) static TABLE: std::sync::LazyLock<Vec<(&'static str, i32, usize)>> =\n    \
         std::sync::LazyLock::new(|| vec![\n{table}]);\n"
    );
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(format!("{out}/functions.rs"), text).expect("the output directory is writable");
}

/// Returns a name without `_v2`.
fn base(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, version)) if version.parse::<u32>().is_ok() => base,
        Some(_) | None => name,
    }
}

/// Returns a function that is another one under a second name: arguments stay where they are.
fn jump(name: &str, to: &str) -> String {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let instruction = if arch == "aarch64" { "b {}" } else { "jmp {}" };
    format!(
        "#[unsafe(no_mangle)]\n#[unsafe(naked)]\nextern \"C\" fn {name}() {{\n    \
         core::arch::naked_asm!(\"{instruction}\", sym {to})\n}}\n"
    )
}
