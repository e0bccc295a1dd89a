//! The HTTP server.

use crate::connections::Connections;
use crate::exposition::Exposition;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// Most bytes and lines of a request's head.
const HEAD_BYTES: usize = 8192;
const HEAD_LINES: usize = 64;
/// Limit for a request's head, and for a connection in all.
const HEAD_WITHIN: Duration = Duration::from_secs(2);
const WHOLE_WITHIN: Duration = Duration::from_secs(10);
/// Limit for the daemon's own answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Scrapes within this time get the same text: many scrapers cost the daemon as much as one.
const REUSED_FOR: Duration = Duration::from_millis(500);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const TEXT: &str = "text/plain; charset=utf-8";

/// The reason why a daemon does not serve, in one line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// A daemon's metrics and health.
pub trait Source: Send + Sync + 'static {
    /// Collects the metrics of this moment.
    fn metrics(&self) -> impl Future<Output = Exposition> + Send;

    /// Checks that the daemon serves.
    ///
    /// # Errors
    /// [`NotReady`].
    fn ready(&self) -> impl Future<Output = Result<(), NotReady>> + Send;
}

/// The address of `--metrics` cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {addr} for metrics: {why}: choose another address, IP:PORT")]
pub struct ListenError {
    addr: String,
    why: io::Error,
}

/// A bound server of metrics and health.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    addr: SocketAddr,
}

impl MetricsServer {
    /// Listens on `addr`, `host:port`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(addr: &str) -> Result<Self, ListenError> {
        let bound = async {
            let listener = TcpListener::bind(addr).await?;
            let addr = listener.local_addr()?;
            Ok(Self { listener, addr })
        };
        bound.await.map_err(|why| ListenError { addr: addr.to_owned(), why })
    }

    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until dropped.
    pub async fn serve<S: Source>(self, source: Arc<S>) {
        let endpoints = Arc::new(Endpoints { source, scraped: Mutex::new(None) });
        let mut open = Connections::default();
        // In a set, so that all connections end when this future is dropped.
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let (stream, from) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "accepting a connection for metrics");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            while tasks.try_join_next().is_some() {}
            open.make_room(from.ip());
            let task = tasks.spawn(serve_one(stream, Arc::clone(&endpoints)));
            open.enter(from.ip(), task);
        }
    }
}

async fn serve_one<S: Source>(stream: TcpStream, endpoints: Arc<Endpoints<S>>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let endpoints = Arc::clone(&endpoints);
        async move {
            Ok::<_, Infallible>(endpoints.answer(request.method(), request.uri().path()).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    match timeout(WHOLE_WITHIN, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics failed"),
        Err(_) => tracing::debug!("a connection for metrics took too long"),
    }
}

type Answer = Response<Full<Bytes>>;

/// The endpoints, and the last scrape.
struct Endpoints<S> {
    source: Arc<S>,
    scraped: Mutex<Option<(Instant, Bytes)>>,
}

impl<S: Source> Endpoints<S> {
    async fn answer(&self, method: &Method, path: &str) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut answer = line(StatusCode::METHOD_NOT_ALLOWED, "use GET");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match path {
            "/metrics" => self.metrics().await,
            "/healthz" => line(StatusCode::OK, "ok"),
            "/readyz" => self.ready().await,
            _ => line(StatusCode::NOT_FOUND, "no such page: there are /metrics, /healthz, /readyz"),
        }
    }

    async fn metrics(&self) -> Answer {
        let mut scraped = self.scraped.lock().await;
        if let Some((at, text)) = &*scraped
            && at.elapsed() < REUSED_FOR
        {
            return answer(StatusCode::OK, prometheus_text::CONTENT_TYPE, text.clone());
        }
        match timeout(ANSWER_WITHIN, self.source.metrics()).await {
            Ok(metrics) => {
                let text = Bytes::from(metrics.text());
                *scraped = Some((Instant::now(), text.clone()));
                answer(StatusCode::OK, prometheus_text::CONTENT_TYPE, text)
            }
            Err(_) => line(StatusCode::SERVICE_UNAVAILABLE, "the daemon does not answer"),
        }
    }

    async fn ready(&self) -> Answer {
        match timeout(ANSWER_WITHIN, self.source.ready()).await {
            Ok(Ok(())) => line(StatusCode::OK, "ready"),
            Ok(Err(NotReady(why))) => line(StatusCode::SERVICE_UNAVAILABLE, &why),
            Err(_) => line(StatusCode::SERVICE_UNAVAILABLE, "the daemon does not answer"),
        }
    }
}

fn line(status: StatusCode, text: &str) -> Answer {
    answer(status, TEXT, Bytes::from(format!("{text}\n")))
}

fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests;
