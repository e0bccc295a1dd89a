//! Makes a refusing function for each one of the driver API that `functions.txt` names and that is
//! not served, and the table of all names.

use std::fmt::Write;

fn main() {
    println!("cargo::rerun-if-changed=functions.txt");
    let list = std::fs::read_to_string("functions.txt").expect("functions.txt is beside build.rs");
    let (mut refused, mut table) = (String::new(), String::new());
    let mut externs = String::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a line begins with a name");
        let _arguments: u32 = words.next().and_then(|it| it.parse().ok()).expect("their number");
        let is_served = words.next() == Some("served");
        let address = if is_served {
            writeln!(externs, "    fn {name}();").expect("memory");
            format!("{name} as *const () as usize")
        } else {
            // Arguments stay in the caller's registers and stack.
            write!(
                refused,
                "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> i32 {{\n    \
                 crate::names::refuse(\"{name}\")\n}}\n"
            )
            .expect("memory");
            format!("{name} as *const () as usize")
        };
        writeln!(table, "    (\"{name}\", {is_served}, {address}),").expect("memory");
    }
    let text = format!(
        "{refused}\nunsafe extern \"C\" {{\n{externs}}}\n\n\
         /// Name, whether it is served, and address of each function.\n\
         pub(crate) static TABLE: std::sync::LazyLock<Vec<(&'static str, bool, usize)>> =\n    \
         std::sync::LazyLock::new(|| vec![\n{table}]);\n"
    );
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(format!("{out}/functions.rs"), text).expect("the output directory is writable");
}
