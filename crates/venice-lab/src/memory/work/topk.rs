//! PageRank for the most popular vertices as Giraph runs it (composable-rack paper, section 9b):
//! supersteps over 50 partitions of a graph, with messages between them and no combining of
//! messages to one vertex.
//!
//! A vertex sends its neighbours each significant change of its rank, so messages grow fewer from
//! superstep to superstep, and popular vertices get more of them. Memory therefore differs from
//! partition to partition and over time: [`TopK::heat`] samples every partition several times in
//! each superstep.

use std::ops::Range;

use anyhow::Result;

use super::graph::{Graph, Shape};
use super::{Done, WorkArgs, Workload, digest};

/// Partitions: the paper's nodes.
const PARTITIONS: u32 = 50;
/// "for a fixed number of supersteps"
const SUPERSTEPS: u64 = 12;
/// Samples of the memory in one superstep.
const SAMPLES: u32 = 2;
const DAMPING: f64 = 0.85;
/// Least change of a rank that is sent, as a share of the initial rank.
const MATTERS: f64 = 0.3;
/// Messages in one block of 16 KiB.
const BLOCK: usize = 1024;

#[derive(Debug, Clone, Copy)]
struct Message {
    to: u32,
    change: f64,
}

/// Messages in blocks: growth copies none.
#[derive(Debug, Default)]
struct Inbox {
    blocks: Vec<Vec<Message>>,
}

impl Inbox {
    fn push(&mut self, message: Message) {
        match self.blocks.last_mut() {
            Some(block) if block.len() < BLOCK => block.push(message),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(message);
                self.blocks.push(block);
            }
        }
    }

    fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK * size_of::<Message>()) as u64
    }
}

/// Returns the size of graph, ranks, and a message over each edge, in bytes: the memory of the
/// largest superstep.
pub(super) fn held_bytes(skewed: Shape) -> u64 {
    let vertices = u64::from(skewed.vertices);
    let messages = skewed.edges * size_of::<Message>() as u64;
    Graph::held_bytes(vertices, skewed.edges) + vertices * size_of::<f64>() as u64 + messages
}

#[derive(Debug)]
pub(super) struct TopK {
    graph: Graph,
    ranks: Vec<f64>,
    /// Messages of this superstep and of the next, by partition.
    inboxes: Vec<Inbox>,
    next: Vec<Inbox>,
    heat: Vec<Vec<u64>>,
}

impl Workload for TopK {
    fn build(args: &WorkArgs) -> Result<Self> {
        Ok(Self::of(args.load_graph()?))
    }

    fn run(&mut self, rounds: u64) -> Done {
        let mut done = Done::default();
        for _ in 0..rounds {
            self.ranks.fill(0.0);
            for superstep in 0..SUPERSTEPS {
                done.operations += self.superstep(superstep == 0, superstep + 1 == SUPERSTEPS);
            }
        }
        done
    }

    fn digests(&self) -> Vec<u64> {
        let [starts, neighbours] = self.graph.digests();
        vec![digest::of_f64(&self.ranks), starts, neighbours]
    }

    fn heat(&self) -> Vec<Vec<u64>> {
        self.heat.clone()
    }
}

impl TopK {
    fn of(graph: Graph) -> Self {
        let ranks = vec![0.0; graph.vertices() as usize];
        let inboxes = || (0..PARTITIONS).map(|_| Inbox::default()).collect();
        Self { graph, ranks, inboxes: inboxes(), next: inboxes(), heat: Vec::new() }
    }

    /// Returns the vertices of a partition.
    fn range(&self, partition: u32) -> Range<u32> {
        let start = |partition: u32| {
            (u64::from(self.graph.vertices()) * u64::from(partition) / u64::from(PARTITIONS)) as u32
        };
        start(partition)..start(partition + 1)
    }

    /// Runs all partitions, one after the other; returns the number of messages sent.
    fn superstep(&mut self, is_first: bool, is_last: bool) -> u64 {
        let mut sent = 0;
        for partition in 0..PARTITIONS {
            if partition % (PARTITIONS / SAMPLES) == 0 {
                self.sample();
            }
            let range = self.range(partition);
            let changes = self.receive(partition, &range, is_first);
            for (vertex, change) in range.zip(changes) {
                self.ranks[vertex as usize] += change;
                if !is_last && change > MATTERS * (1.0 - DAMPING) {
                    sent += self.send(vertex, change);
                }
            }
        }
        std::mem::swap(&mut self.inboxes, &mut self.next);
        sent
    }

    /// Consumes the messages to a partition; returns the change of each vertex.
    fn receive(&mut self, partition: u32, range: &Range<u32>, is_first: bool) -> Vec<f64> {
        let begin = if is_first { 1.0 - DAMPING } else { 0.0 };
        let mut changes = vec![begin; range.len()];
        for block in std::mem::take(&mut self.inboxes[partition as usize].blocks) {
            for message in block {
                changes[(message.to - range.start) as usize] += message.change;
            }
        }
        changes
    }

    fn send(&mut self, vertex: u32, change: f64) -> u64 {
        let neighbours = self.graph.of(vertex);
        let change = DAMPING * change / neighbours.len().max(1) as f64;
        let vertices = u64::from(self.graph.vertices());
        for &to in neighbours {
            // The last partition that begins at or before the vertex.
            let guess = (u64::from(to) * u64::from(PARTITIONS) / vertices) as u32;
            let starts_at =
                |partition: u32| (vertices * u64::from(partition) / u64::from(PARTITIONS)) as u32;
            let partition = if starts_at(guess + 1) <= to { guess + 1 } else { guess };
            self.next[partition as usize].push(Message { to, change });
        }
        neighbours.len() as u64
    }

    fn sample(&mut self) {
        let of = |partition: u32| {
            let range = self.range(partition);
            let edges: usize = range.clone().map(|vertex| self.graph.of(vertex).len()).sum();
            let own =
                range.len() * (size_of::<u64>() + size_of::<f64>()) + edges * size_of::<u32>();
            let [now, next] =
                [&self.inboxes, &self.next].map(|all| all[partition as usize].bytes());
            own as u64 + now + next
        };
        self.heat.push((0..PARTITIONS).map(of).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popular_vertices_rank_high() {
        let shape = Shape { vertices: 1003, edges: 8000 };
        let mut topk = TopK::of(Graph::skewed(shape));
        let done = topk.run(1);
        assert!(done.operations > shape.edges, "{} messages", done.operations);
        assert!(topk.inboxes.iter().chain(&topk.next).all(|inbox| inbox.blocks.is_empty()));
        // Links favour the first vertices.
        let sum = |ranks: &[f64]| ranks.iter().sum::<f64>();
        let all = sum(&topk.ranks);
        assert!(sum(&topk.ranks[..100]) > 1.2 * sum(&topk.ranks[903..]));
        // Bounds: the initial ranks, and the sum of all without damping.
        assert!(all > 0.15 * 1003.0 && all < 1003.0, "{all}");
        assert_eq!(topk.heat.len() as u64, SUPERSTEPS * u64::from(SAMPLES));
        assert!(topk.heat.iter().all(|sample| sample.len() == PARTITIONS as usize));
    }

    #[test]
    fn partitions_cover_the_graph() {
        let topk = TopK::of(Graph::skewed(Shape { vertices: 1003, edges: 2000 }));
        let ranges: Vec<_> = (0..PARTITIONS).map(|partition| topk.range(partition)).collect();
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((ranges[0].start, ranges[49].end), (0, 1003));
    }
}
