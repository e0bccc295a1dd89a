//! Empty names are refused, whatever the client.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, request};
use venice_control::client::EnrolmentClient;
use venice_control::{AmountsByKind, ControlError, Limits, QuotaFor, QuotaRecord, ResourceKind};

fn is_refused<T: std::fmt::Debug>(answer: Result<T, ControlError>) {
    let said = answer.unwrap_err().to_string();
    assert!(said.contains("is empty"), "{said}");
}

#[tokio::test]
async fn empty_names_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let _agent = Agent::start("node1", &monitor.addr, 2).await;
    let mut client = monitor.client().await;
    let nobody = || QuotaFor::User(String::new());
    let limits = Limits::of_memory(Some(0));
    is_refused(client.set_quota(QuotaRecord { of: nobody(), limits: limits.clone() }).await);
    is_refused(client.remove_quota(nobody()).await);
    assert_eq!(
        client.quotas().await.unwrap().default,
        AmountsByKind::new(),
        "the default is unchanged"
    );
    is_refused(client.drain("", false).await);
    is_refused(client.allocate(request(1, 1, &[""])).await);
    let mut gate =
        EnrolmentClient::connect(&venice_testkit::identity::access(&monitor.addr)).await.unwrap();
    is_refused(gate.revoke("", true).await);
    // The default quota is set without a name.
    client.set_quota(QuotaRecord { of: QuotaFor::Others, limits }).await.unwrap();
    assert_eq!(client.quotas().await.unwrap().default, [(ResourceKind::Memory, 0)].into());
    client.remove_quota(QuotaFor::Others).await.unwrap();
    monitor.stop().await;
}
