//! Devices of real agents, used by a program.

use std::thread;
use std::time::Duration;

use crate::common::{Rack as Daemons, eventually};
use venice_client::{DeviceKind, DeviceOptions, Error, Io, Rack};

fn options(capability: &str) -> DeviceOptions {
    let mut options = DeviceOptions::default();
    options.capabilities = vec![capability.to_owned()];
    options.purpose = "a test".into();
    options
}

#[test]
fn device_is_held_until_drop() {
    let mut daemons = Daemons::start(1, 1);
    daemons.add_agent_with("node2", 1, &["accelerator:/dev/zero,fft"]);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let device = rack.get_accelerator(&options("FFT")).unwrap();
    assert_eq!((device.node(), device.address()), ("node2", "/dev/zero"));
    assert_eq!(
        (device.kind(), device.capabilities()),
        (DeviceKind::Accelerator, &["fft".to_owned()][..])
    );
    assert!(device.grant() > 0 && device.len_bytes() == 0);
    let taken = rack.get_accelerator(&DeviceOptions::default());
    assert!(matches!(&taken, Err(Error::NoRoom(said)) if said.contains("granted")), "{taken:?}");
    let wrong = rack.get_accelerator(&options("cuda"));
    assert!(
        matches!(&wrong, Err(Error::NoRoom(said)) if said.contains("cannot cuda")),
        "{wrong:?}"
    );
    let none = rack.get_io(Io::Nic, &DeviceOptions::default());
    assert!(matches!(none, Err(Error::NoRoom(_))), "{none:?}");
    device.check().unwrap();
    drop(device);

    let again = rack.get_accelerator(&DeviceOptions::default()).unwrap();
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
    let first = rack.get_accelerator(&options("fft")).unwrap();
    assert_eq!(first.leaving(), None);
    let mut waits = options("fft");
    waits.wait = Duration::from_millis(300);
    let late = rack.get_accelerator(&waits);
    assert!(matches!(&late, Err(Error::NoRoom(said)) if said.contains("it waited")), "{late:?}");
    waits.wait = Duration::from_secs(60);
    let second = thread::scope(|scope| {
        let waiting = scope.spawn(|| rack.get_accelerator(&waits));
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
    let most = rack.get_io(Io::Storage((3 << 20) - 1), &any).unwrap();
    assert_eq!((most.len_bytes(), most.kind().name()), (3 << 20, "storage"));
    let more = rack.get_io(Io::Storage(2 << 20), &any);
    assert!(
        matches!(&more, Err(Error::NoRoom(said)) if said.contains("1MiB are left")),
        "{more:?}"
    );
    let rest = rack.get_io(Io::Storage(1 << 20), &any).unwrap();
    assert_ne!(rest.grant(), most.grant());
    assert!(matches!(rack.get_io(Io::Storage(0), &any), Err(Error::Invalid(_))));
}
