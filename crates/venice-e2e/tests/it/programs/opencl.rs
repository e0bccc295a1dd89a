//! Debian's OpenCL programs on granted accelerators, each beside itself on the local driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use venice_e2e::programs::{CProgram, Port, Rack, Running};
use venice_testkit::wait::wait_until;

const PATIENCE: Duration = Duration::from_secs(600);
/// Directory of piglit's programs.
const PIGLIT: &str = "/usr/lib/x86_64-linux-gnu/piglit";
/// Directory of the package python3-pyopencl.
const PYOPENCL: &str = "/usr/lib/python3/dist-packages/pyopencl";
/// Runs piglit's programs for OpenCL, and prints a line for each: its name, and its verdict.
const RUN_PIGLIT: &str = r#"
for program in bin/cl-*; do
    case $program in */cl-program-tester) continue;; esac
    said=$(timeout 60 $program -auto 2>&1)
    verdict=$(echo "$said" | grep -o 'PIGLIT: {"result": "[a-z]*"' | tail -1 | cut -d'"' -f4)
    echo "$(basename $program) ${verdict:-ended with $?}"
done
"#;
/// Prints what calls answer.
const CALLS: &str = include_str!("opencl_calls.py");
/// Adds two vectors on the first device, and waits.
const ADD: &str = r#"
import numpy, pyopencl as cl, time
context = cl.Context(cl.get_platforms()[0].get_devices())
queue = cl.CommandQueue(context)
flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
ones = numpy.ones(1 << 20, numpy.float32)
a, b = (cl.Buffer(context, flags, hostbuf=ones) for _ in range(2))
to = cl.Buffer(context, cl.mem_flags.WRITE_ONLY, ones.nbytes)
source = "kernel void add(global float *a, global float *b, global float *to) {" \
    "size_t at = get_global_id(0); to[at] = a[at] + b[at]; }"
cl.Program(context, source).build().add(queue, ones.shape, None, a, b, to)
cl.enqueue_copy(queue, ones, to)
assert (ones == 2).all()
time.sleep(1000)
"#;
/// Fills the device's 64 MiB again and again with buffers and images, each of which is released first.
const FILL: &str = r#"
import numpy, pyopencl as cl
context = cl.Context(cl.get_platforms()[0].get_devices())
queue = cl.CommandQueue(context)
flags = cl.mem_flags.READ_WRITE
form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT8)
for turn in range(6):
    words = numpy.random.randint(0, 1 << 30, 15 << 18, numpy.int32)
    into = numpy.empty_like(words)
    buffers = [cl.Buffer(context, flags, words.nbytes) for _ in range(4)]
    for buffer in buffers:
        cl.enqueue_copy(queue, buffer, words)
    for buffer in buffers:
        cl.enqueue_copy(queue, into, buffer)
        assert (into == words).all()
        buffer.release()
    pixels = words.view(numpy.uint8).reshape(1920, 2048, 4)
    form_and_size = form, (2048, 1920)
    image = cl.Image(context, flags | cl.mem_flags.COPY_HOST_PTR, *form_and_size, hostbuf=pixels)
    # What else is there leaves little room for pixels on their way.
    others = [cl.Buffer(context, flags, 15 << 20) for _ in range(2)] + [cl.Buffer(context, flags, 7 << 20)]
    cl.enqueue_copy(queue, image, pixels[::-1].copy(), origin=(0, 0), region=(2048, 1920))
    into = numpy.empty_like(pixels)
    cl.enqueue_copy(queue, into, image, origin=(0, 0), region=(2048, 1920))
    assert (into == pixels[::-1]).all()
    image.release()
    for other in others:
        other.release()
