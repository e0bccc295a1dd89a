//! The installation of `make install` works.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use venice_e2e::programs::{Port, Rack, paged_mode_is_missing, venice_binary};

/// Runs `scripts/install.sh ACTION PREFIX`.
fn install(action: &str, prefix: &Path) -> Output {
    Command::new(root().join("scripts/install.sh"))
        .arg(action)
        .arg(prefix)
        .env("BUILT", venice_binary().parent().expect("a directory"))
        .output()
        .expect("a shell")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn installed_venice_finds_its_shim() {
    let prefix = tempfile::tempdir().expect("a temporary directory");
    let installed = install("install", prefix.path());
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    for file in [
        "lib/systemd/system/venice-agent.service",
        "lib/sysusers.d/venice.conf",
        "share/man/man1/venice.1",
    ] {
        assert!(prefix.path().join(file).exists(), "{file} is not installed");
    }

    let doctor = Command::new(prefix.path().join("bin/venice"))
        .args(["doctor", "--json"])
        .output()
        .expect("the installed binary");
    let said: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let rows = said.as_array().expect("a list");
    let libraries = prefix.path().join("lib/venice");
    for (check, file) in [
        ("shim library", "libvenice_preload.so"),
        ("OpenCL client driver", "libvenice_opencl.so"),
        ("CUDA client driver", "libvenice_cuda.so"),
    ] {
        let row = rows.iter().find(|row| row["check"] == check).expect("a row for the library");
        assert_eq!(Path::new(row["detail"].as_str().expect("a path")), libraries.join(file));
    }

    assert!(install("uninstall", prefix.path()).status.success());
    assert!(!prefix.path().join("bin/venice").exists());
    assert!(!libraries.exists());
}

/// The C example is built as its first lines describe, against the installed library, shared and
/// static, and run on a rack.
#[test]
fn c_program_links_the_installed_library() {
    let prefix = tempfile::tempdir().expect("a temporary directory");
    let installed = install("install", prefix.path());
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let pool = prefix.path().join("pool");
    std::fs::create_dir(&pool).expect("a directory");
    let offer = format!("storage:{}=16MiB", pool.display());
    let offers = ["--offer", &offer, "--offer", "accelerator:emulated0,echo"];
    let rack = Rack::start_with(Port::Udp, 64, &offers);
    let has_pager = !paged_mode_is_missing("c_program_links_the_installed_library");
    for (name, how, library) in
        [("shared", "", "-lvenice"), ("static", "--static", "-l:libvenice.a")]
    {
        let program = prefix.path().join(name);
        let build = format!(
            "gcc -Wall -Wextra -Werror -o {} {} $(pkg-config {how} --cflags --libs venice | sed \
             's/-lvenice/{library}/')",
            program.display(),
            root().join("examples/c/borrow.c").display(),
        );
        let built = Command::new("sh")
            .args(["-c", &build])
            .env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig"))
            .output()
            .expect("a shell");
        assert!(built.status.success(), "{build}: {}", String::from_utf8_lossy(&built.stderr));
        let ran = Command::new(&program)
            .env("VENICE_RUN_DIR", rack.run_dir())
            .env_remove("VENICE_MONITOR")
            .env("LD_LIBRARY_PATH", prefix.path().join("lib"))
            .output()
            .expect("the example");
        let (out, err) =
            (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{name}: {out}{err}");
        let (version, free) = (env!("CARGO_PKG_VERSION"), 256 << 20);
        let array = if has_pager { "4194304 numbers in 2 slabs, 5 MiB" } else { "no array: " };
        for line in [
            &format!("venice {version}, {free} bytes free"),
            &format!("borrowed {} bytes, {} are left", 32 << 20, 192 << 20),
            "read: far away",
            "1000 pages there and back",
            "it was 41",
            "planet: Jupiter",
            array,
            "held: emulated0 of node1 (emulated,echo), 0 bytes",
            "service echo answers 0: far away",
            "claimed nothing: nothing was transferred to this user",
            "transferred nothing: the rack has no node named nowhere",
            &format!("held: {} of node1 (directory), 3145728 bytes", pool.display()),
            "no device: no network card",
        ] {
            assert!(out.contains(line), "{name}: no {line:?} in {out}");
        }
    }
    every_function_is_used(&prefix.path().join("include/venice.h"));
    assert_eq!(rack.granted_bytes(), 0, "all was given back");
    let refused = Command::new(prefix.path().join("shared"))
        .arg("127.0.0.1:1")
        .env("LD_LIBRARY_PATH", prefix.path().join("lib"))
        .output()
        .expect("the example");
    let err = String::from_utf8_lossy(&refused.stderr);
    assert!(err.contains("no Monitor Node answers at 127.0.0.1:1"), "{err}");
    assert!(install("uninstall", prefix.path()).status.success());
    assert!(!prefix.path().join("lib/libvenice.so").exists());
    assert!(!prefix.path().join("include/venice.h").exists());
}

/// The C example of pools, on accelerators that it requests, and on those of `venice get`.
#[test]
fn c_program_uses_accelerators() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let libraries = venice_binary().parent().expect("a directory").to_path_buf();
    let offers = [1, 2].map(|node| format!("node{node}/accelerator:emulated{node}=fft@64MB/s"));
    let rack = Rack::start_with(Port::Udp, 32, &["--offer", &offers[0], "--offer", &offers[1]]);
    let program = folder.path().join("pool");
    let built = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(root().join("examples/c/pool.c"))
        .arg("-I")
        .arg(root().join("crates/venice-c/include"))
        .arg(libraries.join("libvenice.so"))
        .output()
        .expect("gcc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // The name by which the dynamic linker finds it.
    let shared = folder.path().join("libvenice.so.0");
    std::os::unix::fs::symlink(libraries.join("libvenice.so"), shared).expect("a link");
    let mut requests = Command::new(&program);
    requests.arg("2");
    let mut granted = Command::new(venice_binary());
    granted.args(["get", "accelerator:fft=2", "--"]).arg(&program);
    for command in [&mut requests, &mut granted] {
        let ran = command
            .env("VENICE_RUN_DIR", rack.run_dir())
            .env_remove("VENICE_MONITOR")
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .expect("the example");
        let (out, err) =
            (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{out}{err}");
        assert!(
            out.contains("2 accelerators") && out.contains("8 transforms; then: task 0"),
            "{out}"
        );
    }
}

/// Checks that the examples call every function of the header.
fn every_function_is_used(header: &Path) {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a text");
    let header = read(header);
    let example = ["borrow.c", "channels.c", "pool.c"]
        .map(|name| read(&root().join("examples/c").join(name)));
    let example = example.concat();
    let is_declared = |line: &&str| line.starts_with(|first: char| first.is_ascii_alphabetic());
    let name = |line: &str| -> Option<String> {
        let word = line.split_once('(')?.0.split([' ', '*']).next_back()?;
        word.starts_with("venice_").then(|| word.to_owned())
    };
    let declared: Vec<String> = header.lines().filter(is_declared).filter_map(name).collect();
    assert!(declared.len() > 40, "{declared:?}");
    let is_missing = |name: &&String| !example.contains(&format!("{name}("));
    let missing: Vec<_> = declared.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
}
