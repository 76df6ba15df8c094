//! From a profile and a scenario to an outcome.

use crate::consumer::{Process, WebCosts};
use crate::engine::Engine;
use crate::host::adapter::AdapterSizes;
use crate::host::cpu::Accounts;
use crate::host::ledger::{Counts, SourceCounts, Times};
use crate::host::protocol::{CLIENTS_MAX, Needs};
use crate::host::wire::Wire;
use crate::host::{
    Body, Endpoint, EndpointRole, Host, LineKind, ProtocolCosts, Sizes, Thread, measure_slot,
};
use crate::outcome::{ConsumerOutcome, CpuTime, Loss, Outcome, Place, SourceOutcome};
use crate::packet::Fifo;
use crate::profile::Profile;
use crate::scenario::{ComputeDemand, Consumer, Role, Scenario, Traffic};
use crate::source::{Claimed, Origin, Source};
use crate::trace::Recorder;
use crate::{Error, path};

/// Simulates `scenario` on `profile`.
///
/// The same arguments give the same outcome, to the last bit, on every machine.
/// Memory does not grow with the number of packets.
///
/// # Errors
///
/// The scenario makes no sense, the profile lacks a cost that is needed, or the
/// sums over all packets and all CPU time do not come out (a bug).
pub fn run(profile: &Profile, scenario: &Scenario, seed: u64) -> Result<Outcome, Error> {
    scenario.validate()?;
    let warmup = (scenario.warmup_ms * 1e6) as u64;
    let end = warmup + (scenario.duration_ms * 1e6) as u64;
    let mut engine = build(profile, scenario, seed)?;
    for source in &mut engine.sources {
        source.start(&mut engine.host);
    }
    let slot = measure_slot(sizes(scenario));
    engine.host.agenda.set(slot, warmup);
    let mut before = Snapshot::default();
    if engine.run_until(end) {
        before = Snapshot::take(&mut engine);
        engine.host.ledger.measuring = true;
        engine.path.on_measure(&engine.host);
        engine.run_until(end);
    }
    for cpu in 0..engine.host.cpus.len() {
        engine.host.account(cpu);
    }
    check_balance(&engine, seed)?;
    let after = Snapshot::take(&mut engine);
    Ok(outcome(
        profile,
        scenario,
        seed,
        engine,
        (&before, &after),
        end - warmup,
    ))
}

fn sizes(scenario: &Scenario) -> Sizes {
    Sizes {
        cpus: scenario.cpus as usize,
        sources: scenario.sources.len(),
        adapters: scenario.adapters.len(),
        consumers: scenario.consumers.len(),
    }
}

fn build(profile: &Profile, scenario: &Scenario, seed: u64) -> Result<Engine, Error> {
    let scheduler = scenario.scheduler.unwrap_or(profile.scheduler);
    let mut host = Host::new(profile, scheduler, sizes(scenario))?;
    host.seed = seed;
    host.protocol = ProtocolCosts::load(profile, needs(scenario))?;
    for adapter in &scenario.adapters {
        let default = |given: Option<u32>, name| given.map_or_else(|| profile.queue(name), Ok);
        let sizes = AdapterSizes {
            receive_ring: default(adapter.receive_ring, "receive_ring")?,
            receive_batch: profile.receive_batch(),
            transmit_ring: default(adapter.transmit_ring, "transmit_ring")?,
            output_queue: profile.queue("output_queue")?,
            queues: adapter.queues.unwrap_or(1) as usize,
            transmit_batch: adapter.transmit_batch.unwrap_or(1),
            announces_idle: adapter.announces_idle,
        };
        if sizes.transmit_batch > sizes.transmit_ring {
            let field = format!("adapter.{}.transmit_batch", adapter.name);
            let most = format!("at most {}, the transmit ring", sizes.transmit_ring);
            return Err(Error::scenario(field, sizes.transmit_batch, most));
        }
        let wire = Wire::new(&adapter.link);
        host.add_adapter(sizes, wire.clone(), wire);
    }
    let mut processes = Vec::new();
    for (index, consumer) in scenario.consumers.iter().enumerate() {
        processes.push(add_consumer(profile, scenario, &mut host, index, consumer)?);
    }
    let sources = sources(scenario, &mut host, seed)?;
    for (index, source) in scenario.sources.iter().enumerate() {
        if let Traffic::Bursts { burst, .. } = source.traffic {
            host.ledger.bursts[index] = burst;
        }
    }
    let mut path = path::build(profile, scenario, &host)?;
    path.start(&mut host);
    host.recorder = scenario.trace.map(|config| {
        let from = (config.start_ms * 1e6) as u64;
        Box::new(Recorder {
            from,
            to: from + (config.duration_ms * 1e6) as u64,
            trace: crate::trace::Trace {
                actors: actors(&host),
                ..Default::default()
            },
            events_max: config.events_max as usize,
        })
    });
    Ok(Engine {
        host,
        path,
        sources,
        processes,
    })
}

