use venice_warehouse::config::Config;
use venice_warehouse::run::World;
use venice_warehouse::warehouse::Warehouse;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&args[1]).unwrap();
    let config: Config = toml::from_str(&text).unwrap();
    let threads = args.get(2).map_or(1, |n| n.parse().unwrap());
    let mut world = Warehouse::new(&config, threads).unwrap();
    let start = std::time::Instant::now();
    let mut until = 0;
    while !world.is_over() && start.elapsed().as_secs() < 20 {
        until += 100_000_000_000;
        world.advance(until);
    }
    let took = start.elapsed().as_secs_f64();
    let outcome = world.outcome();
    for name in outcome.names() {
        let (value, unit) = outcome.value(&name).unwrap();
        println!("{name:28} {value:.3} {unit}");
    }
    println!(
        "{:.2} s, {:.2} M events/s trace {:x}",
        took,
        world.events() as f64 / took / 1e6,
        outcome.trace_hash
    );
}