print("right")
"#;
/// Has darktable export a picture on the first device, and without one; prints how many commands of
/// the device succeeded.
///
/// darktable leaves processors out unless its settings name them. Its kernels do not build on a local
/// PoCL, which takes no quoted `-I`.
const EXPORT: &str = r#"
device=$(clinfo --raw | grep -m1 -o 'CL_DEVICE_NAME .*' | cut -d' ' -f2- | tr A-Z a-z | tr -cd a-z0-9)
mkdir -p "$HOME/.config/darktable"
echo "cldevice_v4_$device=0 250 0 16 16 128 0 0 0.000" >"$HOME/.config/darktable/darktablerc"
darktable-cli "$1" "$2" --core -d opencl 2>&1 | grep -o '[0-9]* out of [0-9]* events were successful'
exec darktable-cli "$1" "$3" --core --disable-opencl >/dev/null 2>&1
"#;
/// Begins a kernel that never ends, and is killed.
const NEVER_ENDS: &str = r#"
import numpy, os, pyopencl as cl, signal
context = cl.Context(cl.get_platforms()[0].get_devices())
queue = cl.CommandQueue(context)
flag = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
cl.enqueue_copy(queue, flag, numpy.zeros(1, numpy.int32))
source = "kernel void wait(volatile global int *flag) { while (!*flag); }"
cl.Program(context, source).build().wait(queue, (64,), (1,), flag)
queue.flush()
import time; time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"#;
/// Keeps the endpoints of one port in the environment of a program, as if it ran on another machine.
const OVER_UDP: &str = "
import json, os, sys
granted = json.loads(os.environ['VENICE_GRANT_ENDPOINTS'])
for access in filter(None, granted):
    access['endpoints'] = [it for it in access['endpoints'] if it['port'].lower() == 'udp']
    assert access['endpoints'], 'the device is not reached over udp'
os.environ['VENICE_GRANT_ENDPOINTS'] = json.dumps(granted)
os.execvp(sys.argv[1], sys.argv[1:])
";

/// A rack whose second node lends the processors as an OpenCL device.
fn rack(port: Port) -> Rack {
    rack_with(port, "2GiB")
}

/// A rack whose second node lends a device with so much memory.
fn rack_with(port: Port, memory: &str) -> Rack {
    // Hosts on the loopback interface have no endpoint for datagrams.
    let network: &[&str] = if port == Port::Udp { &["--netns"] } else { &[] };
    let offer = format!("node2/accelerator:opencl={memory}");
    Rack::start_with(port, 64, &[&["--offer", &offer], network].concat())
}

/// Runs a program, which must succeed; returns its output.
fn output(mut command: Command) -> String {
    command.env_remove("OCL_ICD_VENDORS");
    let outcome = Running::spawn(command, false).finish(PATIENCE);
    outcome.expect_code(0);
    String::from_utf8_lossy(&outcome.stdout).into_owned()
}

/// Returns a command on a granted device, by messages and memory of this machine or in datagrams.
fn granted(rack: &Rack, is_over_udp: bool, words: &[&str]) -> Command {
    let over_udp: &[&str] = if is_over_udp { &["/usr/bin/python3", "-c", OVER_UDP] } else { &[] };
    let run = ["run", "--accelerators", "1", "--accel-needs", "opencl", "--"];
    rack.command(&[&run, over_udp, words].concat())
}

/// Parses lines of names and verdicts.
fn verdicts(lines: &str) -> BTreeMap<String, String> {
    let pairs = lines.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, verdict)| (name.to_owned(), verdict.to_owned())).collect()
}

fn in_piglit(mut command: Command) -> Command {
    command.current_dir(PIGLIT).env("PIGLIT_SOURCE_DIR", PIGLIT);
    command
}

fn piglit_passes(port: Port, is_over_udp: bool) {
    if !Path::new(PIGLIT).exists() {
        return eprintln!("SKIPPED: piglit is not installed");
    }
    let rack = rack(port);
    let mut local = Command::new("bash");
    local.args(["-c", RUN_PIGLIT]);
    let local = verdicts(&output(in_piglit(local)));
    let remote = granted(&rack, is_over_udp, &["bash", "-c", RUN_PIGLIT]);
    let remote = verdicts(&output(in_piglit(remote)));
    assert!(local.len() > 40, "{local:?}");
    let worse = local
        .iter()
        .filter(|(name, verdict)| *verdict == "pass" && remote.get(*name) != Some(*verdict));
    let worse: Vec<_> = worse.map(|(name, _)| (name, remote.get(name))).collect();
    assert!(worse.is_empty(), "passed on the local driver, not on Venice's: {worse:?}");
}

#[test]
fn piglit_passes_over_shm() {
    piglit_passes(Port::Shm, false);
}

#[test]
fn piglit_passes_over_udp() {
    piglit_passes(Port::Udp, true);
}

fn command_buffers_replay(port: Port, is_over_udp: bool) {
    if !Path::new("/etc/OpenCL/vendors").exists() || !Path::new("/usr/include/CL/cl_ext.h").exists()
    {
        return eprintln!("SKIPPED: no OpenCL driver, or no headers");
    }
    let rack = rack(port);
    let compiled = CProgram::compile_with("opencl_command_buffer", &["-lOpenCL"]);
    let program = compiled.command(&[]).get_program().to_str().unwrap().to_owned();
    let said = output(granted(&rack, is_over_udp, &[&program, "both"]));
    assert_eq!(said, "right\n");
    println!("{}", output(granted(&rack, is_over_udp, &[&program, "rate", "100"])));
}