fn needs(scenario: &Scenario) -> Needs {
    let any = |matches: fn(&Role) -> bool| {
        let mut roles = scenario.consumers.iter().map(|consumer| &consumer.role);
        roles.any(matches)
    };
    let sends = any(|role| {
        matches!(
            role,
            Role::Echo { .. } | Role::RpcServer { .. } | Role::Worker { .. }
        )
    });
    Needs {
        sockets: sends
            || any(|role| matches!(role, Role::Sink { .. } | Role::Media { .. } | Role::Deaf {})),
        sends,
        forwards: any(|role| matches!(role, Role::Forward { .. })),
        screens: any(|role| matches!(role, Role::Screen { .. })),
        captures: any(|role| matches!(role, Role::Capture { .. })),
        disk: any(|role| matches!(role, Role::Capture { disk: true })),
        tcp: any(|role| matches!(role, Role::Web { .. } | Role::Listener {})),
        corrupt: scenario.sources.iter().any(|source| source.corrupt),
        closed: any(|role| matches!(role, Role::Closed {})),
    }
}

fn add_consumer(
    profile: &Profile,
    scenario: &Scenario,
    host: &mut Host,
    index: usize,
    consumer: &Consumer,
) -> Result<Process, Error> {
    let (role, queue) = endpoint_role(scenario, consumer)?;
    let length = match (consumer.queue, queue) {
        (Some(length), _) => length,
        (None, Some(name)) => profile.queue(name)?,
        (None, None) => 1,
    };
    let clients = scenario.sources.len() * CLIENTS_MAX;
    let (backlog_max, clients) = match role {
        EndpointRole::Tcp => (profile.queue("backlog")? as usize, clients),
        _ => (0, 0),
    };
    host.endpoints.push(Endpoint {
        role,
        queue: Fifo::new(length as usize),
        threads: Vec::new(),
        backlog: 0,
        backlog_max,
        opening: vec![false; clients].into(),
        delivered: 0,
        frames: 0,
        latency: Times::default(),
        handover: Times::default(),
    });
    let count = match consumer.role {
        Role::Web { processes, .. } => processes as usize,
        Role::Forward { .. } | Role::Listener {} | Role::Deaf {} | Role::Closed {} => 0,
        _ => 1,
    };
    for process in 0..count {
        add_process(host, index, process, consumer);
    }
    // Every process begins by running: in user mode, with its first receive call next.
    for thread in host.endpoints[index].threads.clone() {
        host.wake(thread);
        host.threads[thread].boosted = false;
    }
    let periodic = matches!(
        consumer.role,
        Role::Compute {
            demand: ComputeDemand::Periodic { .. }
        }
    );
    if periodic {
        host.set_consumer_timer(index, 0);
    }
    let web = match &consumer.role {
        Role::Web { program, .. } => WebCosts::load(profile, program.as_deref())?,
        _ => WebCosts::default(),
    };
    let (role, segments) = (consumer.role.clone(), segments(scenario));
    Ok(Process::new(index, role, count, segments, web))
}

/// How many segments an answer to a request of each source has.
fn segments(scenario: &Scenario) -> Vec<u32> {
    let sources = scenario.sources.iter();
    sources
        .map(|source| source.traffic.response_segments())
        .collect()
}

/// What the kernel does with a consumer's packets, and which queue they wait in.
fn endpoint_role(
    scenario: &Scenario,
    consumer: &Consumer,
) -> Result<(EndpointRole, Option<&'static str>), Error> {
    let field = format!("consumer.{}.role.out", consumer.name);
    Ok(match &consumer.role {
        Role::Forward { out } => {
            let out = scenario.adapter(&field, out)?;
            (EndpointRole::Forward { out }, None)
        }
        Role::Screen { out } => {
            let out = scenario.adapter(&field, out)?;
            (EndpointRole::Screen { out }, Some("screening_queue"))
        }
        Role::Capture { .. } => (EndpointRole::Capture, Some("filter_queue")),
        Role::Web { .. } | Role::Listener {} => (EndpointRole::Tcp, Some("socket_queue")),
        Role::Compute { .. } => (EndpointRole::Datagram, None),
        Role::Closed {} => (EndpointRole::Closed, Some("socket_queue")),
        _ => (EndpointRole::Datagram, Some("socket_queue")),
    })
}

