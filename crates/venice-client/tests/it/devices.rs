//! Devices of real agents, used by a program.

use std::thread;
use std::time::Duration;

use crate::common::{Rack as Daemons, eventually};
use venice_client::{DeviceOptions, Error, MemoryOptions, Owner, Rack, ResourceKind, Want, wants};
use venice_control::client::Access;
use venice_control::{Caller, User};
use venice_testkit::identity::login_of;

fn want(text: &str) -> Want {
    text.parse().unwrap()
}

fn options() -> DeviceOptions {
    let mut options = DeviceOptions::default();
    options.purpose = "a test".into();
    options
}

#[test]
fn device_is_held_until_drop() {
    let mut daemons = Daemons::start(1, 1);
    daemons.add_agent_with("node2", 1, &["accelerator:/dev/zero,fft"]);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let device = rack.get_device(&want("accelerator:FFT"), &options()).unwrap();
    assert_eq!((device.node(), device.address()), ("node2", "/dev/zero"));
    assert_eq!(
        (device.kind(), device.capabilities()),
        (ResourceKind::Accelerator, &["fft".to_owned()][..])
    );
    assert!(device.grant() > 0 && device.len_bytes() == 0);
    let taken = rack.get_device(&want("accelerator"), &options());
    assert!(matches!(&taken, Err(Error::NoRoom(said)) if said.contains("granted")), "{taken:?}");
    let wrong = rack.get_device(&want("accelerator:cuda"), &options());
    assert!(
        matches!(&wrong, Err(Error::NoRoom(said)) if said.contains("cannot \"cuda\"")),
        "{wrong:?}"
    );
    let none = rack.get_device(&want("nic"), &options());
    assert!(matches!(none, Err(Error::NoRoom(_))), "{none:?}");
    device.check().unwrap();
    drop(device);

    let again = rack.get_device(&want("accelerator"), &options()).unwrap();
    daemons.stop(1);
    eventually("the loss is seen", || again.check().is_err());
    let lost = again.check().unwrap_err();
    assert!(matches!(&lost, Error::DeviceLost { node, .. } if node == "node2"), "{lost}");
}

#[test]
fn request_waits_for_released_device() {
    let mut daemons = Daemons::start(1, 1);
    daemons.add_agent_with("node2", 1, &["accelerator:/dev/zero,fft"]);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let first = rack.get_device(&want("accelerator:fft"), &options()).unwrap();
    assert_eq!(first.leaving(), None);
    let mut waits = options();
    waits.wait = Duration::from_millis(300);
    let late = rack.get_device(&want("accelerator:fft"), &waits);
    assert!(matches!(&late, Err(Error::NoRoom(said)) if said.contains("it waited")), "{late:?}");
    waits.wait = Duration::from_secs(60);
    let second = thread::scope(|scope| {
        let waiting = scope.spawn(|| rack.get_device(&want("accelerator:fft"), &waits));
        drop(first);
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(second.node(), "node2");
}

#[test]
fn storage_is_granted_by_size() {
    let mut daemons = Daemons::start(1, 1);
    let folder = tempfile::tempdir().unwrap();
    let offer = format!("storage:{}=4MiB", folder.path().display());
    daemons.add_agent_with("node2", 1, &[&offer]);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let any = DeviceOptions::default();
    let most = rack.get_device(&want("storage=3145727B"), &any).unwrap();
    assert_eq!((most.len_bytes(), most.kind().name()), (3 << 20, "storage"));
    let more = rack.get_device(&want("storage=2MiB"), &any);
    assert!(
        matches!(&more, Err(Error::NoRoom(said)) if said.contains("1MiB are left")),
        "{more:?}"
    );
    let rest = rack.get_device(&want("storage=1MiB"), &any).unwrap();
    assert_ne!(rest.grant(), most.grant());
    let two = rack.get_device(&want("storage=2x1MiB"), &any);
    assert!(matches!(&two, Err(Error::Invalid(said)) if said.contains("get_devices")), "{two:?}");
}

#[test]
fn memory_comes_with_devices() {
    let mut daemons = Daemons::start(1, 4);
    let folder = tempfile::tempdir().unwrap();
    let offer = format!("storage:{}=4MiB", folder.path().display());
    daemons.add_agent_with("node2", 4, &["accelerator:/dev/zero,fft", &offer]);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let mut options = MemoryOptions::default();
    options.copies = Some(1);
    options.devices = wants("accelerator:fft storage=3MiB").unwrap();
    let mut memory = rack.get_memory(16 << 20, &options).unwrap();
    memory.write(5, b"beside").unwrap();
    let devices = memory.take_devices();
    let kinds: Vec<_> = devices.iter().map(|device| device.kind().name()).collect();
    assert_eq!(kinds, ["accelerator", "storage"]);
    // All or nothing: the accelerator is taken, so no storage is granted either.
    let mut devices = devices.into_iter();
    let accelerator = devices.next();
    drop(devices);
    let both = wants("storage=1MiB accelerator").unwrap();
    assert!(matches!(rack.get_devices(&both, &DeviceOptions::default()), Err(Error::NoRoom(_))));
    drop((memory, accelerator));
    eventually("all is free", || rack.get_devices(&both, &DeviceOptions::default()).is_ok());
    let error = |text: &str| wants(text).unwrap_err().to_string();
    assert!(error("nic gpu").contains("expected memory"), "{}", error("nic gpu"));
    let memory = rack.get_devices(&wants("memory=1GiB").unwrap(), &DeviceOptions::default());
    assert!(matches!(memory, Err(Error::Invalid(_))));
}

#[test]
fn device_changes_its_owner() {
    let mut daemons = Daemons::start(1, 1);
    daemons.add_agent_with("node2", 1, &["accelerator:/dev/zero,fft"]);
    let of = |name: &str| {
        let user = User { node: "node1".into(), uid: 1000, name: name.into(), is_admin: false };
        let access = Access::new(daemons.access().monitor, login_of(&Caller::User(user)));
        Rack::connect_by(access).unwrap()
    };
    let (ada, bob) = (of("ada"), of("bob"));
    let device = ada.get_device(&want("accelerator"), &options()).unwrap();
    assert!(bob.claim(None, Duration::ZERO).unwrap().is_none());
    let to = Owner { node: "node1".into(), user: "bob".into(), is_bound: false };
    let stolen = bob.transfer(&[device.grant()], to.clone(), Duration::ZERO).unwrap_err();
    assert!(stolen.to_string().contains("only its owner"), "{stolen}");
    let made = ada.transfer(&[device.grant()], to, Duration::from_secs(60)).unwrap();
    assert_eq!(made.grants.len(), 1);
    eventually("the old owner is told", || device.check().is_err());
    let lost = device.check().unwrap_err().to_string();
    assert!(lost.ends_with("lost: it was transferred to bob@node1"), "{lost}");
    let claimed = bob.claim(Some(made.number), Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(claimed.grants()[0].id, made.grants[0].to);
    assert!(claimed.is_whole() && claimed.services() == [None]);
    assert!(matches!(claimed.open_service(0, None), Err(Error::Invalid(_))));
    drop(device);
    assert!(matches!(bob.get_device(&want("accelerator"), &options()), Err(Error::NoRoom(_))));
    drop(claimed);
    eventually("it is free", || bob.get_device(&want("accelerator"), &options()).is_ok());
}