#[test]
fn command_buffers_replay_over_shm() {
    command_buffers_replay(Port::Shm, false);
}

#[test]
fn command_buffers_replay_over_udp() {
    command_buffers_replay(Port::Udp, true);
}

#[test]
fn calls_answer_as_local() {
    if !Path::new(PYOPENCL).exists() {
        return eprintln!("SKIPPED: python3-pyopencl is not installed");
    }
    let rack = rack(Port::Shm);
    let words = ["/usr/bin/python3", "-c", CALLS];
    let mut local = Command::new(words[0]);
    local.args(&words[1..]);
    let local = output(local);
    assert!(local.lines().count() > 8, "{local}");
    assert_eq!(output(granted(&rack, false, &words)), local);
}

#[test]
fn released_memory_is_used_again() {
    if !Path::new(PYOPENCL).exists() {
        return eprintln!("SKIPPED: python3-pyopencl is not installed");
    }
    for port in [Port::Shm, Port::Udp] {
        let rack = rack_with(port, "64MiB");
        let words = ["/usr/bin/python3", "-c", FILL];
        assert_eq!(output(granted(&rack, port == Port::Udp, &words)), "right\n");
    }
}

#[test]
fn clblast_passes_own_tests() {
    if !Path::new("/usr/bin/clblast_test_xaxpy").exists() {
        return eprintln!("SKIPPED: clblast-tests is not installed");
    }
    let rack = rack(Port::Shm);
    for routine in ["xaxpy", "xdot", "xomatcopy"] {
        let program = format!("/usr/bin/clblast_test_{routine}");
        let words = [&program[..], "-platform", "0", "-device", "0", "-full_test", "0"];
        // It exits with the number of errors.
        let said = output(granted(&rack, false, &words));
        assert!(said.contains("0 test(s) failed"), "{said}");
    }
}

#[test]
fn clfft_transforms() {
    if !Path::new("/usr/bin/clFFT-client").exists() {
        return eprintln!("SKIPPED: clfft-client is not installed");
    }
    let rack = rack(Port::Shm);
    let words = ["/usr/bin/clFFT-client", "-x", "1024", "-b", "64"];
    let said = output(granted(&rack, false, &words));
    assert!(said.contains("*****PASS*****"), "{said}");
}