fn add_process(host: &mut Host, index: usize, process: usize, consumer: &Consumer) {
    let name = if process == 0 {
        consumer.name.clone()
    } else {
        format!("{}-{process}", consumer.name)
    };
    let mut thread = Thread::new(name, Body::Consumer(index, process));
    thread.nice = consumer.nice;
    thread.priority = consumer.priority;
    thread.cpu = consumer.cpu.map(|cpu| cpu as usize);
    let thread = host.add_thread(thread);
    host.endpoints[index].threads.push(thread);
}

fn sources(scenario: &Scenario, host: &mut Host, seed: u64) -> Result<Vec<Source>, Error> {
    let made = scenario.sources.iter().enumerate().map(|(index, config)| {
        let adapter = match &config.adapter {
            Some(name) => scenario.adapter("source.adapter", name)?,
            None => 0,
        };
        host.source_adapters.push(adapter);
        host.claimed.push(Claimed::new(config, index, seed));
        let origin = Origin {
            index,
            adapter,
            to: scenario.consumer("source.to", &config.to)? as u16,
            bytes: config.bytes as u16,
            corrupt: config.corrupt,
        };
        Ok(Source::new(config, origin, seed))
    });
    made.collect()
}

fn actors(host: &Host) -> Vec<String> {
    let lines = host.lines.iter().map(|line| match line.kind {
        LineKind::Soft => format!("cpu{} software interrupt", line.cpu),
        LineKind::Trigger => format!("cpu{} trigger state", line.cpu),
        LineKind::Timer => format!("cpu{} timer", line.cpu),
        LineKind::Clock => format!("cpu{} clock", line.cpu),
        LineKind::Receive { adapter, queue } => format!("adapter {adapter} receive {queue}"),
        LineKind::Transmit { adapter } => format!("adapter {adapter} transmit"),
    });
    let threads = host.threads.iter().map(|thread| thread.name.clone());
    let first = ["idle".to_owned(), "context switch".to_owned()];
    first.into_iter().chain(lines).chain(threads).collect()
}

/// Everything that only grows, at one moment.
#[derive(Debug, Default)]
struct Snapshot {
    counts: Counts,
    sources: Vec<SourceCounts>,
    accounts: Vec<Accounts>,
    threads: Vec<u64>,
    endpoints: Vec<(u64, u64)>,
}

impl Snapshot {
    fn take(engine: &mut Engine) -> Self {
        let host = &mut engine.host;
        for cpu in 0..host.cpus.len() {
            host.account(cpu);
        }
        Self {
            counts: host.ledger.counts.clone(),
            sources: host.ledger.sources.clone(),
            accounts: host.cpus.iter().map(|cpu| cpu.accounts).collect(),
            threads: host.threads.iter().map(|thread| thread.used_ns).collect(),
            endpoints: host
                .endpoints
                .iter()
                .map(|e| (e.delivered, e.frames))
                .collect(),
        }
    }
}

fn check_balance(engine: &Engine, seed: u64) -> Result<(), Error> {
    let counts = &engine.host.ledger.counts;
    let counted = counts.ended + engine.host.held() + engine.path.held() as u64;
    if counted != counts.created {
        return Err(Error::Imbalance {
            what: "packets",
            counted,
            expected: counts.created,
            seed,
        });
    }
    let threads: u64 = engine
        .host
        .threads
        .iter()
        .map(|thread| thread.used_ns)
        .sum();
    let in_threads: u64 = engine
        .host
        .cpus
        .iter()
        .map(|cpu| cpu.accounts.threads)
        .sum();
    let total: u64 = engine
        .host
        .cpus
        .iter()
        .map(|cpu| cpu.accounts.total())
        .sum();
    let expected = engine.host.now * engine.host.cpus.len() as u64;
    if total != expected || threads != in_threads {
        return Err(Error::Imbalance {
            what: "CPU time",
            counted: total - in_threads + threads,
            expected,
            seed,
        });
    }
    Ok(())
}

