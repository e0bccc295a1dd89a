//! The manifests are of Kubernetes' API, and their commands are ones that `venice` knows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes")
}

/// Returns the objects of all manifests, with their files.
fn objects() -> Vec<(String, Value)> {
    let listed = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let files = [listed(&folder()), listed(&folder().join("examples"))].concat().into_iter();
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
    let objects_of = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(folder()).unwrap().display().to_string();
        let documents = serde_yaml_ng::Deserializer::from_str(&text);
        let parsed = documents.map(|it| {
            let mut value = serde_yaml_ng::Value::deserialize(it).expect("YAML");
            value.apply_merge().expect("merge keys");
            serde_json::to_value(value).expect("JSON")
        });
        parsed.map(|value| (name.clone(), value)).collect::<Vec<_>>()
    };
    files.flat_map(objects_of).collect()
}

/// Reads an object as a type of the API, and writes it again: unknown fields are lost on the way.
fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).expect("an object of the API");
    serde_json::to_value(typed).unwrap()
}

fn typed(object: &Value) -> Value {
    match object["kind"].as_str().expect("a kind") {
        "Namespace" => through::<Namespace>(object),
        "Service" => through::<Service>(object),
        "StatefulSet" => through::<StatefulSet>(object),
        "DaemonSet" => through::<DaemonSet>(object),
        "Pod" => through::<Pod>(object),
        other => panic!("the test does not know {other}"),
    }
}

#[test]
fn manifests_fit_the_published_api() {
    let objects = objects();
    let (lists, objects): (Vec<_>, Vec<_>) =
        objects.iter().partition(|(_, object)| object["kind"] == "Kustomization");
    for (file, object) in &objects {
        assert_eq!(typed(object), *object, "{file}");
    }
    // A field that the API does not have is found.
    let (_, agent) = objects.iter().find(|(_, object)| object["kind"] == "DaemonSet").unwrap();
    let mut wrong = agent.clone();
    wrong["spec"]["template"]["spec"]["hostNetworks"] = true.into();
    assert_ne!(typed(&wrong), wrong);
    // Each file of the folder is in the list.
    let [(_, list)] = &lists[..] else { panic!("one list") };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let listed: BTreeSet<_> = list["resources"].as_array().unwrap().iter().map(text).collect();
    let files = objects.iter().map(|(file, _)| file.clone());
    let files: BTreeSet<_> = files.filter(|file| !file.contains('/')).collect();
    assert_eq!(listed, files);
}

/// Returns the containers of an object, init containers first.
fn containers(object: &Value) -> Vec<Value> {
    let spec = match object["kind"].as_str() {
        Some("Pod") => &object["spec"],
        _ => &object["spec"]["template"]["spec"],
    };
    let of = |key: &str| spec[key].as_array().cloned().unwrap_or_default();
    [of("initContainers"), of("containers")].concat()
}

fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words.map(|word| word.as_str().expect("text").to_owned()).collect()
}

/// Returns the `venice` commands in a script, without their redirections.
fn commands_in(script: &str) -> Vec<Vec<String>> {
    let parts =
        script.split("||").flat_map(|part| part.split("&&")).flat_map(|part| part.split(';'));
    let command = |part: &str| {
        let words = part.split_whitespace().map(|word| word.trim_matches('"').to_owned());
        words.take_while(|word| !word.starts_with(['<', '>'])).collect::<Vec<_>>()
    };
    let commands =
        parts.map(command).filter(|words| words.first().is_some_and(|it| it == "venice"));
    commands.map(|words| words[1..].to_vec()).collect()
}

/// Fails unless the command line is parsed up to the program that it runs, if any.
fn expect_known(file: &str, words: &[String]) {
    let fill = |word: &String| match word.as_str() {
        "$(NODE_NAME)" | "$NODE_NAME" => "node7".to_owned(),
        word => word.replace("$(HOST_IP)", "10.0.0.7"),
    };
    let own = words.iter().take_while(|word| *word != "--").map(fill);
    let mut command = Command::new(env!("CARGO_BIN_EXE_venice"));
    let said = command.args(own).arg("--help").output().unwrap();
    assert!(said.status.success(), "{file}: venice {words:?}: {said:?}");
}

#[test]
fn manifests_use_known_options() {
    let mut count = 0;
    for (file, object) in objects() {
        for container in containers(&object) {
            let (command, args) = (words(&container["command"]), words(&container["args"]));
            let commands = match command.first().map(String::as_str) {
                None => vec![args],
                Some("sh") => commands_in(command.last().unwrap()),
                Some(other) => panic!("{file}: {other}"),
            };
            for words in commands {
                expect_known(&file, &words);
                count += 1;
            }
        }
    }
    assert_eq!(count, 5, "init, monitor, join, agent, run");
    let mut unknown = Command::new(env!("CARGO_BIN_EXE_venice"));
    let said = unknown.args(["agent", "--lands", "--help"]).output().unwrap();
    assert!(!said.status.success(), "an unknown option is found");
}

/// The image file copies and runs what the clone has.
#[test]
fn image_file_names_existing_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("packaging/container/Containerfile")).unwrap();
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let known = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "VOLUME",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ];
    for line in lines.clone() {
        let instruction = line.split_whitespace().next().unwrap();
        assert!(known.contains(&instruction), "{line}");
        for script in line.split_whitespace().filter(|word| word.starts_with("scripts/")) {
            assert!(root.join(script).exists(), "{script}");
        }
    }
    let has = |what: &str| lines.clone().any(|line| line == what);
    assert!(has("USER venice") && has("ENTRYPOINT [\"venice\"]"));
    // What its command and its check run is known.
    for line in lines {
        let Some(list) = line.split_once("CMD ").map(|(_, list)| list) else { continue };
        let words: Vec<String> = serde_json::from_str(list).unwrap();
        let words: Vec<String> = words.into_iter().filter(|word| word != "venice").collect();
        expect_known("Containerfile", &words);
    }
    // The build takes along all packages of the workspace that an image needs.
    let packages = fs::read_to_string(root.join("packaging/deb/control")).unwrap();
    for name in ["venice", "venice-server", "python3-venice"] {
        assert!(
            packages.contains(&format!("Package: {name}\n")) && text.contains(&format!("/{name}_"))
        );
    }
}
