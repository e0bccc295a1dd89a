//! nginx: a master that forks workers before the first request.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use venice_e2e::programs::compare::{PROGRAM_LIMIT, check_went_far, copy};
use venice_e2e::programs::{MIB, Outcome, Port, Rack, Running, paged_mode_is_missing, wait_for};
use venice_testkit::random::SplitMix64;

const CLIENTS: usize = 12;
const ROUNDS: usize = 4;

/// Large buffers, without `sendfile`: what is sent goes through the workers' memory.
fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "daemon off; worker_processes 4; pid {dir}/pid; error_log {dir}/errors warn;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; sendfile off; output_buffers 2 1m; gzip on; gzip_types *;\n\
         gzip_min_length 1; gzip_http_version 1.0; gzip_buffers 64 64k;\n\
         client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;\n\
         uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
         server {{ listen unix:{dir}/socket; root {dir}; }} }}\n"
    )
}

/// Requests the file; `None` while the server does not listen. The answer is without its head.
fn get(dir: &Path, is_compressed: bool) -> Option<Vec<u8>> {
    let mut stream = UnixStream::connect(dir.join("socket")).ok()?;
    let wish = if is_compressed { "Accept-Encoding: gzip\r\n" } else { "" };
    // An answer of this version comes in one piece.
    write!(stream, "GET /file HTTP/1.0\r\n{wish}\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..end]));
    Some(answer.split_off(end))
}

/// Serves the file to clients that run side by side; returns a plain and a compressed answer, which
/// all others must be the same as.
fn serve(start: &dyn Fn(&Command) -> Running, dir: &Path) -> (Outcome, [Vec<u8>; 2]) {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(dir).arg("-c").arg(dir.join("configuration"));
    let server = start(&command);
    let first = wait_for("nginx to answer", Duration::from_secs(60), || get(dir, false));
    let answers = [first, get(dir, true).expect("it listens")];
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    for (is_compressed, expected) in [false, true].into_iter().zip(&answers) {
                        let answer = get(dir, is_compressed).expect("it listens");
                        assert!(answer == *expected, "an answer differs ({is_compressed})");
                    }
                }
            });
        }
    });
    server.signal(Signal::TERM);
    let outcome = server.finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    (outcome, answers)
}

#[test]
fn nginx_workers_share_budget() {
    if paged_mode_is_missing("nginx_workers_share_budget") {
        return;
    }
    let dir = tempfile::Builder::new().prefix("nginx").tempdir_in("/tmp").expect("/tmp");
    let mut random = SplitMix64(3);
    let text: String = (0..60_000).map(|_| format!("{:040x}\n", random.draw())).collect();
    fs::write(dir.path().join("file"), &text).expect("a file");
    fs::write(dir.path().join("configuration"), configuration(dir.path())).expect("a file");
    // The workers are of another user.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), open).expect("our own directory");

    let (_, expected) = serve(&|command| Running::spawn(copy(command), false), dir.path());
    assert!(expected[0] == text.as_bytes() && expected[1].len() < text.len());
    let options = ["--local", "12MiB", "--remote", "256MiB", "--stats"];
    let rack = Rack::shared(Port::Shm);
    let (venice, answers) = serve(&|command| rack.run(&options, command), dir.path());
    println!("{}", venice.stderr);
    assert!(answers == expected, "what nginx sends differs");
    check_went_far("nginx", &venice);
    assert!(venice.peak_sum_bytes < 64 * MIB, "{} resident", venice.peak_sum_bytes);
}