fn outcome(
    profile: &Profile,
    scenario: &Scenario,
    seed: u64,
    mut engine: Engine,
    (before, after): (&Snapshot, &Snapshot),
    measured_ns: u64,
) -> Outcome {
    let grown = |count: fn(&Counts) -> u64| count(&after.counts) - count(&before.counts);
    let taken = grown(|counts| counts.taken) as f64 * 1e9 / measured_ns as f64;
    let waited = grown(|counts| counts.ring_wait_ns) as f64 / 1e3;
    let wait = waited / (grown(|counts| counts.taken) as f64).max(1.0);
    let mut extra = vec![
        ("taken_pps".to_owned(), taken),
        ("ring_wait_mean_us".to_owned(), wait),
    ];
    engine.path.figures(&engine.host, &mut extra);
    let trace = engine.host.recorder.take().map(|recorder| recorder.trace);
    Outcome {
        profile: profile.name.clone(),
        path: scenario.path.name().to_owned(),
        seed,
        measured_ns,
        offered: grown(|counts| counts.offered),
        delivered: grown(|counts| counts.delivered),
        transmitted: grown(|counts| counts.transmitted),
        losses: losses(before, after),
        cpu: cpu_time(&engine.host, before, after, measured_ns),
        consumers: consumers(scenario, &engine.host, before, after),
        sources: source_outcomes(scenario, &engine.host, before, after),
        interrupts: grown(|counts| counts.interrupts),
        soft_interrupts: grown(|counts| counts.soft_interrupts),
        polls: grown(|counts| counts.polls),
        switches: grown(|counts| counts.switches),
        extra,
        simulated_packets: after.counts.created,
        trace,
    }
}

fn losses(before: &Snapshot, after: &Snapshot) -> Vec<Loss> {
    let (before, after) = (&before.counts, &after.counts);
    let all = Place::ALL
        .into_iter()
        .enumerate()
        .map(|(index, place)| Loss {
            place,
            packets: after.lost[index] - before.lost[index],
            work_ns: after.lost_work_ns[index] - before.lost_work_ns[index],
        });
    all.filter(|loss| loss.packets > 0).collect()
}

fn cpu_time(host: &Host, before: &Snapshot, after: &Snapshot, measured_ns: u64) -> CpuTime {
    let sum = |account: fn(&Accounts) -> u64| {
        let of = |accounts: &[Accounts]| accounts.iter().map(account).sum::<u64>();
        of(&after.accounts) - of(&before.accounts)
    };
    let used =
        |index: usize| after.threads[index] - before.threads.get(index).copied().unwrap_or(0);
    let threads = host.threads.iter().enumerate();
    CpuTime {
        interrupt_ns: sum(|accounts| accounts.interrupt),
        soft_interrupt_ns: sum(|accounts| accounts.soft),
        clock_ns: sum(|accounts| accounts.clock),
        timer_ns: sum(|accounts| accounts.timer),
        switch_ns: sum(|accounts| accounts.switch),
        idle_ns: sum(|accounts| accounts.idle),
        threads: threads
            .map(|(i, thread)| (thread.name.clone(), used(i)))
            .collect(),
        total_ns: measured_ns * host.cpus.len() as u64,
    }
}

fn consumers(
    scenario: &Scenario,
    host: &Host,
    before: &Snapshot,
    after: &Snapshot,
) -> Vec<ConsumerOutcome> {
    let list = scenario.consumers.iter().enumerate();
    let made = list.map(|(index, consumer)| {
        let was = before.endpoints.get(index).copied().unwrap_or_default();
        let endpoint = &host.endpoints[index];
        let used = endpoint.threads.iter().map(|&thread| {
            after.threads[thread] - before.threads.get(thread).copied().unwrap_or(0)
        });
        ConsumerOutcome {
            name: consumer.name.clone(),
            delivered: endpoint.delivered - was.0,
            frames: endpoint.frames - was.1,
            latency: endpoint.latency.latency(),
            handover: endpoint.handover.latency(),
            cpu_ns: used.sum(),
        }
    });
    made.collect()
}

fn source_outcomes(
    scenario: &Scenario,
    host: &Host,
    before: &Snapshot,
    after: &Snapshot,
) -> Vec<SourceOutcome> {
    let list = scenario.sources.iter().enumerate();
    let made = list.map(|(index, source)| {
        let was = before.sources.get(index).copied().unwrap_or_default();
        let is = after.sources[index];
        SourceOutcome {
            name: source.name.clone(),
            sent: is.sent - was.sent,
            lost: is.lost - was.lost,
            completed: is.completed - was.completed,
            timeouts: is.timeouts - was.timeouts,
            round_trip: host.ledger.round_trips[index].latency(),
            first_latency: host.ledger.first_latencies[index].latency(),
            first_handover: host.ledger.first_handovers[index].latency(),
        }
    });
    made.collect()
}