#[test]
fn others_write_to_no_run_folder() {
    let (rack, dir) = (rack(Port::Shm), tempfile::tempdir().unwrap());
    // A run with memory in one with a device: sockets, drivers, and what others could write.
    let find = r#"find "$TMPDIR" -name '*.sock' | wc -l; find "$TMPDIR" ! -type l -perm /022"#;
    let inner = rack.command(&["run", "--local", "16MiB", "--", "sh", "-c", find]);
    let words = [inner.get_program()].into_iter().chain(inner.get_args());
    let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
    let outer = granted(&rack, false, &words);
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask 000; exec "$@""#, "sh"]).arg(outer.get_program());
    command.args(outer.get_args()).env("TMPDIR", dir.path());
    command.envs(outer.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(output(command), "3\n");
}

#[test]
fn endless_kernel_of_dead_program_ends() {
    if !Path::new(PYOPENCL).exists() {
        return eprintln!("SKIPPED: python3-pyopencl is not installed");
    }
    let rack = rack(Port::Shm);
    let both = r#"/usr/bin/python3 -c "$0"; /usr/bin/python3 -c "$1""#;
    let run = granted(&rack, false, &["sh", "-c", both, NEVER_ENDS, ADD]);
    let outcome = Running::spawn(run, false).finish(PATIENCE);
    assert!(!outcome.status.success());
    let said = &outcome.stderr;
    assert!(said.contains("node2") && said.contains("holds up the device"), "{said}");
}

#[test]
fn clpeak_measures() {
    if !Path::new("/usr/bin/clpeak").exists() {
        return eprintln!("SKIPPED: clpeak is not installed");
    }
    let rack = rack(Port::Shm);
    let said = output(granted(
        &rack,
        false,
        &["clpeak", "-p", "0", "--kernel-latency", "--transfer-bandwidth", "--compute-intfast"],
    ));
    for figure in ["enqueueReadBuffer", "enqueueUnmap", "int16", "Kernel launch latency"] {
        assert!(said.contains(figure), "{said}");
    }
}

#[test]
fn darktable_exports_pictures() {
    if !Path::new("/usr/bin/darktable-cli").exists() {
        return eprintln!("SKIPPED: darktable is not installed");
    }
    let (rack, dir) = (rack(Port::Shm), tempfile::tempdir().unwrap());
    let file = |name: &str| dir.path().join(name).display().to_string();
    let pixels = (0..480 * 320 * 3_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 / 8);
    let picture = [b"P6\n480 320\n255\n", &pixels.collect::<Vec<_>>()[..]].concat();
    fs::write(file("picture.ppm"), picture).unwrap();
    let files = ["picture.ppm", "device.ppm", "processor.ppm"].map(file);
    let words = ["bash", "-c", EXPORT, "export", &files[0], &files[1], &files[2]];
    let mut command = granted(&rack, false, &words);
    command.env("HOME", dir.path()).env_remove("XDG_CACHE_HOME").env_remove("XDG_CONFIG_HOME");
    let said = output(command);
    assert!(!said.is_empty() && !said.starts_with("0 out"), "no command ran: {said:?}");
    let [device, processor] = [&files[1], &files[2]].map(|path| fs::read(path).unwrap());
    // Behind a header are values of 16 bits; kernels and processor round differently.
    let value = |it: &[u8]| i32::from(u16::from_be_bytes([it[0], it[1]]));
    let values =
        |it: &[u8]| it[it.len() - 6 * 480 * 320..].chunks(2).map(value).collect::<Vec<_>>();
    let (device, processor) = (values(&device), values(&processor));
    let is_near = |(one, two): (&i32, &i32)| (one - two).abs() <= 256;
    assert!(device.iter().zip(&processor).all(is_near), "the pictures differ");
}

#[test]
fn ps_shows_device_usage() {
    if !Path::new(PYOPENCL).exists() {
        return eprintln!("SKIPPED: python3-pyopencl is not installed");
    }
    let rack = rack(Port::Shm);
    let mut run = Running::spawn(granted(&rack, false, &["/usr/bin/python3", "-c", ADD]), false);
    let device = || Some(rack.run_row_of_ps()?["devices"].as_array()?.first()?.clone());
    let number = |device: &Value, field: &str| device[field].as_u64().unwrap_or(0);
    let is_counted = |device: &Value| {
        // Two vectors go there, and one comes back; what is missing is told in a second.
        number(device, "in_bytes") >= 8 << 20
            && number(device, "out_bytes") >= 4 << 20
            && number(device, "commands") > 0
            && device["busy_ratio"].is_f64()
    };
    wait_until("the usage", PATIENCE, || {
        !run.is_running() || device().as_ref().is_some_and(is_counted)
    });
    let device = device().unwrap_or_else(|| panic!("no run: {}", run.stderr_so_far()));
    assert!(is_counted(&device), "{device}");
    assert_eq!((&device["node"], &device["kind"]), (&"node2".into(), &"accelerator".into()));
    assert!(device["busy_ratio"].as_f64().is_some_and(|it| (0.0..=1.0).contains(&it)), "{device}");
    let row = rack.json(&["grants"])[0].clone();
    assert_eq!((&row["id"], &row["commands"]), (&device["grant"], &device["commands"]));
    run.signal(Signal::TERM);
    run.finish(PATIENCE);
}

#[test]
fn hashcat_finds_passwords() {
    if !Path::new("/usr/bin/hashcat").exists() {
        return eprintln!("SKIPPED: hashcat is not installed");
    }
    let (rack, dir) = (rack(Port::Shm), tempfile::tempdir().unwrap());
    let file = |name: &str| dir.path().join(name).display().to_string();
    // MD5 of "rack": four lower-case letters are soon tried.
    fs::write(file("hash"), "11690b09f16021ff06a6857d784a1870\n").unwrap();
    let (hash, pot) = (file("hash"), format!("--potfile-path={}", file("pot")));
    let words = ["hashcat", "-m", "0", "-a", "3", "--force", &pot, &hash, "?l?l?l?l"];
    let mut command = granted(&rack, false, &words);
    // It keeps kernels, and its own state, in the home directory.
    command.env("HOME", dir.path()).env_remove("XDG_CACHE_HOME").env_remove("XDG_DATA_HOME");
    output(command);
    let found = fs::read_to_string(file("pot")).unwrap();
    assert!(found.trim_end().ends_with(":rack"), "{found}");
}
