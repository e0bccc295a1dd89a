//! PostgreSQL, which refuses to run as root: started by root as its own user, by each program that
//! changes the user. Its buffers, and what its parallel workers share, are shared memory, and go far
//! as the memory of its processes does.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use venice_e2e::programs::compare::{PROGRAM_LIMIT, check_went_far, copy};
use venice_e2e::programs::{Outcome, Port, Rack, Running, paged_mode_is_missing, wait_for};

use super::shared::look_is_missing;

const USER: &str = "postgres";

/// Returns Debian's newest `name` of the server's programs, which are not in PATH.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let found = versions.flatten().map(|version| version.path().join("bin").join(name));
    found.filter(|path| path.exists()).max().unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the words that start a program as the server's user.
fn as_user(changer: &str) -> Command {
    let mut command = Command::new(changer);
    match changer {
        "runuser" => command.args(["-u", USER, "--"]),
        "setpriv" => command.args(["--reuid", USER, "--regid", USER, "--init-groups"]),
        _ => panic!("{changer}"),
    };
    command
}

/// A data directory that belongs to the server's user.
struct Cluster {
    dir: TempDir,
}

impl Cluster {
    /// Makes an empty one.
    fn new() -> Cluster {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let about = Command::new("id").args(["-u", USER]).output().expect("id");
        let id = String::from_utf8_lossy(&about.stdout).trim().parse().expect("the user's number");
        chown(dir.path(), Some(id), None).expect("root may");
        Cluster { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Returns the command that fills it. It has checksums, so that a wrong page is found.
    fn initdb(&self) -> Command {
        let mut command = as_user("setpriv");
        command.arg(program("initdb")).arg("-D").arg(self.data());
        command.args(["--data-checksums", "--no-sync", "--no-locale", "-E", "UTF8", "-A", "trust"]);
        command.current_dir("/");
        command
    }

    /// Returns the command of a server on a socket in the directory.
    fn server(&self) -> Command {
        let mut command = as_user("runuser");
        command.arg(program("postgres")).arg("-D").arg(self.data()).arg("-k").arg(self.path());
        for setting in [
            "listen_addresses=",
            "fsync=off",
            "work_mem=64MB",
            "max_parallel_workers_per_gather=2",
            "min_parallel_table_scan_size=1MB",
            "parallel_setup_cost=0",
        ] {
            command.args(["-c", setting]);
        }
        command.current_dir("/");
        command
    }

    /// Runs one of the server's clients, which must succeed; returns its standard output.
    fn client(&self, name: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program(name));
        command.arg("-h").arg(self.path()).args(["-U", USER]).args(arguments);
        succeeds(&command.output().expect("a client"))
    }

    fn wait_for_server(&self) {
        wait_for("postgres to answer", Duration::from_secs(60), || {
            let mut command = Command::new(program("pg_isready"));
            let answer = command.arg("-q").arg("-h").arg(self.path()).status().expect("pg_isready");
            answer.success().then_some(())
        });
    }

    fn stop_server(&self) {
        let mut command = as_user("runuser");
        command.arg(program("pg_ctl")).arg("-D").arg(self.data());
        command.args(["-m", "fast", "-t", "60", "stop"]).current_dir("/");
        succeeds(&command.output().expect("pg_ctl"));
    }

    /// Has the checksum of every page compared, without Venice; the server must be down.
    fn check_pages(&self) {
        let mut command = as_user("runuser");
        command.arg(program("pg_checksums")).args(["--check", "-D"]).arg(self.data());
        let said = succeeds(&command.current_dir("/").output().expect("pg_checksums"));
        assert!(said.contains("Bad checksums:  0"), "{said}");
    }
}

fn succeeds(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Starts a program plainly or under Venice.
type Start<'a> = &'a dyn Fn(&Command) -> Running;

fn plainly(command: &Command) -> Running {
    Running::spawn(copy(command), false)
}

#[test]
fn initdb_pages_as_other_user() {
    if paged_mode_is_missing("initdb_pages_as_other_user") {
        return;
    }
    let cluster = Cluster::new();
    let options = ["--local", "4MiB", "--remote", "256MiB", "--stats"];
    let made = Rack::shared(Port::Shm).run(&options, &cluster.initdb()).finish(PROGRAM_LIMIT);
    made.expect_code(0);
    check_went_far("initdb", &made);
    cluster.check_pages();
}

/// A single-user backend sorts in memory, below a login shell.
fn sort_in_backend(start: Start, cluster: &Cluster) -> Outcome {
    let sql = "select count(*), md5(string_agg(x::text, ',' order by md5(x::text))) \
               from generate_series(1, 150000) x";
    let (postgres, data) = (program("postgres"), cluster.data());
    let script = format!(
        "echo \"{sql}\" | {} --single -j -D {} -c work_mem=128MB postgres 2>&1",
        postgres.display(),
        data.display()
    );
    let mut command = Command::new("su");
    command.args([USER, "-c", &script]).current_dir("/");
    let outcome = start(&command).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    outcome
}

/// Returns the lines of a backend's answer.
fn rows(outcome: &Outcome) -> Vec<String> {
    let said = String::from_utf8_lossy(&outcome.stdout);
    said.lines().filter(|line| line.contains(" = \"")).map(str::to_owned).collect()
}

#[test]
fn backend_of_login_shell_pages() {
    if paged_mode_is_missing("backend_of_login_shell_pages") {
        return;
    }
    let cluster = Cluster::new();
    plainly(&cluster.initdb()).finish(PROGRAM_LIMIT).expect_code(0);
    let plain = sort_in_backend(&plainly, &cluster);
    let options = ["--local", "12MiB", "--remote", "256MiB", "--stats"];
    let rack = Rack::shared(Port::Shm);
    let venice = sort_in_backend(&|command| rack.run(&options, command), &cluster);
    check_went_far("postgres --single", &venice);
    assert_eq!(rows(&plain).len(), 2, "{}", String::from_utf8_lossy(&plain.stdout));
    assert_eq!(rows(&plain), rows(&venice));
    cluster.check_pages();
}

const PGBENCH: [&str; 7] = ["-c", "6", "-j", "2", "-t", "150", USER];

/// Sums after pgbench, large sorts and joins in one backend, and a join of parallel workers.
const QUERIES: [&str; 5] = [
    "select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts",
    "select count(*) from pgbench_history",
    "create table t as select i, md5(i::text) f from generate_series(1, 200000) i; analyze t",
    "select count(*), md5(string_agg(f, '' order by f)) from t",
    "select count(*) from t a join t b on a.f = b.f",
];

/// Runs pgbench and the queries on a server; returns the answers.
fn drive(start: Start, cluster: &Cluster) -> (Outcome, Vec<String>) {
    plainly(&cluster.initdb()).finish(PROGRAM_LIMIT).expect_code(0);
    let server = start(&cluster.server());
    cluster.wait_for_server();
    cluster.client("pgbench", &["-i", "-q", "-s", "2", USER]);
    let said = cluster.client("pgbench", &PGBENCH);
    assert!(said.contains("actually processed: 900/900"), "{said}");
    assert!(said.contains("failed transactions: 0 "), "{said}");
    let ask = |sql: &&str| cluster.client("psql", &["-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql]);
    let answers = QUERIES.iter().map(ask).collect();
    cluster.client("pg_amcheck", &["--install-missing", "--heapallindexed", "-d", USER]);
    cluster.stop_server();
    let outcome = server.finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    cluster.check_pages();
    (outcome, answers)
}

#[test]
fn pgbench_loses_no_transaction() {
    if paged_mode_is_missing("pgbench_loses_no_transaction") {
        return;
    }
    let (_, expected) = drive(&plainly, &Cluster::new());
    assert_eq!(expected[..2], ["t\n", "900\n"]);
    let options = ["--local", "24MiB", "--remote", "800MiB", "--stats"];
    let rack = Rack::shared(Port::Shm);
    let (venice, answers) = drive(&|command| rack.run(&options, command), &Cluster::new());
    println!("{}", venice.stderr);
    assert_eq!(expected, answers);
    check_went_far("postgres", &venice);
    if !look_is_missing("pgbench_loses_no_transaction, its shared memory") {
        assert!(venice.stderr.contains("all memory was managed"), "{}", venice.stderr);
    }
}
