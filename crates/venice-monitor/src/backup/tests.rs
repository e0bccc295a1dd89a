use super::*;
use crate::file_store::FileStore;
use crate::{STORE_FILE, init};
use std::time::Duration;
use venice_rack::monitor::{Change, Record};

/// A new rack with an unused token, a grant limit and a quota.
async fn rack_in(dir: &Path) {
    init(dir, "h:1", Duration::from_secs(60), &StoreChoice::default()).await.unwrap();
    let quota = venice_control::QuotaRecord {
        of: venice_control::QuotaFor::User("ada".to_owned()),
        limits: venice_control::Limits::default(),
    };
    let changes = vec![Change::PutGrantLimit(10), Change::PutQuota(quota)];
    FileStore::at(dir.join(STORE_FILE)).apply(changes).await.unwrap();
}

async fn backup_of(dir: &Path) -> Backup {
    Backup::read(dir, &StoreChoice::default(), None).await.unwrap()
}

fn text(error: MonitorError) -> String {
    error.to_string()
}

#[tokio::test]
async fn restore_yields_same_rack() {
    let temp = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| temp.path().join(name));
    rack_in(&old).await;
    let backup = Backup::from_bytes(&backup_of(&old).await.to_bytes()).unwrap();
    assert_eq!((backup.info().quotas, backup.info().tokens), (1, 1));
    let restored = backup.restore(&new, &StoreChoice::default(), false).await.unwrap();
    assert_eq!((restored.dropped_tokens, restored.moved_to), (1, None));
    assert_eq!(recorded_address(&new).unwrap().as_deref(), Some("h:1"));
    let fingerprint = |dir: &Path| Authority::open(&dir.join("identity")).unwrap().fingerprint();
    assert_eq!(fingerprint(&old), fingerprint(&new));
    let records = FileStore::at(new.join(STORE_FILE)).records().await.unwrap();
    assert!(records.contains(&Record::GrantLimit(10 + (1 << 20))), "{records:?}");
    assert!(!records.iter().any(|record| matches!(record, Record::Token(_))), "{records:?}");
    assert!(records.iter().any(|record| matches!(record, Record::Quota(_))), "{records:?}");
    // The owner record came along.
    assert_eq!(backup_of(&new).await.info().authority, backup.info().authority);
}

#[tokio::test]
async fn restore_keeps_present_state() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("state");
    rack_in(&dir).await;
    let backup = backup_of(&dir).await;
    let refused = backup.restore(&dir, &StoreChoice::default(), false).await.unwrap_err();
    assert!(text(refused).contains("--force"));
    let restored = backup.restore(&dir, &StoreChoice::default(), true).await.unwrap();
    let aside = restored.moved_to.unwrap();
    assert!(aside.join("identity/authority.key").exists() && aside.join(STORE_FILE).exists());
    assert!(Authority::exists(&dir.join("identity")));
}

#[tokio::test]
async fn store_in_use_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    rack_in(temp.path()).await;
    let backup = backup_of(temp.path()).await;
    let _open = RedbStore::open(&temp.path().join(STORE_FILE)).unwrap();
    let restored = backup.restore(temp.path(), &StoreChoice::default(), true).await;
    assert!(matches!(restored, Err(MonitorError::Store(StoreError::Locked { .. }))));
    let read = Backup::read(temp.path(), &StoreChoice::default(), None).await;
    assert!(matches!(read, Err(MonitorError::Store(StoreError::Locked { .. }))));
}

#[tokio::test]
async fn damaged_backup_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    rack_in(temp.path()).await;
    let good = backup_of(temp.path()).await.to_bytes();
    let refused = |bytes: &[u8]| text(Backup::from_bytes(bytes).unwrap_err());
    assert!(refused(&good[..good.len() - 9]).contains("checksum"));
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    assert!(refused(&flipped).contains("checksum"));
    assert!(refused(b"rack.redb\n").contains("no backup"));
    assert!(refused(b"").contains("no backup"));
    let later = String::from_utf8(good).unwrap().replacen("backup 1", "backup 2", 1);
    assert!(refused(later.as_bytes()).contains("format 2"));
}

#[tokio::test]
async fn unusable_contents_change_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("state");
    rack_in(&dir).await;
    let backup = backup_of(&dir).await;
    let with_record = |key: &str, value: &str| {
        let mut spoilt = Backup::from_bytes(&backup.to_bytes()).unwrap();
        spoilt.records.insert(key.to_owned(), value.to_owned());
        spoilt
    };
    let with_file = |name: &str, text: &str| {
        let mut spoilt = Backup::from_bytes(&backup.to_bytes()).unwrap();
        spoilt.identity.insert(name.to_owned(), text.to_owned());
        spoilt
    };
    let mut other = Backup::from_bytes(&backup.to_bytes()).unwrap();
    other.authority = "0".repeat(64);
    for (spoilt, why) in [
        (with_record("format", "9"), "9"),
        (with_record("node/0000000001", "{}"), "node/0000000001"),
        (with_file("authority.key", "junk"), "authority is damaged"),
        (with_file("authority.crt", "junk"), "authority is damaged"),
        (other, "authority is damaged"),
    ] {
        let refused = text(spoilt.restore(&dir, &StoreChoice::default(), true).await.unwrap_err());
        assert!(refused.contains(why), "{refused}");
        assert!(!dir.join("before-restore-1").exists(), "{why}");
    }
    backup.restore(&dir, &StoreChoice::default(), true).await.unwrap();
}

#[tokio::test]
async fn missing_store_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    Authority::create(&temp.path().join("identity")).unwrap();
    let read = Backup::read(temp.path(), &StoreChoice::default(), None).await;
    assert!(text(read.unwrap_err()).contains("--state-dir"));
    assert!(!temp.path().join(STORE_FILE).exists(), "reading creates nothing");
}

/// systemd puts a link in place of the state directory of a service with a dynamic user.
#[tokio::test]
async fn restore_follows_link_of_service() {
    let temp = tempfile::tempdir().unwrap();
    let [old, private, link] = ["old", "private", "link"].map(|name| temp.path().join(name));
    rack_in(&old).await;
    fs::create_dir(&private).unwrap();
    std::os::unix::fs::symlink(&private, &link).unwrap();
    backup_of(&old).await.restore(&link, &StoreChoice::default(), false).await.unwrap();
    assert!(link.is_symlink() && Authority::exists(&private.join("identity")));
}
